"""A worker with a pool among replicas: its ends, its next life, lost messages. The engine is simulated, and the files
of its blocks are written by the test."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from actors.engines.simulated.simulated_engine import SimulatedEngine
from actors.kv_blocks.block_seal import BlockSeal
from actors.kv_blocks.pool_folder import PoolFolder
from actors.kv_pool.pool_keeper import PoolKeeper
from actors.router.router import Router
from actors.worker.worker import Worker
from core.events import BlocksRemoved, PoolJoined, PoolLeft, PoolLost, RequestRouted, WorkerJoined
from core.ids import WorkerId
from core.prompt import Prompt, tokens_to_bytes
from core.settings import RoutingSettings
from core.subjects import ROUTING, kv_stream
from projections.folds.state import NO_OVERLAP, State
from tests.actors.kv_blocks.test_pool_folder import KIND, described
from tests.actors.world import FAST, KEY, LEASE_MS, World, collect, request, world
from tests.fixtures.eventually import eventually

KV = kv_stream(0)
BLOCKS = 8
"""A request takes as many from the pool (`described`)."""
TOKENS = range(100, 100 + BLOCKS * FAST.block_size + 1)
PROMPT = Prompt(tokens_to_bytes(TOKENS), FAST.block_size, KEY.hash_seed)


async def pooled(it: World, folder: Path, name: str = "decode-0") -> Worker:
    """A worker with a pool in that folder."""
    engine = SimulatedEngine("sim", FAST)
    engine.info = engine.info._replace(pool=described(folder))
    return await it.worker(name, engine=engine)


def keeper(worker: Worker) -> PoolKeeper:
    assert isinstance(worker.pool, PoolKeeper)
    return worker.pool


async def store(it: World, worker: Worker, router: Router, folder: Path) -> None:
    """The prompt was answered, and its blocks lie in the folder and are announced."""
    await collect(router, request(TOKENS))
    await it.settled(router)
    pool = keeper(worker)
    for file in list(pool._waiting):
        payload = memoryview(bytes(5000))
        (folder / f"{file.hex()}.kv").write_bytes(BlockSeal(KIND).header(file, payload) + payload)
    await pool.refresh()
    await eventually(lambda: state_of(router).index.blocks(WorkerId(pool.publisher.id), "disk") >= BLOCKS, "the blocks")


def state_of(router: Router) -> State:
    return router.state


def levels(router: Router, worker: Worker) -> tuple[int, ...]:
    return router.state.reported(PROMPT).get(WorkerId(worker.current_publisher().id), NO_OVERLAP)


def in_pool(router: Router, worker: Worker) -> int:
    """Blocks of the prompt that the worker finds in its pool alone."""
    return levels(router, worker)[-1] - levels(router, worker)[1]


async def test_a_worker_names_its_pool(tmp_path: Path) -> None:
    """Both say the same of it; a leaving worker's pool leaves, too."""
    async with world() as it:
        worker = await pooled(it, tmp_path)
        router = await it.router()
        await it.ready(router)
        await store(it, worker, router, tmp_path)
        (joined,) = await it.told(KV, WorkerJoined)
        (pool,) = await it.told(KV, PoolJoined)
        assert joined.pools
        assert (joined.pools.ids, joined.pools.kind, joined.pools.load_blocks) == ((pool.pool,), pool.kind, BLOCKS)
        assert (pool.keeper, pool.name, pool.model) == (worker.current_publisher().id, "decode-0", "sim")
        shown = worker.describe()
        assert shown["blocks_by_tier"]["disk"] == shown["pool"]["blocks"] == shown["pool"]["files"] >= BLOCKS
        (known,) = router.describe()["pools"]
        assert known == {"source": keeper(worker).publisher.id, "pool": pool.pool, "keeper": pool.keeper, "blocks": 8}
        await it.workers.pop("decode-0").stop("test")
        assert [event.reason for event in await it.told(KV, PoolLeft)] == ["test"]
        await eventually(lambda: not router.state.pools(), "the end of the pool")


async def killed(it: World, router: Router) -> None:
    """The worker is gone without a word, its lease too, and a replica has written its end."""
    worker = it.workers["decode-0"]
    await keeper(worker).publisher.end()
    dead = await it.crash("decode-0")
    it.store.expire(f"workers/{dead}")


