"""Examination of one mutant: `verify` on the log with every state, and digests that the program without it recorded.

    python -m tests.mutation.examination NAME LOG [EXPECTED]

Without a name and EXPECTED it prints the digests; with both the findings, one JSON object either way.
"""

# ruff: noqa: T201 - its output is its result
from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.mutation.planting import plant

if __name__ == "__main__" and sys.argv[1] != "-":
    plant(sys.argv[1])  # before any import of the program

import msgspec

from core.ids import Epoch
from core.subjects import JOBS
from projections.folds.jobs_fold import prefill_queue
from projections.folds.snapshot import decode, encode
from projections.folds.state import State
from replay.recording.recording import RecordedFrame, Recording
from replay.verify.judge import Verdict
from replay.verify.verify import VerifyResult, verify
from replay.whatif.scenario import Scenario
from replay.whatif.whatif import what_if
from tests.replay.staged import KEY, START_MS

SNAPSHOT_EVERY = 400
"""Messages between two snapshots; the fold goes on from each."""
SCENARIOS = (
    Scenario(settings={"policy": "kv", "prefill_weight": 2, "temperature": 0.3}),
    Scenario(settings={"policy": "round-robin"}, without=("decode-1", "decode-2")),
    Scenario(settings={"policy": "time", "own_weight": 1}, delay_ms=40),
)
Digest = tuple[str, str]
"""The thing that it is of, and its hexadecimal digits."""


def fold_digests(recording: Recording) -> Iterator[Digest]:
    """Of folds and snapshots along the log, in one order."""
    state = State(KEY.chain_key)
    for stream in recording.streams:
        state.open(stream, Epoch(1))
    for number, frame in enumerate(_frames(recording), 1):
        state.fold(frame.stream, frame.seq, frame.owner, frame.message, frame.head)
        if number % SNAPSHOT_EVERY == 0:
            content = b"".join(encode(state))
            yield from _of_state(state, content)
            state = decode(KEY.chain_key, content)
    yield from _of_state(state, b"".join(encode(state)))


def what_if_digests(recording: Recording) -> Iterator[Digest]:
    """Of each answer."""
    for scenario, outcome in zip(SCENARIOS, what_if(recording, SCENARIOS), strict=True):
        yield f"what-if {scenario.label}", _digest(msgspec.json.encode(outcome))


def _of_state(state: State, content: bytes) -> Iterator[Digest]:
    for stream in sorted(state.cursor):
        yield stream, f"{state.digest_of(stream):016x}"
    wrong = state.routing.in_flight_load.differences(state.routing.load_of(), {*state.workers()})
    yield "load of requests in flight", _digest("".join(wrong).encode())
    yield "index", _digest(repr([workers for workers in state.index.audit() if workers]).encode())
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
        "gaps": len(found.gaps), "digest": found.digest,
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


def digest_finding(made: Iterator[Digest], expected: list[Digest]) -> str:
    """The first digest that is another than recorded."""
    for given, (name, digest) in zip(made, expected, strict=True):
        if given != (name, digest):
            return name
    return ""


def examine(log: Path, expected: Path | None) -> dict[str, object]:
    """The findings; without expectations, the expectations. What-if is asked only where nothing else has a finding."""
    with Recording.open(log, KEY) as recording:
        if expected is None:
            return {
                "counts": counts(verify(recording)),
                "folds": [*fold_digests(recording)],
                "what-if": [*what_if_digests(recording)],
            }
        wanted = json.loads(expected.read_text())
        folds, answers = ([(name, digest) for name, digest in wanted[key]] for key in ("folds", "what-if"))
        by_verify = verify_finding(recording, wanted["counts"])
        by_digest = by_verify.figure or _finding(lambda: digest_finding(fold_digests(recording), folds))
        if not (by_verify.difference or by_digest):
            by_digest = _finding(lambda: digest_finding(what_if_digests(recording), answers))
        return {"verify": by_verify.difference, "digest": by_digest}


def _finding(question: Callable[[], str]) -> str:
    """Its answer, or the error that it ended with."""
    try:
        return question()
    except Exception as error:
        return f"raised {type(error).__name__}"


if __name__ == "__main__":
    wanted = Path(sys.argv[3]) if len(sys.argv) > 3 else None
    print(json.dumps(examine(Path(sys.argv[2]), wanted)))
