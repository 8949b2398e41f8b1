"""The workers of a record, as lives that a simulation can be told."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from core.errors import CallerError
from core.events import WorkerLeft, WorkerLost
from core.ids import LOST_SUFFIX, WorkerId
from core.subjects import LOAD
from replay.closed_loop.recorded_fleet import RecordedFleet, read_fleet
from replay.simulate.options import FOREVER, WorkerLife
from replay.simulate.recorded_requests import RecordedRequests, read_requests
from tests.projections.facts import finished, joined, prompt, routed
from tests.replay.staged import KV, START_MS, A, B, C, R, Stage


@pytest.fixture
def stage() -> Stage:
    """A worker is there; a second after that comes a request, and four seconds later another."""
    it = Stage()
    it.say(KV, A, joined("left"))
    it.replica(R)
    it.clock.advance(1000)
    serve(it, "first")
    it.clock.advance(4000)
    return it


def serve(it: Stage, request: str, outcome: str = "stop") -> None:
    """It took 30 ms, on the first worker."""
    end = msgspec.structs.replace(finished(request), outcome=outcome, output_tokens=2, ttft_ms=10, duration_ms=30)
    it.tell(routed(request, A, prompt(1), now_ms=it.clock.now_ms), end)


def read(it: Stage, path: Path) -> tuple[RecordedFleet, RecordedRequests]:
    with it.recording(path / "log") as recording:
        past = read_requests(recording)
        return read_fleet(recording, past), past


def lost(it: Stage, worker: str) -> None:
    for stream in (KV, LOAD):
        it.say(stream, worker + LOST_SUFFIX, WorkerLost(by=R, reason="silent"), about=worker)


def test_who_was_there_from_the_start_is(stage: Stage, tmp_path: Path) -> None:
    """However long before the first request that was; others come when they came."""
    stage.say(KV, B, msgspec.structs.replace(joined("right"), capacity_blocks=70, context_max=9000))
    workers, past = read(stage, tmp_path)
    assert past.start_ms == START_MS + 1000
    assert workers.names == ["left", "right"]
    assert workers.worker_lives(past) == (
        WorkerLife(0, capacity_blocks=1000),
        WorkerLife(1, 4_000_000, capacity_blocks=70),
    )
    assert workers.worker_lives(past, as_engine=True) == (WorkerLife(0), WorkerLife(1, 4_000_000))
    assert (workers.place_of(A), workers.place_of(B), workers.place_of(C)) == (0, 1, -1)
    assert (workers.context_max, workers.warm) == (9000, False)


def test_who_says_again_who_it_is_lives_once(stage: Stage, tmp_path: Path) -> None:
    stage.say(KV, A, joined("left"))
    workers, past = read(stage, tmp_path)
    assert workers.worker_lives(past) == (WorkerLife(0, capacity_blocks=1000),)


def test_who_left_is_gone_from_then_on(stage: Stage, tmp_path: Path) -> None:
    """The next one of its name takes its place."""
    stage.say(KV, A, WorkerLeft(reason="drained"))
    stage.clock.advance(500)
    stage.say(KV, B, joined("left"))
    workers, past = read(stage, tmp_path)
    assert workers.names == ["left"]
    assert workers.worker_lives(past) == (
        WorkerLife(0, 0, 4_000_000, FOREVER, 1000),
        WorkerLife(0, 4_500_000, FOREVER, FOREVER, 1000),
    )


def test_who_was_lost_ends_when_it_broke_off(stage: Stage, tmp_path: Path) -> None:
    """The log hears of it later."""
    serve(stage, "broken", "worker_lost")
    stage.clock.advance(2000)
    lost(stage, A)
    workers, past = read(stage, tmp_path)
    assert workers.worker_lives(past) == (WorkerLife(0, 0, 4_030_000, 6_000_000, 1000),)


def test_who_was_lost_with_nothing_to_do_ends_when_that_is_told(stage: Stage, tmp_path: Path) -> None:
    lost(stage, A)
    workers, past = read(stage, tmp_path)
    assert workers.worker_lives(past) == (WorkerLife(0, 0, 4_000_000, 4_000_000, 1000),)


def test_without_some(stage: Stage, tmp_path: Path) -> None:
    """Places are those of the others."""
    stage.say(KV, B, joined("right"))
    workers, past = read(stage, tmp_path)
    others = workers.without({WorkerId(A)})
    assert others.names == ["right"]
    assert [stay.place for stay in others.worker_lives(past)] == [0]
    with pytest.raises(CallerError, match="no worker is left to run the requests on"):
        workers.without({WorkerId(A), WorkerId(B)})


def test_a_log_cut_by_retention_has_its_workers_from_a_snapshot(stage: Stage, tmp_path: Path) -> None:
    """The export is whole, so its spans begin at 1; the log kept only the messages behind the snapshot."""
    snapshot = stage.snapshot()
    serve(stage, "second")
    with stage.recording(tmp_path / "log", snapshot=snapshot) as recording:
        spans = recording.archive.contents.streams
        spans.update({stream: msgspec.structs.replace(span, first_seq=1) for stream, span in spans.items()})
        workers = read_fleet(recording, read_requests(recording))
    assert (workers.names, workers.warm) == (["left"], True)


def test_others_do_not_count(stage: Stage, tmp_path: Path) -> None:
    """Who serves another model, or computes prompts for others; and who was gone before the first request."""
    stage.say(KV, B, msgspec.structs.replace(joined("large"), model="large"))
    stage.say(KV, C, msgspec.structs.replace(joined("helper"), role="prefill"))
    assert read(stage, tmp_path)[0].names == ["left"]


def test_nobody_is_known(tmp_path: Path) -> None:
    it = Stage()
    it.replica(R)
    serve(it, "first")
    with pytest.raises(CallerError, match="does not tell what its workers were like"):
        read(it, tmp_path)
