"""Workers that share a pool in a store of objects: one keeps it, another takes over; a store that fails is waited for.

Engines are simulated, and their stores are real: blocks lie on a server of S3."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from actors.engines.simulated.simulated_engine import SimulatedEngine
from actors.kv_blocks.block_seal import HEADER_BYTES, BlockSeal
from actors.kv_blocks.catalog_records import tenant_digest
from actors.kv_blocks.disk_counts import DiskCounts
from actors.kv_blocks.pool_folder import ObjectPlace, PoolShare
from actors.kv_cache.cache_mirror import NamedBlock
from actors.kv_objects import object_pool, report_batches, store_report
from actors.kv_objects.object_block_store import ObjectBlockStore
from actors.kv_objects.object_store import BUSY, ObjectStoreFailed
from actors.kv_objects.pool_objects import block_key
from actors.kv_objects.s3_objects import S3Objects
from actors.kv_objects.write_credit import read_local
from actors.kv_pool import entry_outbox, pool_keeper, shared_pool
from actors.router.router import Router
from actors.transport.frames import EraseBlocks, PoolContent
from actors.worker.worker import Worker
from core.clock import SystemClock
from core.events import BlocksRemoved, BlocksStored, PoolJoined
from tests.actors.kv_blocks.test_pool_folder import KEY as POOL_KEY
from tests.actors.kv_blocks.test_pool_folder import KIND, described, name
from tests.actors.kv_pool.test_shared_pool import (
    BLOCKS,
    KV,
    PROMPT,
    fence_of,
    keeper,
    keeper_among,
    kept_by,
    kill,
    levels,
    pool_of,
)
from tests.actors.world import FAST, World, world
from tests.fixtures.eventually import eventually
from tests.fixtures.s3_server import S3Server

BLOCK_BYTES = 5000 + HEADER_BYTES


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little waits for seconds."""
    monkeypatch.setattr(shared_pool, "ELECT_EVERY_S", 0.1)
    monkeypatch.setattr(entry_outbox, "SEND_EVERY_S", 0.1)
    monkeypatch.setattr(entry_outbox, "SEND_SHARE", 1)
    monkeypatch.setattr(pool_keeper, "LIST_EVERY_S", 0.1)
    monkeypatch.setattr(pool_keeper, "LIST_SHARE", 1)
    monkeypatch.setattr(pool_keeper, "FOLD_S", 0.001)
    monkeypatch.setattr(report_batches, "BEAT_S", 0.1)
    monkeypatch.setattr(store_report, "FLUSH_S", 0.01)


class Sharing:
    """A worker, and the store of its engine."""

    def __init__(self, worker: Worker, shared: Path, place: ObjectPlace) -> None:
        self.worker = worker
        self.shared = shared
        self.counts = DiskCounts(shared / "counts")
        self.store = ObjectBlockStore(S3Objects(place, 20), BlockSeal(KIND), self.counts, shared, SystemClock())

    async def write(self, router: Router) -> None:
        """The engine computed the prompt, and stored its blocks."""
        await eventually(lambda: read_local(self.shared) > 0, "it may write")
        parent = None
        for number in range(1, BLOCKS + 1):
            block = PROMPT.key(number)
            pool_of(self.worker).note([NamedBlock(number, block, parent)])
            assert self.store.put(name(number), memoryview(bytes(5000)), 0)
            parent = block
        await eventually(lambda: levels(router, self.worker) == BLOCKS, "its blocks are announced")


async def sharing(it: World, folder: Path, place: ObjectPlace, number: int, size: int = 1 << 30) -> Sharing:
    """A worker that shares the pool in that place."""
    pool = described(folder / f"engine {number}")
    share = PoolShare(f"{number:016x}", size, True, place)
    engine = SimulatedEngine("sim", FAST)
    engine.info = engine.info._replace(pool=pool._replace(share=share))
    return Sharing(await it.worker(f"decode-{number}", engine=engine), pool.shared, place)


