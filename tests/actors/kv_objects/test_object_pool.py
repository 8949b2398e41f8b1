"""A pool in a store of objects: its bytes, its keepers one after the other, and the workers' reports."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from actors.kv_blocks.block_file import FAILURES_MAX, PAUSE_S
from actors.kv_blocks.block_seal import HEADER_BYTES, BlockSeal
from actors.kv_blocks.catalog_records import CatalogRecords
from actors.kv_blocks.disk_counts import DiskCounts
from actors.kv_blocks.entry_batches import BATCHES_MAX, LIVES_S
from actors.kv_blocks.pool_folder import Listing, ObjectPlace, PoolDescription, PoolShare
from actors.kv_blocks.write_grant import KeeperSuperseded
from actors.kv_objects import object_pool, store_report
from actors.kv_objects.object_block_store import ObjectBlockStore
from actors.kv_objects.object_pool import LIST_AFTER_S, LIST_ALL_S, PARTS_MAX, REMOVED_AT_ONCE, ObjectPool
from actors.kv_objects.object_store import BUSY, DENIED, FAILED, TIMEOUT, ObjectStore, ObjectStoreFailed
from actors.kv_objects.pool_objects import ObjectSeal, block_key, object_pool_id
from actors.kv_objects.report_batches import ACTIVE_S, BEAT_S, ReportBatches
from actors.kv_objects.s3_objects import S3Objects
from actors.kv_objects.store_report import FILES_MAX, StoreReports, read_reports
from actors.kv_objects.write_credit import keeper_keys, read_local
from core.clock import ManualClock
from core.errors import CallerError
from tests.actors.kv_blocks.test_pool_folder import KEY, KIND, OTHER_KIND, entries, name
from tests.fixtures.memory_objects import MemoryObjects
from tests.fixtures.s3_server import S3Server

NOW_MS = 1_800_000_000_000
PAYLOAD_BYTES = 8192
BLOCK_BYTES = PAYLOAD_BYTES + HEADER_BYTES
SIZE = 64 * BLOCK_BYTES
"""In a full pool a credit is for four blocks."""
PLACE = ObjectPlace("bucket", "kv")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports are written by the test (`Worker.report`), and by their thread at the end."""
    monkeypatch.setattr(store_report, "FLUSH_S", 0.0)
    monkeypatch.setattr(StoreReports, "_write", lambda self: self._closed.wait() and self.flush())


class Worker:
    """An engine's store, and what its worker's process reports."""

    def __init__(self, number: int, shared: Path, objects: ObjectStore, clock: ManualClock) -> None:
        shared.mkdir(exist_ok=True)
        self.writer = f"{number:016x}"
        self.shared = shared
        self.counts = DiskCounts(shared / "counts")
        self.store = ObjectBlockStore(objects, BlockSeal(KIND), self.counts, shared, clock)
        records, seal = CatalogRecords(KEY, KIND), ObjectSeal(KEY, KIND)
        self.batches = ReportBatches(objects, self.writer, seal, records, shared, clock)

    def report(self, *named: int) -> None:
        """The engine's reports are on their way to the keeper, with the entries of these blocks."""
        self.store._reports.flush()
        self.batches.beat()
        known = entries(*named)
        there = self.batches.there(known)
        self.batches.write({name: entry for name, entry in known.items() if name in there})
        self.batches.flush()

    def put(self, number: int) -> bool:
        return self.store.put(name(number), memoryview(bytes([number % 256]) * PAYLOAD_BYTES), 0)

    def load(self, number: int) -> bool:
        into = bytearray(PAYLOAD_BYTES)
        found = self.store.load(name(number), memoryview(into))
        assert not found or into == bytes([number % 256]) * PAYLOAD_BYTES
        return found

    def use(self, *numbers: int) -> None:
        self.store.touch((name(number), at) for at, number in enumerate(numbers))


