"""Workers that share a pool: one keeps it, another takes over, and an older keeper changes nothing. Engines are
simulated, and the files of their blocks are written by the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from actors.engines.simulated.simulated_engine import SimulatedEngine
from actors.kv_blocks.block_seal import BlockSeal
from actors.kv_blocks.entry_batches import BATCHES_MAX, EntryBatches
from actors.kv_blocks.shared_pool_folder import SharedPoolFolder
from actors.kv_blocks.write_grant import keepers
from actors.kv_cache.cache_mirror import NamedBlock
from actors.kv_pool import entry_outbox, pool_keeper, shared_pool, waiting_entries
from actors.kv_pool.entry_outbox import EntryOutbox
from actors.kv_pool.pool_keeper import PoolKeeper
from actors.kv_pool.pool_place import place_of
from actors.kv_pool.shared_pool import CLAIMS, SharedPool
from actors.router.router import Router
from actors.worker.worker import Worker
from core.clock import ManualClock
from core.errors import CallerError
from core.events import PoolJoined, PoolLeft, WorkerJoined
from core.ids import WorkerId
from core.prompt import Prompt, tokens_to_bytes
from core.subjects import kv_stream
from projections.folds.state import NO_OVERLAP
from tests.actors.kv_blocks.test_pool_folder import KIND, NOW_MS, OTHER_KIND, name, put
from tests.actors.kv_blocks.test_shared_pool_folder import shared
from tests.actors.world import FAST, KEY, World, collect, request, world
from tests.fixtures.eventually import eventually

KV = kv_stream(0)
BLOCKS = 8
"""A request takes as many from the pool (`described`)."""
TOKENS = range(100, 100 + BLOCKS * FAST.block_size + 1)
PROMPT = Prompt(tokens_to_bytes(TOKENS), FAST.block_size, KEY.hash_seed)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for seconds."""
    monkeypatch.setattr(shared_pool, "ELECT_EVERY_S", 0.02)
    monkeypatch.setattr(entry_outbox, "SEND_EVERY_S", 0.02)
    monkeypatch.setattr(pool_keeper, "LIST_EVERY_S", 0.02)
    monkeypatch.setattr(pool_keeper, "FOLD_S", 0.001)


async def sharing(it: World, folder: Path, number: int, kind: bytes = KIND) -> Worker:
    """A worker that shares the pool in that folder."""
    engine = SimulatedEngine("sim", FAST)
    folder.mkdir(exist_ok=True)
    engine.info = engine.info._replace(pool=shared(folder, number, kind, size=1 << 30))
    return await it.worker(f"decode-{number}", engine=engine)


def pool_of(worker: Worker) -> SharedPool:
    assert isinstance(worker.pool, SharedPool)
    return worker.pool


def kept_by(*workers: Worker) -> Worker | None:
    """The one of them that keeps the pool; None while there is none, or while two believe that they do."""
    found = [worker for worker in workers if pool_of(worker).keeper is not None]
    return found[0] if len(found) == 1 else None


async def keeper_among(*workers: Worker) -> Worker:
    await eventually(lambda: kept_by(*workers) is not None, "a keeper")
    found = kept_by(*workers)
    assert found is not None
    return found


def fence_of(worker: Worker) -> int:
    fence = keeper(worker)._joined.fence
    assert isinstance(fence, int)
    return fence


def keeper(worker: Worker) -> PoolKeeper:
    found = pool_of(worker).keeper
    assert found is not None
    return found


@asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[tuple[World, Router, Worker, Worker]]:
    """Two workers with one pool, the first one its keeper, and a router that knows both."""
    async with world() as it:
        first = await sharing(it, folder, 0)
        await keeper_among(first)
        second = await sharing(it, folder, 1)
        router = await it.router()
        await it.ready(router, workers=2)
        yield it, router, first, second


async def store(worker: Worker, router: Router, folder: Path) -> None:
    """The worker's engine computed the prompt, and wrote its blocks to the folder."""
    pool = pool_of(worker)
    parent = None
    for number in range(1, BLOCKS + 1):
        block = PROMPT.key(number)
        pool.note([NamedBlock(number, block, parent)])
        payload = memoryview(bytes(5000))
        (folder / f"{name(number).hex()}.kv").write_bytes(BlockSeal(KIND).header(name(number), payload) + payload)
        parent = block
    await eventually(lambda: levels(router, worker) == BLOCKS, "its blocks are announced")


def levels(router: Router, worker: Worker) -> int:
    """Blocks of the prompt that the worker finds."""
    return router.state.reported(PROMPT).get(WorkerId(worker.current_publisher().id), NO_OVERLAP)[-1]


async def kill(it: World, worker: Worker) -> None:
    """It is gone without a word, and its leases too."""
    kept = pool_of(worker)
    if kept.keeper is not None:
        await kept.keeper.publisher.end()
    dead = await it.crash(worker.options.name)
    it.store.expire(f"workers/{dead}")
    if it.store.owner(f"{CLAIMS}{kept.id}") is it.registries[worker.options.name]:
        it.store.expire(f"{CLAIMS}{kept.id}")


