"""Deaths of workers and replicas in a log made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from core.events import ReplicaJoined, ReplicaLeft, ReplicaLost, WorkerLeft, WorkerLost
from core.events.routing import PROGRAM_VERSION
from core.ids import LOST_SUFFIX, ReplicaId
from core.subjects import ROUTING
from replay.explain.death_list import JOINED_BEFORE_MS, REPLICA, WORKER, Death, complete_from_ms, list_deaths
from tests.projections.facts import finished, joined, prompt, worker_id
from tests.replay.staged import KV, START_MS, A, B, R, S, Stage

NEXT = worker_id(9)


@pytest.fixture
def stage() -> Stage:
    it = Stage()
    it.pair()
    it.replica()
    it.replica(S, "r2")
    return it


def lost_worker(stage: Stage, worker: str = A, source: str = "") -> None:
    stage.say(KV, source or f"{worker}{LOST_SUFFIX}", WorkerLost(by=R, reason="no lease"), about=worker)


def lost_replica(stage: Stage, replica: ReplicaId = S) -> None:
    stage.say(ROUTING, f"{replica}{LOST_SUFFIX}", ReplicaLost(by=R, reason="no lease"), about=replica)


def deaths(stage: Stage, folder: Path, from_ms: int = 0) -> list[Death]:
    """Those from so long after the log's start on."""
    with stage.recording(folder / "log") as recording:
        return list_deaths(recording, START_MS + from_ms)


def test_a_worker_with_the_attempts_that_broke_off(stage: Stage, tmp_path: Path) -> None:
    """Attempts that ended otherwise do not count, nor those of another worker."""
    for number, outcome in enumerate(("worker_lost", "worker_lost", "stop", "error")):
        stage.tell(replace(stage.decided(f"r{number}", prompt(number)), worker=A))
        stage.tell(replace(finished(f"r{number}"), outcome=outcome))
    stage.clock.advance(700)
    lost_worker(stage)
    lost_worker(stage)
    assert deaths(stage, tmp_path) == [
        Death(
            kind=WORKER, id=A, name="left", time_ms=START_MS + 700, by="r1", reason="no lease", attempts=2,
        )
    ]  # fmt: skip


def test_a_replica_with_what_it_had_under_way(stage: Stage, tmp_path: Path) -> None:
    stage.tell(stage.decided("r", prompt(1), replica=S), replica=S)
    stage.tell(stage.decided("other", prompt(2)))
    stage.clock.advance(50)
    lost_replica(stage)
    (found,) = deaths(stage, tmp_path)
    assert (found.kind, found.name, found.time_ms, found.by, found.attempts) == (REPLICA, "r2", START_MS + 50, "r1", 1)


def test_a_later_one_of_the_name_is_back(stage: Stage, tmp_path: Path) -> None:
    """Also one that joined before its earlier life was found dead; an earlier life that joined before is not."""
    stage.clock.advance(500)
    stage.say(KV, NEXT, joined("left"))
    lost_worker(stage, A)
    lost_worker(stage, B)
    stage.clock.advance(500)
    stage.say(KV, worker_id(8), joined("right"))
    stage.clock.advance(500)
    lost_worker(stage, worker_id(8))
    lost_replica(stage)
    stage.clock.advance(500)
    stage.say(ROUTING, "cc" * 8, ReplicaJoined(name="r2", version=PROGRAM_VERSION))
    assert {death.id: death.back_ms for death in deaths(stage, tmp_path)} == {
        A: START_MS + 500,
        B: START_MS + 1_000,
        worker_id(8): None,
        S: START_MS + 2_000,
    }


@pytest.mark.parametrize(("before_ms", "is_back"), [(JOINED_BEFORE_MS, True), (JOINED_BEFORE_MS + 1, False)])
def test_joins_a_little_before_the_range_count(stage: Stage, tmp_path: Path, before_ms: int, *, is_back: bool) -> None:
    """The dead one itself joined long before."""
    stage.clock.advance(2 * JOINED_BEFORE_MS)
    stage.say(KV, NEXT, joined("left"))
    stage.clock.advance(before_ms)
    lost_worker(stage, A)
    (found,) = deaths(stage, tmp_path, 2 * JOINED_BEFORE_MS + before_ms)
    assert found.back_ms == (START_MS + 2 * JOINED_BEFORE_MS if is_back else None)


def test_an_orderly_end_is_no_death(stage: Stage, tmp_path: Path) -> None:
    """Neither is a message of another source."""
    stage.say(KV, A, WorkerLeft(reason="drained"))
    stage.tell(ReplicaLeft(reason="stopped"), replica=S)
    lost_worker(stage, B, source=B)
    assert deaths(stage, tmp_path) == []


@pytest.mark.parametrize(("from_ms", "count"), [(700, 1), (701, 0)])
def test_earlier_deaths_are_left_out(stage: Stage, tmp_path: Path, from_ms: int, count: int) -> None:
    stage.clock.advance(700)
    lost_worker(stage)
    stage.clock.advance(700)
    stage.say(KV, B, joined("right"))
    assert len(deaths(stage, tmp_path, from_ms)) == count


def test_the_time_from_which_all_are_known(stage: Stage, tmp_path: Path) -> None:
    """The log's start, the snapshot, or the first message of the stream that begins last."""
    with stage.recording(tmp_path / "whole") as recording:
        assert complete_from_ms(recording) == 0
    stage.clock.advance(100)
    snapshot = stage.snapshot()
    stage.clock.advance(100)
    stage.say(KV, A, joined("left"))
    stage.clock.advance(100)
    stage.replica(S, "r2")
    with stage.recording(tmp_path / "snapshot", snapshot=snapshot) as recording:
        assert complete_from_ms(recording) == START_MS + 100
    with stage.recording(tmp_path / "cut", cut={KV: 2}) as recording:
        assert complete_from_ms(recording) == START_MS + 200
    with stage.recording(tmp_path / "both", cut={KV: 2, ROUTING: 2}) as recording:
        assert complete_from_ms(recording) == START_MS + 300