class Pool:
    """A pool with workers, and one keeper after the other."""

    def __init__(
        self, folder: Path, objects: ObjectStore, clock: ManualClock, workers: int = 2, size: int = SIZE
    ) -> None:
        self.folder, self.objects, self.clock, self.size = folder, objects, clock, size
        self.workers = [self.worker(number) for number in range(workers)]
        self.claim = 0
        self.next_keeper()

    def worker(self, number: int) -> Worker:
        return Worker(number, self.folder / f"engine {number}", self.objects, self.clock)

    def next_keeper(self) -> ObjectPool:
        self.claim += 1
        self.keeper = ObjectPool(described(self.folder, size=self.size), self.objects, self.clock, self.claim)
        self.id, self.found = self.keeper.open()
        return self.keeper

    def list(self, late: Worker | None = None) -> Listing | None:
        """The keeper lists the pool; the process of a worker that is `late` does nothing meanwhile."""
        self.clock.advance(int(BEAT_S * 1000))
        workers = [worker for worker in self.workers if worker is not late]
        for worker in workers:
            worker.report()
        self.received = self.keeper.receive()
        listing = self.keeper.listing()
        self.keeper.acknowledge()
        for worker in workers:
            worker.batches._active_until_ms = self.clock.monotonic_ms()
            worker.batches.beat()  # they know their new credit
        return listing

    def there(self) -> set[bytes]:
        return {bytes.fromhex(each.key.removeprefix("blocks/")) for each in self.objects.list("blocks")}

    def bytes(self) -> int:
        return sum(each.size for each in self.objects.list("blocks"))


def described(folder: Path, kind: bytes = KIND, size: int = SIZE, writer: int = 0) -> PoolDescription:
    share = PoolShare(f"{writer:016x}", size, True, PLACE)
    return PoolDescription(folder, KEY, kind, 8, 32, bytes(4), folder / f"engine {writer}", share)


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects(ManualClock(NOW_MS))


@pytest.fixture
def it(tmp_path: Path, objects: MemoryObjects) -> Pool:
    return Pool(tmp_path, objects, objects.clock)


@pytest.fixture
def real(tmp_path: Path, s3: S3Server) -> Pool:
    """The same over a server of S3."""
    return Pool(tmp_path, S3Objects(s3.place(), 20), ManualClock(NOW_MS))


@pytest.mark.parametrize("kind", ["it", "real"])
def test_a_worker_reads_the_blocks_of_another(kind: str, request: pytest.FixtureRequest) -> None:
    """The next keeper knows them with their entries, and the order of their use."""
    it: Pool = request.getfixturevalue(kind)
    it.list()
    assert [it.workers[0].put(number) for number in range(4)] == [True] * 4
    assert it.workers[1].load(2)
    assert not it.workers[1].load(9)
    it.workers[0].report(0, 1, 2, 3)
    it.keeper.receive()
    assert it.keeper.listing() == Listing(frozenset(map(name, range(4))))
    assert it.keeper.keep(entries(0, 1, 2, 5)) == {name(0), name(1), name(2)}
    it.keeper.acknowledge()
    it.workers[1].use(0)
    it.workers[1].report()
    it.keeper.receive()
    it.keeper.rewrite(entries(0, 1, 2))
    before = it.id
    it.next_keeper()
    assert (it.id, it.found) == (before, entries(0, 1, 2))
    assert [*it.keeper._blocks][:2] == [name(1), name(2)]
    assert it.keeper.used_bytes == 4 * BLOCK_BYTES
    assert it.keeper.tier == "remote"
    assert it.keeper.name_of(7) == name(7)


def test_entries_come_once_the_engine_saw_the_blocks(it: Pool) -> None:
    it.list()
    it.workers[0].put(1)
    assert it.workers[0].batches.there(map(name, range(3))) == set()
    it.workers[0].report(0, 1)
    it.workers[0].report(0, 1)
    assert it.keeper.receive() == entries(1)
    it.workers[1].put(1)
    it.workers[1].report(1)
    assert it.keeper.receive() == entries(1), "the other one lay there before, and is known as well"
    assert it.workers[1].counts["stores"] == 0


def test_a_worker_writes_no_more_than_its_credit(tmp_path: Path, objects: MemoryObjects) -> None:
    """Half of what is free, until the next listing; nothing before the first one. A block that lies there costs
    none."""
    it = Pool(tmp_path, objects, objects.clock, size=8 * BLOCK_BYTES)
    one, other = it.workers
    assert not one.put(0)
    it.list()
    assert [one.put(number) for number in range(3)] == [True, True, False]
    assert other.put(0), "it lies there, and costs nothing"
    it.list()
    assert [other.put(number) for number in range(3, 6)] == [True, False, False], "it had not used the first ones"
    assert it.bytes() <= it.size
    assert one.counts["stores_dropped"] == 2


