"""The keeper of a pool: what it announces is closed under prefixes, lies there, and stands in the catalogue."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from actors.kv_blocks.block_seal import BlockSeal
from actors.kv_blocks.block_store import GOING, BlockStore
from actors.kv_blocks.catalog_records import RECORD_BYTES, UNKNOWN_TENANT, CatalogEntry, tenant_digest
from actors.kv_blocks.disk_counts import DiskCounts
from actors.kv_blocks.keeper_lease import LEASE_FILE, KeeperLease
from actors.kv_blocks.pool_folder import CATALOG_FILE, PoolFolder
from actors.kv_blocks.stuck_files import STUCK_FILE, StuckFiles
from actors.kv_cache.cache_mirror import NamedBlock
from actors.kv_pool import pool_keeper, waiting_entries
from actors.kv_pool.pool_keeper import FOLD_S, PoolKeeper
from core.block_spans import unpacked
from core.clock import SystemClock
from core.codec import decode_message
from core.errors import Unavailable
from core.events import BlocksRemoved, BlocksStored, Event, PoolJoined, PoolLeft, PoolLost, UnknownEvent
from core.ids import LOST_SUFFIX, Epoch, StreamName, StreamSeq, WorkerId
from core.keys import DeploymentKey
from core.prompt import hashes_from_bytes
from core.subjects import subject
from projections.folds.state import State
from streams.memory.memory_log import MemoryLog
from tests.actors.kv_blocks.test_pool_folder import KEY, KIND, OTHER_KIND, described, name, put, shared_by
from tests.fixtures.eventually import eventually
from tests.projections.speaker import Speaker

KV = StreamName("kv_0")
WORKER, LATER = WorkerId("0a" * 8), WorkerId("0b" * 8)
DEPLOYMENT = DeploymentKey(bytes(32))
CALLS = 6
"""Of a listing in its thread: renew, receive, list, stuck, keep, remove."""


class Kept:
    """A keeper over a folder and a log."""

    def __init__(self, folder: Path, log: MemoryLog) -> None:
        self.folder, self.log = folder, log
        self.tasks: set[asyncio.Task[None]] = set()
        clock = SystemClock()
        opened = PoolFolder(described(folder), clock)
        self.id, entries = opened.open()
        joined = PoolJoined(pool=self.id, keeper="", name="decode-0", model="tiny", kind=KIND.hex(), block_size=4)
        self.keeper = PoolKeeper(
            "test", log, clock, DEPLOYMENT, opened, entries, joined, partitions=1, spawn=self._spawn
        )  # fmt: skip

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        self.tasks.add(asyncio.create_task(coroutine))

    def name(self, *numbers: int, parent: int | None = None, salt: str = "") -> None:
        """The engine has a chain of blocks; our hash of each is 1000 more than the engine's name."""
        named = []
        for number in numbers:
            named.append(NamedBlock(number, 1000 + number, parent, salt))
            parent = 1000 + number
        self.keeper.note(named)

    def lease_end_ns(self) -> int:
        """When the keeper's lease ends, by the clock that never goes back."""
        return (shared_by(self.folder) / LEASE_FILE).stat().st_mtime_ns

    async def events(self) -> list[Event | UnknownEvent]:
        """All that this keeper's source told, once it is in the log."""
        await eventually(lambda: self.keeper.publisher.outbox.idle, "all is in the log")
        found: list[Event | UnknownEvent] = []
        async for record in self.log.read(KV, StreamSeq(1)):
            message = decode_message(record.payload)
            found += [event for event in message.events if message.source == self.keeper.publisher.id]
        return found

    async def announced(self) -> set[int]:
        """What the log says that lies there, in each prefix of it closed under prefixes."""
        await self.events()
        return await self.folded()

    async def folded(self) -> set[int]:
        """The same, of what the log has now."""
        state = State(DEPLOYMENT.chain_key)
        state.open(KV, Epoch(1))
        async for record in self.log.read(KV, StreamSeq(1)):
            state.apply(KV, record.seq, record.subject, record.payload)
        return state.index.held(WorkerId(self.keeper.publisher.id), "disk")

    async def stop(self) -> None:
        await self.keeper.publisher.end()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.fixture
async def log() -> MemoryLog:
    made = MemoryLog("test", SystemClock())
    await made.ensure([KV])
    return made


