"""A pool's folder that several workers use: its bytes, its keepers one after the other, and the workers' entries."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from actors.kv_blocks import entry_batches
from actors.kv_blocks.block_file import ALLOCATION_BYTES, FAILURES_MAX, PAUSE_S
from actors.kv_blocks.block_seal import BlockSeal
from actors.kv_blocks.catalog_records import CatalogEntry, CatalogRecords
from actors.kv_blocks.disk_counts import DiskCounts
from actors.kv_blocks.entry_batches import BATCH_ENTRIES_MAX, BATCHES_MAX, LIVES_S, EntryBatches
from actors.kv_blocks.pool_folder import Listing, PoolDescription, PoolShare
from actors.kv_blocks.shared_block_store import SharedBlockStore
from actors.kv_blocks.shared_pool_folder import DRAFT_S, SharedPoolFolder, shared_pool_id
from actors.kv_blocks.write_grant import KeeperFence, KeeperSuperseded, WriteGrant, keepers, newest_grant
from core.clock import ManualClock
from core.errors import CallerError
from tests.actors.kv_blocks.test_pool_folder import KEY, KIND, NOW_MS, OTHER_KIND, described, entries, name, put

PAYLOAD_BYTES = 8192
FILE_BYTES = PAYLOAD_BYTES + ALLOCATION_BYTES
SIZE = 64 * FILE_BYTES
"""In a full folder a grant is for four blocks."""


def shared(folder: Path, worker: int = 0, kind: bytes = KIND, size: int = SIZE) -> PoolDescription:
    return described(folder, kind=kind)._replace(share=PoolShare(writer(worker), size))


def writer(worker: int) -> str:
    return f"{worker:016x}"


class Shared:
    """A folder, with a store for each worker and one keeper after the other."""

    def __init__(self, folder: Path, workers: int = 2, size: int = SIZE) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.size = folder, size
        self.clock = ManualClock(NOW_MS)
        engines = [folder.with_name(f"engine {worker}") for worker in range(workers)]
        for engine in engines:
            engine.mkdir(exist_ok=True)
        self.counts = [DiskCounts(engine / "counts") for engine in engines]
        self.stores = [
            SharedBlockStore(folder, writer(worker), BlockSeal(KIND), self.counts[worker], engine, self.clock)
            for worker, engine in enumerate(engines)
        ]
        records = CatalogRecords(KEY, KIND)
        self.batches = [EntryBatches(folder, writer(worker), records, self.clock) for worker in range(workers)]
        self.claim = 0
        self.keeper = self.next_keeper()

    def next_keeper(self) -> SharedPoolFolder:
        """Another one comes; the one before does not know."""
        self.claim += 1
        self.keeper = SharedPoolFolder(shared(self.folder, size=self.size), self.clock, self.claim)
        self.found = self.keeper.open()
        return self.keeper

    def list(self) -> Listing | None:
        """All workers live, and the keeper lists the folder."""
        for batches in self.batches:
            batches.beat()
        return self.keeper.listing()

    def put(self, number: int, worker: int = 0, age_s: int = 0) -> bool:
        store = self.stores[worker]
        return store.put(
            name(number), memoryview(bytes([number % 256]) * PAYLOAD_BYTES), store.stamp_now() - age_s * 10**9
        )

    def load(self, number: int, worker: int) -> bool:
        into = bytearray(PAYLOAD_BYTES)
        found = self.stores[worker].load(name(number), memoryview(into))
        assert not found or into == bytes([number % 256]) * PAYLOAD_BYTES
        return found

    def bytes_on_disk(self) -> int:
        files = [file.stat().st_size for file in self.folder.iterdir() if file.suffix in {".kv", ".new"}]
        return sum(-(-size // ALLOCATION_BYTES) * ALLOCATION_BYTES for size in files)


@pytest.fixture
def it(tmp_path: Path) -> Shared:
    return Shared(tmp_path / "kv")


def test_a_worker_reads_the_blocks_of_another(it: Shared) -> None:
    """Also without a keeper, and after a file's end."""
    it.list()
    assert it.put(1, worker=0)
    shutil.rmtree(it.folder / "keepers")
    assert it.stores[1].holds(name(1))
    assert it.load(1, worker=1)
    (it.folder / f"{name(1).hex()}.kv").unlink()
    assert not it.stores[1].holds(name(1))
    assert not it.load(1, worker=1)
    assert not any(it.counts[1][count] for count in ("refused_missing", "stuck"))


