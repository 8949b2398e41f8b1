"""Excerpt export: one request of a recording in a file of its own, which opens like any export.

Each decision of the request is played on the whole recording. The state at its very cursor, cut to its prompt, becomes
a snapshot of the file; the decision is judged there, so that the file says what the whole log could not show. All of
it is sealed with the deployment's key: no chain proves how a state was cut, nor which messages were left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec import UNSET

from core.codec import digest, newest_key
from core.errors import CallerError
from core.events import PromptBase, RequestRejected, RequestRouted
from core.ids import Epoch, ReplicaId
from core.snapshot_manifest import Manifest
from core.subjects import ROUTING
from projections.digest import FOLD_VERSION
from projections.folds.snapshot import cursor_of, encode
from projections.folds.state import State
from replay.excerpt.excerpt_messages import ExcerptMessages, ExcerptRequest
from replay.excerpt.excerpt_state import cut_to_prompt
from replay.explain.explain import explain
from replay.explain.explanation import Explanation
from replay.recording.prompt_columns import BaseFault
from replay.recording.recording import Recording
from replay.recording.request_history import PLACES, RequestAttempt
from replay.verify.judge import NOT_JUDGED, VERIFIED, Verdict, judge_at
from streams.archive.archive_format import Excerpt, ExcerptDecision, PromptColumn
from streams.archive.archive_writer import ArchiveWriter

AUTHOR = "contrail export"


class ExcerptResult(NamedTuple):
    """The content of a new excerpt."""

    request: str
    decisions: int
    not_judged: list[str]
    """Sentences: why the whole log does not show the view of a decision."""
    different: int
    """Decisions that do not follow from the whole log."""
    left_out: int
    """Messages beside the request's own that did not fit."""
    is_sealed: bool


def write_excerpt(
    recording: Recording, request: str, path: Path, *, program: str, made_ms: int, tenant: str | None = None
) -> ExcerptResult:
    """The file is the excerpt of the tenant's request, named in any way that `RequestHistory.named` reads. CallerError
    if the recording does not have it, or has some of several tenants and none is named. Folds the recording up to the
    last of its decisions, some 15 us per message."""
    contents = recording.archive.contents
    check = contents.key_check if not contents.redacted else None
    found = _request(recording, explain(recording, request, tenant, whole=False), tenant)
    writer = ArchiveWriter(path, contents.namespace, recording.chain_key, program, made_ms, check=check)
    try:
        verdicts = [_add_state(recording, writer, made_ms, *decision) for decision in found.decisions]
        messages = ExcerptMessages(recording, found)
        _add_messages(recording, writer, messages, found)
        writer.add_columns(list(_columns(recording, messages, found)))
        decisions = [
            ExcerptDecision(it.seq, it.number, it.reason, it.why) if it.verdict == NOT_JUDGED else
            ExcerptDecision(it.seq, it.number)
            for it in verdicts
        ]  # fmt: skip
        times = [tried.time_ms for tried in found.tries]
        plain = writer.contents(min(times), 0, redacted=contents.redacted)
        excerpt = Excerpt(request=found.tries[-1].request, decisions=decisions, left_out=messages.left_out)
        writer.finish(plain.excerpted(excerpt, recording.chain_key))
    except BaseException:  # of any kind: half a file is of no use
        writer.abandon()
        raise
    return ExcerptResult(
        request=excerpt.request,
        decisions=len(decisions),
        not_judged=[it.why for it in verdicts if it.verdict == NOT_JUDGED],
        different=sum(it.verdict not in {VERIFIED, NOT_JUDGED} for it in verdicts),
        left_out=messages.left_out,
        is_sealed=bool(recording.chain_key),
    )


