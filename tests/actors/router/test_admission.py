"""Admission: who waits for a place, who gets it, and what becomes of the others; with real routers and workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from actors.engines.simulated.simulated_engine import SimulatedSettings
from actors.router import request_scheduler
from actors.router.request_scheduler import Draining
from actors.router.router import Router
from core.events import RequestFinished, RequestRouted
from core.events.routing import RequestQueued, RequestTurnedAway
from core.generation import GenerateRequest, Output
from core.kv_transfer import KvPull
from core.models import DeadlineExceeded, NoWorkers, Overloaded, RateLimited
from core.settings import RoutingSettings
from core.subjects import ROUTING
from tests.actors.world import World, collect, request, world
from tests.fixtures.eventually import eventually

SLOW = SimulatedSettings(
    prefill_us_per_token=1, decode_us_per_step=20_000, eos_every=0, block_size=16, capacity_blocks=4096, max_seqs=2
)
LONG = 4000
"""Tokens of an answer that does not end by itself while a test runs."""
ONE = RoutingSettings(active_max=1)
SENT_AT_ONCE = RoutingSettings(hold_max_ms=0)
"""Whoever has a place goes to the engine, whatever that computes."""


@asynccontextmanager
async def serving(
    settings: RoutingSettings = ONE, workers: int = 1, engine: SimulatedSettings = SLOW
) -> AsyncIterator[tuple[World, Router]]:
    async with world() as it:
        for number in range(workers):
            await it.worker(f"decode-{number}", settings=engine)
        router = await it.router(settings=settings)
        await it.ready(router, workers)
        yield it, router


def ask(router: Router, id: str, max_tokens: int = 1, **options: object) -> asyncio.Task[list[int]]:
    """The request is under way; its tokens, or what it raises, come later."""

    async def all_of_it() -> list[int]:
        return (await collect(router, request(range(20), max_tokens, id, **options)))[0]

    return asyncio.create_task(all_of_it(), name=id)


async def held(router: Router, id: str = "holder", **options: object) -> asyncio.Task[list[int]]:
    """A request that has its place and keeps it."""
    before = len(router.scheduler.running)
    task = ask(router, id, LONG, **options)
    await eventually(lambda: len(router.scheduler.running) == before + 1, "the holder is in flight")
    return task


async def waiting(router: Router, count: int) -> None:
    await eventually(lambda: router.scheduler.waiting == count, f"{count} wait: {router.scheduler!r}")


async def let_go(*tasks: asyncio.Task[list[int]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_with_free_places_nobody_waits_and_nothing_is_said() -> None:
    """As many as there are places start at once; one more waits, and has the first that is given back."""
    async with serving(SENT_AT_ONCE) as (it, router):
        places = 3  # the engine's two and a spare one
        holders = [await held(router, f"holder-{number}") for number in range(places)]
        assert await it.told(ROUTING, RequestQueued) == []
        late = ask(router, "late")
        await waiting(router, 1)
        await let_go(*holders[:2])
        assert len(await late) == 1
        assert router.scheduler.describe()["models"] == [{"model": "sim", "active": 1, "waiting": 0}]
        await let_go(*holders)
        await it.settled(router)
        (queued,) = await it.told(ROUTING, RequestQueued)
        assert (queued.request, queued.why, queued.depth, queued.prompt_tokens) == ("late", "full", 0, 20)
        routed = [event.request for event in await it.told(ROUTING, RequestRouted)]
        assert routed == ["holder-0", "holder-1", "holder-2", "late"]
        ended = {event.request: event for event in await it.told(ROUTING, RequestFinished)}
        assert ended["late"].ttft_ms >= 0
        assert router.scheduler.describe()["models"][0]["active"] == 0
        assert router.scheduler.describe()["tenants"] == []


async def test_an_id_that_is_used_twice_at_once_has_one_name_all_along() -> None:
    """The second one waits under the name that it is routed under; later the id can be used again."""
    async with serving() as (it, router):
        holder = await held(router, "same")
        second = ask(router, "same")
        await waiting(router, 1)
        await let_go(holder)
        await second
        await ask(router, "same")
        await it.settled(router)
        (queued,) = await it.told(ROUTING, RequestQueued)
        assert queued.request.startswith("same.")
        assert [event.request for event in await it.told(ROUTING, RequestRouted)] == ["same", queued.request, "same"]
        assert not router.scheduler.requests


async def test_fair_between_tenants_first_then_by_priority() -> None:
    """A tenant with one request waits for none of another's five; these are in the order of their priority."""
    async with serving() as (it, router):
        holder = await held(router)
        tasks = [ask(router, f"flood-{number}", tenant="flood") for number in range(5)]
        await waiting(router, 5)
        tasks += [ask(router, "quiet", tenant="quiet"), ask(router, "urgent", tenant="flood", priority=-1)]
        await waiting(router, 7)
        await let_go(holder)
        await asyncio.gather(*tasks)
        await it.settled(router)
        order = [event.request for event in await it.told(ROUTING, RequestRouted)]
        assert order[:2] == ["holder", "quiet"]
        assert order[2:] == ["urgent", *(f"flood-{number}" for number in range(5))]