async def test_a_killed_workers_next_life_has_its_blocks(tmp_path: Path) -> None:
    """Before any request. Of two sources the one counts whose keeper lives; a replica ends the other one, once."""
    async with world() as it:
        worker = await pooled(it, tmp_path)
        router = await it.router(settings=RoutingSettings(policy="kv"))
        other = await it.router("frontend-1")
        for each in (router, other):
            await it.ready(each)
        await store(it, worker, router, tmp_path)
        source = keeper(worker).publisher.id
        await killed(it, router)
        worker = await pooled(it, tmp_path)
        assert keeper(worker).publisher.id != source
        await eventually(lambda: in_pool(router, worker) == BLOCKS, "the blocks of the life before")
        for each in (router, other):
            await eventually(
                lambda each=each: [pool.worker for pool in each.state.pools()] == [keeper(worker).publisher.id],  # type: ignore[misc]
                "the end of the first source",
            )
        assert len(await it.told(KV, PoolLost)) == 1
        assert in_pool(router, worker) == BLOCKS
        decision = await decided(it, router)
        assert decision.predicted_cached_tokens == BLOCKS * FAST.block_size
        assert router.state.digest_of(KV) == other.state.digest_of(KV)


async def decided(it: World, router: Router) -> RequestRouted:
    """The prompt is sent once more: its decision."""
    await collect(router, request(TOKENS))
    await eventually(lambda: router.publisher.outbox.idle, "the decision is in the log")
    return (await it.told(ROUTING, RequestRouted))[-1]


async def test_a_pool_whose_keeper_does_not_come_back_is_ended(tmp_path: Path) -> None:
    async with world() as it:
        worker = await pooled(it, tmp_path)
        router = await it.router()
        await it.ready(router)
        await store(it, worker, router, tmp_path)
        source = WorkerId(keeper(worker).publisher.id)
        await killed(it, router)
        await eventually(lambda: source in router.state.kv[KV].ended, "the end of its pool")
        assert router.state.index.blocks(source, "disk") == 0
        assert not router.state.pools()


async def test_a_live_keepers_pool_is_never_ended(tmp_path: Path) -> None:
    """Nor while the registry forgets the worker, which goes on being in the log."""
    async with world() as it:
        worker = await pooled(it, tmp_path)
        router = await it.router()
        await it.ready(router)
        await store(it, worker, router, tmp_path)
        it.store.expire(f"workers/{worker.current_publisher().id}")
        await asyncio.sleep(8 * LEASE_MS / 1000)
        assert not await it.told(KV, PoolLost)
        assert in_pool(router, worker) == BLOCKS - levels(router, worker)[1]


async def test_a_worker_that_goes_on_under_another_id_keeps_its_pool(tmp_path: Path) -> None:
    async with world() as it:
        worker = await pooled(it, tmp_path)
        router = await it.router()
        await it.ready(router)
        await store(it, worker, router, tmp_path)
        before = worker.current_publisher().id
        await it.write_off(router, KV, before)
        await eventually(lambda: worker.current_publisher().id != before, "another id")
        await eventually(lambda: levels(router, worker)[-1] == BLOCKS, "its blocks are there again")
        pools = await it.told(KV, PoolJoined)
        assert [pool.keeper for pool in pools][-1] == worker.current_publisher().id
        assert len({pool.pool for pool in pools}) == 1


async def test_a_replica_that_lost_a_message_gets_the_pool_restated(tmp_path: Path) -> None:
    """It asks the keeper over TCP."""
    async with world() as it:
        worker = await pooled(it, tmp_path)
        router = await it.router()
        await it.ready(router)
        await store(it, worker, router, tmp_path)
        source = WorkerId(keeper(worker).publisher.id)
        router.state.kv[KV].members[source].chain.n_next -= 1  # as if the last message had been another one
        router.state.kv[KV].members[source].chain.head = bytes(16)
        keeper(worker).publisher.publish([BlocksRemoved(hashes=bytes(8), tier="disk")])
        await eventually(lambda: not router.state.kv[KV].members[source].cache_known, "the gap")
        await eventually(lambda: router.state.kv[KV].members[source].cache_known, "the restatement")
        assert levels(router, worker)[-1] == BLOCKS


async def test_a_folder_that_cannot_be_read_is_not_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker serves."""

    def fails(*_: object) -> None:
        raise OSError("no such disk")

    monkeypatch.setattr(PoolFolder, "_list", fails)
    async with world() as it:
        worker = await pooled(it, tmp_path)
        router = await it.router()
        await it.ready(router)
        await collect(router, request(TOKENS))
        assert worker.pool is None
        assert not await it.told(KV, PoolJoined)
        assert "the blocks on the disk are not announced: no such disk" in caplog.text
        assert not worker.mirror._named  # type: ignore[union-attr]
