"""Examination of one mutant: `verify` on the log with every state, and digests that the program without it recorded.

    python -m tests.mutation.examination NAME LOG [EXPECTED]

Without a name and EXPECTED it prints the digests; with both the findings, one JSON object either way.
"""

# ruff: noqa: T201 - its output is its result
from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.mutation.planting import plant, planted

if __name__ == "__main__" and sys.argv[1] != "-":
    plant(sys.argv[1])  # before any import of the program

import msgspec

from core.events import CacheCleared, CacheRestated
from core.ids import Epoch
from core.settings import TIERS
from core.subjects import JOBS
from projections.folds.jobs_fold import prefill_queue
from projections.folds.snapshot import decode, encode
from projections.folds.state import State
from projections.policy.column_decision import decide_by_columns
from replay.playback.playback import Playback
from replay.recording.gaps import Gaps
from replay.recording.recording import RecordedFrame, Recording
from replay.redact.redaction import redact
from replay.verify.judge import Verdict
from replay.verify.verify import VerifyResult, verify
from replay.whatif.scenario import Scenario
from replay.whatif.whatif import what_if
from streams.archive.archive_reader import ArchiveReader
from tests.mutation.rare_states import NAMES, SCENARIO_DELAY_MS
from tests.mutation.wrong_records import LACKS, findings, write_logs
from tests.replay.staged import KEY, START_MS

SNAPSHOT_EVERY = 400
"""Messages between two snapshots; the fold goes on from each. Others are taken where something is half done."""
WRONG = "wrong-records"
"""The folder with the logs of `wrong_records`, beside the log with every state."""
SCENARIOS = (
    Scenario(settings={"policy": "kv", "prefill_weight": 2, "temperature": 0.3}),
    Scenario(settings={"policy": "round-robin"}, without=("decode-1", "decode-2")),
    Scenario(settings={"policy": "time", "own_weight": 1}, delay_ms=SCENARIO_DELAY_MS),
    Scenario(settings={"policy": "round-robin"}, without=tuple(NAMES[2:])),
)
JUDGING = frozenset({"decision counts", "clock offsets", "excuses", "export", "redaction", "columns", "judge"})
"""Areas without a part in folds and in the rules: the log is not folded again for their mutants."""
WRONG_RECORDS = frozenset({"judge", "excuses"})
"""Areas for whose mutants wrong records are judged again."""
Digest = tuple[str, str]
"""The thing that it is of, and its hexadecimal digits."""


def fold_digests(recording: Recording) -> Iterator[Digest]:
    """Of folds and snapshots along the log, in one order."""
    state = State(KEY.chain_key)
    for stream in recording.streams:
        state.open(stream, Epoch(1))
    for number, frame in enumerate(_frames(recording), 1):
        state.fold(frame.stream, frame.seq, frame.owner, frame.message, frame.head)
        if number % SNAPSHOT_EVERY == 0 or _is_half_done(frame):
            content = b"".join(encode(state))
            yield from _of_state(state, content)
            state = decode(KEY.chain_key, content)
    yield from _of_state(state, b"".join(encode(state)))


def _is_half_done(frame: RecordedFrame) -> bool:
    """True behind a part of a restatement, and where blocks of a worker are still to be swept out of the index."""
    return frame.message is not None and any(
        isinstance(event, CacheCleared) or (isinstance(event, CacheRestated) and event.part + 1 < event.parts)
        for event in frame.message.events
    )


def what_if_digests(recording: Recording) -> Iterator[Digest]:
    """Of each answer."""
    for scenario, outcome in zip(SCENARIOS, what_if(recording, SCENARIOS), strict=True):
        yield f"what-if {scenario.label}", _digest(msgspec.json.encode(outcome))


def column_digests(recording: Recording) -> Iterator[Digest]:
    """Of each recorded decision, made by columns."""
    for at in Playback(recording, gaps=Gaps()):
        found = decide_by_columns(at.view, at.request, at.settings, at.event.now_ms, at.event.seed)
        name = f"by columns, policy {at.settings.policy}"
        yield name, _digest(repr(found._replace(ranked=[*found.ranked])).encode())