async def test_an_engine_gets_no_priority_of_a_tenant() -> None:
    """Its queue is that of all tenants: there a priority would precede the share of another one."""
    async with serving() as (it, router):
        sent: list[int] = []
        engine = it.workers["decode-0"].engine
        generate = engine.generate

        def noted(request: GenerateRequest, pull: KvPull | None = None) -> AsyncIterator[Output]:
            sent.append(request.priority)
            return generate(request, pull)

        engine.generate = noted  # type: ignore[method-assign]
        await ask(router, "own", priority=-7)
        await ask(router, "of-a-tenant", tenant="a", priority=-7)
        await it.settled(router)
        assert sent == [-7, 0]
        assert [event.priority for event in await it.told(ROUTING, RequestRouted)] == [-7, -7]


async def test_when_too_many_wait_the_last_of_whoever_has_most_leaves() -> None:
    """429 for who takes more than its share, though it came first; 503 where all have as much."""
    async with serving(RoutingSettings(active_max=1, queue_max=3)) as (it, router):
        holder = await held(router)
        greedy = [ask(router, f"greedy-{number}", tenant="greedy") for number in range(3)]
        await waiting(router, 3)
        alone = ask(router, "more", tenant="greedy")
        with pytest.raises(Overloaded, match=r"all workers of model 'sim' are busy, and 3 requests wait.*in \d+ s"):
            await alone  # nobody else wants anything: the whole is full, nobody has more than a share
        others = [ask(router, "b", tenant="b"), ask(router, "c", tenant="c")]
        for task in reversed(greedy[1:]):
            with pytest.raises(RateLimited, match="too many of them yours: send fewer at a time") as limited:
                await task
            assert 1 <= limited.value.retry_after_s <= 60
        assert router.scheduler.waiting == 3
        with pytest.raises(Overloaded):
            await ask(router, "d", tenant="d")
        with pytest.raises(RateLimited):
            await ask(router, "greedy-again", tenant="greedy")
        await let_go(holder)
        await asyncio.gather(greedy[0], *others)
        await it.settled(router)
        away = {event.request: event for event in await it.told(ROUTING, RequestTurnedAway)}
        assert {name: (event.reason, event.status) for name, event in away.items()} == {
            "more": ("queue_full", 503),
            "greedy-1": ("tenant_share", 429),
            "greedy-2": ("tenant_share", 429),
            "d": ("queue_full", 503),
            "greedy-again": ("tenant_share", 429),
        }
        assert (away["more"].waited_ms, away["d"].waited_ms) == (-1, -1)
        assert away["greedy-1"].waited_ms >= 0
        counts = {row["reason"]: row["requests"] for row in router.scheduler.describe()["turned_away"]}
        assert counts == {"queue_full": 2, "tenant_share": 3}


async def test_who_does_not_wait_any_longer_leaves_at_once() -> None:
    """A client that hangs up, a deadline, the longest wait: each its own error, and nothing of them is left."""
    async with serving(RoutingSettings(active_max=1, queue_wait_max_ms=300)) as (it, router):
        holder = await held(router)
        gone = ask(router, "gone")
        await waiting(router, 1)
        await let_go(gone)
        assert router.scheduler.waiting == 0
        with pytest.raises(DeadlineExceeded, match=r"within 0\.05 s, and that was the request's deadline"):
            await ask(router, "hurried", deadline_ms=50)
        with pytest.raises(Overloaded, match=r"no free place|had a free place within 0\.3 s: try again in 1 s"):
            await ask(router, "patient", deadline_ms=5000)
        assert router.scheduler.waiting == 0
        await let_go(holder)
        await it.settled(router)
        away = {event.request: (event.reason, event.status) for event in await it.told(ROUTING, RequestTurnedAway)}
        assert away == {"gone": ("client_gone", 499), "hurried": ("deadline", 504), "patient": ("queue_wait", 503)}
        assert router.scheduler.describe()["models"][0]["active"] == 0


