"""What becomes of held requests when something else happens than that their worker is free."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator

import msgspec
import pytest

from actors.router import router as router_module
from actors.router.router import Router
from core.events import RequestFinished, RequestPrefilled, RequestRouted
from core.events.routing import HELD, RequestQueued, RequestTurnedAway
from core.models import DeadlineExceeded, NoWorkers
from core.settings import RoutingSettings
from core.subjects import ROUTING
from streams.memory.memory_log import MemoryLog
from tests.actors.router.test_late_binding import ENGINE, asked
from tests.actors.world import Discarding, World, collect, world
from tests.fixtures.eventually import eventually

SETTINGS = RoutingSettings(hold_max_ms=600_000)
"""Nobody goes only because it was held for too long."""
SLOW = dataclasses.replace(ENGINE, prefill_us_per_token=1_000_000)
"""No prompt is done while a test runs."""


@pytest.fixture
async def it() -> AsyncIterator[World]:
    async with world() as made:
        yield made


def ask(router: Router, number: int, max_tokens: int = 4, **options: object) -> asyncio.Task[object]:
    wanted = msgspec.structs.replace(asked(number, max_tokens), **options)
    return asyncio.create_task(collect(router, wanted), name=wanted.id)


async def held(router: Router, count: int = 1) -> None:
    """So many are held, and the log knows."""
    late_binding = router.scheduler.held
    await eventually(lambda: len(late_binding._announced) == count, f"{count} are held")


async def under_way(router: Router, number: int, max_tokens: int = 4) -> asyncio.Task[object]:
    """A request whose prompt a worker computes."""
    before = len(router.scheduler.running)
    task = ask(router, number, max_tokens)
    await eventually(lambda: len(router.scheduler.running) == before + 1, "it is under way")
    return task


async def end(*tasks: asyncio.Task[object]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def turned_away(it: World, router: Router) -> dict[str, tuple[str, int]]:
    await eventually(lambda: router.publisher.outbox.idle, "all is said")
    return {event.request: (event.reason, event.status) for event in await it.told(ROUTING, RequestTurnedAway)}


async def test_a_deadline_counts_in_the_router(it: World) -> None:
    """The client hears that it was its deadline, the log too, and no worker hears of the request."""
    await it.worker("w0", settings=SLOW)
    router = await it.router(settings=SETTINGS)
    await it.ready(router)
    first = await under_way(router, 0)
    with pytest.raises(DeadlineExceeded, match="no worker of model 'sim' was free within the request's deadline"):
        await ask(router, 1, deadline_ms=50)
    assert not len(router.scheduler.held)
    assert await turned_away(it, router) == {"r1": ("deadline", 504)}
    await end(first)
    assert [event.request for event in await it.told(ROUTING, RequestRouted)] == ["r0"]


async def test_whoever_is_cancelled_for_its_deadline_did_not_hang_up(it: World) -> None:
    """The front end looks at the deadline, too, and mostly a moment earlier."""
    await it.worker("w0", settings=SLOW)
    router = await it.router(settings=msgspec.structs.replace(SETTINGS, active_max=2))
    await it.ready(router)
    first = await under_way(router, 0)
    requests = [asked(number) for number in (1, 2)]
    tasks = [asyncio.create_task(router.run("sim", each, Discarding())) for each in requests]
    await held(router)
    await eventually(lambda: router.scheduler.waiting == 1, "the other one has no place")
    for task in reversed(tasks):
        task.cancel(DeadlineExceeded("too late"))
    await asyncio.wait(tasks)
    assert await turned_away(it, router) == {"r1": ("deadline", 504), "r2": ("deadline", 504)}
    await end(first)


async def test_the_first_in_priority_goes_first(it: World) -> None:
    """However long it is, and whenever it came."""
    await it.worker("w0", settings=ENGINE)
    router = await it.router(settings=SETTINGS)
    await it.ready(router)
    tasks = [await under_way(router, 0)]
    for number, priority in ((1, 5), (2, 0), (3, -5)):
        tasks.append(ask(router, number, priority=priority))
        await held(router, number)
    await asyncio.gather(*tasks)
    await it.settled(router)
    assert [event.request for event in await it.told(ROUTING, RequestRouted)] == ["r0", "r3", "r2", "r1"]


async def test_held_requests_of_tenants_take_turns(it: World) -> None:
    """A tenant's flood of the first priority precedes every second request of another tenant at most."""
    await it.worker("w0", settings=ENGINE)
    router = await it.router(settings=SETTINGS)
    await it.ready(router)
    tasks = [await under_way(router, 0)]
    for number in range(1, 13):
        flood = number <= 8
        tasks.append(ask(router, number, tenant="flood" if flood else "quiet", priority=-1000 if flood else 0))
        await held(router, number)
    await asyncio.gather(*tasks)
    await it.settled(router)
    tenants = [event.tenant for event in await it.told(ROUTING, RequestRouted)][1:]
    assert all(abs(2 * tenants[:end].count("quiet") - end) <= 2 for end in range(9)), tenants
    assert not router.scheduler.held._clocks