@pytest.mark.parametrize("seed", range(4))
def test_the_bytes_are_never_exceeded(tmp_path: Path, objects: MemoryObjects, seed: int) -> None:
    """Two workers write as much as they may, reports come late, and credits are seen late, keepers change, workers end
    without a word. All that may be written at any time fits, and the keeper
    knows of all of it."""
    chance = random.Random(seed)
    it = Pool(tmp_path, objects, objects.clock)
    number = 0
    for step in range(240):
        what = chance.random()
        worker = chance.choice(it.workers)
        if what < 0.6:
            for _ in range(chance.randrange(1, 8)):
                number += worker.put(number)
        elif what < 0.75:
            worker.report()
        elif what < 0.95:
            listing = it.list(late=worker if chance.random() < 0.5 else None)
            if listing is not None:
                it.keeper.remove_going(listing.goes)
        elif what < 0.98:
            it.next_keeper()
        else:
            it.workers[it.workers.index(worker)] = it.worker(1000 + step)
            it.clock.advance(int(LIVES_S * 1000))
        may_write = {each.writer: read_local(each.shared) - each.store._begun for each in it.workers}
        assert it.bytes() + sum(may_write.values()) <= it.size
        for writer, totals in it.keeper._totals.items():
            assert it.keeper._outstanding(writer, totals) >= may_write.get(writer, 0)
    assert number > 64, "it went on writing"


def test_the_least_recently_used_go_first_and_a_prompts_end_before_its_begin(it: Pool) -> None:
    it.list()
    stored = 0
    while stored < 56:
        stored += it.workers[0].put(stored)
        it.list()
    it.workers[1].use(3, 2, 1, 0)
    listing = it.list()
    while listing is None or not listing.goes:
        stored += sum(it.workers[0].put(stored + more) for more in range(2))
        listing = it.list()
    assert {name(4)} <= listing.goes
    assert not listing.goes & {name(number) for number in range(4)}
    assert listing.goes <= it.there(), "they lie there until the log has their removal"
    assert it.keeper.remove_going(listing.goes) == 0
    assert not listing.goes & it.there()
    assert it.keeper.used_bytes == it.bytes() <= it.size - SIZE // 8


def test_a_block_that_is_used_while_it_goes_stays(it: Pool) -> None:
    it.list()
    stored, listing = 0, None
    while listing is None or not listing.goes:
        stored += it.workers[0].put(stored)
        listing = it.list()
    used = min(listing.goes)
    it.workers[0].store.touch([(used, 1)])
    again = it.list()
    assert again is not None
    assert used in again.stays
    it.keeper.remove_going(listing.goes)
    assert used in it.there()


@pytest.mark.parametrize("harm", ["cut", "flipped", "stranger", "other kind", "longer"])
@pytest.mark.parametrize("kind", ["it", "real"])
def test_an_object_that_proves_no_block_goes(kind: str, harm: str, request: pytest.FixtureRequest) -> None:
    it: Pool = request.getfixturevalue(kind)
    it.list()
    for number in (1, 2):
        it.workers[0].put(number)
    it.workers[0].report(1, 2)
    it.keeper.receive()
    it.keeper.listing()
    content = bytearray(it.objects.get(block_key(name(1))))
    if harm == "cut":
        content = content[:-1]
    elif harm == "longer":
        content += b"\0"
    elif harm == "flipped":
        content[-9] ^= 4
    elif harm == "stranger":
        content = bytearray(it.objects.get(block_key(name(2))))
    else:
        payload = memoryview(bytes([1]) * PAYLOAD_BYTES)
        content = bytearray(BlockSeal(OTHER_KIND).header(name(1), payload) + payload)
    it.objects.put(block_key(name(1)), bytes(content))
    assert not it.workers[1].load(1)
    reason = {"cut": "short", "longer": "short", "flipped": "checksum", "other kind": "seal"}.get(harm, harm)
    assert it.workers[1].counts[f"refused_{reason}"] == 1
    assert it.there() == {name(2)}
    it.workers[1].report()
    it.keeper.receive()
    assert it.keeper.listing() == Listing(frozenset({name(2)}))


def test_a_refused_object_that_cannot_be_removed_is_a_miss_until_it_is_written_anew(
    it: Pool, objects: MemoryObjects
) -> None:
    it.list()
    it.workers[0].put(1)
    objects.put(block_key(name(1)), b"no block")
    objects.failing["delete"] = DENIED
    assert not it.workers[0].load(1)
    assert it.workers[0].counts["stuck"] == it.workers[0].counts["calls_denied"] == 1
    assert not it.workers[0].store.holds(name(1))
    assert it.workers[0].put(1)
    assert it.workers[0].load(1)


