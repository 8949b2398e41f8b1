"""Reservations of a real router over simulated workers, to which nothing is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from actors.engines.simulated.simulated_engine import SimulatedSettings
from actors.router.reservations import CANDIDATES_SHOWN_MAX, Reservation, ReservationBounds, UnknownReservation
from actors.router.router import Router
from core.errors import CallerError
from core.events import RequestFinished, RequestPrefilled, RequestRouted
from core.events.routing import CACHED_UNKNOWN, EXPIRED, RESERVED, RequestQueued, RequestTurnedAway
from core.generation import IntakeTimes
from core.models import NoWorkers, Overloaded, RateLimited, UnknownModel
from core.settings import RoutingSettings
from core.subjects import ROUTING
from replay.recording.recording import Recording
from replay.verify.verify import verify
from tests.actors.world import KEY, NAMESPACE, World, collect, request, world
from tests.fixtures.eventually import eventually
from tests.replay.recorded import archived

ENGINE = SimulatedSettings(
    prefill_us_per_token=1, decode_us_per_step=200, eos_every=0, block_size=16, capacity_blocks=256, max_seqs=2
)
TOKENS = range(100)
AT_ONCE = RoutingSettings(hold_max_ms=0)
ONE = RoutingSettings(hold_max_ms=0, active_max=1)
INTAKE = IntakeTimes(1000, 2000, 3000)


@pytest.fixture
async def it() -> AsyncIterator[World]:
    async with world() as made:
        yield made


async def replica(
    it: World, settings: RoutingSettings = AT_ONCE, workers: int = 2, bounds: ReservationBounds | None = None
) -> Router:
    for number in range(workers):
        await it.worker(f"w{number}", settings=ENGINE)
    router = await it.router(settings=settings, reservations=bounds or ReservationBounds())
    await it.ready(router, workers)
    return router


async def reserve(router: Router, id: str = "r", tenant: str | None = None) -> Reservation:
    return await router.reserve("sim", request(TOKENS, id=id, tenant=tenant), INTAKE)


def in_flight(router: Router) -> int:
    """Requests in flight of all workers, as decisions of this replica count them."""
    view = router.view()
    loads = (view.state.routing.in_flight_load.busy, view.pending_events.in_flight_load.busy)
    return sum(load.requests for busy in loads for load in busy.values())


async def ends(it: World, router: Router) -> list[RequestFinished]:
    await it.settled(router)
    return await it.told(ROUTING, RequestFinished)


async def test_a_reservation_is_recorded_counted_and_verified(it: World, tmp_path: Path) -> None:
    """From its decision to its reported end it counts in flight; no worker hears of it; its decisions are made again,
    beside those of requests that were sent."""
    router = await replica(it)
    await collect(router, request(TOKENS, id="sent"))
    await it.settled(router)
    reservation = await reserve(router)
    told = router.reservations.describe_decision(reservation.decision)
    assert (told.worker.name, told.worker.url, told.worker.rank) == (told.candidates[0].worker.name, "", None)
    assert (told.prompt_tokens, told.predicted_cached_tokens, told.candidates_total) == (100, 96, 2)
    assert in_flight(router) == 1
    assert [worker.engine.load().running for worker in it.workers.values()] == [0, 0]
    router.reservations.first_token("r", 48)
    router.reservations.first_token("r", 96)
    assert in_flight(router) == 1
    router.reservations.end("r", "stop", 40, None)
    assert in_flight(router) == 0
    finished = {event.request: event for event in await ends(it, router)}
    end = finished["r"]
    assert (end.outcome, end.detail, end.output_tokens, end.cached_tokens) == ("stop", RESERVED, 40, 48)
    assert 0 <= end.ttft_ms <= end.duration_ms
    assert end.stages[:3] == (10, 20, 30)
    first = [event for event in await it.told(ROUTING, RequestPrefilled) if event.request == "r"]
    assert [event.cached_tokens for event in first] == [48]
    assert router.describe()["reservations"] == {"open": 0, "expired": 0}
    path = await archived(it.log, NAMESPACE, KEY, tmp_path / "log")
    with Recording.open(path, KEY) as recording:
        found = verify(recording)
    assert (found.holds, found.verified, found.different) == (True, 2, 0)


async def test_the_next_decision_sees_it(it: World) -> None:
    """Equal workers get one reservation each."""
    router = await replica(it, RoutingSettings(policy="least-loaded", hold_max_ms=0))
    first, second = await reserve(router, "a"), await reserve(router, "b")
    assert first.decision.worker != second.decision.worker


async def test_a_preview_changes_nothing(it: World) -> None:
    """It tells what the reservation behind it gets. Nothing is recorded, counted or learned."""
    router = await replica(it)
    await it.settled(router)
    before = router.describe()["cursor"]["routing"]
    told = router.preview("sim", request(TOKENS, id="dry"))
    await asyncio.sleep(0.05)
    assert in_flight(router) == 0
    assert not router.scheduler.requests
    assert router.scheduler.describe()["models"] == []
    assert await it.told(ROUTING, RequestRouted) == []
    assert router.describe()["cursor"]["routing"] == before
    reservation = await reserve(router, "dry")
    assert router.reservations.describe_decision(reservation.decision).worker == told.worker
    assert len(told.candidates) == 2 <= CANDIDATES_SHOWN_MAX


async def test_it_waits_for_a_place_and_has_the_next_one(it: World) -> None:
    """As any request: queued behind one that holds the only place, which is another reservation."""
    router = await replica(it, ONE, workers=1)
    await reserve(router, "first")
    second = asyncio.create_task(reserve(router, "second"))
    await eventually(lambda: router.scheduler.waiting == 1, "it waits")
    router.reservations.end("first", "length", 8, None)
    assert (await second).id == "second"
    await it.settled(router)
    assert [event.request for event in await it.told(ROUTING, RequestQueued)] == ["second"]


async def test_a_full_queue_refuses_by_the_rules_of_tenants(it: World) -> None:
    """The tenant that fills the queue is told that the requests in it are its own."""
    settings = RoutingSettings(hold_max_ms=0, active_max=1, queue_max=2)
    router = await replica(it, settings, workers=1)
    await reserve(router, "first", tenant="greedy")
    waiting = [asyncio.create_task(reserve(router, f"g{number}", tenant="greedy")) for number in range(2)]
    await eventually(lambda: router.scheduler.waiting == 2, "they wait")
    modest = asyncio.create_task(reserve(router, "modest", tenant="modest"))
    (refused, *_), _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    with pytest.raises(RateLimited):
        refused.result()
    for task in (modest, *waiting):
        task.cancel()
    await asyncio.gather(modest, *waiting, return_exceptions=True)
    await it.settled(router)
    reasons = [event.reason for event in await it.told(ROUTING, RequestTurnedAway)]
    assert sorted(reasons) == ["client_gone", "client_gone", "tenant_share"]
    assert router.describe()["reservations"]["open"] == 1


async def test_it_expires(it: World) -> None:
    """Its end stands in the log as such, nothing of it is in flight, and a late report is told so."""
    router = await replica(it, bounds=ReservationBounds(expires_after_s=0.1))
    await reserve(router)
    await eventually(lambda: in_flight(router) == 0, "it expires")
    (end,) = await ends(it, router)
    assert (end.outcome, end.detail, end.ttft_ms, end.output_tokens) == (EXPIRED, RESERVED, -1, 0)
    assert end.cached_tokens == CACHED_UNKNOWN
    assert end.duration_ms >= 100
    assert router.describe()["reservations"] == {"open": 0, "expired": 1}
    with pytest.raises(UnknownReservation, match="another front end"):
        router.reservations.end("r", "stop", 1, None)


async def test_their_number_is_bounded(it: World) -> None:
    """One more is refused before the scheduler has it; those that wait for a worker count."""
    router = await replica(it, ONE, workers=1, bounds=ReservationBounds(open_max=2))
    await reserve(router, "first")
    second = asyncio.create_task(reserve(router, "second"))
    await eventually(lambda: router.scheduler.waiting == 1, "it waits")
    with pytest.raises(Overloaded, match="2 reservations are open"):
        await reserve(router, "third")
    router.reservations.end("first", "stop", None, None)
    await second
    router.reservations.end("second", "stop", None, None)
    await reserve(router, "third")


async def test_what_is_not_reported_is_unknown(it: World) -> None:
    """No first token, no count: not 0 cached tokens, and nothing is learned of the time of prefills or of answers."""
    router = await replica(it, RoutingSettings(policy="time", hold_max_ms=0))
    await reserve(router)
    await asyncio.sleep(0.05)
    router.reservations.end("r", "stop", None, None)
    (end,) = await ends(it, router)
    assert (end.outcome, end.ttft_ms, end.cached_tokens, end.output_tokens) == ("stop", -1, CACHED_UNKNOWN, 0)
    assert not await it.told(ROUTING, RequestPrefilled)
    assert router.scheduler.learned._models == {}
    assert router.scheduler._queues["sim"]._service_ms == 0
    await reserve(router, "reported")
    router.reservations.first_token("reported", 0)
    router.reservations.end("reported", "stop", 8, None)
    assert router.scheduler.learned._models["sim"].noted == 1


async def test_wrong_reports_change_nothing(it: World) -> None:
    """An unknown id, more cached tokens than the prompt has, an answer beyond the context: refused, and still open."""
    router = await replica(it)
    await reserve(router)
    reservations = router.reservations
    wrong: list[Callable[[], None]] = [
        lambda: reservations.first_token("other", None),
        lambda: reservations.first_token("r", 101),
        lambda: reservations.end("r", "stop", 1, 101),
        lambda: reservations.end("r", "stop", ENGINE.context_max + 1, None),
    ]
    for report in wrong:
        with pytest.raises(CallerError):
            report()
    assert in_flight(router) == 1
    assert not await it.told(ROUTING, RequestPrefilled)
    router.reservations.end("r", "error", 0, 100)
    (end,) = await ends(it, router)
    assert (end.outcome, end.cached_tokens) == ("error", 100)


async def test_a_client_that_goes_away_before_the_decision_leaves_nothing(it: World) -> None:
    router = await replica(it, ONE, workers=1)
    await reserve(router, "first")
    second = asyncio.create_task(reserve(router, "second"))
    await eventually(lambda: router.scheduler.waiting == 1, "it waits")
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert (router.scheduler.waiting, router.describe()["reservations"]["open"]) == (0, 1)
    await it.settled(router)
    assert [event.reason for event in await it.told(ROUTING, RequestTurnedAway)] == ["client_gone"]


async def test_an_id_in_use_gets_another_name(it: World) -> None:
    """Each is reported under its own, also if both come in one turn of the loop."""
    router = await replica(it)
    first, second = await asyncio.gather(reserve(router, "same"), reserve(router, "same"))
    assert (first.id, second.id[:5]) == ("same", "same.")
    router.reservations.end("same", "stop", 1, None)
    router.reservations.end(second.id, "length", 2, None)
    assert [(end.request, end.outcome) for end in await ends(it, router)] == [("same", "stop"), (second.id, "length")]


async def test_a_replica_that_stops_ends_its_own(it: World) -> None:
    router = await replica(it)
    await reserve(router)
    await router.stop("test")
    it.routers.clear()
    (end,) = await it.told(ROUTING, RequestFinished)
    assert (end.outcome, end.detail) == ("abort", RESERVED)


async def test_no_worker_is_an_error_of_both(it: World) -> None:
    """Unknown models, and models whose workers are gone."""
    router = await replica(it, workers=1)
    with pytest.raises(UnknownModel):
        await router.reserve("none", request(TOKENS), None)
    with pytest.raises(UnknownModel):
        router.preview("none", request(TOKENS))
    await it.workers.pop("w0").stop("test", drain=False)
    await eventually(lambda: router.connected("sim") == 0, "the worker is gone")
    with pytest.raises(NoWorkers):
        router.preview("sim", request(TOKENS))
    with pytest.raises(NoWorkers):
        await reserve(router)