async def test_all_find_what_one_wrote(tmp_path: Path) -> None:
    """The keeper's blocks, and those of which another worker told it; each names the pool, one announces it."""
    async with pair(tmp_path / "kv") as (it, router, first, second):
        await store(second, router, tmp_path / "kv")
        assert (levels(router, first), levels(router, second)) == (BLOCKS, BLOCKS)
        (pool,) = await it.told(KV, PoolJoined)
        assert (pool.keeper, pool.fence) == (first.current_publisher().id, keepers(tmp_path / "kv")[0])
        named = [event.pools for event in await it.told(KV, WorkerJoined)]
        assert [each and each.ids for each in named] == [(pool.pool,)] * 2
        assert [worker.describe()["pool"]["keeps"] for worker in (first, second)] == [True, False]
        assert (first.blocks_by_tier["disk"], second.blocks_by_tier["disk"]) == (BLOCKS, 0)
        workers = tmp_path / "kv" / "workers"
        await eventually(lambda: not [*workers.glob("*.entries")], "all entries are acknowledged")


async def test_another_takes_over_from_a_killed_keeper(tmp_path: Path) -> None:
    """It announces the catalogue without a request; the killed one's next life does not keep the pool again."""
    async with pair(tmp_path / "kv") as (it, router, first, second):
        await store(first, router, tmp_path / "kv")
        source, fence = keeper(first).publisher.id, fence_of(first)
        await kill(it, first)
        assert await keeper_among(second) is second
        await eventually(lambda: levels(router, second) == BLOCKS, "the blocks again")
        assert keeper(second).publisher.id != source
        assert fence_of(second) > fence
        third = await sharing(it, tmp_path / "kv", 0)
        await eventually(lambda: levels(router, third) == BLOCKS, "the next life finds them")
        assert kept_by(second, third) is second
        await eventually(lambda: len(router.state.pools()) == 1, "the end of the first source")


async def test_a_leaving_keeper_makes_room_at_once(tmp_path: Path) -> None:
    """With what it has not handed over yet."""
    async with pair(tmp_path / "kv") as (it, router, first, second):
        await store(first, router, tmp_path / "kv")
        put(tmp_path / "kv", 99)
        pool_of(first).note([NamedBlock(99, 4711, None)])
        await it.workers.pop("decode-0").stop("test")
        assert await keeper_among(second) is second
        await eventually(lambda: keeper(second).blocks == BLOCKS + 1, "all blocks, the last one too")
        assert [event.reason for event in await it.told(KV, PoolLeft)] == ["test"]
        await eventually(lambda: levels(router, second) == BLOCKS, "the router has folded it")


async def test_an_older_keeper_that_wakes_up_changes_nothing(tmp_path: Path) -> None:
    """It was stopped, its lease ran out, another took over; then it goes on in the middle of its listing."""
    async with pair(tmp_path / "kv") as (it, router, first, second):
        await store(first, router, tmp_path / "kv")
        older = keeper(first)
        await older._refreshing.acquire()  # as if its thread were stopped
        pool_of(first)._is_ours = lambda _: asyncio.sleep(0, True)  # type: ignore[method-assign,assignment]
        it.store.expire(f"{CLAIMS}{pool_of(first).id}")
        await eventually(lambda: pool_of(second).keeper is not None, "the newer keeper")
        await eventually(lambda: len(router.state.pools()) == 2, "both are in the log")
        assert {reader.source for reader in router.state.pool_readers()} == {WorkerId(keeper(second).publisher.id)}
        await eventually(lambda: levels(router, first) == BLOCKS, "by the newer one")
        (tmp_path / "kv" / f"{name(3).hex()}.kv").unlink()
        await eventually(lambda: levels(router, first) == 2, "the newer one's word counts")
        older._refreshing.release()
        await eventually(lambda: pool_of(first).keeper is None, "the older one has found out")
        await eventually(lambda: len(router.state.pools()) == 1, "and has left")
        assert levels(router, first) == levels(router, second) == 2
        assert keepers(tmp_path / "kv") == [fence_of(second)]


async def test_a_keeper_that_lost_its_claim_stops(tmp_path: Path) -> None:
    """And may come again, as a newer one."""
    async with pair(tmp_path / "kv") as (it, router, first, second):
        await store(first, router, tmp_path / "kv")
        fence = fence_of(first)
        it.store.expire(f"{CLAIMS}{pool_of(first).id}")
        await eventually(
            lambda: (found := kept_by(first, second)) is not None and fence_of(found) != fence,
            "a newer one",
        )
        await eventually(lambda: len(router.state.pools()) == 1, "one source")
        await eventually(lambda: levels(router, first) == BLOCKS, "the blocks")


async def test_without_the_registry_the_keeper_goes_on(tmp_path: Path) -> None:
    async with pair(tmp_path / "kv") as (it, router, first, second):
        for registry in it.registries.values():
            registry.away = True
        await store(second, router, tmp_path / "kv")
        await asyncio.sleep(0.1)
        assert kept_by(first, second) is first
        for registry in it.registries.values():
            registry.away = False


