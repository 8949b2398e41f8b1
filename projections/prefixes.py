"""PrefixIndex: which worker holds which block.

Theory of operation. A block hash covers its whole prefix, and every worker's set of blocks is closed under prefixes
(its mirror sees to that), so whoever holds block d of a prompt holds all before it. A lookup therefore gallops: it
probes a few depths and narrows down between two whose holders differ, O(holder groups * log blocks) probes of one
digest and one dictionary lookup each, instead of a walk over thousands of blocks.

Each tier is a table from block hash to a bit mask of workers. The level of a tier is that tier and all nearer ones;
levels are nested and each is closed under prefixes, so each is galloped and exact.

Taking a worker out is one bit operation; its entries are swept later, a bounded number with each later change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import xxhash

from core.ids import WorkerId
from core.prompt import Prompt
from core.settings import TIERS

MASK64 = (1 << 64) - 1
SWEEP_ENTRIES_MAX = 1024
"""Entries looked at per change while retired workers are swept out."""


class Reach(NamedTuple):
    """These workers (a bit mask) hold the first `depth` blocks and not the next."""

    depth: int
    mask: int


class PrefixIndex:
    """Blocks of all workers, of all kv streams. Owned by one event loop."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[int, int]] = {tier: {} for tier in TIERS}
        self._bits: dict[WorkerId, int] = {}
        self._workers: dict[int, WorkerId] = {}
        self._retired = 0
        self._sweep: Iterator[None] | None = None
        self._counts: dict[tuple[WorkerId, str], int] = {}
        self._factors: dict[tuple[WorkerId, str], int] = {}
        self._digests: dict[WorkerId, int] = {}

    def __repr__(self) -> str:
        return f"<PrefixIndex {len(self._bits)} workers, {sum(self._counts.values())} blocks>"

    def store(self, worker: WorkerId, tier: str, hashes: Iterable[int]) -> None:
        """The worker holds these blocks; those that it held already stay. O(1) each."""
        bit, table = self._bit(worker), self._tables[tier]
        count = total = 0
        for block in hashes:
            mask = table.get(block)
            if mask is None:
                table[block] = bit
            elif not mask & bit:
                table[block] = mask | bit
            else:
                continue
            count += 1
            total += block
        self._account(worker, tier, count, total)

    def remove(self, worker: WorkerId, tier: str, hashes: Iterable[int]) -> None:
        """The worker holds none of these blocks. O(1) each."""
        bit, table = self._bit(worker), self._tables[tier]
        count = total = 0
        for block in hashes:
            mask = table.get(block, 0)
            if mask & bit:
                count += 1
                total += block
                if mask == bit:
                    del table[block]
                else:
                    table[block] = mask ^ bit
        self._account(worker, tier, -count, -total)

    def drop(self, worker: WorkerId) -> None:
        """The worker holds nothing. O(1) now; its entries are swept with later changes."""
        bit = self._bits.pop(worker, 0)
        if not bit:
            return
        del self._workers[bit]
        self._retired |= bit
        self._digests.pop(worker, None)
        for tier in TIERS:
            self._counts.pop((worker, tier), None)
            self._factors.pop((worker, tier), None)

    def blocks(self, worker: WorkerId, tier: str = TIERS[0]) -> int:
        """How many blocks the worker holds on that tier."""
        return self._counts.get((worker, tier), 0)

    def held(self, worker: WorkerId, tier: str = TIERS[0]) -> set[int]:
        """The worker's blocks; O(all blocks), for comparing and debugging."""
        bit = self._bits.get(worker, 0)
        return {block for block, mask in self._tables[tier].items() if mask & bit}

    def digest(self, worker: WorkerId) -> int:
        """64 bits that are equal for equal block sets of this worker; O(1)."""
        return self._digests.get(worker, 0)

    def overlaps(self, prompt: Prompt) -> dict[WorkerId, tuple[int, ...]]:
        """Per worker that holds any of the prompt: cached blocks per level (device, device or host, …).

        Capped at the blocks that an engine can reuse. O(groups * log blocks) probes per level that is in use.
        """
        found: dict[WorkerId, list[int]] = {}
        tables: list[dict[int, int]] = []
        for level, tier in enumerate(TIERS):
            if self._tables[tier] or not tables:
                tables.append(self._tables[tier])
                reaches = list(_gallop(tables, prompt, self._live))
            for depth, mask in reaches:
                for worker in self._of(mask):
                    found.setdefault(worker, [0] * len(TIERS))[level] = depth
        return {worker: tuple(depths) for worker, depths in found.items()}

    def _account(self, worker: WorkerId, tier: str, count: int, total: int) -> None:
        """Count and digest follow a change of so many blocks, whose hashes add up to `total`."""
        key = (worker, tier)
        factor = self._factors.get(key)
        if factor is None:
            factor = self._factors[key] = _factor(worker, tier)
        self._counts[key] = self._counts.get(key, 0) + count
        self._digests[worker] = (self._digests.get(worker, 0) + factor * total) & MASK64
        self._sweep_some()

    @property
    def _live(self) -> int:
        return ~self._retired

    def _of(self, mask: int) -> Iterator[WorkerId]:
        while mask:
            bit = mask & -mask
            yield self._workers[bit]
            mask ^= bit

    def _bit(self, worker: WorkerId) -> int:
        bit = self._bits.get(worker)
        if bit is None:
            taken = self._retired
            for used in self._workers:
                taken |= used
            bit = ~taken & (taken + 1)  # the lowest bit that is free
            self._bits[worker] = bit
            self._workers[bit] = worker
        return bit

    def _sweep_some(self) -> None:
        if self._sweep is None:
            if not self._retired:
                return
            self._sweep = self._sweeping(self._retired)
        next(self._sweep, None)

    def _sweeping(self, mask: int) -> Iterator[None]:
        """Takes the retired bits out of all tables, a bounded number of entries per step, then frees them."""
        for table in self._tables.values():
            blocks = list(table)
            for start in range(0, len(blocks), SWEEP_ENTRIES_MAX):
                for block in blocks[start : start + SWEEP_ENTRIES_MAX]:
                    held = table.get(block, 0)
                    if held & mask:
                        left = held & ~mask
                        if left:
                            table[block] = left
                        else:
                            del table[block]
                yield
        self._retired &= ~mask
        self._sweep = None