@pytest.mark.parametrize("reason", [DENIED, BUSY, FAILED, TIMEOUT])
def test_a_store_that_fails_is_a_miss_and_is_left_alone_for_a_while(
    it: Pool, objects: MemoryObjects, reason: str
) -> None:
    """Each failure is counted by its reason; a call that came too late was counted by its caller."""
    it.list()
    worker = it.workers[0]
    worker.put(1)
    objects.failing["*"] = reason
    for _ in range(FAILURES_MAX // 2):
        assert not worker.load(1)
        assert not worker.put(2)
    calls = objects.calls.total()
    assert not worker.load(1)
    assert not worker.put(2)
    assert worker.store.find([name(1)], NOW_MS) == []
    assert objects.calls.total() == calls
    if reason != TIMEOUT:
        assert worker.counts[f"calls_{reason}"] == FAILURES_MAX + 1 - FAILURES_MAX % 2 - 1
    objects.failing.clear()
    it.clock.advance(PAUSE_S * 1000)
    assert worker.load(1)


def test_a_write_that_failed_counts_until_all_blocks_are_listed(it: Pool, objects: MemoryObjects) -> None:
    """It may lie there all the same."""
    it.list()
    objects.failing["create"] = TIMEOUT
    assert not it.workers[0].put(1)
    objects.failing.clear()
    objects.content[block_key(name(1))] = bytes(BLOCK_BYTES), NOW_MS
    it.list()
    assert (it.keeper.used_bytes, it.keeper._free()) == (0, SIZE - BLOCK_BYTES)
    it.clock.advance(int(LIST_AFTER_S * 1000))
    listing = it.list()
    assert listing == Listing(frozenset({name(1)}))
    assert (it.keeper.used_bytes, it.keeper._free()) == (BLOCK_BYTES, SIZE - BLOCK_BYTES)


def test_blocks_that_no_worker_reported_are_found(it: Pool) -> None:
    """The engine was killed; its blocks count, and go like all others. Its credit is free again."""
    it.list()
    it.workers[0].put(1)
    free = it.keeper._free() - sum(it.keeper._outstanding(*each) for each in it.keeper._totals.items())
    it.workers.pop(0)
    it.clock.advance(int(LIVES_S * 1000) + 1)
    it.list()
    assert it.keeper._lost > 0
    assert it.keeper.used_bytes == 0
    it.list()
    it.list()
    assert (it.keeper._lost, it.keeper.used_bytes) == (0, BLOCK_BYTES)
    assert it.keeper._free() > free
    assert f"workers/{0:016x}/beat" not in [each.key for each in it.objects.list("workers")]


def test_all_blocks_are_listed_from_time_to_time(it: Pool, objects: MemoryObjects) -> None:
    """One that was removed by hand is known as gone then; objects of other names are left alone."""
    it.list()
    it.workers[0].put(1)
    assert it.list() == Listing(frozenset({name(1)}))
    objects.delete([block_key(name(1))])
    objects.put("blocks/README", b"not ours")
    assert it.list() is None
    it.clock.advance(int(LIST_ALL_S * 1000))
    assert it.list() == Listing()
    assert objects.has("blocks/README")


def test_a_keeper_that_was_replaced_changes_nothing(it: Pool) -> None:
    it.list()
    for number in range(3):
        it.workers[0].put(number)
    it.list()
    before, before._chosen = it.keeper, {name(1): None}
    it.next_keeper()
    for change in (
        lambda: before.keep(entries(1)),
        lambda: before.rewrite({}),
        lambda: before.renew(1),
        lambda: before.remove_going([name(1)]),
        lambda: before._fence.give(before._fence.credit.__class__()),
    ):
        with pytest.raises(KeeperSuperseded):
            change()
    assert len(it.there()) == 3
    it.list()
    assert it.workers[0].put(7), "the credit goes on"


def test_a_registry_that_counts_anew_gives_no_older_fence(
    it: Pool, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    it.claim = 41
    assert it.next_keeper().fence == 42
    it.claim = 3
    assert it.next_keeper().fence == 43
    assert [*keeper_keys(objects)] == [43]
    it.claim = 50
    objects.calls.clear()
    monkeypatch.setattr(objects, "create", lambda key, _: key == "pool")
    with pytest.raises(OSError, match="another keeper took the fence 51"):
        it.next_keeper()


def test_blocks_of_another_kind_are_refused(it: Pool, objects: MemoryObjects, tmp_path: Path) -> None:
    assert object_pool_id(described(tmp_path), objects) == it.id
    with pytest.raises(CallerError, match="s3://bucket/kv has blocks of another model"):
        object_pool_id(described(tmp_path, OTHER_KIND), objects)
    objects.put("pool", b"\xff no id")
    with pytest.raises(CallerError, match="cannot be read: remove it"):
        object_pool_id(described(tmp_path), objects)


def test_objects_that_were_forged_are_passed_over(it: Pool, objects: MemoryObjects) -> None:
    """A report of another key, one that was moved, and a catalogue with a flipped bit."""
    it.list()
    it.workers[0].put(1)
    it.workers[0].report(1)
    (report,) = [key for key in objects.content if key.startswith("workers/") and not key.endswith("beat")]
    objects.put(report.replace(f"{0:016x}", f"{1:016x}"), objects.get(report))
    objects.put("workers/" + "f" * 16 + "/beat", b"x" * 40)
    assert it.keeper.receive() == entries(1)
    assert it.keeper.keep(entries(1)) == {name(1)}
    it.keeper.acknowledge()
    assert sorted(objects.content) == sorted(
        [key for key in objects.content if key.startswith(("blocks", "keepers", "pool")) or key.endswith("beat")]
    )
    (part, *_) = [key for key in objects.content if key.endswith("/00000001")]
    content = bytearray(objects.get(part))
    content[-1] ^= 1
    objects.put(part, bytes(content))
    it.next_keeper()
    assert it.found == {}


def test_what_waits_for_a_keeper_is_bounded(it: Pool, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects, then files, then names: beyond that the keeper finds the blocks when it lists them."""
    monkeypatch.setattr(store_report, "NAMES_MAX", 3)
    monkeypatch.setattr("actors.kv_objects.report_batches.NAMES_MAX", 3)
    it.list()
    worker = it.workers[0]
    for number in range(BATCHES_MAX + 6):
        worker.use(number)
        worker.report()
    waiting = [key for key in objects.content if key.startswith(f"workers/{worker.writer}/0")]
    assert len(waiting) == BATCHES_MAX
    for number in range(FILES_MAX + 9):
        worker.use(*range(number, number + 5))
        worker.store._reports.flush()
        worker.batches.beat()
    assert len(read_reports(worker.shared)) == FILES_MAX
    assert len(worker.store._reports._used) == 3
    for number in range(5):
        worker.put(number)
    assert len(worker.store._reports._stored) == 3
    assert worker.store._reports._totals[1] == 2 * BLOCK_BYTES
    for _ in range(9):
        it.keeper.receive()
        it.keeper.acknowledge()
        worker.report()
    assert read_reports(worker.shared) == []


def test_a_worker_without_work_asks_little(it: Pool, objects: MemoryObjects) -> None:
    """Nothing between two beats, once its engine rests."""
    it.list()
    worker = it.workers[0]
    it.clock.advance(int((ACTIVE_S + BEAT_S) * 1000))
    worker.report()
    objects.calls.clear()
    it.clock.advance(int(BEAT_S * 1000) - 1)
    worker.report()
    assert objects.calls.total() == 0
    it.clock.advance(1)
    worker.report()
    assert objects.calls == {"put": 1, "list": 1, "get": 1}


def test_a_worker_that_ends_is_gone_at_once(it: Pool) -> None:
    it.list()
    it.workers[0].batches.end()
    it.workers.pop(0)
    it.list()
    assert [*it.keeper._totals] == [it.workers[0].writer]


@pytest.mark.parametrize("held", range(9))
def test_a_prompt_is_found_by_halving(it: Pool, objects: MemoryObjects, held: int) -> None:
    it.list()
    for number in range(held):
        it.workers[0].put(number)
    objects.calls.clear()
    names = [name(number) for number in range(8)]
    assert it.workers[1].store.find(names, NOW_MS * 2) == names[:held]
    assert objects.calls["has"] <= 5
    assert it.workers[1].store.find([], NOW_MS) == []


def test_a_lookup_ends_in_time(it: Pool) -> None:
    """With what it knows by then."""
    it.list()
    it.workers[0].put(0)
    it.workers[0].put(1)
    assert it.workers[1].store.find([name(number) for number in range(8)], 0) == [name(0)]


def test_the_catalogue_is_joined(it: Pool, objects: MemoryObjects) -> None:
    """When it has too many parts, or an old order."""
    it.list()
    for number in range(3):
        it.workers[0].put(number)
    it.list()
    for _ in range(PARTS_MAX):
        assert not it.keeper.is_wasteful(3)
        it.keeper.keep(entries(0, 1, 2))
    assert it.keeper.is_wasteful(3)
    it.keeper.rewrite(entries(0, 1, 2))
    assert not it.keeper.is_wasteful(3)
    assert len(keeper_keys(objects)[it.keeper.fence]) == 2
    it.workers[0].use(1)
    it.list()
    it.clock.advance(int(object_pool.ORDER_S * 1000) + 1)
    assert it.keeper.is_wasteful(3)
    objects.failing["put"] = FAILED
    it.keeper.rewrite(entries(0, 1, 2))
    objects.failing.clear()
    it.next_keeper()
    assert it.found == entries(0, 1, 2)


def test_many_blocks_go_a_part_at_a_time(tmp_path: Path, objects: MemoryObjects) -> None:
    """With a look at the fence before each; those that cannot be removed are counted."""
    it = Pool(tmp_path, objects, objects.clock)
    names = [name(number) for number in range(REMOVED_AT_ONCE + 1)]
    for each in names:
        objects.put(block_key(each), b"a block")
    it.next_keeper()
    it.keeper._chosen = dict.fromkeys(names)
    objects.calls.clear()
    objects.failing["delete"] = DENIED
    assert it.keeper.remove_going(names) == len(names)
    objects.failing.clear()
    assert it.keeper.remove_going(names) == 0
    assert (objects.calls["delete"], objects.calls["list"]) == (3, 3)
    assert it.there() == set()


def test_fresh_blocks_that_no_worker_reported_yet_are_the_newest(tmp_path: Path, objects: MemoryObjects) -> None:
    """Others, of workers that were killed, are the oldest."""
    objects.put(block_key(name(1)), b"old")
    objects.clock.advance(object_pool.FRESH_MS + 1000)
    objects.put(block_key(name(2)), b"new")
    it = Pool(tmp_path, objects, objects.clock, workers=1)
    it.list()
    it.workers[0].put(3)
    it.list()
    it.keeper.keep(entries(3))
    objects.clock.advance(1000)
    objects.put(block_key(name(4)), b"new")
    it.next_keeper()
    assert [*it.keeper._blocks] == [name(1), name(3), name(2), name(4)]


@pytest.mark.parametrize("kind", ["it", "real"])
def test_blocks_are_erased_by_the_newest_keeper_alone(kind: str, request: pytest.FixtureRequest) -> None:
    """Whether they were used lately or not, also those that a worker which is gone never reported."""
    it: Pool = request.getfixturevalue(kind)
    it.list()
    assert [it.workers[0].put(number) for number in range(4)] == [True] * 4
    it.workers[0].report(0, 1)
    it.workers[1].use(0, 1)
    it.list()
    older, newer = it.keeper, it.next_keeper()
    with pytest.raises(KeeperSuperseded):
        older.erase([name(0)])
    it.objects.create(block_key(name(5)), bytes(BLOCK_BYTES))
    assert newer.size_of(name(5)) == 0
    newer.read_again()
    listing = newer.listing()
    assert listing is not None
    assert name(5) in listing.stays
    assert (newer.size_of(name(0)), newer.size_of(name(9))) == (BLOCK_BYTES, 0)
    assert newer.erase([name(0), name(1), name(5), name(9)]) == set()
    assert it.there() == {name(2), name(3)}
    assert newer.used_bytes == 2 * BLOCK_BYTES
    assert not it.workers[1].load(0)


def test_objects_that_cannot_be_erased_are_named(it: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones are gone, and are known to be."""
    monkeypatch.setattr(object_pool, "REMOVED_AT_ONCE", 2)
    it.list()
    assert [it.workers[0].put(number) for number in range(4)] == [True] * 4
    it.list()
    delete, calls = it.objects.delete, iter([True, False])

    def failing(keys: Iterable[str]) -> None:
        if not next(calls):
            raise ObjectStoreFailed(FAILED, "away")
        delete(keys)

    monkeypatch.setattr(it.objects, "delete", failing)
    assert it.keeper.erase(map(name, range(4))) == {name(2), name(3)}
    assert it.there() == {name(2), name(3)}
    assert it.keeper.used_bytes == 2 * BLOCK_BYTES