async def test_a_folder_that_cannot_be_opened_is_left_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The claim is given up, and all serve."""
    real, failing = SharedPoolFolder.open, True

    def fails(self: SharedPoolFolder) -> object:
        if failing:
            raise OSError("no such disk")
        return real(self)

    monkeypatch.setattr(SharedPoolFolder, "open", fails)
    async with world() as it:
        worker = await sharing(it, tmp_path / "kv", 0)
        router = await it.router()
        await it.ready(router)
        await collect(router, request(TOKENS))
        await eventually(lambda: "the pool cannot be kept here: no such disk" in caplog.text, "it was tried")
        await eventually(lambda: it.store.find(f"{CLAIMS}{pool_of(worker).id}") is None, "the claim is given up")
        failing = False
        await keeper_among(worker)


async def test_a_worker_that_never_stood_takes_no_claim_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one whose start failed."""
    async with pair(tmp_path / "kv") as (it, _, first, second):
        monkeypatch.setattr(second, "registry", it.registry("decode-2"))
        described = shared(tmp_path / "kv", 2)
        never = second._shared_pool(described, place_of(described, second.clock), pool_of(first).id)
        await never.leave("it could not start")
        assert it.store.owner(f"{CLAIMS}{pool_of(first).id}") is it.registries["decode-0"]


async def test_workers_of_another_kind_do_not_start(tmp_path: Path) -> None:
    async with world() as it:
        await sharing(it, tmp_path / "kv", 0)
        with pytest.raises(CallerError, match="has blocks of another model, layout, key or version of vLLM"):
            await sharing(it, tmp_path / "kv", 1, kind=OTHER_KIND)
        assert len(await it.told(KV, WorkerJoined)) == 1


class Sent:
    """An outbox over a folder, without a keeper."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.described = shared(folder)
        self.inbox = SharedPoolFolder(self.described, clock := ManualClock(NOW_MS), 1)
        self.inbox.open()
        batches = EntryBatches(folder, "0" * 16, self.inbox._records, clock)
        self.outbox = EntryOutbox(batches, self.inbox.name_of, self.inbox.tenant_of, clock)

    def note(self, *numbers: int) -> None:
        self.outbox.note(NamedBlock(number, 1000 + number, None) for number in numbers)


async def test_entries_wait_for_their_files_and_for_the_keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both within bounds: the oldest that wait go first, and are counted."""
    it = Sent(tmp_path / "kv")
    monkeypatch.setattr(waiting_entries, "ENTRIES_WAITING_MAX", 40)
    monkeypatch.setattr(entry_outbox, "BATCH_ENTRIES_MAX", 1)
    monkeypatch.setattr("actors.kv_blocks.entry_batches.BATCH_ENTRIES_MAX", 1)
    it.note(*range(1, 51))
    assert (len(it.outbox.waiting), it.outbox.waiting.dropped) == (40, 10)
    await it.outbox.send()
    assert it.inbox.receive() == {}
    for number in range(1, 51):
        put(tmp_path / "kv", number)
    await it.outbox.send()
    assert len(it.outbox.waiting) == 40 - BATCHES_MAX
    assert len(it.inbox.receive()) == BATCHES_MAX
    await it.outbox.send()
    assert len(it.outbox.waiting) == 40 - BATCHES_MAX, "the keeper has not acknowledged yet"
    it.inbox.acknowledge()
    await it.outbox.send()
    assert len(it.outbox.waiting) == 40 - 2 * BATCHES_MAX
    await it.outbox.leave()


async def test_entries_that_cannot_be_written_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    it = Sent(tmp_path / "kv")
    it.note(1)
    put(tmp_path / "kv", 1)

    def fails(*_: object) -> None:
        raise OSError("read-only")

    with monkeypatch.context() as full:
        full.setattr(EntryBatches, "write", fails)
        await it.outbox.send()
    assert it.outbox.failures == 1
    assert "the pool's keeper cannot be told of blocks now: read-only" in caplog.text
    await it.outbox.send()
    assert it.inbox.receive().keys() == {name(1)}
    await it.outbox.leave()


async def test_a_keeper_whose_folder_hangs_leaves_it_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on the one machine that lost a network file system. It does not claim the pool again until it answers."""
    async with pair(tmp_path / "kv") as (_, router, first, second):
        await store(first, router, tmp_path / "kv")
        monkeypatch.setattr(shared_pool, "HANG_S", 0.5)
        answers, listing = threading.Event(), SharedPoolFolder.listing
        lost = keeper(first)._folder

        def hangs(self: SharedPoolFolder) -> object:
            if self is lost:
                answers.wait(20)
            return listing(self)

        monkeypatch.setattr(SharedPoolFolder, "listing", hangs)
        opener = pool_of(first)._opener.submit(answers.wait, 20)
        try:
            await eventually(lambda: kept_by(first, second) is second, "the other one keeps it")
            await eventually(lambda: levels(router, first) == BLOCKS, "all is announced by it")
            assert not opener.done()
        finally:
            answers.set()
