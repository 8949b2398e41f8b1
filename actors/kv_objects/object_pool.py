"""ObjectPool: a pool in a store of objects, as its keeper sees it.

1. The keeper knows the blocks by the workers' reports (`report_batches`), and lists all of them when it begins, every
   LIST_ALL_S, and when a worker is gone: then it finds what was not reported.
2. Blocks stand in the order of their last use, as the reports come; no clock is compared. At each listing those used
   least recently are chosen, until two credits are free. The log gets their removal; then they go.
3. At each listing it gives the workers credit: together half of what is free, in a full pool a CREDIT_SHARE-th of the
   bytes. What may be written already is taken off first (`write_credit`). A worker that does not use its credit has
   it lowered as the pool fills.
4. The catalogue lies in objects of PART_MAX entries at most a listing, which are joined when they are PARTS_MAX. The
   joined one has the order of use.
5. Each change is made under the keeper's fence; blocks are removed by REMOVED_AT_ONCE, with a look at the fence before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress

from msgspec.structs import replace

from actors.kv_blocks.catalog_records import CatalogEntry, CatalogRecords
from actors.kv_blocks.entry_batches import LIVES_S
from actors.kv_blocks.pool_folder import SLACK, Listing, PoolDescription
from actors.kv_objects.object_store import ObjectStore
from actors.kv_objects.pool_objects import BLOCKS, CREDIT, KEEPERS, ObjectSeal, block_key, object_pool_id
from actors.kv_objects.report_batches import Beat, ReportInbox
from actors.kv_objects.store_report import unpack_names, unpack_stored
from actors.kv_objects.write_credit import ObjectFence, WriteCredit, keeper_keys
from core.clock import Clock

CREDIT_SHARE = 16
"""In a full pool all workers together may write so small a part of its bytes between two listings."""
LIST_ALL_S = 600.0
"""Between two listings of all blocks."""
LIST_AFTER_S = 10.0
"""All blocks are listed so long after a worker is gone, or a write failed that may have succeeded."""
FRESH_MS = 120_000
"""A block that no worker reported, and that was written in so short a time before the newest one, is taken for one that
a worker will report; older ones go first."""
PARTS_MAX = 64
"""Objects of a catalogue that are joined."""
ORDER_S = 600.0
"""The catalogue has the order of use of so long ago at most."""
REMOVED_AT_ONCE = 256
_NAME_DIGITS = 32


class ObjectPool:
    """See the module's text. All methods block, and one thread at a time calls them."""

    def __init__(self, pool: PoolDescription, objects: ObjectStore, clock: Clock, claim: int) -> None:
        """`claim` is the revision of the keeper's claim in the registry."""
        assert pool.share is not None
        self._pool = pool
        self._objects = objects
        self._clock = clock
        self._claim = claim
        self._size_max = pool.share.size_bytes
        self._credit_least = self._size_max // CREDIT_SHARE
        self._seal = ObjectSeal(pool.key, pool.kind)
        self._records = CatalogRecords(pool.key, pool.kind)
        self._inbox = ReportInbox(objects, self._seal)
        self._blocks: OrderedDict[bytes, int] = OrderedDict()
        """Sizes, in the order of last use."""
        self._used = 0
        """Bytes of all of them."""
        self._chosen: dict[bytes, None] = {}
        """Blocks that are to go, unless they are used before."""
        self._changed = True
        """Blocks came or went since the last listing."""
        self._reordered = False
        """They were used since the catalogue was written."""
        self._lives_until_ms: dict[str, int] = {}
        """Of each worker."""
        self._totals: dict[str, Beat] = {}
        self._unsure_before: dict[str, int] = {}
        """Of each worker, its `unsure_bytes` when all blocks were listed."""
        self._lost = 0
        """Bytes that workers which are gone may have written since then."""
        self._list_at_ms = 0
        """All blocks are listed then …"""
        self._reads_again = False
        """… and with the next listing, if an operator erases some."""
        self._parts = 0
        """Objects of the catalogue, and …"""
        self._length = 0
        """… entries in them, those that are used no more included."""
        self._number = 0
        """Of the catalogue's next object."""
        self._ordered_ms = 0

    def __repr__(self) -> str:
        return f"<ObjectPool {len(self._blocks)} blocks, {self._used} of {self._size_max} bytes>"

    @property
    def tier(self) -> str:
        """As the pool's description has it."""
        return self._pool.tier

    @property
    def fence(self) -> int:
        """That of the keeper, once the pool is open."""
        return self._fence.fence

    @property
    def used_bytes(self) -> int:
        """Bytes of all blocks that are known."""
        return self._used

    def name_of(self, block: int) -> bytes:
        """As the pool's description has it."""
        return self._pool.name_of(block)

    def tenant_of(self, salt: str) -> bytes:
        """As the pool's description has it."""
        return self._pool.tenant_of(salt)

    def open(self) -> tuple[str, dict[bytes, CatalogEntry]]:
        """The pool's id, and the entries of blocks that lie there. This keeper is the newest from now on. CallerError
        as for `object_pool_id`."""
        pool = object_pool_id(self._pool, self._objects)
        self._fence = ObjectFence(self._objects, self._seal, self._claim)
        found, before = dict[bytes, CatalogEntry](), list[str]()
        for fence, keys in keeper_keys(self._objects).items():
            for key in (key for key in keys if fence < self.fence and not key.endswith(CREDIT)):
                found |= self._part(key)
                before.append(key)
        self._blocks = OrderedDict.fromkeys(found, 0)
        self._list_all()
        found = {name: entry for name, entry in found.items() if name in self._blocks}
        self.rewrite(found)
        if self._length == len(found):
            self._fence.check()
            self._fence.remove_older()
        now_ms = self._clock.monotonic_ms()
        credit = self._fence.credit
        for writer, finished in credit.finished.items():
            self._totals[writer] = Beat(finished, 0, credit.obeyed.get(writer, 0))
            self._lives_until_ms[writer] = now_ms + int(LIVES_S * 1000)
        return pool, found

    def renew(self, more_s: float) -> None:  # noqa: ARG002 - as the protocol has it
        """Returns if no newer keeper has come."""
        self._fence.check()

    def end(self) -> None:
        """There is no keeper any more. Its credit may be written until the next one comes, which counts it."""

    def receive(self) -> dict[bytes, CatalogEntry]:
        """Entries of all workers, by the names of their blocks; all else that they reported is known."""
        beats, batches = self._inbox.receive()
        now_ms = self._clock.monotonic_ms()
        for writer, beat in beats.items():
            self._lives_until_ms[writer] = now_ms + int(LIVES_S * 1000)
            known = self._totals.get(writer, beat)  # a beat may count what no batch that was read has named
            self._count(writer, replace(known, may_write=beat.may_write))
        found: dict[bytes, CatalogEntry] = {}
        for writer, batch in batches:
            report = batch.report
            for name in unpack_names(report.gone):
                self._forget(name)
            for name, size in unpack_stored(report.stored):
                self._put(name, size)
            for name in unpack_names(report.used):
                if name in self._blocks:
                    self._blocks.move_to_end(name)
                    self._chosen.pop(name, None)
                    self._reordered = True
            if writer in self._totals:
                had = self._totals[writer].may_write
                self._count(writer, Beat(report.finished_bytes, report.unsure_bytes, had))
            found |= self._records.decode(batch.entries)
        return found

    def acknowledge(self) -> None:
        """Those that were received last are not given again."""
        self._inbox.acknowledge()

    def listing(self) -> Listing | None:
        """The names of all blocks, those that are to go chosen; None if they are those of the last call. Workers may
        write more from now on."""
        self._part_with_workers()
        if self._clock.monotonic_ms() >= self._list_at_ms:
            self._fence.check()
            self._list_all()
        elif self._reads_again:
            self._read_all()
        going = len(self._chosen)
        self._choose()
        changed, self._changed = self._changed or going or self._chosen, False
        self._give_credit()
        return (
            Listing(frozenset(self._blocks.keys() - self._chosen.keys()), frozenset(self._chosen)) if changed else None
        )

    def stuck(self) -> set[bytes]:
        """None: a block that an engine refused and cannot remove is a miss for it alone."""
        return set()

    def keep(self, entries: Mapping[bytes, CatalogEntry]) -> set[bytes]:
        """Those of these blocks that lie there; the catalogue has them."""
        kept = {name: entry for name, entry in entries.items() if name in self._blocks}
        if kept:
            self._fence.check()
            self._write_part(kept)
        return set(kept)

    def is_wasteful(self, used: int) -> bool:
        """True if the catalogue is to be written anew with so many entries: it has too many that are not used, too many
        parts, or an old order."""
        old = self._reordered and self._clock.monotonic_ms() - self._ordered_ms > ORDER_S * 1000
        return old or self._parts > PARTS_MAX or self._length > 2 * used + SLACK

    def rewrite(self, entries: Mapping[bytes, CatalogEntry]) -> None:
        """The catalogue has these entries in the order of use, or, if the store fails, at least those of before."""
        ordered = {name: entries[name] for name in self._blocks if name in entries}
        self._fence.check()
        with suppress(OSError):
            before = self._part_keys()
            self._write_part(ordered)
            self._objects.delete(before)
            self._parts, self._length = 1, len(ordered)
            self._ordered_ms, self._reordered = self._clock.monotonic_ms(), False

    def remove_going(self, names: Iterable[bytes]) -> int:
        """These blocks, as far as they were not used since they were chosen, are removed; returns how many cannot
        be."""
        return len(self.erase(name for name in names if name in self._chosen))

    def read_again(self) -> None:
        """The next listing reads all names that lie there. No I/O."""
        self._reads_again = True

    def erase(self, names: Iterable[bytes]) -> set[bytes]:
        """These blocks are removed, whether they were used lately or not; returns those that cannot be."""
        left = [*names]
        while left:
            part, rest = left[:REMOVED_AT_ONCE], left[REMOVED_AT_ONCE:]
            self._fence.check()
            try:
                self._objects.delete(map(block_key, part))
            except FileNotFoundError:
                pass
            except OSError:
                return {*left}
            for name in part:
                self._forget(name)
            left = rest
        return set()

    def size_of(self, name: bytes) -> int:
        """Bytes of that block's object; 0 if none is known."""
        return self._blocks.get(name, 0)

    def _list_all(self) -> None:
        """The blocks are those that lie there, and all that workers which are gone may have written is among them."""
        self._read_all()
        self._unsure_before = {writer: totals.unsure_bytes for writer, totals in self._totals.items()}
        self._lost = 0
        self._list_at_ms = self._clock.monotonic_ms() + int(LIST_ALL_S * 1000)

    def _read_all(self) -> None:
        """The blocks are those that lie there. A thousand a call."""
        listed = {}
        for each in self._objects.list(BLOCKS):
            with suppress(ValueError):  # an object of another name is left alone
                name = bytes.fromhex(each.key.removeprefix(f"{BLOCKS}/"))
                if 2 * len(name) == _NAME_DIGITS:
                    listed[name] = each
        fresh_ms = max((each.modified_ms for each in listed.values()), default=0) - FRESH_MS
        strange = sorted((each.modified_ms, name) for name, each in listed.items() if name not in self._blocks)
        old = [name for modified_ms, name in strange if modified_ms < fresh_ms]
        new = [name for modified_ms, name in strange if modified_ms >= fresh_ms]
        known = [name for name in self._blocks if name in listed]
        self._blocks = OrderedDict((name, listed[name].size) for name in (*old, *known, *new))
        self._used = sum(self._blocks.values())
        self._chosen = {name: None for name in self._chosen if name in listed}
        self._changed, self._reads_again = True, False

    def _part_with_workers(self) -> None:
        """Workers that ended, or have not beaten for LIVES_S, have no credit any more."""
        now_ms, beating = self._clock.monotonic_ms(), self._inbox.beating
        gone = [
            writer for writer, until_ms in self._lives_until_ms.items() if writer not in beating or now_ms > until_ms
        ]
        if not gone:
            return
        for writer in gone:
            del self._lives_until_ms[writer]
            totals = self._totals.pop(writer)
            self._lost += self._outstanding(writer, totals) + self._unsure(writer, totals)
            self._unsure_before.pop(writer, None)
        self._list_at_ms = now_ms + int(LIST_AFTER_S * 1000)  # what they began has ended by then
        self._inbox.forget(writer for writer in gone if writer in beating)

    def _count(self, writer: str, totals: Beat) -> None:
        before = self._totals.get(writer, Beat())
        self._totals[writer] = Beat(
            max(before.finished_bytes, totals.finished_bytes),
            max(before.unsure_bytes, totals.unsure_bytes),
            totals.may_write,
        )
        if self._unsure(writer, self._totals[writer]):
            self._list_at_ms = min(self._list_at_ms, self._clock.monotonic_ms() + int(LIST_AFTER_S * 1000))

    def _outstanding(self, writer: str, totals: Beat) -> int:
        """Bytes that the worker may have written, or may write, and of which it has not said that it did."""
        return max(
            0,
            self._fence.credit.may_write.get(writer, 0) - totals.finished_bytes,
            totals.may_write - totals.finished_bytes,
        )

    def _unsure(self, writer: str, totals: Beat) -> int:
        return totals.unsure_bytes - self._unsure_before.get(writer, 0)

    def _free(self) -> int:
        """Bytes that lie nowhere, those that may be written already included."""
        unsure = sum(self._unsure(writer, totals) for writer, totals in self._totals.items())
        return max(0, self._size_max - self._used - self._lost - unsure)

    def _give_credit(self) -> None:
        writers, before = sorted(self._totals), self._fence.credit.may_write
        free = self._free()
        room = free - sum(self._outstanding(writer, self._totals[writer]) for writer in writers)
        share = min(free, max(self._credit_least, free // 2)) // len(writers) if writers else 0
        may_write = {}
        for writer in writers:
            totals = self._totals[writer]
            had, target = before.get(writer, totals.finished_bytes), totals.finished_bytes + share
            if target > had:
                most = totals.finished_bytes + self._outstanding(writer, totals)
                may_write[writer] = max(had, min(target, most + max(0, room)))
                room -= max(0, may_write[writer] - most)
            else:  # a lower one only when the worker has the one before: it obeys one of two, never of three
                may_write[writer] = target if totals.may_write == had else had
        if may_write != before:
            finished = {writer: totals.finished_bytes for writer, totals in self._totals.items()}
            obeyed = {writer: totals.may_write for writer, totals in self._totals.items()}
            self._fence.give(WriteCredit(may_write, finished, obeyed))

    def _choose(self) -> None:
        """Blocks are chosen until two credits are free, the ones used least recently first."""
        excess = self._used - (self._size_max - 2 * self._credit_least)
        chosen: dict[bytes, None] = {}
        for name, size in self._blocks.items():
            if excess <= 0:
                break
            chosen[name] = None
            excess -= size
        self._chosen = chosen

    def _put(self, name: bytes, size: int) -> None:
        self._used += size - self._blocks.get(name, 0)
        self._blocks[name] = size
        self._blocks.move_to_end(name)
        self._chosen.pop(name, None)
        self._changed = True

    def _forget(self, name: bytes) -> None:
        size = self._blocks.pop(name, None)
        self._chosen.pop(name, None)
        if size is not None:
            self._used -= size
            self._changed = True

    def _part(self, key: str) -> dict[bytes, CatalogEntry]:
        try:
            body = self._seal.open(key, self._objects.get(key))
        except FileNotFoundError:
            return {}
        return self._records.decode(body or b"")

    def _part_keys(self) -> list[str]:
        return [
            each.key for each in self._objects.list(f"{KEEPERS}/{self.fence:016x}") if not each.key.endswith(CREDIT)
        ]

    def _write_part(self, entries: Mapping[bytes, CatalogEntry]) -> None:
        key = f"{KEEPERS}/{self.fence:016x}/{self._number:08x}"
        self._number += 1
        self._objects.put(key, self._seal.seal(key, self._records.encode(entries)))
        self._parts, self._length = self._parts + 1, self._length + len(entries)
