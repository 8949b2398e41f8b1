"""Evidence: reasons why a recording may not show the view of a decision, and places where a replica's fold agreed.

A gap of the recording can matter to a decision only if it mattered to its replica's fold. So where a replica reported
the digest of its fold, and the log's fold has the same, no gap before that place made a difference to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from core.codec import decode_message
from core.errors import Corrupt
from core.events import ReplicaReported, RequestRejected, RequestRouted
from core.events.routing import PROGRAM_VERSION
from core.ids import Epoch, ReplicaId, StreamName, StreamSeq, from_column
from core.subjects import JOBS, ROUTING, owner
from projections.folds.state import DigestPoint
from projections.policy.rules import RULES
from replay.playback.fold_reports import FoldReport, fold_reports_of
from replay.playback.playback import Playback, RecordedDecision, RecordedRefusal
from replay.playback.replica_state import ReplicaState
from replay.recording.gaps import CUT, Gaps
from replay.recording.recording import Recording

CLOCKS_MS = 5000
"""The greatest difference between a replica's clock and the log's."""


def unverifiable_reasons(
    playback: Playback,
    at: RecordedDecision | RecordedRefusal,
    agreed: Mapping[StreamName, int] = MappingProxyType({}),
) -> dict[str, str]:
    """Reasons why the recording may not show the view of a decision, by kind (`cut`, `gap`, `unknown`, `deleted`,
    `replaced`, `end`, `settings`, `version`), each with one sentence. Empty if no gap is known. Some 3 us.

    `at` is the decision or refusal that the playback gave last. `agreed`: per stream the last place at which the
    replica reported the same fold as the log's (`FoldAgreements`)."""
    replica_state, event, gaps = at.replica_state, at.event, playback.gaps
    reasons = dict(replica_state.unverifiable)
    if why := newer_rules(playback.recording, at):
        reasons["version"] = why
    if replica_state.revision != event.settings_revision:
        reasons["settings"] = f"revision {event.settings_revision} of the settings is not here"
    if stream := playback.replaced_stream(event):
        epoch = event.cursor[stream][0]
        reasons["replaced"] = f"{stream} was made anew: the history of its epoch {epoch} is not here"
    cursor = {name: at for name, at in event.cursor.items() if name != JOBS}  # no decision rests on jobs
    epochs, ends = playback.source.epochs, playback.source.ends
    for stream, (epoch, seq) in ((StreamName(name), at) for name, at in cursor.items()):
        if epochs.get(stream) == epoch and seq > ends[stream]:
            reasons["end"] = f"{stream}:{seq} was read by then, and the recording ends at {ends[stream]}"
    if replica_state.cut or replica_state.state.incomplete:
        reasons.update(_half_known(replica_state, event, gaps, agreed))
    if gaps.all:
        reasons.update(gaps.at(cursor, agreed))
    return reasons


def newer_rules(recording: Recording, at: RecordedDecision | RecordedRefusal) -> str:
    """One sentence if this program lacks the rules of the decision because a newer program made it, by the version
    with which its replica joined. Empty if nothing shows that."""
    version = at.event.decide_version
    if version <= max(RULES):
        return ""
    program = recording.replicas.versions.get(at.replica, "")
    if not is_newer_program(program):
        return ""
    name = recording.names.replica(at.replica)
    return (
        f"decided by version {version} of the rules; {name} is of version {program} of the program, and this one, "
        f"{PROGRAM_VERSION}, has no rules beyond version {max(RULES)}"
    )


def is_newer_program(version: str) -> bool:
    """True if a program of that version is newer than this one."""
    return _release(version) > _release(PROGRAM_VERSION)


def _release(version: str) -> list[int]:
    """The numbers of a program's version, without any suffix; none if it has no numbers."""
    found = re.match(r"\d+(\.\d+)*", version, re.ASCII)
    return [int(number) for number in found[0].split(".")] if found else []


def history_replaced(recording: Recording, event: RequestRouted | RequestRejected, time_ms: int) -> str:
    """One sentence if the cursor names a message that was stored only after the decision: then the log had lost what
    the replica had read, and used its places again. Empty if nothing shows that. Reads a block or two."""
    for name, (_, seq) in event.cursor.items():
        stream = StreamName(name)
        record = recording.archive.at(stream, seq) if stream in recording.streams else None
        if record is not None and record.time_ms > min(time_ms, event.now_ms + CLOCKS_MS):
            return f"{stream}:{seq} was read by then, and what stands there was stored later: history was replaced"
    return ""