async def test_without_a_queue_there_is_a_refusal_at_once() -> None:
    """`queue_max` 0."""
    async with serving(RoutingSettings(active_max=1, queue_max=0)) as (_, router):
        holder = await held(router)
        with pytest.raises(Overloaded, match="0 requests wait"):
            await ask(router, "second")
        await let_go(holder)


async def test_what_could_not_be_served_in_time_is_refused_at_once() -> None:
    """By the rate at which requests end: it does not wait for a refusal."""
    async with serving(RoutingSettings(active_max=1, queue_wait_max_ms=1000)) as (_, router):
        await ask(router, "teaches", 25)  # half a second
        holder = await held(router)
        queue = router.scheduler._queues["sim"]
        most = queue.waiting_max(router.settings)
        assert 1 <= most <= 5
        tasks = [ask(router, f"waits-{number}") for number in range(most)]
        await waiting(router, most)
        with pytest.raises(Overloaded) as refused:
            await ask(router, "too-late")
        assert refused.value.retry_after_s >= 1
        await let_go(holder, *tasks)


async def test_places_come_and_go_with_workers_and_settings() -> None:
    """One that joins lets in who waits; a setting does; and with the last worker gone nobody waits for nothing."""
    async with serving(msgspec.structs.replace(SENT_AT_ONCE, active_max=1)) as (it, router):
        holders = [await held(router)]
        tasks = [ask(router, f"waits-{number}", LONG) for number in range(2)]
        await waiting(router, 2)
        await it.worker("decode-1", settings=SLOW)
        await waiting(router, 1)
        await router._registry.put("settings/routing", b'{"active_max": 2}')
        await waiting(router, 0)
        await eventually(lambda: len(router.scheduler.running) == 3, "all three are in flight")
        holders += [await held(router, "last")]
        late = ask(router, "late")
        await waiting(router, 1)
        for name in list(it.workers):
            worker = it.workers.pop(name)
            await worker.stop("test", drain=False)
        with pytest.raises(NoWorkers):
            await late
        await let_go(*holders, *tasks)


async def test_engines_that_queue_too_much_get_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """`waiting_max`: the request waits here until the engine's own line is shorter, and is not refused. That holds from
    the report on, however lately places were counted."""
    monkeypatch.setattr(request_scheduler, "SHARE_FRESH_US", 60_000_000)
    async with serving(msgspec.structs.replace(SENT_AT_ONCE, active_max=8, waiting_max=1)) as (it, router):
        holders = [await held(router, f"holder-{number}") for number in range(4)]  # two run, two wait there
        worker = next(member.worker for member in router.state.serving())
        await eventually(lambda: router.state.loads.reports[worker].waiting >= 2, "a report of it")
        late = ask(router, "late")
        await waiting(router, 1)
        await let_go(*holders[:3])
        assert len(await late) == 1
        await let_go(*holders)
        await it.settled(router)
        assert [event.why for event in await it.told(ROUTING, RequestQueued)] == ["overloaded"]


async def test_no_replica_starves_behind_another() -> None:
    """One whose requests follow on each other fills all places; a second replica still has its half of them at once."""
    settings = msgspec.structs.replace(SENT_AT_ONCE, active_max=4)
    async with serving(settings) as (it, first):
        second = await it.router("frontend-1", settings=settings)
        await it.ready(second)
        tasks = [ask(first, f"first-{number}", LONG) for number in range(6)]
        await eventually(
            lambda: (len(first.scheduler.running), first.scheduler.waiting) == (4, 2), "all places are full"
        )
        tasks += [ask(second, f"second-{number}", LONG) for number in range(3)]
        await eventually(lambda: len(second.scheduler.running) == 2, "its share of the places")
        assert second.scheduler.waiting == 1
        await let_go(tasks[0], tasks[1])  # too many are in flight now: nobody follows on these
        await asyncio.sleep(0.1)
        assert (len(first.scheduler.running), first.scheduler.waiting) == (2, 2)
        await let_go(*tasks)


async def test_an_end_of_the_replica_ends_the_wait() -> None:
    """Who waits hears it, and the log knows."""
    async with serving() as (it, router):
        holder = await held(router)
        task = ask(router, "waits")
        await waiting(router, 1)
        router.requests.feed(Draining())
        with pytest.raises(NoWorkers, match="stopping"):
            await task
        await let_go(holder)
        await it.settled(router)
        assert [event.reason for event in await it.told(ROUTING, RequestTurnedAway)] == ["stopping"]