def _request(recording: Recording, explanation: Explanation, tenant: str | None) -> ExcerptRequest:
    uses = recording.requests.uses_of(explanation.request, tenant)
    last = next((tries for tries in reversed(uses) if any(tried.worker for tried in tries)), uses[-1])
    events = dict(recording.whole_events([tried.at for tried in last]))
    decisions = []
    for tried in last:
        event = events.get(tried.at)
        if isinstance(event, RequestRouted | RequestRejected):
            decisions.append((tried, event))
    if not decisions:
        raise CallerError(
            f"request {explanation.request} has no decision in this log: it was turned away before one, or by a newer "
            "program; `contrail explain` says how it ended"
        )
    return ExcerptRequest([tried for tries in uses for tried in tries], decisions, _named(explanation))


def _named(explanation: Explanation) -> list[str]:
    """Other requests in the explanation."""
    found = dict[str, None]()
    for attempt in explanation.attempts:
        if attempt.reuse is not None and attempt.reuse.request:
            found[attempt.reuse.request] = None
        if attempt.hold is not None:
            found.update(dict.fromkeys(each.request for each in attempt.hold.by))
            found.update(dict.fromkeys(each.request for each in attempt.hold.beside))
    return list(found)


def _add_state(
    recording: Recording,
    writer: ArchiveWriter,
    made_ms: int,
    tried: RequestAttempt,
    event: RequestRouted | RequestRejected,
) -> Verdict:
    """The file has the state of the decision; its verdict by the whole recording."""
    hashes = event.hashes if isinstance(event, RequestRouted) and event.base is UNSET else b""
    judged = judge_at(recording, tried.at, ReplicaId(tried.replica))
    if judged is None:
        raise CallerError(
            f"the decision at {ROUTING}:{tried.seq} cannot be played: `contrail replay verify` says what is wrong there"
        )
    cut = cut_to_prompt(judged.at.view.state, hashes)
    content = b"".join(encode(cut))
    writer.add_snapshot(_manifest(cut, content, f"{tried.request}-{tried.at}", made_ms, recording.chain_key), content)
    return judged.verdict


def _manifest(state: State, content: bytes, id: str, made_ms: int, chain_key: bytes) -> Manifest:
    return Manifest(
        id=id,
        fold_version=FOLD_VERSION,
        made_ms=made_ms,
        by=AUTHOR,
        fence=0,
        cursor=cursor_of(state),
        digest=f"{state.digest:016x}",
        incomplete=state.incomplete,
        chunks=0,
        first_seq=0,
        size_bytes=len(content),
        checksum=digest(content, newest_key(chain_key)).hex() if chain_key else "",
    )


def _add_messages(
    recording: Recording, writer: ArchiveWriter, messages: ExcerptMessages, request: ExcerptRequest
) -> None:
    for stream in recording.streams:
        span = recording.archive.span(stream)
        seqs = sorted(seq for name, seq in messages.places if name == stream)
        places = [event.cursor[stream][1] for _, event in request.decisions if stream in event.cursor]
        first, last = min([*seqs, *(place + 1 for place in places)], default=1), max([*seqs, *places], default=0)
        writer.open(stream, Epoch(span.epoch), first, span.log_first_seq)
        for seq in seqs:
            record = recording.archive.at(stream, seq)
            if record is not None:
                writer.add(record)
        writer.reached(stream, last)


def _columns(recording: Recording, messages: ExcerptMessages, request: ExcerptRequest) -> Iterator[PromptColumn]:
    """The prompts that its decisions continue, of decisions that are not in the file."""
    for _, event in recording.events([tried.at for tried, _ in request.decisions]):
        base = event.base if isinstance(event, RequestRouted) else UNSET
        while isinstance(base, PromptBase):
            place = base.decision
            before = next((it for _, it in recording.events([place[0] * PLACES + place[1]])), None)
            if (ROUTING, place[0]) in messages.places and isinstance(before, RequestRouted):
                base = before.base
                continue
            column: bytes | BaseFault | None = recording.archive.columns.get(place)
            if column is None and isinstance(before, RequestRouted):
                column = recording.columns.of(*place, before)
            if isinstance(column, bytes):
                yield PromptColumn(*place, column)
            break
