"""Workers that come and go when a run is told so, and requests that come after the end of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.errors import CallerError
from core.events import RequestRouted, WorkerJoined, WorkerLost
from core.ids import RequestId
from core.subjects import ROUTING
from replay.simulate.options import Options, WorkerLife
from replay.simulate.simulated_log import KV
from replay.simulate.simulation import simulate
from replay.simulate.workload import FollowUp
from tests.replay.simulate.families import ENGINE, families
from tests.replay.simulate.said import said

ARRIVALS = families(100, output_tokens=40)
"""Two seconds of them."""


def options(*stays: WorkerLife) -> Options:
    return Options(workers=2, engine=ENGINE, stays=stays)


def test_they_are_there_from_then_to_then(tmp_path: Path) -> None:
    """One of them with a cache of its own; of one that was lost the log hears later, and what it had goes on."""
    stays = (WorkerLife(0, 0, 1_500_000, 1_700_000), WorkerLife(1, 500_000, capacity_blocks=77))
    found = simulate(options(*stays), ARRIVALS, archive=tmp_path / "log").served

    joined = [each for each in said(tmp_path / "log", KV) if isinstance(each.event, WorkerJoined)]
    assert [(each.at_ms, each.event.name, each.event.capacity_blocks) for each in joined] == [  # type: ignore[union-attr]
        (0, "worker-0", 200), (500, "worker-1", 77),
    ]  # fmt: skip
    assert [each.at_ms for each in said(tmp_path / "log", KV) if isinstance(each.event, WorkerLost)] == [1700]
    assert all(each.first_us >= 0 for each in found)
    assert any(each.attempts > 1 for each in found)
    assert {each.worker for each in found if each.end_us < 500_000} == {0}
    assert {each.worker for each in found if each.arrival_us >= 1_500_000} == {1}


def test_who_leaves_ends_what_it_has(tmp_path: Path) -> None:
    """And gets nothing new."""
    found = simulate(options(WorkerLife(0, 0, 1_000_000), WorkerLife(1)), ARRIVALS, archive=tmp_path / "log").served
    assert all(each.attempts == 1 and each.first_us >= 0 for each in found)
    assert any(each.worker == 0 and each.end_us > 1_000_000 for each in found)
    first = joined_first(tmp_path / "log")
    late = [
        each for each in said(tmp_path / "log", ROUTING)
        if isinstance(each.event, RequestRouted) and each.at_ms > 1010 and each.event.worker == first
    ]  # fmt: skip
    assert late == []


def joined_first(log: Path) -> str:
    return next(each.owner for each in said(log, KV) if isinstance(each.event, WorkerJoined))


def test_who_follows_comes_after_an_end() -> None:
    """Whenever that is; others come at their times."""
    last = ARRIVALS[-1].id
    follows = {last: FollowUp(ARRIVALS[0].id, 30_000), ARRIVALS[50].id: FollowUp(ARRIVALS[49].id, 0)}
    found = {each.id: each for each in simulate(options(), ARRIVALS, follows=follows).served}
    assert found[last].arrival_us == found[ARRIVALS[0].id].end_us + 30_000
    assert found[ARRIVALS[50].id].arrival_us == found[ARRIVALS[49].id].end_us
    others = [each for each in ARRIVALS if each.id not in follows]
    assert [found[each.id].arrival_us for each in others] == [each.at_us for each in others]


@pytest.mark.parametrize("after", [ARRIVALS[3].id, ARRIVALS[2].id, RequestId("nobody")])
def test_nobody_follows_who_does_not_come_before(after: RequestId) -> None:
    with pytest.raises(CallerError, match=f"request-2 is to follow {after}, which must stand before it"):
        simulate(options(), ARRIVALS, follows={ARRIVALS[2].id: FollowUp(after, 0)})


def test_stays_need_their_places() -> None:
    with pytest.raises(CallerError, match="give each worker a place below `workers`"):
        options(WorkerLife(2))
    with pytest.raises(CallerError, match="leave failures_per_hour out"):
        Options(workers=2, engine=ENGINE, stays=(WorkerLife(0),), failures_per_hour=1)