@asynccontextmanager
async def keeping(folder: Path, log: MemoryLog) -> AsyncIterator[Kept]:
    """A keeper that looks when it is told to."""
    it = Kept(folder, log)
    it.keeper._set_keeper(WORKER)
    it.keeper.publisher.start()
    try:
        yield it
    finally:
        await it.stop()


def blocks(*numbers: int) -> set[int]:
    return {1000 + number for number in numbers}


async def test_a_block_is_announced_once_its_file_lies_there(tmp_path: Path, log: MemoryLog) -> None:
    async with keeping(tmp_path, log) as it:
        it.name(1, 2, 3)
        await it.keeper.refresh()
        assert await it.announced() == set()
        put(tmp_path, 1)
        put(tmp_path, 2)
        await it.keeper.refresh()
        assert await it.announced() == blocks(1, 2)
        put(tmp_path, 3)
        put(tmp_path, 9)  # of which nothing is known
        await it.keeper.refresh()
        assert await it.announced() == blocks(1, 2, 3)
        joined, *_ = await it.events()
        assert isinstance(joined, PoolJoined)
        assert (joined.pool, joined.keeper, joined.kind) == (it.id, WORKER, KIND.hex())


async def test_what_is_gone_takes_those_behind_it_along(tmp_path: Path, log: MemoryLog) -> None:
    """Until its file comes back: then all of them are there again."""
    async with keeping(tmp_path, log) as it:
        it.name(*range(1, 40))
        it.name(50, 51, parent=1020)
        for number in (*range(1, 40), 50, 51):
            put(tmp_path, number)
        await it.keeper.refresh()
        assert await it.announced() == blocks(*range(1, 40), 50, 51)
        (tmp_path / f"{name(20).hex()}.kv").unlink()
        await it.keeper.refresh()
        assert await it.announced() == blocks(*range(1, 20))
        put(tmp_path, 20)
        await it.keeper.refresh()
        assert await it.announced() == blocks(*range(1, 40), 50, 51)


async def test_order_does_not_matter(tmp_path: Path, log: MemoryLog) -> None:
    """Of entries and files in any order: after each step what is announced is what is reachable, event by event closed
    under prefixes."""
    fresh = random.Random(3)
    parents = {number: fresh.choice([None, *range(1, number)]) for number in range(1, 40)}
    async with keeping(tmp_path, log) as it:
        named, there = set[int](), set[int]()
        for _ in range(150):
            number = fresh.randrange(1, 40)
            parent = parents[number]
            if number not in named:
                named.add(number)
                it.name(number, parent=None if parent is None else 1000 + parent)
            elif number in there and fresh.random() < 0.5:
                there.remove(number)
                (tmp_path / f"{name(number).hex()}.kv").unlink()
            else:
                there.add(number)
                put(tmp_path, number)
            if fresh.random() < 0.5:
                await it.keeper.refresh()
                assert await it.announced() == blocks(*reachable(parents, named & there))
        held: set[int] = set()
        for event in await it.events():
            if isinstance(event, BlocksStored):
                assert event.parent is None or event.parent in held
                held |= set(hashes_from_bytes(event.hashes))
            elif isinstance(event, BlocksRemoved):
                held -= {block for piece in unpacked(event.blocks) for block in hashes_from_bytes(piece.hashes)}
            assert held == blocks(*reachable(parents, {block - 1000 for block in held}))


def reachable(parents: dict[int, int | None], there: set[int]) -> set[int]:
    """Those of the blocks of which all before them are there."""
    found: set[int] = set()
    for number in sorted(there):
        parent = parents[number]
        if parent is None or parent in found:
            found.add(number)
    return found


async def test_the_next_keeper_announces_the_same_without_a_request(tmp_path: Path, log: MemoryLog) -> None:
    """After an end without a word. It is another source of the same pool."""
    async with keeping(tmp_path, log) as it:
        it.name(1, 2, 3, 4)
        for number in (1, 2, 3):
            put(tmp_path, number)
        await it.keeper.refresh()
        put(tmp_path, 4)  # that nobody saw
        before, source = await it.announced(), it.keeper.publisher.id
    async with keeping(tmp_path, log) as it:
        assert await it.announced() == before == blocks(1, 2, 3)
        assert it.keeper.publisher.id != source
        await it.keeper.refresh()
        assert await it.announced() == blocks(1, 2, 3)
        it.name(1, 2, 3, 4)
        await it.keeper.refresh()
        assert await it.announced() == blocks(1, 2, 3, 4)
    assert len((tmp_path / CATALOG_FILE).read_bytes()) == 4 * 2 * RECORD_BYTES, "each with its tenant"