@asynccontextmanager
async def pair(folder: Path, place: ObjectPlace) -> AsyncIterator[tuple[World, Router, Sharing, Sharing]]:
    """Two workers with one pool, the first one its keeper, and a router that knows both."""
    async with world() as it:
        first = await sharing(it, folder, place, 0)
        await keeper_among(first.worker)
        second = await sharing(it, folder, place, 1)
        router = await it.router()
        await it.ready(router, workers=2)
        yield it, router, first, second
        for each in (first, second):
            each.store.close()


async def test_another_takes_over_from_a_killed_keeper(tmp_path: Path, s3: S3Server) -> None:
    """It announces the catalogue without a request, and the blocks of the other worker, which it never had."""
    async with pair(tmp_path, s3.place()) as (it, router, first, second):
        await second.write(router)
        assert levels(router, first.worker) == BLOCKS
        (pool,) = await it.told(KV, PoolJoined)
        assert (pool.keeper, pool.pool) == (first.worker.current_publisher().id, pool_of(second.worker).id)
        assert {event.tier for event in await it.told(KV, BlocksStored)} == {"remote"}
        assert first.worker.blocks_by_tier["remote"] == BLOCKS
        fence = fence_of(first.worker)
        await kill(it, first.worker)
        assert await keeper_among(second.worker) is second.worker
        await eventually(lambda: levels(router, second.worker) == BLOCKS, "the blocks again")
        assert fence_of(second.worker) > fence
        third = await sharing(it, tmp_path, pool_of(second.worker)._described.share.objects, 2)  # type: ignore[arg-type,union-attr]
        await eventually(lambda: levels(router, third.worker) == BLOCKS, "a new worker finds them")
        assert kept_by(second.worker, third.worker) is second.worker
        into = bytearray(5000)
        assert all(third.store.load(name(number), memoryview(into)) for number in range(1, BLOCKS + 1))
        third.store.close()