def test_a_worker_writes_no_more_than_its_grant(tmp_path: Path) -> None:
    """Half of what is free, until the next listing; nothing before the first one, and nothing without grants."""
    it = Shared(tmp_path / "kv", size=8 * FILE_BYTES)
    assert not it.put(0)
    it.list()
    assert [it.put(number, worker=0) for number in range(3)] == [True, True, False]
    assert [it.put(number, worker=1) for number in range(3, 6)] == [True, True, False]
    assert it.put(0, worker=1), "it lies there, and costs nothing"
    it.list()
    assert not it.put(5, worker=1), "the other half may have been written since the listing began"
    it.list()
    assert [it.put(number, worker=1) for number in (5, 6)] == [True, False]
    assert (it.counts[0]["stores_dropped"], it.counts[1]["stores_dropped"]) == (2, 3)
    shutil.rmtree(it.folder / "keepers")
    assert not it.put(6)


def test_a_worker_that_is_dead_has_no_share(it: Shared) -> None:
    it.list()
    it.clock.advance(int(LIVES_S * 1000) + 1)
    it.batches[1].beat()
    it.keeper.listing()
    found = newest_grant(it.folder)
    assert found is not None
    assert (found[1].writers, found[1].share_bytes) == ((writer(1),), 16 * FILE_BYTES)
    assert not it.put(1, worker=0)
    assert not (it.folder / "workers" / writer(0)).exists()