def redaction_digests(log: Path) -> Iterator[Digest]:
    """Of the log without names: its events, and the findings of verify."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "redacted.contrail"
        with ArchiveReader.open(log) as source:
            done = redact(source, path, KEY.chain_key, program="contrail test", made_ms=START_MS)
        with Recording.open(path) as redacted:
            events = [frame.message.events for frame in _frames(redacted) if frame.message is not None]
            yield "redacted events", _digest(repr((done, events)).encode())
            found = verify(redacted)
            yield "redacted log", _digest(repr((found.decisions, found.verified, len(found.proof.breaks))).encode())


def _of_state(state: State, content: bytes) -> Iterator[Digest]:
    for stream in sorted(state.cursor):
        yield stream, f"{state.digest_of(stream):016x}"
    wrong = state.routing.in_flight_load.differences(state.routing.load_of(), {*state.workers()})
    yield "load of requests in flight", _digest("".join(wrong).encode())
    yield "index", _digest(repr([workers for workers in state.index.audit() if workers]).encode())
    blocks = [(worker, tier, state.index.blocks(worker, tier)) for worker in sorted(state.workers()) for tier in TIERS]
    yield "numbers of blocks", _digest(repr(blocks).encode())
    yield "tombstones", _digest(repr([[*state.projection(stream).ended] for stream in sorted(state.cursor)]).encode())
    if JOBS in state.cursor:
        yield "prefill queue", _digest(repr(prefill_queue(state.jobs, START_MS)).encode())
    yield "snapshot", _digest(content)


def _frames(recording: Recording) -> list[RecordedFrame]:
    frames = [frame for stream in recording.streams for frame in recording.frames(stream)]
    return sorted(frames, key=lambda frame: (frame.time_ms, frame.stream, frame.seq))


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def counts(found: VerifyResult) -> dict[str, object]:
    """The figures of verify that must be as they are without the mutant."""
    refusals, prefills = found.refusals, found.prefills
    return {
        "decisions verified": found.verified, "decisions not judged": found.not_judged,
        "refusals verified": refusals.verified, "verdicts verified": prefills.verified,
        "jobs": msgspec.to_builtins(prefills.jobs), "folds compared": found.folds.compared,
        "gaps": len(found.gaps), "decision counts": msgspec.to_builtins(found.counts),
        "decisions missing": len(found.counts.unexplained),
        "clock offsets": msgspec.to_builtins(found.proof.clock_offsets), "digest": found.digest,
    }  # fmt: skip


class _Differs(Exception):
    """A decision differs in this term: no other has to be made again."""


def _stop(verdict: Verdict) -> None:
    if verdict.difference is not None:
        raise _Differs(verdict.difference.term)


class VerifyFinding(NamedTuple):
    """The finding of verify, and a figure of it that the program without the mutant does not give."""

    difference: str = ""
    figure: str = ""


def verify_finding(recording: Recording, expected: dict[str, object]) -> VerifyFinding:
    """The term of the first difference of a decision, a fold or a verdict; else the first other figure."""
    try:
        found = verify(recording, on_verdict=_stop)
    except _Differs as difference:
        return VerifyFinding(str(difference))
    except Exception as error:
        return VerifyFinding(f"raised {type(error).__name__}")
    if found.folds.differences:
        return VerifyFinding(f"fold of {found.folds.differences[0].stream}")
    if found.prefills.differences:
        return VerifyFinding(f"prefill {found.prefills.differences[0].term}")
    others = [name for name, value in counts(found).items() if value != expected[name]]
    return VerifyFinding(figure=f"figures of verify: {others[0]}" if others else "")


def wrong_record_finding(logs: Path, expected: dict[str, list[list[str]]]) -> str:
    """The first log, and the record in it, of which verify says another thing than expected."""
    for name in LACKS:
        for found, (record, *rest) in zip(findings(logs / name), expected[name], strict=True):
            if found != (record, *rest):
                return f"{name}: {record}"
    return ""


def digest_finding(made: Iterator[Digest], expected: list[Digest]) -> str:
    """The first digest that is another than recorded."""
    for given, (name, digest) in zip(made, expected, strict=True):
        if given != (name, digest):
            return name
    return ""


def examine(log: Path, expected: Path | None) -> dict[str, object]:
    """The findings; without expectations, the expectations. What-if is asked only where nothing before has a finding,
    and nothing is asked if no module that reads logs imports the mutant's."""
    found = planted()
    if expected is None or found is None:
        return expectations(log)
    if found.module not in sys.modules:
        return {"verify": "", "digest": ""}
    wanted, area = json.loads(expected.read_text()), found.mutant.area

    def first(kind: str, made: Callable[[], Iterator[Digest]]) -> str:
        return _finding(lambda: digest_finding(made(), [(name, digest) for name, digest in wanted[kind]]))

    with Recording.open(log, KEY) as recording:
        by_verify = verify_finding(recording, wanted["counts"])
        if area in WRONG_RECORDS and not any(by_verify):
            again = _finding(lambda: wrong_record_finding(log.with_name(WRONG), wanted["wrong records"]))
            by_verify = VerifyFinding(again)
        by_digest = by_verify.figure
        if not by_digest and area not in JUDGING:
            by_digest = first("folds", lambda: fold_digests(recording))
            if not (by_verify.difference or by_digest):
                by_digest = first("what-if", lambda: what_if_digests(recording))
        if area == "columns":
            by_digest = first("columns", lambda: column_digests(recording))
        if area == "redaction" and not (by_verify.difference or by_digest):
            by_digest = first("redaction", lambda: redaction_digests(log))
        return {"verify": by_verify.difference, "digest": by_digest}


def expectations(log: Path) -> dict[str, object]:
    """All that the program finds in the log, and in logs with wrong records, which it writes beside it."""
    logs = log.with_name(WRONG)
    logs.mkdir()
    write_logs(logs)
    with Recording.open(log, KEY) as recording:
        return {
            "counts": counts(verify(recording)),
            "folds": [*fold_digests(recording)],
            "what-if": [*what_if_digests(recording)],
            "columns": [*column_digests(recording)],
            "redaction": [*redaction_digests(log)],
            "wrong records": {name: [*findings(logs / name)] for name in LACKS},
        }


def _finding(question: Callable[[], str]) -> str:
    """Its answer, or the error that it ended with."""
    try:
        return question()
    except Exception as error:
        return f"raised {type(error).__name__}"


if __name__ == "__main__":
    wanted = Path(sys.argv[3]) if len(sys.argv) > 3 else None
    print(json.dumps(examine(Path(sys.argv[2]), wanted)))
