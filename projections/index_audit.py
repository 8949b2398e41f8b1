"""Audit: what each worker holds, added up anew from the tables while they go on changing.

Shards are added up one after the other. A change of a shard that was added up already is added to its
sum as well; one of a shard still to come is seen when its turn comes. So at the end the sums are those of the tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from core.ids import WorkerId
from core.settings import TIERS
from projections.block_table import KEY_BITS, Blocks, BlockTable
from projections.shelf import Shelf
from projections.teams import Teams

EMPTY = BlockTable(0, [])
AUDIT_ENTRIES_MAX = 4096
"""Entries added up between two chances to do something else; a larger shard that changes half-way is taken at once."""


class Audit:
    """One walk over all tables."""

    def __init__(self) -> None:
        self.sums: dict[tuple[WorkerId, int], int] = defaultdict(int)
        """Per worker and place of a tier: the sum of the hashes of its blocks in what is passed."""
        self._at = (0, 0)
        """Everything before this shard of this tier is passed."""
        self._touched = False
        """Whether that shard changed while a part of it was added up."""

    def slices(self, tables: Mapping[str, BlockTable], teams: Teams) -> Iterator[None]:
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
                    yield from self._in_parts(table, number, teams)
                else:  # by its number: a sweep may have exchanged it
                    self._take(table.place, _by_mask(number, table.shards[number].items()), teams, teams.live)
        self._at = (len(TIERS), 0)

    def _in_parts(self, table: BlockTable, number: int, teams: Teams) -> Iterator[None]:
        """Adds a large shard up over several slices, or at once if it changes in the meantime."""
        self._touched = False
        sums: dict[int, int] = {}
        live = teams.live  # a bit that is retired now may stand for another worker before this is over
        items = list(table.shards[number].items())
        for start in range(0, len(items), AUDIT_ENTRIES_MAX):
            sums = _by_mask(number, items[start : start + AUDIT_ENTRIES_MAX], sums)
            yield
            if self._touched:
                sums, live = _by_mask(number, table.shards[number].items()), teams.live
                break
        self._take(table.place, sums, teams, live)

    def follow(self, shelf: Shelf, blocks: Blocks, unchanged: Sequence[int], sign: int) -> None:
        """The worker got (or, for -1, lost) these blocks, but for the unchanged ones."""
        place, (tier, number) = shelf.table.place, self._at
        if place > tier:
            return
        hashes = [shard << KEY_BITS | key for shard, key in zip(blocks.shards, blocks.keys, strict=True)]
        if place == tier:
            self._touched |= number in blocks.shards
            hashes = [block for block in hashes if block >> KEY_BITS < number]
            unchanged = [block for block in unchanged if block >> KEY_BITS < number]
        self.sums[shelf.worker, place] += sign * (sum(hashes) - sum(unchanged))

    def forget(self, worker: WorkerId) -> None:
        """The worker holds nothing any more."""
        self._touched = True
        for place in range(len(TIERS)):
            self.sums.pop((worker, place), None)

    def _take(self, place: int, sums: Mapping[int, int], teams: Teams, live: int) -> None:
        for mask, total in sums.items():
            for worker in teams.members(mask & live):
                self.sums[worker, place] += total


def _by_mask(
    number: int, items: Iterable[tuple[int, int]], before: Mapping[int, int] = MappingProxyType({})
) -> dict[int, int]:
    """What the hashes of each mask's blocks add up to, in that shard."""
    sums: dict[int, int] = defaultdict(int, before)
    first = number << KEY_BITS
    for key, mask in items:
        sums[mask] += first | key
    return sums
