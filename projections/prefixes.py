"""PrefixIndex: which worker holds which block.

Theory of operation. A block hash covers its whole prefix, and every worker's set of blocks is closed under prefixes
(its mirror sees to that), so whoever holds block d of a prompt holds all before it, and a lookup gallops (`gallop`).

Each tier is a table from block hash to a bit mask of workers. The level of a tier is that tier and all nearer ones;
levels are nested and each is closed under prefixes, so each is galloped and exact.

Nothing here stands still for long: a table is a thousand small dictionaries, and taking a worker out is one bit
operation; its entries are swept later, a bounded number with each later change.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import repeat
from typing import TypeVar

import xxhash

from core.ids import WorkerId
from core.prompt import Prompt, hashes_from_bytes
from core.settings import TIERS
from projections.block_table import SHARD_SHIFT, BlockTable, new_table
from projections.gallop import Reach, gallop
from projections.holdings import Holding, holdings
from projections.index_audit import Audit
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
        self._sweep: Iterator[None] | None = None
        self._audit: Audit | None = None
        self._counts: dict[tuple[WorkerId, str], int] = {}
        self._factors: dict[tuple[WorkerId, str], int] = {}
        self._tier_counts = dict.fromkeys(TIERS, 0)
        self._digests: dict[WorkerId, int] = {}

    def __repr__(self) -> str:
        return f"<PrefixIndex {len(self._teams.bits)} workers, {sum(self._tier_counts.values())} blocks>"

    def store(self, worker: WorkerId, tier: str, hashes: Sequence[int]) -> None:
        """The worker holds these blocks; those that it held already stay. O(1) each, about 0.2 us."""
        bit, table = self._teams.join(worker), self._table(tier)
        known = []
        for block in hashes:
            shard = table[block >> SHARD_SHIFT]
            if block in shard:
                known.append(block)
            else:
                shard[block] = bit
        already = self._share(bit, table, known) if known else known
        self._change(worker, tier, hashes, already, 1)

    def _share(self, bit: int, table: BlockTable, blocks: list[int]) -> list[int]:
        """The worker holds these blocks that somebody holds; returns those that it held before."""
        shared, already = self._teams.shared, []
        for block in blocks:
            shard = table[block >> SHARD_SHIFT]
            mask = shard[block]
            if mask & bit:
                already.append(block)
            else:
                shard[block] = shared(mask | bit)
        return already

    def remove(self, worker: WorkerId, tier: str, hashes: Sequence[int]) -> None:
        """The worker holds none of these blocks. O(1) each, about 0.2 us."""
        bit, table = self._teams.bits.get(worker), self._table(tier)
        if bit is None:
            return
        shared, absent = self._teams.shared, []
        for block in hashes:
            shard = table[block >> SHARD_SHIFT]
            mask = shard.get(block, 0)
            if mask == bit:
                del shard[block]
            elif mask & bit:
                shard[block] = shared(mask ^ bit)
            else:
                absent.append(block)
        self._change(worker, tier, hashes, absent, -1)

    def drop(self, worker: WorkerId) -> None:
        """The worker holds nothing. O(1) now; its entries are swept with later changes."""
        if not self._teams.retire(worker):
            return
        self._digests.pop(worker, None)
        for tier in TIERS:
            self._tier_counts[tier] -= self._counts.pop((worker, tier), 0)
            self._factors.pop((worker, tier), None)
        if self._audit is not None:
            self._audit.forget(worker)

    @property
    def sweeping(self) -> bool:
        """Whether something of a worker that is gone is still in the tables."""
        return self._sweep is not None or bool(self._teams.retired)

    def blocks(self, worker: WorkerId, tier: str = TIERS[0]) -> int:
        """How many blocks the worker holds on that tier."""
        return self._counts.get((worker, tier), 0)

    def held(self, worker: WorkerId, tier: str = TIERS[0]) -> set[int]:
        """The worker's blocks; O(all blocks), for comparing and debugging."""
        bit = self._teams.bits.get(worker, 0)
        return {block for shard in self._tables.get(tier, ()) for block, mask in shard.items() if mask & bit}

    def digest(self, worker: WorkerId) -> int:
        """64 bits that are equal for equal block sets of this worker; O(1)."""
        return self._digests.get(worker, 0)

    def overlaps(self, prompt: Prompt) -> dict[WorkerId, tuple[int, ...]]:
        """Per worker that holds any of the prompt: cached blocks per level (device, device or host, …).

        Capped at the blocks that an engine can reuse. O(groups * log blocks) probes per level that is in use.
        """
        levels: list[list[Reach]] = []
        tables: list[BlockTable] = []
        for tier in TIERS:
            if self._tier_counts[tier]:
                tables.append(self._tables[tier])
                levels.append(gallop(tables, prompt, self._teams.live))
            else:
                levels.append(levels[-1] if levels else [])
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
            factors = {key: self._factor(*key) for key in audit.sums}
            found = dict.fromkeys(self._digests, 0)
            for (worker, tier), total in audit.sums.items():
                found[worker] = (found.get(worker, 0) + factors[worker, tier] * total) & MASK64
        finally:
            self._audit = None
        yield sorted(worker for worker, digest in found.items() if digest != self.digest(worker))

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
            found[tier] = yield from holdings(table, self._teams)
        return {tier: found[tier] for tier in TIERS if found.get(tier)}

    def load(self, tier: str, holding: Holding) -> None:
        """These workers hold exactly these blocks there, of which nobody held one: one group of a dump, or a part of
        it. About 0.2 us per block. No audit may go on."""
        assert self._audit is None
        mask, table = self._teams.mask(holding.workers), self._table(tier)
        hashes = hashes_from_bytes(holding.hashes)
        for block in hashes:
            table[block >> SHARD_SHIFT][block] = mask
        total = sum(hashes)
        for worker in holding.workers:
            self._account(worker, tier, len(hashes), total)

    def _change(self, worker: WorkerId, tier: str, hashes: Sequence[int], unchanged: Sequence[int], sign: int) -> None:
        """Everything beside the tables follows a change of these blocks, but for those that stayed as they were."""
        count, total = len(hashes) - len(unchanged), sum(hashes) - sum(unchanged)
        self._account(worker, tier, sign * count, sign * total)
        if self._audit is not None:
            self._audit.follow((worker, tier), hashes, unchanged, sign)
        self._sweep_some()

    def _account(self, worker: WorkerId, tier: str, count: int, total: int) -> None:
        """Counts and digest follow a change of so many blocks, whose hashes add up to `total`."""
        key = (worker, tier)
        self._counts[key] = self._counts.get(key, 0) + count
        self._tier_counts[tier] += count
        self._digests[worker] = (self._digests.get(worker, 0) + self._factor(worker, tier) * total) & MASK64

    def _depths(self, reaches: Iterable[tuple[T, int]]) -> dict[WorkerId, T]:
        """Per worker the depth of the group that it is in; the least, if it should be in several."""
        found: dict[WorkerId, T] = {}
        for depth, mask in reaches:
            found.update(dict.fromkeys(self._teams.members(mask), depth))
        return found

    def _factor(self, worker: WorkerId, tier: str) -> int:
        """An odd number per (worker, tier): sums of hashes times it tell whose they are."""
        factor = self._factors.get((worker, tier))
        if factor is None:
            factor = self._factors[worker, tier] = xxhash.xxh3_64_intdigest(f"{worker}/{tier}".encode()) | 1
        return factor

    def _table(self, tier: str) -> BlockTable:
        table = self._tables.get(tier)
        if table is None:
            assert tier in TIERS
            table = self._tables[tier] = new_table()
        return table

    def _sweep_some(self) -> None:
        if self._sweep is None:
            if not self._teams.retired:
                return
            self._sweep = sweeping(list(self._tables.values()), self._teams)
        if next(self._sweep, "swept"):
            self._sweep = None
