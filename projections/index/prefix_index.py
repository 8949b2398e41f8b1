"""PrefixIndex: which worker holds which block.

Theory of operation. A block hash covers its whole prefix, and every worker's set of blocks is closed under prefixes
(its mirror sees to that). So a worker that holds block d of a prompt holds all before it, and a lookup gallops
(`galloping_search`).

Each tier is a table from block hash to a bit mask of workers; sixteen neighbours that the same workers hold are one
entry of it (`block_table`, `block_changes`). The level of a tier is that tier and all nearer ones;
levels are nested and each is closed under prefixes, so each is galloped and exact.

Nothing here stands still for long: a table is many small dictionaries, and taking a worker out is one bit
operation; its entries are swept later, a bounded number with each later change.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

import xxhash

from core.block_spans import Blocks
from core.ids import WorkerId
from core.prompt import HASH_BYTES, Prompt
from core.settings import TIERS
from projections.digest import MASK64, hash_sum
from projections.index.block_changes import remove_blocks, store_blocks
from projections.index.block_table import SHARDS, BlockTable, new_table, sweeping
from projections.index.galloping_search import OverlapGroup, gallop
from projections.index.index_audit import IndexAudit
from projections.index.index_dump import HolderGroup, block_groups, columns, dump_groups, load_group
from projections.index.worker_sets import ALL_LIVE, WorkerSets

if TYPE_CHECKING:
    from projections.index.depth_column import Column


class TierCounts:
    """Number of blocks of one worker on one tier, and the sum of their hashes. The tier's table has the blocks."""

    __slots__ = ("bit", "count", "factor", "table", "total", "worker")

    def __init__(self, worker: WorkerId, tier: str, bit: int, table: BlockTable) -> None:
        self.worker = worker
        self.bit = bit
        self.table = table
        self.count = 0
        self.total = 0
        self.factor = xxhash.xxh3_64_intdigest(f"{worker}/{tier}".encode()) | 1
        """An odd number per worker and tier: sums of hashes times it differ between workers."""

    def __repr__(self) -> str:
        return f"<TierCounts of {self.worker}, {self.count} blocks>"


FROZEN_SHARDS = 64
"""Shards that are frozen at once."""
T = TypeVar("T")
Change = Callable[[BlockTable, WorkerSets, int, Blocks], list[int]]
"""Of a table by the worker with that bit; returns the blocks of which nothing changed."""


