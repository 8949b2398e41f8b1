"""IndexAudit: what each worker holds, added up anew from the tables while they go on changing.

Shards are added up one after the other. What a change does to shards that were added up already is added to the sums
as well; one of a shard still to come is seen when its turn comes. So at the end the sums are those of the tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from core.block_spans import Blocks
from core.ids import WorkerId
from core.settings import TIERS
from projections.digest import hash_sum
from projections.index.block_changes import keys_touched
from projections.index.block_table import KEY_BITS, BlockTable, Entry
from projections.index.worker_sets import WorkerSets

EMPTY = BlockTable(0, [])
AUDIT_ENTRIES_MAX = 1024
"""Entries, of a block or of a run, added up between two chances to do something else; a larger shard that changes
half-way is taken at once."""


class IndexAudit:
    """One walk over all tables."""

    def __init__(self) -> None:
        self.sums: dict[tuple[WorkerId, int], int] = defaultdict(int)
        """Per worker and place of a tier: the sum of the hashes of its blocks in what is passed."""
        self._at = (0, 0)
        """Everything before this shard of this tier is passed."""
        self._touched = False
        """True if that shard changed during its summation."""

    def slices(self, tables: Mapping[str, BlockTable], sets: WorkerSets) -> Iterator[None]:
        """Adds everything up, yielding between slices. A tier may come into use in the meantime."""
        left = AUDIT_ENTRIES_MAX
        for place, tier in enumerate(TIERS):
            self._at = (place, 0)
            table = tables.get(tier, EMPTY)
            for number, shard in enumerate(table.shards):
                self._at = (table.place, number)
                size = len(shard)
                if size > left:
                    yield
                    left = AUDIT_ENTRIES_MAX
                left -= size
                if size > AUDIT_ENTRIES_MAX:
                    yield from self._in_parts(table, number, sets)
                else:  # by its number: a sweep may have exchanged it
                    self._take(table.place, _by_mask(number, table.shards[number].items()), sets, sets.live)
        self._at = (len(TIERS), 0)

    def _in_parts(self, table: BlockTable, number: int, sets: WorkerSets) -> Iterator[None]:
        """Adds a large shard up over several slices, or at once if it changes in the meantime."""
        self._touched = False
        sums: dict[int, int] = {}
        live = sets.live  # a bit that is retired now may stand for another worker before this is over
        items = list(table.shards[number].items())
        for start in range(0, len(items), AUDIT_ENTRIES_MAX):
            sums = _by_mask(number, items[start : start + AUDIT_ENTRIES_MAX], sums)
            yield
            if self._touched:
                sums, live = _by_mask(number, table.shards[number].items()), sets.live
                break
        self._take(table.place, sums, sets, live)

    @contextmanager
    def watching(self, table: BlockTable, blocks: Blocks, sets: WorkerSets) -> Iterator[None]:
        """Within it these blocks change in the table, and with them where others stand."""
        tier, number = self._at
        keys = keys_touched(table, blocks) if table.place <= tier else set[int]()
        if table.place == tier:
            self._touched |= any(block >> KEY_BITS == number for block in keys)
            keys = {block for block in keys if block >> KEY_BITS < number}
        before = _sums_of(table, keys)
        yield
        for mask, total in _sums_of(table, keys).items():
            before[mask] = before.get(mask, 0) - total
        self._take(table.place, {mask: -total for mask, total in before.items()}, sets, sets.live)

    def forget(self, worker: WorkerId) -> None:
        """The worker holds nothing any more."""
        self._touched = True
        for place in range(len(TIERS)):
            self.sums.pop((worker, place), None)

    def _take(self, place: int, sums: Mapping[int, int], sets: WorkerSets, live: int) -> None:
        for mask, total in sums.items():
            for worker in sets.members(mask & live):
                self.sums[worker, place] += total


def _sums_of(table: BlockTable, keys: Iterable[int]) -> dict[int, int]:
    """Sum of the block hashes of each mask, over the entries under these keys."""
    found = ((block, table.get(block)) for block in keys)
    return _added((block, entry) for block, entry in found if entry is not None)


def _by_mask(
    number: int, items: Iterable[tuple[int, Entry]], before: Mapping[int, int] = MappingProxyType({})
) -> dict[int, int]:
    """The same of entries of that shard, by their keys."""
    first = number << KEY_BITS
    return _added(((first | key, entry) for key, entry in items), before)


def _added(entries: Iterable[tuple[int, Entry]], before: Mapping[int, int] = MappingProxyType({})) -> dict[int, int]:
    sums: dict[int, int] = defaultdict(int, before)
    for block, entry in entries:
        if isinstance(entry, int):
            sums[entry] += block
        else:
            sums[entry[0]] += hash_sum(entry[1])
    return sums
