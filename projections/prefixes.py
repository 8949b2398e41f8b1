"""PrefixIndex: which worker holds which block.

Theory of operation. A block hash covers its whole prefix, and every worker's set of blocks is closed under prefixes
(its mirror sees to that), so whoever holds block d of a prompt holds all before it, and a lookup gallops (`gallop`).

Each tier is a table from block hash to a bit mask of workers. The level of a tier is that tier and all nearer ones;
levels are nested and each is closed under prefixes, so each is galloped and exact.

Nothing here stands still for long: a table is many small dictionaries, and taking a worker out is one bit
operation; its entries are swept later, a bounded number with each later change.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from types import MappingProxyType
from typing import TypeVar

from core.ids import WorkerId
from core.prompt import Prompt
from core.settings import TIERS
from projections.block_table import KEY_BITS, Blocks, BlockTable, Shard, new_table, split
from projections.gallop import Reach, gallop
from projections.holdings import Holding, holdings
from projections.index_audit import Audit
from projections.shelf import Shelf
from projections.sweep import sweeping
from projections.teams import Teams

MASK64 = (1 << 64) - 1
T = TypeVar("T")


class PrefixIndex:
    """Blocks of all workers, of all kv streams. Owned by one event loop."""

    def __init__(self) -> None:
        self._tables: dict[str, BlockTable] = {}
        """Only of tiers that ever held a block."""
        self._teams = Teams()
        self._shelves: dict[WorkerId, dict[str, Shelf]] = {}
        self._levels: list[list[BlockTable]] | None = None
        """Per level the tables in it, where they differ from those of the level before; None when not up to date."""
        self._sweep: Iterator[None] | None = None
        self._audit: Audit | None = None

    def __repr__(self) -> str:
        blocks = sum(shelf.count for shelves in self._shelves.values() for shelf in shelves.values())
        return f"<PrefixIndex {len(self._shelves)} workers, {blocks} blocks>"

    def store(self, worker: WorkerId, tier: str, hashes: Sequence[int] | bytes) -> None:
        """The worker holds these blocks (a column of an event, or a list); those that it held already stay.

        O(1) each, about 0.2 us; from the column it is a little faster.
        """
        shelf, blocks = self._shelf(worker, tier), split(hashes)
        bit, shards = shelf.bit, shelf.table.shards
        known = []
        for number, key in zip(blocks.shards, blocks.keys, strict=True):
            shard = shards[number]
            if key in shard:
                known.append((number, key))
            else:
                shard[key] = bit
        already = self._share(bit, shards, known) if known else []
        self._changed(shelf, blocks, already, 1)

    def _share(self, bit: int, shards: list[Shard], blocks: list[tuple[int, int]]) -> list[int]:
        """The worker holds these blocks that somebody holds; returns the hashes of those that it held before."""
        shared, already = self._teams.shared, []
        for number, key in blocks:
            shard = shards[number]
            mask = shard[key]
            if mask & bit:
                already.append(number << KEY_BITS | key)
            else:
                shard[key] = shared(mask | bit)
        return already

    def remove(self, worker: WorkerId, tier: str, hashes: Sequence[int] | bytes) -> None:
        """The worker holds none of these blocks. O(1) each, about 0.2 us."""
        shelf = self._shelves.get(worker, _NONE).get(tier)
        if shelf is None:
            return
        blocks, absent = split(hashes), []
        bit, shards, shared = shelf.bit, shelf.table.shards, self._teams.shared
        for number, key in zip(blocks.shards, blocks.keys, strict=True):
            shard = shards[number]
            mask = shard.get(key, 0)
            if mask == bit:
                del shard[key]
            elif mask & bit:
                shard[key] = shared(mask ^ bit)
            else:
                absent.append(number << KEY_BITS | key)
        self._changed(shelf, blocks, absent, -1)

    def drop(self, worker: WorkerId) -> None:
        """The worker holds nothing. O(1) now; its entries are swept with later changes."""
        if self._shelves.pop(worker, None) is None:
            return
        self._teams.retire(worker)
        self._levels = None
        if self._audit is not None:
            self._audit.forget(worker)

    @property
    def sweeping(self) -> bool:
        """Whether something of a worker that is gone is still in the tables."""
        return bool(self._teams.retired)

    def blocks(self, worker: WorkerId, tier: str = TIERS[0]) -> int:
        """How many blocks the worker holds on that tier."""
        shelf = self._shelves.get(worker, _NONE).get(tier)
        return shelf.count if shelf else 0

    def held(self, worker: WorkerId, tier: str = TIERS[0]) -> set[int]:
        """The worker's blocks; O(all blocks), for comparing and debugging."""
        shelf = self._shelves.get(worker, _NONE).get(tier)
        if shelf is None:
            return set()
        bit, shards = shelf.bit, enumerate(shelf.table.shards)
        return {number << KEY_BITS | key for number, shard in shards for key, mask in shard.items() if mask & bit}

    def digest(self, worker: WorkerId) -> int:
        """64 bits that are equal for equal block sets of this worker; O(tiers)."""
        return sum([shelf.factor * shelf.total for shelf in self._shelves.get(worker, _NONE).values()]) & MASK64

    def overlaps(self, prompt: Prompt) -> dict[WorkerId, tuple[int, ...]]:
        """Per worker that holds any of the prompt: cached blocks per level (device, device or host, …).

        Capped at the blocks that an engine can reuse. O(groups * log blocks) probes per level that is in use.
        """
        levels: list[list[Reach]] = []
        for tables in self._levels or self._leveled():
            levels.append(gallop(tables, prompt, self._teams.live) if tables else levels[-1] if levels else [])
        if levels[0] is levels[-1]:  # one tier is in use: all levels are equal
            return self._depths(((reach.depth,) * len(TIERS), reach.mask) for reach in levels[0])
        each = [self._depths(level) for level in levels]
        workers = each[-1]
        columns = [map(depths.get, workers, repeat(0)) for depths in each]
        return dict(zip(workers, zip(*columns, strict=True), strict=True))

    def audit(self) -> Iterator[list[WorkerId] | None]:
        """Every worker's digest is worked out anew from the tables, and compared: None between slices of at most
        AUDIT_ENTRIES_MAX entries (some 0.5 ms), at the end the workers whose blocks are not what was told, by id.

        Changes may go on between the slices; one audit at a time.
        """
        assert self._audit is None
        self._audit = audit = Audit()
        try:
            for _ in audit.slices(self._tables, self._teams):
                yield None
        finally:
            self._audit = None
        shelves = [shelf for each in self._shelves.values() for shelf in each.values()]
        told = {(shelf.worker, shelf.table.place): shelf.total for shelf in shelves}
        yield sorted({key[0] for key in told.keys() | audit.sums.keys() if told.get(key, 0) != audit.sums.get(key, 0)})

    def dump(self) -> dict[str, list[Holding]]:
        """Everything held, by tier: blocks grouped by their exact set of holders. Equal contents give equal dumps,
        whatever happened before. About 0.3 s per million entries; `dumping` is the same in slices."""
        step = self.dumping()
        while True:
            try:
                next(step)
            except StopIteration as end:
                found: dict[str, list[Holding]] = end.value
                return found

    def dumping(self) -> Generator[None, None, dict[str, list[Holding]]]:
        """`dump`, stopping for a moment after every few thousand entries; nothing may change in between."""
        found = {}
        for tier, table in self._tables.items():
            found[tier] = yield from holdings(table.shards, self._teams)
        return {tier: found[tier] for tier in TIERS if found.get(tier)}

    def load(self, tier: str, holding: Holding) -> None:
        """These workers hold exactly these blocks there, of which nobody held one: one group of a dump, or a part of
        it. About 0.2 us per block. No audit may go on."""
        assert self._audit is None
        shelves = [self._shelf(worker, tier) for worker in holding.workers]
        mask, shards = self._teams.mask(holding.workers), self._table(tier).shards
        blocks = split(holding.hashes)
        for number, key in zip(blocks.shards, blocks.keys, strict=True):
            shards[number][key] = mask
        count, total = len(blocks.keys), blocks.total
        for shelf in shelves:
            shelf.count += count
            shelf.total += total

    def clearing(self) -> Generator[None, None, None]:
        """Everything is given back, a shard at a time: a million entries at once would take 35 ms. Not to be used
        again."""
        for table in self._tables.values():
            for number in range(len(table.shards)):
                table.shards[number] = {}
                yield

    def _changed(self, shelf: Shelf, blocks: Blocks, unchanged: Sequence[int], sign: int) -> None:
        """Everything beside the table follows a change of these blocks, but for those that stayed as they were."""
        shelf.count += sign * (len(blocks.keys) - len(unchanged))
        shelf.total += sign * (blocks.total - sum(unchanged))
        if self._audit is not None:
            self._audit.follow(shelf, blocks, unchanged, sign)
        if self._teams.retired:
            if self._sweep is None:
                self._sweep = sweeping([table.shards for table in self._tables.values()], self._teams)
            if next(self._sweep, "swept"):
                self._sweep = None

    def _depths(self, reaches: Iterable[tuple[T, int]]) -> dict[WorkerId, T]:
        """Per worker the depth of the group that it is in; the least, if it should be in several."""
        found: dict[WorkerId, T] = {}
        for depth, mask in reaches:
            found.update(dict.fromkeys(self._teams.members(mask), depth))
        return found

    def _shelf(self, worker: WorkerId, tier: str) -> Shelf:
        shelf = self._shelves.get(worker, _NONE).get(tier)
        if shelf is None:
            shelf = Shelf(worker, tier, self._teams.join(worker), self._table(tier))
            self._shelves.setdefault(worker, {})[tier] = shelf
            self._levels = None
        return shelf

    def _table(self, tier: str) -> BlockTable:
        table = self._tables.get(tier)
        if table is None:
            table = self._tables[tier] = new_table(TIERS.index(tier))
        return table

    def _leveled(self) -> list[list[BlockTable]]:
        """Per level the tables to look into; none where it is the level before."""
        used = {tier for shelves in self._shelves.values() for tier in shelves}
        tables = [self._tables[tier] if tier in used else None for tier in TIERS]
        self._levels = [
            [table for table in tables[: level + 1] if table] if tables[level] else [] for level in range(len(TIERS))
        ]
        return self._levels


_NONE: Mapping[str, Shelf] = MappingProxyType({})
"""Of a worker that holds nothing."""