class PrefixIndex:
    """Blocks of all workers, of all kv streams. Owned by one event loop."""

    def __init__(self) -> None:
        self._tables: dict[str, BlockTable] = {}
        """Only of tiers that ever held a block."""
        self.sets = self._sets = WorkerSets()
        self._tier_counts: dict[WorkerId, dict[str, TierCounts]] = {}
        self._levels: list[list[BlockTable]] | None = None
        """Per level the tables in it, where they differ from those of the level before; None when not up to date."""
        self._sweep: Iterator[None] | None = None
        self._audit: IndexAudit | None = None

    def __repr__(self) -> str:
        blocks = sum(counts.count for all_counts in self._tier_counts.values() for counts in all_counts.values())
        return f"<PrefixIndex {len(self._tier_counts)} workers, {blocks} blocks>"

    def store(self, worker: WorkerId, tier: str, blocks: Blocks) -> None:
        """The worker holds these blocks; those that it held already stay. Some 0.13 us each of new ones, told
        with their pieces, 0.25 us without."""
        counts = self._counts_of(worker, tier)
        self._changed(counts, blocks.hashes, self._put(store_blocks, counts, blocks), 1)

    def remove(self, worker: WorkerId, tier: str, blocks: Blocks) -> None:
        """The worker holds none of these blocks, which were stored as they are told now: with pieces, or without."""
        counts = self._tier_counts.get(worker, _NONE).get(tier)
        if counts is not None:
            self._changed(counts, blocks.hashes, self._put(remove_blocks, counts, blocks), -1)

    def drop(self, worker: WorkerId) -> None:
        """The worker holds nothing. O(1) now; its entries are swept with later changes."""
        if self._tier_counts.pop(worker, None) is None:
            return
        self._sets.retire(worker)
        self._levels = None
        if self._audit is not None:
            self._audit.forget(worker)

    @property
    def sweeping(self) -> bool:
        """True if the tables still have bits of workers that are gone."""
        return bool(self._sets.retired)

    def blocks(self, worker: WorkerId, tier: str = TIERS[0]) -> int:
        """Blocks that the worker holds on that tier."""
        counts = self._tier_counts.get(worker, _NONE).get(tier)
        return counts.count if counts else 0

    def held(self, worker: WorkerId, tier: str = TIERS[0]) -> set[int]:
        """The worker's blocks; O(all blocks), for comparing and debugging."""
        counts = self._tier_counts.get(worker, _NONE).get(tier)
        if counts is None:
            return set()
        return {block for mask, column in columns(counts.table.shards) if mask & counts.bit for block in column}

    def digest(self, worker: WorkerId) -> int:
        """64 bits that are equal for equal block sets of this worker; O(tiers)."""
        return sum([counts.factor * counts.total for counts in self._tier_counts.get(worker, _NONE).values()]) & MASK64

    def overlaps(self, prompt: Prompt) -> dict[WorkerId, tuple[int, ...]]:
        """Per worker that holds any of the prompt: cached blocks per level (device, device or host, …).

        Capped at the blocks that an engine can reuse. O(groups * log blocks) probes per level that is in use.
        """
        levels: list[list[OverlapGroup]] = []
        for tables in self._levels or self._leveled():
            levels.append(gallop(tables, prompt, self._sets.live) if tables else levels[-1] if levels else [])
        if levels[0] is levels[-1]:  # one tier is in use: all levels are equal
            return self._depths([((depth,) * len(TIERS), mask) for depth, mask in levels[0]])
        each = [self._depths(level) for level in levels]
        workers = each[-1]
        columns = [map(depths.get, workers, repeat(0)) for depths in each]
        return dict(zip(workers, zip(*columns, strict=True), strict=True))

    def depth_column(self, prompt: Prompt, size: int) -> Column | None:
        """`overlaps` by the places of bits (`projections.index.depth_column`), where all levels are equal: one tier is
        in use. None elsewhere."""
        first, *others = self._levels or self._leveled()
        if any(others):
            return None
        from projections.index.depth_column import depth_column  # noqa: PLC0415 - numpy, only for many workers

        return depth_column(first, prompt, self._sets.live, size)

    def audit(self) -> Iterator[list[WorkerId] | None]:
        """Recomputes every worker's digest from the tables and compares. Yields None between slices of at most
        AUDIT_ENTRIES_MAX entries (some 1 to 2 ms), at the end the workers with wrong blocks, by id.

        Changes may go on between the slices; one audit at a time.
        """
        assert self._audit is None
        self._audit = audit = IndexAudit()
        try:
            for _ in audit.slices(self._tables, self._sets):
                yield None
        finally:
            self._audit = None
        all_counts = [counts for each in self._tier_counts.values() for counts in each.values()]
        expected = {(counts.worker, counts.table.place): counts.total for counts in all_counts}
        every = expected.keys() | audit.sums.keys()
        yield sorted({key[0] for key in every if (expected.get(key, 0) - audit.sums.get(key, 0)) & MASK64})

    def contents(self) -> dict[str, list[HolderGroup]]:
        """All blocks by tier, grouped by their exact set of holders, ascending. Equal contents give equal results,
        in any order of changes. About 1 s per million entries."""
        found = {tier: block_groups(table.shards, self._sets) for tier, table in self._tables.items()}
        return {tier: found[tier] for tier in TIERS if found.get(tier)}

    def dump(self) -> dict[str, list[HolderGroup]]:
        """`dumping` without a stop."""
        step = self.dumping()
        while True:
            try:
                next(step)
            except StopIteration as end:
                found: dict[str, list[HolderGroup]] = end.value
                return found

    def dumping(self) -> Generator[None, None, dict[str, list[HolderGroup]]]:
        """Everything held as `load` takes it, by tier; stops for a moment after every few thousand entries, and
        nothing may change in between."""
        found = {}
        for tier, table in self._tables.items():
            found[tier] = yield from dump_groups(table.shards, self._sets)
        return {tier: found[tier] for tier in TIERS if found.get(tier)}

    def load(self, tier: str, holding: HolderGroup) -> None:
        """These workers hold exactly these blocks on that tier, which had no holder before: one group of a dump, or a
        part of it. About 0.2 us per single block, 0.6 us per run. No audit may be under way."""
        assert self._audit is None
        all_counts = [self._counts_of(worker, tier) for worker in holding.workers]
        mask, table = self._sets.mask(holding.workers), self._table(tier)
        load_group(table.shards, mask, holding)
        count, total = len(holding.hashes) // HASH_BYTES, hash_sum(holding.hashes)
        for counts in all_counts:
            counts.count += count
            counts.total += total

    def freezing(self) -> Generator[None, None, list[bytes]]:
        """Everything as it lies in memory, for `thaw` in a process of this program; stops for a moment after every few
        shards, and nothing may change in between. Some 0.1 us per entry. No audit is part of it."""
        counts = [
            (it.worker, tier, it.count, it.total) for tiers in self._tier_counts.values() for tier, it in tiers.items()
        ]
        pieces = [marshal.dumps((self._sets.live, self._sets.bits, list(self._tables), counts))]
        for table in self._tables.values():
            for start in range(0, SHARDS, FROZEN_SHARDS):
                pieces.append(marshal.dumps(table.shards[start : start + FROZEN_SHARDS]))
                yield
        return pieces

    def thaw(self, pieces: Sequence[bytes]) -> None:
        """An index that holds nothing yet is equal to the one that was frozen, also in bits to be swept."""
        assert not self._tables
        live, bits, tiers, counts = marshal.loads(pieces[0])  # noqa: S302 - of this program's own memory
        self._sets.resume(live, bits)
        per_table = SHARDS // FROZEN_SHARDS
        for number, tier in enumerate(tiers):
            own = pieces[1 + number * per_table : 1 + (number + 1) * per_table]
            self._table(tier).shards[:] = chain.from_iterable(map(marshal.loads, own))
        for worker, tier, count, total in counts:
            found = self._counts_of(worker, tier)
            found.count, found.total = count, total

    def clearing(self) -> Generator[None, None, None]:
        """Everything is given back, a shard at a time: a million entries at once would take 35 ms. Not to be used
        again."""
        for table in self._tables.values():
            for number in range(len(table.shards)):
                table.shards[number] = {}
                yield

    def _put(self, change: Change, counts: TierCounts, blocks: Blocks) -> list[int]:
        """Does it; an audit that goes on hears what it does to the table."""
        if self._audit is None:
            return change(counts.table, self._sets, counts.bit, blocks)
        with self._audit.watching(counts.table, blocks, self._sets):
            return change(counts.table, self._sets, counts.bit, blocks)

    def _changed(self, counts: TierCounts, column: bytes, unchanged: Sequence[int], sign: int) -> None:
        """The counts follow a change of these blocks, but for those that stayed as they were; some more is swept."""
        counts.count += sign * (len(column) // HASH_BYTES - len(unchanged))
        counts.total += sign * (hash_sum(column) - sum(unchanged))
        if self._sets.live != ALL_LIVE:
            if self._sweep is None:
                self._sweep = sweeping([table.shards for table in self._tables.values()], self._sets)
            if next(self._sweep, "swept"):
                self._sweep = None

    def _depths(self, groups: Iterable[tuple[T, int]]) -> dict[WorkerId, T]:
        """Per worker the depth of the group that it is in; the least, if it should be in several."""
        found: dict[WorkerId, T] = {}
        for depth, mask in groups:
            for worker in self._sets.members(mask):
                found[worker] = depth
        return found

    def _counts_of(self, worker: WorkerId, tier: str) -> TierCounts:
        counts = self._tier_counts.get(worker, _NONE).get(tier)
        if counts is None:
            counts = TierCounts(worker, tier, self._sets.join(worker), self._table(tier))
            self._tier_counts.setdefault(worker, {})[tier] = counts
            self._levels = None
        return counts

    def _table(self, tier: str) -> BlockTable:
        table = self._tables.get(tier)
        if table is None:
            table = self._tables[tier] = new_table(TIERS.index(tier))
        return table

    def _leveled(self) -> list[list[BlockTable]]:
        """Per level the tables to look into; none where it is the level before."""
        used = {tier for all_counts in self._tier_counts.values() for tier in all_counts}
        tables = [self._tables[tier] if tier in used else None for tier in TIERS]
        self._levels = [
            [table for table in tables[: level + 1] if table] if tables[level] else [] for level in range(len(TIERS))
        ]
        return self._levels


_NONE: Mapping[str, TierCounts] = MappingProxyType({})
"""Of a worker that holds nothing."""