async def test_a_worker_that_dies_holds_nobody_up(it: World) -> None:
    """What was held for it goes elsewhere."""
    await it.worker("w0", settings=SLOW)
    router = await it.router(settings=SETTINGS)
    await it.ready(router)
    tasks = [await under_way(router, 0)]
    tasks.append(ask(router, 1))
    await held(router)
    await it.worker("w1", settings=ENGINE)
    await tasks[1]  # who comes is free
    tasks += [await under_way(router, 2), ask(router, 3)]
    await it.crash("w0")
    await asyncio.gather(*tasks)
    await it.settled(router)
    assert {end.outcome for end in await it.told(ROUTING, RequestFinished)} == {"length", "worker_lost"}


@pytest.mark.parametrize("how", ["drains", "stops", "dies"])
async def test_with_the_last_worker_gone_nobody_is_held(it: World, how: str) -> None:
    """Nor with the last one that takes anything."""
    worker = await it.worker("w0", settings=SLOW, drain_timeout_s=0.2)
    router = await it.router(settings=SETTINGS)
    await it.ready(router)
    first = await under_way(router, 0)
    second = ask(router, 1)
    await held(router)
    ending = it.crash("w0") if how == "dies" else worker.stop("test", drain=how == "drains")
    ended = asyncio.create_task(ending)
    with pytest.raises(NoWorkers, match="no worker can take requests for model 'sim' now"):
        await second
    assert not len(router.scheduler.held)
    with pytest.raises(NoWorkers):
        await first
    await ended
    it.workers.pop("w0", None)


async def test_a_worker_that_gets_nothing_more_for_now_is_waited_for(it: World) -> None:
    """Too much waits in its engine: that ends, and nobody is refused for it who has a place."""
    await it.worker("w0", settings=dataclasses.replace(ENGINE, decode_us_per_step=2000, max_seqs=1))
    router = await it.router(settings=msgspec.structs.replace(SETTINGS, active_max=3, waiting_max=1))
    await it.ready(router)
    runs = await under_way(router, 0, max_tokens=4000)
    worker = router.state.serving()[0].worker
    await eventually(lambda: any(attempt.first_token_us >= 0 for attempt in router.scheduler.running), "it runs")
    others = [ask(router, number) for number in (1, 2)]
    await held(router)
    await eventually(lambda: router.state.loads.reports[worker].waiting == 1, "one waits in the engine")
    await end(runs)
    await asyncio.gather(*others)
    await eventually(lambda: router.publisher.outbox.idle, "all is said")
    assert [event.why for event in await it.told(ROUTING, RequestQueued)] == [HELD]
    assert len(await it.told(ROUTING, RequestPrefilled)) == 3


async def test_while_the_log_is_away_nobody_is_held_for_others(it: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not tell when their prompts are computed."""
    monkeypatch.setattr(router_module, "LOG_AWAY_S", 0.01)
    await it.worker("w0", settings=ENGINE)
    here, there = await it.router(settings=SETTINGS), await it.router("other", settings=SETTINGS)
    for router in (here, there):
        await it.ready(router)
    theirs = await under_way(there, 0)
    await eventually(lambda: bool(here.view().outstanding()), "it is known here")
    assert isinstance(it.log, MemoryLog)
    it.log.away = True
    await theirs
    here.publisher.publish(RequestTurnedAway(request="x", model="sim", reason="queue_full", status=503, waited_ms=-1))
    await eventually(lambda: here.publisher.outbox.away_s >= router_module.LOG_AWAY_S, "it is away")
    assert here.view().outstanding()
    await ask(here, 1)
    it.log.away = False


async def test_a_replica_that_dies_holds_nobody_up_for_long(it: World) -> None:
    """Nobody tells that its prompt is not computed any more, until its lease is over; the worker itself is free."""
    await it.worker("w0", settings=SLOW)
    settings = RoutingSettings(hold_max_ms=200)
    here, there = await it.router(settings=settings), await it.router("other", settings=settings)
    for router in (here, there):
        await it.ready(router)
    theirs = await under_way(there, 0)
    await eventually(lambda: bool(here.view().outstanding()), "it is known here")
    await it.crash_router("other")
    await end(theirs)
    began_ms = it.clock.monotonic_ms()
    await eventually(lambda: it.clock.monotonic_ms() - began_ms > settings.hold_max_ms, "it is some time ago")
    first = await under_way(here, 1)
    await eventually(lambda: here.publisher.outbox.idle, "all is said")
    assert await it.told(ROUTING, RequestQueued) == []
    await end(first)
