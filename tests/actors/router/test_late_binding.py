"""A replica that holds requests until the worker that is best for them computes no other prompt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from actors.engines.simulated.simulated_engine import SimulatedSettings
from actors.router import request_scheduler
from actors.router.router import Router
from core.codec import decode_message
from core.events import RequestFinished, RequestPrefilled, RequestRouted
from core.events.routing import HELD, RequestQueued, RequestTurnedAway
from core.generation import GenerateRequest
from core.ids import StreamSeq
from core.settings import RoutingSettings
from core.subjects import ROUTING
from projections.policy.binding_plan import PlannedRequest, UnboundRequest, plan
from projections.policy.view import View
from replay.recording.recording import Recording
from replay.verify.verify import verify
from streams.live_settings import SETTINGS_KEY
from tests.actors.world import KEY, NAMESPACE, World, collect, request, world
from tests.fixtures.eventually import eventually
from tests.replay.recorded import archived

PREFILL_S = 0.2
ENGINE = SimulatedSettings(
    prefill_us_per_token=50, decode_us_per_step=200, eos_every=0, block_size=16, capacity_blocks=4096, context_max=8192
)
TOKENS = 4000
"""Of each prompt: two of them are more than one pass."""
assert TOKENS * ENGINE.prefill_us_per_token == PREFILL_S * 1e6


def asked(number: int, max_tokens: int = 4) -> GenerateRequest:
    """They have nothing in common."""
    return request(range(number * 5000, number * 5000 + TOKENS), max_tokens=max_tokens, id=f"r{number}")


async def replica(it: World, *, hold_max_ms: int = 10_000, workers: int = 1) -> Router:
    for number in range(workers):
        await it.worker(f"w{number}", settings=ENGINE)
    router = await it.router(settings=RoutingSettings(policy="time", hold_max_ms=hold_max_ms))
    await it.ready(router, workers)
    return router


@pytest.fixture
async def it() -> AsyncIterator[World]:
    async with world() as made:
        yield made


async def in_order(it: World, router: Router) -> list[tuple[str, str]]:
    """What the log says of requests, in its order."""
    await it.settled(router)
    kinds = RequestQueued | RequestRouted | RequestPrefilled | RequestTurnedAway
    events = [
        event async for record in it.log.read(ROUTING, StreamSeq(1)) for event in decode_message(record.payload).events
    ]
    return [(event.request, type(event).__name__) for event in events if isinstance(event, kinds)]


async def test_one_prompt_at_a_time(it: World) -> None:
    """The next one leaves when the worker has given the first token of the one before; the log says that it waited."""
    router = await replica(it)
    await asyncio.gather(*(collect(router, asked(number)) for number in range(3)))

    told = await in_order(it, router)
    routed = [each for each, kind in told if kind == "RequestRouted"]
    for before, after in pairwise(routed):
        assert told.index((before, "RequestPrefilled")) < told.index((after, "RequestRouted"))
    queued = await it.told(ROUTING, RequestQueued)
    assert {(each.request, each.why) for each in queued} == {(each, HELD) for each in routed[1:]}
    assert not len(router.scheduler.held)


async def test_small_ones_share_a_pass(it: World) -> None:
    """What fits into one pass of the engine leaves together."""
    router = await replica(it)
    small = [request(range(k * 500, k * 500 + 300), id=f"s{k}") for k in range(5)]
    await asyncio.gather(*(collect(router, each) for each in small))
    assert await it.told(ROUTING, RequestQueued) == []


async def test_each_worker_has_its_own(it: World) -> None:
    """Two workers: two go at once, the third when one of them is free."""
    router = await replica(it, workers=2)
    await asyncio.gather(*(collect(router, asked(number)) for number in range(3)))
    assert len(await it.told(ROUTING, RequestQueued)) == 1
    assert len({event.worker for event in await it.told(ROUTING, RequestRouted)}) == 2


async def test_not_for_longer_than_allowed(it: World) -> None:
    """Then it goes to the worker that is best for it, busy or not."""
    router = await replica(it, hold_max_ms=20)
    await asyncio.gather(*(collect(router, asked(number)) for number in range(3)))
    told = await in_order(it, router)
    kinds = [kind for _, kind in told]
    assert kinds.index("RequestPrefilled") > max(at for at, kind in enumerate(kinds) if kind == "RequestRouted")


async def test_no_more_than_so_many(it: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one more comes, the first one goes at once: it is not overtaken by whoever came later."""
    monkeypatch.setattr(request_scheduler, "held_max", lambda _workers: 2)
    router = await replica(it)
    first = asyncio.create_task(collect(router, asked(9)))
    await eventually(lambda: len(router.scheduler.running) == 1, "the first is under way")
    await asyncio.gather(first, *(collect(router, asked(number)) for number in range(4)))
    assert {each.request for each in await it.told(ROUTING, RequestQueued)} == {"r2", "r3"}
    assert [each.request for each in await it.told(ROUTING, RequestRouted)][1:3] == ["r0", "r1"]