def test_both_may_write_one_block(it: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one's file is complete before this one's draft has its name."""
    it.list()
    real, nested = Path.rename, list[bool]()

    def rename(self: Path, target: Path) -> Path:
        if self.name.endswith(f"{writer(0)}.new") and not nested:
            nested.append(it.put(1, worker=1))
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    assert it.put(1, worker=0)
    assert nested == [True]
    assert it.load(1, worker=0)
    assert it.load(1, worker=1)
    assert [file.name for file in it.folder.glob("*.new")] == []


def test_a_disk_that_takes_nothing_is_left_alone_for_a_while(it: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    it.list()
    with monkeypatch.context() as full:
        full.setattr(os, "writev", lambda *_: 0)
        for number in range(FAILURES_MAX):
            it.list()
            assert not it.put(number)
    assert it.counts[0]["write_failures"] == FAILURES_MAX
    it.list()
    assert not it.put(0)
    it.clock.advance(PAUSE_S * 1000)
    it.list()
    assert it.put(0)


def test_a_refused_file_is_removed_or_is_none_any_more(it: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    it.list()
    for number in (1, 2):
        assert it.put(number)
        file = it.folder / f"{name(number).hex()}.kv"
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert not it.load(1, worker=1)
    assert not it.stores[0].holds(name(1))

    def denied(*_: object, **__: object) -> None:
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", denied)
        assert not it.load(2, worker=1)
    assert (it.counts[1]["refused_checksum"], it.counts[1]["stuck"]) == (2, 1)
    assert (it.stores[0].holds(name(2)), it.stores[1].holds(name(2))) == (True, False)
    it.list()
    assert it.put(2, worker=1), "it is written anew"
    assert it.load(2, worker=1)


def fill(it: Shared, first: int = 0) -> int:
    """The folder is so full that files are chosen to go; returns the number of the next block."""
    number = first
    while not (listing := it.list()) or not listing.goes:
        for worker in range(len(it.stores)):
            while it.put(number, worker, age_s=10_000 - number):
                number += 1
    return number


def test_the_least_recently_used_go_whichever_worker_wrote_them(it: Shared) -> None:
    number = fill(it)
    it.stores[1].touch([(name(0), it.stores[1].stamp_now()), (name(number - 1), 5)])
    it.stores[1].save_stamps()
    listing = it.list()
    assert listing is not None
    oldest = sorted(range(1, len(listing.goes) + 1))
    assert listing.goes == {name(number) for number in oldest}
    assert not listing.stays & listing.goes
    assert it.keeper.remove_going(listing.goes) == 0
    assert not any(it.stores[0].holds(name(number)) for number in oldest)
    assert it.stores[0].holds(name(0))
    again = it.list()
    assert again == Listing(listing.stays)


def test_a_file_that_is_used_meanwhile_stays(it: Shared) -> None:
    """After it was chosen, and its removal announced."""
    fill(it)
    listing = it.list()
    assert listing is not None
    used, *others = sorted(listing.goes)
    it.stores[1].touch([(used, it.stores[1].stamp_now())])
    it.stores[1].save_stamps()
    assert it.keeper.remove_going(listing.goes) == 0
    assert it.stores[0].holds(used)
    assert not any(it.stores[0].holds(other) for other in others)
    again = it.list()
    assert again is not None
    assert used in again.stays


@pytest.mark.parametrize("seed", range(10))
def test_the_bytes_are_never_exceeded(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are written between any two steps of the keeper, also within its listing; keepers come and go."""
    fresh, it, most = random.Random(seed), Shared(tmp_path / "kv", workers=3), 0
    it.list()
    older: list[SharedPoolFolder] = []

    def write() -> None:
        nonlocal most
        for _ in range(fresh.randrange(12)):
            it.put(fresh.randrange(400), fresh.randrange(3), age_s=fresh.randrange(1000))
        most = max(most, it.bytes_on_disk())
        assert most <= it.size

    for _ in range(60):
        write()
        act = fresh.random()
        if act < 0.1:
            older.append(it.keeper)
            it.next_keeper()
        elif act < 0.2 and older:
            with pytest.raises(KeeperSuperseded):
                fresh.choice(older).listing()
        for batches in it.batches:
            batches.beat()
        real = it.keeper._inbox.workers

        def workers(real: Callable[[], tuple[str, ...]] = real) -> tuple[str, ...]:
            write()
            return real()

        with monkeypatch.context() as between:
            between.setattr(it.keeper._inbox, "workers", workers)
            listing = it.keeper.listing()
        write()
        if listing is not None and fresh.random() < 0.7:
            it.keeper.remove_going(listing.goes)
    assert most > it.size * 3 // 4


def test_a_new_keeper_voids_what_the_one_before_granted(it: Shared) -> None:
    """So its first listing has all that was written by it; its own grants go on from there."""
    it.list()
    assert it.put(1)
    fence = KeeperFence(it.folder, 100)
    assert not it.put(2)
    for free, share in ((40, 20), (40, 10), (10, 0), (10, 5)):
        fence.grant(free * FILE_BYTES, 0, (writer(0),))
        found = newest_grant(it.folder)
        assert found is not None
        assert found[1].share_bytes == share * FILE_BYTES
    fence.grant(10 * FILE_BYTES, 4 * FILE_BYTES, (writer(0),))
    assert newest_grant(it.folder) == (100, WriteGrant(5, 4 * FILE_BYTES, (writer(0),)))
    assert keepers(it.folder) == [100], "the file of the one before is gone"


def test_an_older_keeper_is_refused(it: Shared) -> None:
    """Each change of the folder, one by one; and it grants nothing."""
    number = fill(it)
    listing = it.list()
    assert listing is not None
    older, before = it.keeper, sorted(it.folder.iterdir())
    it.next_keeper()
    for act in (
        older.listing,
        lambda: older.renew(0.0),
        lambda: older.remove_going(listing.goes),
        lambda: older.keep(entries(1)),
        lambda: older.rewrite({}),
    ):
        with pytest.raises(KeeperSuperseded, match="fence 2 came after this one with 1"):
            act()
    assert sorted(it.folder.iterdir()) == before
    assert not it.put(number), "the new keeper has granted nothing yet"


def test_a_registry_that_counts_anew_makes_no_older_keeper(it: Shared) -> None:
    assert it.keeper.fence == 1
    it.claim = 500
    assert it.next_keeper().fence == 501
    it.claim = 2
    assert it.next_keeper().fence == 502
    assert newest_grant(it.folder) == (502, WriteGrant())


def test_the_catalogue_goes_on_with_the_next_keeper(it: Shared) -> None:
    """A record that an older keeper writes too late is nowhere; those of files that went are left out."""
    for number in range(4):
        put(it.folder, number)
    assert it.keeper.keep(entries(0, 1, 2)) == {name(0), name(1), name(2)}
    older = it.keeper
    (it.folder / f"{name(2).hex()}.kv").unlink()
    it.next_keeper()
    assert it.found[1] == entries(0, 1)
    assert it.keeper.keep(entries(3)) == {name(3)}
    super(SharedPoolFolder, older).keep({name(1): CatalogEntry(77, None)})
    assert it.next_keeper() is not older
    assert it.found[1] == entries(0, 1, 3)
    assert len([*(it.folder / "keepers").glob("*.catalogue")]) == 1


def test_entries_come_to_the_keeper_until_it_has_them(it: Shared) -> None:
    """Of both workers, in any number of files; a keeper that dies before it acknowledges leaves them to the next."""
    for worker in (0, 1):
        it.batches[worker].beat()
    it.batches[0].write(entries(0, 1))
    it.batches[0].write(entries(2))
    it.batches[1].write(entries(3))
    assert it.keeper.receive() == entries(0, 1, 2, 3)
    it.next_keeper()
    assert it.keeper.receive() == entries(0, 1, 2, 3)
    it.batches[1].write(entries(4))
    it.keeper.acknowledge()
    assert it.keeper.receive() == entries(4)
    it.keeper.acknowledge()
    assert it.keeper.receive() == {}


def test_entries_that_nobody_reads_are_bounded(it: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    it.batches[0].beat()
    for number in range(BATCHES_MAX):
        assert it.batches[0].room() == (BATCHES_MAX - number) * BATCH_ENTRIES_MAX
        it.batches[0].write(entries(number))
    assert it.batches[0].room() == 0
    assert it.batches[1].room() == BATCHES_MAX * BATCH_ENTRIES_MAX
    monkeypatch.setattr(entry_batches, "READ_MAX", 10)
    assert len(it.keeper.receive()) == 10
    it.keeper.acknowledge()
    assert it.batches[0].room() == 10 * BATCH_ENTRIES_MAX


def test_a_torn_file_of_entries_is_passed_over(it: Shared) -> None:
    """Also one of another kind: else it would count as waiting for ever."""
    it.batches[0].beat()
    it.batches[0].write(entries(0))
    it.batches[0].write(entries(1))
    first, second = sorted((it.folder / "workers").glob("*.entries"))
    first.write_bytes(bytes(first.stat().st_size))
    second.write_bytes(second.read_bytes()[:-1])
    it.batches[0].write(entries(2))
    assert it.keeper.receive() == entries(2)
    assert len([*(it.folder / "workers").glob("*.entries")]) == 1


def test_a_draft_that_is_never_finished_goes(it: Shared) -> None:
    """And one that is being written counts."""
    draft = it.folder / f"{name(1).hex()}-{writer(0)}.new"
    draft.write_bytes(bytes(PAYLOAD_BYTES + 1))
    os.utime(draft, ns=(NOW_MS * 10**6,) * 2)
    assert it.list() is not None
    assert it.keeper.used_bytes == FILE_BYTES
    it.clock.advance(int(DRAFT_S * 1000) + 1)
    it.keeper._listed_ns = 0
    it.list()
    assert (it.keeper.used_bytes, draft.exists()) == (0, False)


def test_a_pool_has_one_kind(it: Shared, tmp_path: Path) -> None:
    """Whichever worker comes first; a copy of the folder is refused, too."""
    found = shared_pool_id(shared(it.folder, worker=1))
    assert found == it.found[0]
    with pytest.raises(
        CallerError, match="has blocks of another model, layout, key or version of vLLM: choose another"
    ):
        shared_pool_id(shared(it.folder, kind=OTHER_KIND))
    shutil.copytree(it.folder, tmp_path / "copy")
    with pytest.raises(CallerError, match="is a copy of another folder: remove its file `pool`"):
        shared_pool_id(shared(tmp_path / "copy"))
    (tmp_path / "copy" / "pool").write_bytes(b"\xff")
    with pytest.raises(CallerError, match="the file `pool` in the shared disk tier"):
        shared_pool_id(shared(tmp_path / "copy"))
    (tmp_path / "copy" / "pool").unlink()
    assert shared_pool_id(shared(tmp_path / "copy")) != found
    assert [file.name for file in it.folder.glob(".pool*")] == []


def test_the_newest_keeper_alone_erases(it: Shared) -> None:
    """Blocks go whether they were used lately or not; they are misses for all workers, and may be stored again."""
    it.list()
    for number in (1, 2, 3):
        assert it.put(number)
    older, newer = it.keeper, it.next_keeper()
    with pytest.raises(KeeperSuperseded):
        older.erase([name(1)])
    assert it.load(1, worker=1)
    it.stores[1].touch([(name(1), it.stores[1].stamp_now() + 10**9)])
    assert newer.erase([name(1), name(2), name(9)]) == set()
    assert [it.load(number, worker=1) for number in (1, 2, 3)] == [False, False, True]
    assert not any(it.counts[1][count] for count in ("refused_missing", "stuck"))
    assert (newer.size_of(name(1)), newer.size_of(name(3))) == (0, FILE_BYTES)
    it.list()
    assert it.put(1)


def test_a_file_that_cannot_be_erased_is_named(it: Shared) -> None:
    it.list()
    assert it.put(2)
    (it.folder / f"{name(1).hex()}.kv").mkdir()
    assert it.keeper.erase([name(1), name(2)]) == {name(1)}
    assert not (it.folder / f"{name(2).hex()}.kv").exists()
