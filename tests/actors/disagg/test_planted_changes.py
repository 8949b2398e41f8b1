"""A change planted in a machine alters a live run and a simulated run alike: both drive the same machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from actors.disagg import remote_prefill
from actors.disagg.prefill_execution import LEASE, PrefillExecution
from core.events.jobs import PrefillCancelled, PrefillPulled
from core.subjects import JOBS
from tests.actors.disagg.disagg import alone, at_rest, decode, disagg, linked, prefill
from tests.actors.world import collect, request
from tests.replay.simulate.prefill_room import Room

Plant = Callable[[pytest.MonkeyPatch], None]


def nothing(_: pytest.MonkeyPatch) -> None:
    """The machines as they are."""


def no_time_for_a_pull(patch: pytest.MonkeyPatch) -> None:
    """All of the promised time is margin."""
    patch.setattr(remote_prefill, "MARGIN_PARTS", 1)


def no_patience_with_a_pull(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(remote_prefill, "PULL_TIMEOUT_S", 1e-6)


def no_leases(patch: pytest.MonkeyPatch) -> None:
    """A prefill worker forgets at once that it holds blocks."""
    set_timer = PrefillExecution._set_timer

    def at_once(self: PrefillExecution, what: str, job: str, delay_s: float) -> None:
        set_timer(self, what, job, 0.0 if what == LEASE else delay_s)

    patch.setattr(PrefillExecution, "_set_timer", at_once)


def no_second_delivery(patch: pytest.MonkeyPatch) -> None:
    """A prefill worker takes every message for one that was handed out too often."""
    begin = PrefillExecution._begin

    def too_often(self: PrefillExecution, job: str, requester: Any, delivery: Any) -> None:
        self._limits = self._limits._replace(deliveries_max=0)
        begin(self, job, requester, delivery)

    patch.setattr(PrefillExecution, "_begin", too_often)


OUTCOMES: dict[Plant, str] = {
    nothing: "pulled",
    no_time_for_a_pull: "lease",
    no_patience_with_a_pull: "transfer_failed",
    no_leases: "unconfirmed",
    no_second_delivery: "dead_letter",
}


@pytest.mark.parametrize("plant", OUTCOMES, ids=lambda plant: plant.__name__)
async def test_live_and_simulated_runs_change_alike(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcome of a job, and the text is right in any case."""
    plant(monkeypatch)
    room = Room()
    room.submit("it", 1000)
    room.until(1_000_000)
    async with disagg() as it:
        workers = [await decode(it, "decode-0"), await prefill(it, "prefill-0")]
        router = await it.router()
        await it.ready(router, 1)
        await linked(workers[:1], 1)
        asked = request(range(100, 400))
        tokens, _ = await collect(router, asked)
        assert tokens == await alone(asked)
        await at_rest(workers)
        cancelled = [event.reason for event in await it.told(JOBS, PrefillCancelled)]
        live = cancelled or ["pulled"] * len(await it.told(JOBS, PrefillPulled))

    assert (room.reports["it"].outcome, live) == (OUTCOMES[plant], [OUTCOMES[plant]])