def _half_known(
    replica_state: ReplicaState, event: RequestRouted | RequestRejected, gaps: Gaps, agreed: Mapping[StreamName, int]
) -> Iterator[tuple[str, str]]:
    """Gaps that the fold itself knows. Not those that the replica knew too, by its record: it decided with them."""
    for cut, how in replica_state.cut.items():
        if cut not in agreed and cut != JOBS:
            yield CUT, how
    if ROUTING in replica_state.cut and not replica_state.settings_known:
        yield "settings", f"the settings of {replica_state.replica} were said before the recording begins"
    admitted = _recorded_as_unknown(event)
    for stream, kv in replica_state.state.kv.items():
        for worker in sorted(kv.unknown - admitted):
            yield gaps.kind(stream, worker), f"the cache of worker {worker} is not known until it restates it"
    for replica in sorted(replica_state.state.routing.unknown):
        if replica == replica_state.replica:
            yield "unknown", f"a message of {replica} is missing, and it has not restated itself since"
        else:
            kind = CUT if ROUTING in replica_state.cut else gaps.kind(ROUTING, replica)
            yield kind, f"what replica {replica} has in flight is not known until it restates it"


def _recorded_as_unknown(event: RequestRouted | RequestRejected) -> set[str]:
    if not isinstance(event, RequestRouted):
        return set()
    known = event.columns.get("known", ())
    return {worker for worker, at in zip(from_column(event.candidates), known, strict=False) if not at}


REPORTED = ReplicaReported.__name__.encode()
"""Stands in every message that has such an event, and in few others."""


def fold_reports(recording: Recording) -> Iterator[FoldReport]:
    """All reports of replicas on folds of this version, in the order of the log."""
    for record in recording.archive.read(ROUTING) if ROUTING in recording.streams else ():
        if REPORTED not in record.payload:
            continue
        try:
            message = decode_message(record.payload)
        except Corrupt:
            continue
        if message.source == owner(record.subject):
            for event in message.events:
                if isinstance(event, ReplicaReported):
                    yield from fold_reports_of(ReplicaId(message.source), record.seq, record.time_ms, event)


class LogFolds:
    """The log's folds at chosen places; each stream is folded once, alone."""

    def __init__(self, recording: Recording, places: Mapping[StreamName, set[StreamSeq]]) -> None:
        """O(all messages up to the last of these places)."""
        self._points: dict[tuple[StreamName, StreamSeq], DigestPoint] = {}
        for stream, seqs in sorted(places.items()):
            if stream in recording.streams:
                self._fold(recording, stream, sorted(seqs))

    def __repr__(self) -> str:
        return f"<LogFolds at {len(self._points)} places>"

    def at(self, stream: StreamName, seq: StreamSeq) -> DigestPoint | None:
        """The fold after that message; None if the recording does not hold it."""
        return self._points.get((stream, seq))

    def _fold(self, recording: Recording, stream: StreamName, seqs: list[StreamSeq]) -> None:
        """A fold that lacks something goes on from the next snapshot."""
        epoch, last = Epoch(recording.archive.span(stream).epoch), recording.end[stream]
        saved = [at.seq for each in recording.archive.snapshots() if (at := each.cursor.get(stream)) is not None]
        state, is_whole = recording.state_before(recording.start), False
        for seq in seqs:
            folded = state.open(stream, epoch)
            if not max(folded, recording.start[stream]) < seq <= last:
                continue
            if not is_whole and any(folded < each <= seq for each in saved):
                later = recording.state_before({**recording.end, stream: seq})
                state = later if later.open(stream, epoch) > folded else state
            recording.advance(state, stream, seq)
            point = state.point(stream, seq)
            is_whole = point is not None and point.complete
            if point is not None:
                self._points[stream, seq] = point


class FoldAgreements:
    """The places at which each replica is known to have had the log's folds."""

    def __init__(self, recording: Recording) -> None:
        """Folds the recording once."""
        reports = [each for each in fold_reports(recording) if _here(recording, each)]
        places: dict[StreamName, set[StreamSeq]] = {}
        for each in reports:
            places.setdefault(each.stream, set()).add(each.seq)
        folds = LogFolds(recording, places)
        self._agreed: dict[ReplicaId, list[FoldReport]] = {}
        for each in reports:
            point = folds.at(each.stream, each.seq)
            if point is not None and point.complete and (point.digest, point.head) == (each.digest, each.head):
                self._agreed.setdefault(each.replica, []).append(each)

    def __repr__(self) -> str:
        return f"<FoldAgreements of {len(self._agreed)} replicas>"

    def before(self, replica: ReplicaId, seq: int) -> dict[StreamName, StreamSeq]:
        """Per stream the last place at which the replica's fold agreed, by its reports before that message."""
        found: dict[StreamName, StreamSeq] = {}
        for each in self._agreed.get(replica, ()):
            if each.at < seq:
                found[each.stream] = max(each.seq, found.get(each.stream, StreamSeq(0)))
        return found


def _here(recording: Recording, each: FoldReport) -> bool:
    return each.stream in recording.streams and recording.archive.span(each.stream).epoch == each.epoch