def _factor(worker: WorkerId, tier: str) -> int:
    """An odd number per (worker, tier): sums of hashes times it tell whose they are."""
    return xxhash.xxh3_64_intdigest(f"{worker}/{tier}".encode()) | 1


def _gallop(tables: list[dict[int, int]], prompt: Prompt, live: int) -> Iterator[Reach]:
    """Who reaches how deep, deepest first; workers that hold nothing are not told."""
    limit = prompt.blocks_reusable
    holders: dict[int, int] = {}

    def at(depth: int) -> int:
        mask = holders.get(depth)
        if mask is None:
            block, mask = prompt.key(depth), 0
            for table in tables:
                mask |= table.get(block, 0)
            holders[depth] = mask = mask & live
        return mask

    low, high = 0, 1
    while high <= limit and at(high):
        low, high = high, high * 2
    high = min(high, limit + 1)
    holders[limit + 1] = 0
    holders.setdefault(high, 0)
    pending = [(0, high)]
    if low:
        pending = [(edge // 2, edge) for edge in _doublings(low)] + [(low, high)]
    holders[0] = at(1) if limit else 0
    while pending:
        low, high = pending.pop()
        gone = at(low) & ~at(high)
        if not gone:
            continue
        if high == low + 1:
            if low:
                yield Reach(low, gone)
            continue
        middle = (low + high) // 2
        pending.append((low, middle))
        pending.append((middle, high))


def _doublings(last: int) -> list[int]:
    """1, 2, 4, … up to `last`, which is one of them."""
    return [1 << power for power in range(last.bit_length())]
