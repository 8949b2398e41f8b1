from __future__ import annotations

import asyncio

import pytest

from actors.consistency.log_heads import HEADS_KEY
from core.events import WorkerLost
from core.subjects import LOAD, kv_stream
from tests.actors.world import LEASE_MS, World, collect, request, world


@pytest.mark.parametrize("workers", [1, 2, 4])
async def test_nobody_is_evicted(workers: int) -> None:
    """A registry that lost everything under load costs no request and no worker, and all are registered again."""
    async with world() as it:
        for number in range(workers):
            await it.worker(f"w{number}")
        router = await it.router()
        await it.ready(router, workers)
        before = _registered(it)
        over = asyncio.Event()

        async def client(number: int) -> int:
            served = 0
            while not over.is_set():
                tokens, _ = await collect(router, request(range(number, number + 40)))
                assert len(tokens) == 8
                served += 1
            return served

        clients = [asyncio.create_task(client(number)) for number in range(4)]
        await asyncio.sleep(0.1)
        await _wipe(it, away_s=LEASE_MS / 1000)
        await asyncio.sleep(2 * LEASE_MS / 1000)
        over.set()
        assert min(await asyncio.gather(*clients)) > 1
        assert _registered(it) == before
        assert not router.failure_detector.suspected
        assert [await it.told(stream, WorkerLost) for stream in (kv_stream(0), LOAD)] == [[], []]
        await it.ready(router, workers)


def _registered(it: World) -> set[str]:
    """Keys under leases: kept heads of the log come back with the next comparison."""
    return {change.key for change in it.store.below("")} - {HEADS_KEY}


async def _wipe(it: World, away_s: float) -> None:
    """Nobody reaches the registry for a while, and then it is empty; the processes are back one after the other."""
    for registry in it.registries.values():
        registry.away = True
    await asyncio.sleep(away_s)
    it.store.wipe()
    for registry in it.registries.values():
        await asyncio.sleep(0.02)
        registry.away = False