async def test_a_store_that_fails_is_waited_for(tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool is neither announced anew nor given up; what was stored meanwhile is announced later."""
    async with pair(tmp_path, s3.place()) as (_, router, first, second):
        await eventually(lambda: read_local(second.shared) > 0, "it may write")
        failing = True
        calls = S3Objects._made

        def made(self: S3Objects, call: object) -> object:
            if failing and self is not second.store._objects:
                raise ObjectStoreFailed(BUSY, "slow down")
            return calls(self, call)  # type: ignore[arg-type]

        monkeypatch.setattr(S3Objects, "_made", made)
        before = keeper(first.worker).publisher.id
        writing = [NamedBlock(1, PROMPT.key(1), None)]
        pool_of(second.worker).note(writing)
        assert second.store.put(name(1), memoryview(bytes(5000)), 0)
        await eventually(lambda: pool_of(first.worker).totals()["pool_refreshes_failed"] > 1, "it is tried")
        await eventually(lambda: pool_of(second.worker).totals()["pool_refreshes_failed"] > 1, "it is tried")
        failing = False
        await eventually(lambda: levels(router, second.worker) == 1, "its block is announced")
        assert keeper_of(first, second) == before


def keeper_of(*pair: Sharing) -> str | None:
    """The source under which the pool is announced."""
    found = kept_by(*(each.worker for each in pair))
    return None if found is None else keeper(found).publisher.id


async def test_a_refused_object_leaves_the_index(tmp_path: Path, s3: S3Server) -> None:
    """With all blocks behind it, as its reader says."""
    place = s3.place()
    async with pair(tmp_path, place) as (it, router, first, second):
        await first.write(router)
        S3Objects(place, 20).put(block_key(name(3)), b"no block")
        assert not second.store.load(name(3), memoryview(bytearray(5000)))
        await eventually(lambda: levels(router, second.worker) == 2, "the first two")
        assert await it.told(KV, BlocksRemoved)


async def test_one_tenants_objects_are_erased(tmp_path: Path, s3: S3Server) -> None:
    """Those of both workers, by the keeper, which alone can. Objects of another tenant stay, and are announced; the
    catalogue's objects name no tenant."""
    place = s3.place()
    async with pair(tmp_path, place) as (_, router, first, second):
        await first.write(router)
        for each, salt, numbers in ((first, "acme:", (21, 22)), (second, "acme:a", (23,)), (second, "b:", (24,))):
            for number in numbers:
                await eventually(lambda each=each: read_local(each.shared) > 0, "it may write")  # type: ignore[misc]
                pool_of(each.worker).note([NamedBlock(number, number, None, salt)])
                assert each.store.put(name(number), memoryview(bytes(5000)), 0)
        kept = keeper(first.worker)
        await eventually(lambda: kept.blocks == BLOCKS + 4, "all are announced")
        digest = tenant_digest(POOL_KEY, "acme")
        frame = EraseBlocks(pool=kept.id, tenant=digest, unknown=True)
        assert "another worker keeps the pool" in (await second.worker.erase_blocks(frame)).fault
        content = await first.worker.pool_content()
        assert (content.pool, content.tier, content.kept) == (kept.id, "remote", True)
        assert {each.tenant: (each.blocks, each.size_bytes) for each in content.tenants} == {
            digest: (3, 3 * BLOCK_BYTES),
            tenant_digest(POOL_KEY, "b"): (1, BLOCK_BYTES),
            tenant_digest(POOL_KEY, ""): (BLOCKS, BLOCKS * BLOCK_BYTES),
        }
        assert await second.worker.pool_content() == PoolContent(pool=kept.id, tier="remote")
        erased = await first.worker.erase_blocks(frame)
        assert (erased.blocks, erased.size_bytes, erased.failed, erased.left) == (3, 3 * BLOCK_BYTES, 0, 0)
        objects = S3Objects(place, 20)
        there = {each.key for each in objects.list("blocks")}
        assert there == {block_key(name(number)) for number in (*range(1, BLOCKS + 1), 24)}
        assert levels(router, second.worker) == BLOCKS
        assert kept.blocks == BLOCKS + 1
        for found in objects.list("keepers"):
            content_of = objects.get(found.key)
            assert digest not in content_of
            assert b"acme" not in content_of
        assert (await first.worker.erase_blocks(frame)).blocks == 0


async def test_blocks_go_once_the_log_has_their_removal(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last ones of the prompt, until an eighth of the pool is free."""
    place = s3.place()
    async with world() as it:
        first = await sharing(it, tmp_path, place, 0, size=32 * BLOCK_BYTES)
        await keeper_among(first.worker)
        router = await it.router()
        await it.ready(router)
        await eventually(lambda: read_local(first.shared) > 0, "it may write")
        kept, removed = keeper(first.worker), object_pool.ObjectPool.remove_going
        seen: list[bool] = []

        def remove(self: object_pool.ObjectPool, names: frozenset[bytes]) -> int:
            seen.append(kept.publisher.holds_all)
            return removed(self, names)

        monkeypatch.setattr(object_pool.ObjectPool, "remove_going", remove)
        await first.write(router)
        first.store.touch((name(number), -number) for number in range(1, BLOCKS + 1))
        pool = kept._folder
        assert isinstance(pool, object_pool.ObjectPool)
        await eventually(lambda: next(iter(pool._blocks)) == name(BLOCKS), "the last one is the oldest")
        other = 100

        def fill() -> bool:
            nonlocal other
            other += first.store.put(name(other), memoryview(bytes(5000)), 0)
            return bool(seen)

        await eventually(fill, "it is full")
        assert all(seen), "the log had it"
        await eventually(lambda: levels(router, first.worker) < BLOCKS, "so has the router")

        def held() -> set[str]:
            return {each.key for each in S3Objects(place, 20).list("blocks")}

        await eventually(lambda: block_key(name(BLOCKS)) not in held(), "the store has removed it")
        assert len(held()) < 32, "some room is free, though writes go on"
        assert block_key(name(1)) in held()
        first.store.close()