async def test_each_model_has_a_bound_of_its_own(it: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts the model's workers and the model's held requests, and a plan looks at those of one model: so many
    models make no plan longer."""
    planned: list[set[str]] = []

    def noted(view: View, queue: list[UnboundRequest], *rest: Any) -> PlannedRequest | None:
        planned.append({held.request.model for held in queue})
        return plan(view, queue, *rest)

    monkeypatch.setattr(request_scheduler, "held_max", lambda workers: 2 // workers)
    monkeypatch.setattr(request_scheduler, "plan", noted)
    for model in ("sim", "other"):
        await it.worker(f"worker-of-{model}", model, settings=ENGINE)
    router = await it.router(settings=RoutingSettings(policy="time", hold_max_ms=10_000))
    await it.ready(router, 2)
    first = [asyncio.create_task(collect(router, asked(number), model)) for number, model in ((0, "sim"), (1, "other"))]
    await eventually(lambda: len(router.scheduler.running) == 2, "both workers compute a prompt")
    pairs = ((2, "sim"), (3, "other"), (4, "sim"), (5, "other"))
    await asyncio.gather(*first, *(collect(router, asked(number), model) for number, model in pairs))
    assert {each.request for each in await it.told(ROUTING, RequestQueued)} == {f"r{number}" for number, _ in pairs}
    assert {len(models) for models in planned} == {1}


async def test_whoever_hangs_up_waits_no_more(it: World) -> None:
    """Its worker never hears of it, and the log says that it is gone."""
    router = await replica(it)
    first = asyncio.create_task(collect(router, asked(0, max_tokens=100)))
    await eventually(lambda: len(router.scheduler.running) == 1, "the first is under way")
    second = asyncio.create_task(collect(router, asked(1)))
    await eventually(lambda: len(router.scheduler.held) == 1, "the second is held")
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    assert not len(router.scheduler.held)
    await first
    told = await in_order(it, router)
    assert ("r1", "RequestTurnedAway") in told
    assert ("r1", "RequestRouted") not in told


async def test_holding_ends_with_the_setting(it: World) -> None:
    """Whoever waits goes at once."""
    router = await replica(it)
    first = asyncio.create_task(collect(router, asked(0, max_tokens=2000)))
    await eventually(lambda: len(router.scheduler.running) == 1, "the first is under way")
    second = asyncio.create_task(collect(router, asked(1)))
    await eventually(lambda: len(router.scheduler.held) == 1, "the second is held")
    await it.registry("operator").register(SETTINGS_KEY, b'{"hold_max_ms": 0}')
    await eventually(lambda: not len(router.scheduler.held), "nobody is held")
    await asyncio.gather(first, second)


async def test_another_replicas_first_token_frees_the_worker(it: World) -> None:
    """It is heard of through the log."""
    here = await replica(it)
    there = await it.router("other", settings=RoutingSettings(policy="time", hold_max_ms=10_000))
    await it.ready(there)
    first = asyncio.create_task(collect(there, asked(0)))
    await eventually(lambda: bool(here.view().outstanding()), "it is known here")
    await collect(here, asked(1))
    await first
    told = await in_order(it, here)
    assert told.index(("r0", "RequestPrefilled")) < told.index(("r1", "RequestRouted"))
    assert ("r1", "RequestQueued") in told


async def both_at_once(it: World) -> list[Router]:
    """Two replicas, one worker, a request to each of them in one turn of the loop."""
    routers = [await replica(it), await it.router("other", settings=RoutingSettings(policy="time", hold_max_ms=10_000))]
    await it.ready(routers[1])
    await asyncio.gather(*(collect(router, asked(number)) for number, router in enumerate(routers)))
    for router in routers:
        await it.settled(router)
    return routers


async def test_a_busy_worker_declines(it: World, tmp_path: Path) -> None:
    """Both replicas think that the worker is free. It takes one; the other is held until that one is computed."""
    routers = await both_at_once(it)
    assert sum(router.describe()["declined"] for router in routers) == 1
    ends = await it.told(ROUTING, RequestFinished)
    (declined,) = [end for end in ends if end.outcome == "declined"]
    assert (declined.attempt, declined.detail) == (0, f"computes {TOKENS} tokens for other replicas")
    assert sorted((end.request == declined.request, end.attempt) for end in ends if end is not declined) == [
        (False, 0), (True, 1),
    ]  # fmt: skip
    assert [event.request for event in await it.told(ROUTING, RequestRouted) if event.attempt] == [declined.request]
    assert [event.request == declined.request for event in await it.told(ROUTING, RequestPrefilled)] == [False, True]
    path = await archived(it.log, NAMESPACE, KEY, tmp_path / "log")
    with Recording.open(path, KEY) as recording:
        found = verify(recording)
    assert (found.holds, found.verified, found.different) == (True, 3, 0)


async def test_declined_no_more_than_so_often(it: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it goes to the worker, busy or not."""
    monkeypatch.setattr(request_scheduler, "DECLINED_MAX", 1)
    await both_at_once(it)
    ends = await it.told(ROUTING, RequestFinished)
    assert sum(end.outcome == "declined" for end in ends) == 1
    (again,) = [event for event in await it.told(ROUTING, RequestRouted) if event.attempt]
    assert not again.held


async def test_every_decision_is_made_again(it: World, tmp_path: Path) -> None:
    """What else was held stands in the record."""
    router = await replica(it, workers=2)
    await asyncio.gather(*(collect(router, asked(number % 4)) for number in range(8)))
    await it.settled(router)
    held = [event.held for event in await it.told(ROUTING, RequestRouted)]
    assert any(held)
    path = await archived(it.log, NAMESPACE, KEY, tmp_path / "log")
    with Recording.open(path, KEY) as recording:
        found = verify(recording)
    assert (found.holds, found.verified, found.different) == (True, 8, 0)


def _may_hold(router: Router) -> bool:
    return router.scheduler._budget.has_time(router._clock.monotonic_us())


async def test_nobody_is_held_while_plans_take_too_much_time(it: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that wait go at once then, and so do those that come: nobody overtakes them."""
    monkeypatch.setattr(request_scheduler, "PLANS_BURST_US", 1)
    monkeypatch.setattr(request_scheduler, "PLANS_PARTS", 1 << 40)
    router = await replica(it)
    await collect(router, asked(9))
    assert _may_hold(router), "one alone takes nothing of the time for plans"
    await asyncio.gather(*(collect(router, asked(number)) for number in range(3)))
    assert not _may_hold(router)
    await collect(router, asked(3))
    told = await in_order(it, router)
    assert [kind for _, kind in told[2:5]] == ["RequestRouted"] * 3
    assert not await it.told(ROUTING, RequestQueued)
