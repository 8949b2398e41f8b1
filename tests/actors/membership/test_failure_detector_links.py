"""Links of workers that are over: kept for as long as they are needed."""

from __future__ import annotations

import pytest

from actors.membership import failure_detector as failure_detector_module
from actors.membership.registration import Registration
from actors.transport.reconnecting_client import ReconnectingClient
from core.ids import WorkerId, new_id
from tests.actors.world import world


async def test_a_link_is_kept_for_a_worker_that_came_back_while_it_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is over by the log and does not answer, but registers again before that is known."""
    async with world() as it:
        router = await it.router()
        fleet, worker = router.fleet, WorkerId(new_id())
        link = fleet.connect(worker, "127.0.0.1:1")

        async def comes_back(_link: ReconnectingClient) -> bool:
            fleet.registered[worker] = Registration("sim", link.address, "simulated", 16, 4096)
            return False

        monkeypatch.setattr(failure_detector_module, "_still_speaks", comes_back)
        await router.failure_detector._release(set())
        assert fleet.links == {worker: link}
        del fleet.registered[worker]
        fleet.drop(link)
