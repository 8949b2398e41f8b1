"""Live replicas and simulations find lost workers by one FailureDetector."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.membership import failure_detector
from actors.membership.failure_detector import FailureDetector
from core.events import WorkerLost
from replay.simulate.options import Options
from replay.simulate.simulated_log import KV
from replay.simulate.simulation import simulate
from tests.actors.membership.test_failure_detector import looks
from tests.actors.world import world
from tests.fixtures.eventually import eventually
from tests.replay.simulate.families import ENGINE, families
from tests.replay.simulate.said import said

FAILING = Options(workers=4, engine=ENGINE, failures_per_hour=300, seed=4)


@pytest.fixture(params=[False, True], ids=["as it is", "planted"])
def planted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a refused connection proves nothing any more."""
    monkeypatch.setattr(failure_detector, "OBSERVE_EVERY_S", 0.02)
    if request.param:
        monkeypatch.setattr(FailureDetector, "_patience_us", lambda *_: 1 << 60)
    return bool(request.param)


async def test_a_change_of_the_detector_changes_a_live_run(planted: bool) -> None:
    async with world() as it:
        await it.worker("a")
        router = await it.router()
        await it.ready(router)
        dead = await it.crash("a")
        it.store.expire(f"workers/{dead}")
        await eventually(lambda: dead in router.failure_detector.suspected, "its absence")
        if planted:
            await eventually(lambda: router.fleet.clients[dead].failures, "a refused connection")
            await looks(router, 5)
        else:
            await eventually(lambda: not router.state.alive(), "its loss")
        assert bool(await it.told(KV, WorkerLost)) is not planted


def test_a_change_of_the_detector_changes_a_simulated_run(planted: bool, tmp_path: Path) -> None:
    simulate(FAILING, families(240, every_us=200_000, output_tokens=150), archive=tmp_path / "log")
    lost = [event for _, _, event in said(tmp_path / "log", KV) if isinstance(event, WorkerLost)]
    assert bool(lost) is not planted