async def test_a_strangers_file_is_not_announced(tmp_path: Path, log: MemoryLog) -> None:
    """Under the name of a block of ours, by other weights; once ours replaces it, it is."""
    async with keeping(tmp_path, log) as it:
        it.name(1, 2)
        put(tmp_path, 1, OTHER_KIND)
        put(tmp_path, 2)
        await it.keeper.refresh()
        assert await it.announced() == set()
        draft = put(tmp_path, 1)
        (tmp_path / f"{draft.hex()}.kv").rename(tmp_path / f"{draft.hex()}.new")
        (tmp_path / f"{draft.hex()}.new").rename(tmp_path / f"{draft.hex()}.kv")
        await it.keeper.refresh()
        assert await it.announced() == blocks(1, 2)


async def test_links_that_wait_are_bounded(tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go, and are counted; their files are announced when they are named again."""
    monkeypatch.setattr(waiting_entries, "ENTRIES_WAITING_MAX", 10)
    async with keeping(tmp_path, log) as it:
        it.name(*range(1, 16))
        assert (len(it.keeper._waiting), it.keeper.totals()["pool_entries_dropped"]) == (10, 5)
        for number in range(1, 16):
            put(tmp_path, number)
        await it.keeper.refresh()
        assert await it.announced() == set()
        it.name(*range(1, 6))
        await it.keeper.refresh()
        assert await it.announced() == blocks(*range(1, 16))


async def test_a_disk_that_fails_is_tried_again(
    tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is announced that is not in the catalogue; what was announced stays, and the worker goes on."""
    async with keeping(tmp_path, log) as it:
        it.name(1, 2)
        put(tmp_path, 1)
        await it.keeper.refresh()
        put(tmp_path, 2)

        def fails(*_: Any) -> Any:
            raise OSError("full")

        for method in ("keep", "listing"):
            with monkeypatch.context() as full:
                full.setattr(PoolFolder, method, fails)
                await it.keeper._try()
        assert it.keeper.failures == 2
        assert await it.announced() == blocks(1)
        await it.keeper._try()
        assert await it.announced() == blocks(1, 2)


async def test_it_follows_its_folder(tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started once, until it leaves: the last listing finds what came at the end."""
    monkeypatch.setattr(pool_keeper, "LIST_EVERY_S", 0.01)
    it = Kept(tmp_path, log)
    it.keeper.start(WORKER)
    it.name(1, 2)
    put(tmp_path, 1)
    await eventually(lambda: it.keeper.blocks == 1, "the first block")
    for task in it.tasks:
        task.cancel()
    put(tmp_path, 2)
    await it.keeper.leave("stopped")
    assert isinstance((await it.events())[-1], PoolLeft)
    assert [event.reason for event in await it.events() if isinstance(event, PoolLeft)] == ["stopped"]
    assert it.keeper.blocks == 2
    await it.stop()


async def test_its_source_is_ended_and_it_goes_on_as_another(tmp_path: Path, log: MemoryLog) -> None:
    """A replica thought that it was gone: all is restated. The same after its worker has another id."""
    async with keeping(tmp_path, log) as it:
        it.name(1, 2)
        for number in (1, 2):
            put(tmp_path, number)
        await it.keeper.refresh()
        await it.events()
        before = it.keeper.publisher.id
        where = subject("test", KV, before)
        last = await log.last(KV, where)
        assert last is not None
        end = Speaker(KV, before + LOST_SUFFIX, about=before).say(PoolLost(by="x", reason="test"))
        await log.append(KV, where, end.payload, "lost", last.seq)
        it.name(3, parent=1002)
        put(tmp_path, 3)
        await it.keeper.refresh()
        await eventually(lambda: it.keeper.publisher.id != before, "another source")
        assert await it.announced() == blocks(1, 2, 3)
        it.keeper.kept_by(LATER)
        assert [event.keeper for event in await it.events() if isinstance(event, PoolJoined)] == [WORKER, LATER]
        assert await it.announced() == blocks(1, 2, 3)


async def test_a_keeper_that_was_never_started_leaves_at_once(tmp_path: Path, log: MemoryLog) -> None:
    it = Kept(tmp_path, log)
    async with asyncio.timeout(2):
        await it.keeper.leave("over")
    assert not (await log.state(KV)).last_seq


async def test_a_disk_that_hangs_holds_up_no_leave(
    tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is in the log all the same."""
    monkeypatch.setattr(pool_keeper, "LEAVE_TIMEOUT_S", 0.2)
    answers = threading.Event()
    async with keeping(tmp_path, log) as it:
        monkeypatch.setattr(it.keeper._folder, "listing", answers.wait)
        try:
            async with asyncio.timeout(2):
                await it.keeper.leave("over")
        finally:
            answers.set()
        assert isinstance((await it.events())[-1], PoolLeft)


def let_go(folder: Path, number: int) -> Path:
    """The engine has no room for the block: its file goes. Returns the file."""
    file = folder / f"{name(number).hex()}.kv"
    return file.rename(file.with_suffix(GOING))


async def test_a_file_that_goes_is_removed_once_the_log_has_it(
    tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not while the log is away; nor does the keeper's lease go on then."""
    monkeypatch.setattr(pool_keeper, "ACKNOWLEDGED_S", 0.1)
    monkeypatch.setattr(pool_keeper, "FOLD_S", 0.0)
    async with keeping(tmp_path, log) as it:
        it.name(1, 2, 3)
        for number in (1, 2, 3):
            put(tmp_path, number)
        await it.keeper.refresh()
        assert await it.announced() == blocks(1, 2, 3)
        file = let_go(tmp_path, 3)
        log.away = True
        await it.keeper.refresh()
        ends_ns = it.lease_end_ns()
        for _ in range(2):
            await it.keeper.refresh()
            assert file.exists()
        assert it.lease_end_ns() == ends_ns
        assert it.keeper.describe()["files_going"] == 1
        log.away = False
        await eventually(lambda: it.keeper.publisher.holds_all, "the removal is in the log")
        await it.keeper.refresh()
        assert not file.exists()
        assert it.lease_end_ns() > ends_ns
        assert await it.announced() == blocks(1, 2)
        assert it.keeper.describe()["files_going"] == 0


async def test_replicas_have_time_before_a_file_is_removed(
    tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with keeping(tmp_path, log) as it:
        it.name(1)
        put(tmp_path, 1)
        await it.keeper.refresh()
        file, waits = let_go(tmp_path, 1), list[tuple[float, bool]]()

        async def sleep(seconds: float) -> None:
            if seconds:
                waits.append((seconds, file.exists() and it.keeper.publisher.holds_all))

        monkeypatch.setattr(asyncio, "sleep", sleep)
        await it.keeper.refresh()
        monkeypatch.undo()
        assert waits == [(FOLD_S, True)]
        assert not file.exists()


async def test_a_source_that_was_ended_acknowledges_nothing(tmp_path: Path, log: MemoryLog) -> None:
    """Its last events are dropped, so that none waits. The next source tells the removal."""
    async with keeping(tmp_path, log) as it:
        it.name(1, 2)
        for number in (1, 2):
            put(tmp_path, number)
        await it.keeper.refresh()
        await it.events()
        it.keeper.publisher.outbox.close()
        file = let_go(tmp_path, 2)
        await it.keeper.refresh()
        assert it.keeper.publisher.outbox.idle
        assert file.exists()
        it.keeper._rejoin()
        await it.events()
        await it.keeper.refresh()
        assert not file.exists()
        assert await it.announced() == blocks(1)


async def test_a_file_that_goes_and_cannot_be_removed(
    tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again with the next listing; its block is announced as removed, once."""
    async with keeping(tmp_path, log) as it:
        it.name(1, 2)
        for number in (1, 2):
            put(tmp_path, number)
        await it.keeper.refresh()
        file = let_go(tmp_path, 2)

        def denied(*_: object, **__: object) -> None:
            raise PermissionError(13, "denied")

        with monkeypatch.context() as patched:
            patched.setattr(Path, "unlink", denied)
            for failed in (1, 2):
                await it.keeper.refresh()
                patched.setattr(PoolFolder, "listing", lambda _: None)  # as nothing changed since
                assert it.keeper.describe()["removals_failed"] == failed
        assert await it.announced() == blocks(1)
        await it.keeper.refresh()
        assert not file.exists()
        assert sum(isinstance(event, BlocksRemoved) for event in await it.events()) == 1


async def test_a_refused_file_that_cannot_be_removed_is_not_announced(tmp_path: Path, log: MemoryLog) -> None:
    """Nor what lies behind it, until it is written anew. If they are too many to be named, nothing is announced."""
    async with keeping(tmp_path, log) as it:
        it.name(1, 2, 3)
        for number in (1, 2, 3):
            put(tmp_path, number)
        await it.keeper.refresh()
        stuck = StuckFiles(shared_by(tmp_path))
        stuck.add(name(2), 1)
        await it.keeper.refresh()
        assert await it.announced() == blocks(1)
        stuck.pop(name(2))
        await it.keeper.refresh()
        assert await it.announced() == blocks(1, 2, 3)
        (shared_by(tmp_path) / STUCK_FILE).write_bytes(b"*")
        await it.keeper.refresh()
        assert await it.announced() == set()


async def test_its_lease_needs_listings_and_ends_with_it(
    tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that cannot be listed has no keeper that removes files."""
    async with keeping(tmp_path, log) as it:
        await it.events()
        await it.keeper.refresh()

        def fails(*_: Any) -> Any:
            raise OSError("no such disk")

        with monkeypatch.context() as broken:
            broken.setattr(PoolFolder, "listing", fails)
            await it.keeper._try()  # renewed before it failed
            ends_ns = it.lease_end_ns()
            await it.keeper._try()
            assert it.lease_end_ns() == ends_ns
        await it.keeper._try()
        assert it.lease_end_ns() == ends_ns
        await it.keeper._try()
        assert it.lease_end_ns() > ends_ns
        await it.keeper.leave("over")
        assert KeeperLease(shared_by(tmp_path), SystemClock()).left_ns() is None


@pytest.mark.parametrize("point", range(14))
async def test_a_kill_at_any_step(tmp_path: Path, log: MemoryLog, point: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper ends right before or right after one of its calls, while a file goes and another comes. What the log
    has as stored lies there then; the next engine and the next keeper go on by the files alone."""
    monkeypatch.setattr(pool_keeper, "FOLD_S", 0.0)
    async with keeping(tmp_path, log) as it:
        it.name(1, 2, 3)
        for number in (1, 2, 3):
            put(tmp_path, number)
        await it.keeper.refresh()
        assert await it.announced() == blocks(1, 2, 3)
        let_go(tmp_path, 3)
        it.name(4, parent=1002)
        put(tmp_path, 4)
        calls, real = 0, it.keeper._in_thread

        async def dies(call: Callable[[], Any]) -> Any:
            nonlocal calls
            calls += 1
            if calls - 1 == point // 2 and not point % 2:
                raise asyncio.CancelledError
            done = await real(call)
            if calls - 1 == point // 2:
                raise asyncio.CancelledError
            return done

        monkeypatch.setattr(it.keeper, "_in_thread", dies)
        with suppress(asyncio.CancelledError):
            await it.keeper.refresh()
        files = {file.stem for file in tmp_path.iterdir() if file.suffix in {".kv", GOING}}
        assert {block for block in await it.announced() if name(block - 1000).hex() not in files} == set()
        assert calls == min(point // 2 + 1, CALLS)
    BlockStore(tmp_path, 1 << 20, BlockSeal(KIND), DiskCounts(tmp_path / "counts"), shared_by(tmp_path), SystemClock())
    async with keeping(tmp_path, log) as it:
        assert not list(tmp_path.glob(f"*{GOING}"))
        assert await it.announced() >= blocks(1, 2)
        it.name(4, parent=1002)
        await it.keeper.refresh()
        assert await it.announced() == blocks(1, 2, 4)


def tenant(name: str) -> bytes:
    return tenant_digest(KEY, name)


async def with_tenants(it: Kept) -> None:
    """Blocks 1 to 3 of `acme`, 4 and 5 of `other`, 6 of no tenant, and 7 of which no worker said what it is."""
    it.name(1, 2, 3, salt="acme:")
    it.name(4, salt="other:")
    it.name(5, salt="other:of its own")
    it.name(6)
    for number in range(1, 8):
        put(it.folder, number)
    await it.keeper.refresh()


async def counted(it: Kept) -> dict[bytes, int]:
    return {each.tenant: each.blocks for each in await it.keeper.tenants()}


def files(folder: Path) -> set[int]:
    """Numbers of the blocks whose files lie there, under whatever name."""
    names = {name(number).hex(): number for number in range(100)}
    return {names[path.stem] for path in folder.iterdir() if path.stem in names}


async def test_blocks_are_counted_by_tenant(tmp_path: Path, log: MemoryLog) -> None:
    """Also by the next keeper. No name of a tenant stands in the folder."""
    expected = {tenant("acme"): 3, tenant("other"): 2, tenant(""): 1, UNKNOWN_TENANT: 1}
    async with keeping(tmp_path, log) as it:
        await with_tenants(it)
        assert await counted(it) == expected
        (of_acme,) = [each for each in await it.keeper.tenants() if each.tenant == tenant("acme")]
        assert of_acme.size_bytes == 3 * 8192
    async with keeping(tmp_path, log) as it:
        await it.keeper.refresh()
        assert await counted(it) == expected
    for path in tmp_path.iterdir():
        assert b"acme" not in path.read_bytes()
        assert tenant("acme") not in path.read_bytes(), "the digest is under a pad"


@pytest.mark.parametrize("unknown", [True, False])
async def test_the_blocks_of_one_tenant_are_erased(tmp_path: Path, log: MemoryLog, unknown: bool) -> None:
    """Others stay; the catalogue has no word of them any more."""
    async with keeping(tmp_path, log) as it:
        await with_tenants(it)
        erased = await it.keeper.erase(tenant("acme"), unknown=unknown)
        gone = {1, 2, 3, *({7} if unknown else ())}
        assert erased == (len(gone), len(gone) * 8192, 0, 0)
        assert files(tmp_path) == {*range(1, 8)} - gone
        assert await it.announced() == blocks(4, 5, 6)
        assert await counted(it) == {tenant("other"): 2, tenant(""): 1} | ({} if unknown else {UNKNOWN_TENANT: 1})
        assert (await it.keeper.erase(tenant("acme"), unknown=unknown)).blocks == 0
        assert len((tmp_path / CATALOG_FILE).read_bytes()) == 3 * 2 * RECORD_BYTES
        await it.keeper.refresh()
        assert await it.announced() == blocks(4, 5, 6)
    async with keeping(tmp_path, log) as it:
        await it.keeper.refresh()
        assert await it.announced() == blocks(4, 5, 6)


async def test_the_log_has_the_removal_before_a_file_is_erased(
    tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with keeping(tmp_path, log) as it:
        await with_tenants(it)
        acknowledged, seen = it.keeper.publisher.acknowledged, []

        async def look(timeout_s: float) -> bool:
            answer = await acknowledged(timeout_s)
            seen.append((await it.folded(), files(tmp_path)))
            return answer

        monkeypatch.setattr(it.keeper.publisher, "acknowledged", look)
        await it.keeper.erase(tenant("acme"), unknown=True)
        assert seen == [(blocks(4, 5, 6), {*range(1, 8)})]
        assert files(tmp_path) == {4, 5, 6}


async def test_without_the_log_nothing_is_erased(
    tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that were announced as removed are announced again."""
    monkeypatch.setattr(pool_keeper, "ACKNOWLEDGED_S", 0.05)
    async with keeping(tmp_path, log) as it:
        await with_tenants(it)
        assert await it.announced() == blocks(1, 2, 3, 4, 5, 6)
        log.away = True
        with pytest.raises(Unavailable, match="the log acknowledges nothing"):
            await it.keeper.erase(tenant("acme"), unknown=True)
        assert files(tmp_path) == {*range(1, 8)}
        log.away = False
        await it.keeper.refresh()
        assert await it.announced() == blocks(1, 2, 3, 4, 5, 6)
        assert (await it.keeper.erase(tenant("acme"), unknown=True)).blocks == 4


async def test_many_blocks_are_erased_in_parts(tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A keeper that dies in the middle announces the rest, which the next one erases."""
    monkeypatch.setattr(pool_keeper, "ERASED_AT_ONCE", 2)
    async with keeping(tmp_path, log) as it:
        await with_tenants(it)
        first = await it.keeper.erase(tenant("acme"), unknown=False)
        assert (first.blocks, first.left) == (2, 1)
    async with keeping(tmp_path, log) as it:
        await it.keeper.refresh()
        assert (await counted(it))[tenant("acme")] == 1
        last = await it.keeper.erase(tenant("acme"), unknown=False)
        assert (last.blocks, last.left) == (1, 0)
        assert files(tmp_path) == {4, 5, 6, 7}


async def test_what_came_meanwhile_is_erased_too(tmp_path: Path, log: MemoryLog) -> None:
    """A block that was written since the last listing, and one whose file goes."""
    async with keeping(tmp_path, log) as it:
        it.name(1, 2, salt="acme:")
        put(tmp_path, 1)
        await it.keeper.refresh()
        put(tmp_path, 2)
        assert (await it.keeper.erase(tenant("acme"), unknown=False)).blocks == 1
        assert (await it.keeper.erase(tenant("acme"), unknown=False)).blocks == 1
        assert files(tmp_path) == set()
        it.name(3, salt="acme:")
        put(tmp_path, 3)
        await it.keeper._list()
        (tmp_path / f"{name(3).hex()}.kv").rename(tmp_path / f"{name(3).hex()}{GOING}")
        await it.keeper._list()
        assert (await it.keeper.erase(tenant("acme"), unknown=False)).blocks == 1
        assert files(tmp_path) == set()


async def test_a_file_that_cannot_be_erased_is_announced_again(
    tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with keeping(tmp_path, log) as it:
        await with_tenants(it)
        erase, stays = it.keeper._folder.erase, name(2)
        monkeypatch.setattr(
            it.keeper._folder, "erase", lambda names: {stays} | erase(each for each in names if each != stays)
        )
        erased = await it.keeper.erase(tenant("acme"), unknown=False)
        assert (erased.blocks, erased.failed, erased.left) == (2, 1, 0)
        monkeypatch.undo()
        await it.keeper.refresh()
        assert await counted(it) == {tenant("acme"): 1, tenant("other"): 2, tenant(""): 1, UNKNOWN_TENANT: 1}
        assert (await it.keeper.erase(tenant("acme"), unknown=False)).blocks == 1


async def test_a_block_without_a_tenant_gets_it_when_it_is_named_again(tmp_path: Path, log: MemoryLog) -> None:
    """Of a catalogue of the version before. Its announcement does not change."""
    async with keeping(tmp_path, log) as it:
        put(tmp_path, 1)
        put(tmp_path, 2)
        it.keeper._folder.keep({name(1): CatalogEntry(1001, None), name(2): CatalogEntry(1002, 1001)})
    async with keeping(tmp_path, log) as it:
        await it.keeper.refresh()
        assert (await counted(it), await it.announced()) == ({UNKNOWN_TENANT: 2}, blocks(1, 2))
        it.name(1, 2, salt="acme:")
        await it.keeper.refresh()
        assert (await counted(it), await it.announced()) == ({tenant("acme"): 2}, blocks(1, 2))
        assert not [event for event in await it.events() if isinstance(event, BlocksStored | BlocksRemoved)]
        it.name(1, 2)
        await it.keeper.refresh()
        assert await counted(it) == {tenant("acme"): 2}, "a known tenant stays"
        (tmp_path / f"{name(1).hex()}.kv").unlink()
        await it.keeper.refresh()
        assert await it.announced() == set(), "each block has one copy"
    async with keeping(tmp_path, log) as it:
        await it.keeper.refresh()
        assert await counted(it) == {tenant("acme"): 1}


async def test_the_engine_sees_what_was_erased(tmp_path: Path, log: MemoryLog) -> None:
    """Its bytes are free, its blocks are stored again, and a miss is no fault."""
    counts = DiskCounts(shared_by(tmp_path) / "counts")
    clock = SystemClock()
    store = BlockStore(tmp_path, 1 << 20, BlockSeal(KIND), counts, shared_by(tmp_path), clock)
    async with keeping(tmp_path, log) as it:
        await it.keeper.refresh()
        for number in (1, 2, 3):
            assert store.put(name(number), memoryview(bytes(5000)), store.stamp_now())
        it.name(1, 2, salt="acme:")
        it.name(3, salt="other:")
        await it.keeper.refresh()
        assert (await it.keeper.erase(tenant("acme"), unknown=False)).blocks == 2
        assert not store.load(name(1), memoryview(bytearray(5000)))
        assert [store.holds(name(number)) for number in (1, 2, 3)] == [False, False, True]
        assert (counts["blocks"], counts["bytes"], counts["refused_missing"]) == (1, 8192, 0)
        assert store.load(name(3), memoryview(bytearray(5000)))
        assert store.put(name(1), memoryview(bytes(5000)), store.stamp_now())
        await it.keeper.refresh()
        assert (await counted(it))[tenant("acme")] == 1, "a new request of the tenant stores it again"
        assert (await it.keeper.erase(tenant("acme"), unknown=False)).blocks == 1
        store.touch([])
        assert not store.holds(name(1))
