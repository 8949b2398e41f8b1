"""The state at a moment of a log whose head is gone: refused before its beginning, and said to lack something until a
snapshot has it all."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.cli.renderer import render
from api.cli.replay.text.state_text import state_text
from core.errors import CallerError
from core.events import WorkerLeft
from core.ids import RequestId, StreamName, StreamSeq
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING
from projections.folds.frozen_state import freeze
from replay.recording.moment import AtCursor, AtRequest, AtSequence, AtTime, Moment
from replay.state_at.state_at import summary_at
from tests.projections.facts import joined, load, stored
from tests.replay.staged import ASKED, HASHES, KV, START_MS, A, B, R, Stage

HOUR_MS = 3_600_000
CUT = {KV: 2, LOAD: 0, ROUTING: 2}


@pytest.fixture
def stage() -> Stage:
    """Two workers and a replica, and an hour later a block and two requests, a second apart each."""
    it = Stage()
    it.say(KV, A, joined("a"), stored(*HASHES[:4]))
    it.say(KV, B, joined("b"))
    it.replica(settings=RoutingSettings(policy="kv"))
    it.clock.advance(HOUR_MS)
    it.say(KV, A, stored(111))
    it.clock.advance(1000)
    it.route("r", ASKED)
    it.clock.advance(1000)
    it.route("s", ASKED)
    return it


def seq(stream: StreamName, number: int) -> AtSequence:
    return AtSequence(stream, StreamSeq(number))


BEFORE: list[tuple[Moment, str]] = [
    (AtTime(START_MS), "routing:3"),
    (AtTime(START_MS + HOUR_MS // 2), "routing:3"),
    (AtTime(START_MS + HOUR_MS), "routing:3"),
    (seq(KV, 3), "routing:3"),
    (seq(ROUTING, 2), "routing:3"),
    (AtCursor(((KV, StreamSeq(1)), (ROUTING, StreamSeq(3)))), "kv_0:3"),
]


@pytest.mark.parametrize(("moment", "first"), BEFORE, ids=str)
@pytest.mark.parametrize("replica", [None, R])
def test_before_the_log_begins_nothing_is_known(
    stage: Stage, tmp_path: Path, moment: Moment, first: str, replica: str | None
) -> None:
    """That is no empty world: it is refused, with where the log begins."""
    with (
        stage.recording(tmp_path / "log", CUT) as recording,
        pytest.raises(CallerError, match=f"this log begins at {first}, after that moment"),
    ):
        summary_at(recording, moment, replica)


def test_before_its_first_snapshot_the_silent_are_not_known(stage: Stage, tmp_path: Path) -> None:
    """Whoever had spoken before, and was not heard since: that is said, of the log's state and of a belief."""
    with stage.recording(tmp_path / "log", CUT) as recording:
        held, believed = (
            summary_at(recording, AtRequest(RequestId("s"))),
            summary_at(recording, AtRequest(RequestId("s")), R),
        )
        assert held.cut == [
            "kv_0 begins at 3, without a snapshot",
            "routing begins at 3, without a snapshot",
        ]
        assert (believed.cut, believed.seat and believed.seat.request) == (held.cut, "s")
        said = f"{', '.join(held.cut)}: sources silent since then are unknown"
        assert said in render(state_text(held))
        assert said in render(state_text(believed))
        recording.keep(recording.end, freeze(recording.state_at(recording.end)))
        assert (
            summary_at(recording, recording.end).cut == held.cut
        )  # a keyframe knows no more than what it was folded from


def test_a_snapshot_knows_the_silent(stage: Stage, tmp_path: Path) -> None:
    """From it on nothing is missing. Before it is before the beginning."""
    stage.say(LOAD, A, load())
    snapshot = stage.snapshot()
    taken_ms = stage.clock.now_ms
    stage.clock.advance(1000)
    stage.say(KV, B, WorkerLeft(reason="stop"))
    with stage.recording(tmp_path / "log", snapshot=snapshot) as recording:
        for moment in (AtTime(taken_ms), AtTime(taken_ms + 2000), seq(KV, 4)):
            held = summary_at(recording, moment)
            assert held.cut == []
            assert "a" in {worker.name for worker in held.workers}
        assert "is not known" not in render(state_text(held))
        with pytest.raises(CallerError, match="this log begins at routing:5, after that moment"):
            summary_at(recording, AtTime(taken_ms - 1))


def test_before_a_whole_log_there_was_nothing(stage: Stage, tmp_path: Path) -> None:
    """Nobody was there yet."""
    with stage.recording(tmp_path / "log") as recording:
        held = summary_at(recording, AtTime(START_MS - HOUR_MS))
        assert (held.workers, held.replicas, held.cut) == ([], [], [])
