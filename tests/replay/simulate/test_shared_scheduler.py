"""Live replicas and simulations route by one RequestScheduler: a change planted in it alters both."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.router import routed_request
from core.events import RequestRouted
from core.models import GenerationFailed
from core.settings import RoutingSettings
from core.subjects import ROUTING
from projections.policy.fair_queue import FairQueue
from replay.simulate.options import Options
from replay.simulate.simulation import simulate
from tests.actors.moving import fleet, greedy, rest, right, stream_of, until_more, where
from tests.actors.router.test_admission import ask, held, let_go, serving, waiting
from tests.actors.world import world
from tests.replay.simulate.families import ENGINE, families
from tests.replay.simulate.said import said


@pytest.fixture(params=[False, True], ids=["as it is", "planted"])
def newest_first(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the queue gives a slot to its newest request."""

    def pop(self: FairQueue[Any]) -> Any:
        item = next(reversed(self._where))
        self.remove(item)
        return item

    if request.param:
        monkeypatch.setattr(FairQueue, "pop", pop)
    return bool(request.param)


async def test_the_order_of_the_queue_is_that_of_a_live_run(newest_first: bool) -> None:
    async with serving() as (it, router):
        holder = await held(router)
        tasks = []
        for number in range(3):
            tasks.append(ask(router, f"r{number}"))
            await waiting(router, number + 1)
        await let_go(holder)
        await asyncio.gather(*tasks)
        await it.settled(router)
        routed = [event.request for event in await it.told(ROUTING, RequestRouted)]
    assert (routed[1:] == ["r2", "r1", "r0"]) is newest_first


def test_the_order_of_the_queue_is_that_of_a_simulated_run(newest_first: bool, tmp_path: Path) -> None:
    options = Options(workers=1, engine=ENGINE, routing=RoutingSettings(policy="kv", active_max=1), seed=1)
    simulate(options, families(9, every_us=1000), archive=tmp_path / "log")
    routed = [event.request for _, _, event in said(tmp_path / "log", ROUTING) if isinstance(event, RequestRouted)]
    assert len(routed) == 9
    assert (routed != sorted(routed)) is newest_first


@pytest.fixture(params=[False, True], ids=["as it is", "planted"])
def tried_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether no request is tried on another worker."""
    if request.param:
        monkeypatch.setattr(routed_request, "ATTEMPTS_MAX", 1)
        monkeypatch.setattr(routed_request, "BEGUN_ATTEMPTS_MAX", 1)
    return bool(request.param)


async def test_the_bound_of_retries_is_that_of_a_live_run(tried_once: bool) -> None:
    async with world() as it:
        router = await fleet(it, "a", "b")
        tokens: list[int] = []
        stream = stream_of(router, greedy())
        await until_more(stream, tokens, 3)
        await it.crash(where(it, router))
        if tried_once:
            with pytest.raises(GenerationFailed, match="1 workers broke off"):
                await rest(stream, tokens)
        else:
            await rest(stream, tokens)
            assert tokens == right()


def test_the_bound_of_retries_is_that_of_a_simulated_run(tried_once: bool) -> None:
    options = Options(workers=4, engine=ENGINE, replicas=2, failures_per_hour=300, seed=4)
    found = simulate(options, families(240, every_us=200_000, output_tokens=150))
    assert any(each.why == "worker_lost" for each in found.served) is tried_once
