"""Audit: what each worker holds, added up anew from the tables while they go on changing.

Shards are added up one after the other, each at once. A change of a shard that was added up already is added to its
sum as well; one of a shard still to come is seen when its turn comes. So at the end the sums are those of the tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from core.ids import WorkerId
from core.settings import TIERS
from projections.block_table import SHARD_SHIFT, BlockTable
from projections.teams import Teams

AUDIT_ENTRIES_MAX = 4096
"""Entries added up between two chances to do something else; a larger shard is added up at once all the same."""


class Audit:
    """One walk over all tables."""

    def __init__(self) -> None:
        self.sums: dict[tuple[WorkerId, str], int] = defaultdict(int)
        """Per worker and tier: the sum of the hashes of its blocks in what is passed."""
        self._tier = 0
        self._shard = 0
        """Everything before this shard of this tier is passed."""

    def slices(self, tables: Mapping[str, BlockTable], teams: Teams) -> Iterator[None]:
        """Adds everything up, yielding between slices."""
        left = AUDIT_ENTRIES_MAX
        for self._tier, tier in enumerate(TIERS):
            table = tables.get(tier, ())
            for self._shard, shard in enumerate(table):
                if shard and len(shard) > left:
                    yield
                    left = AUDIT_ENTRIES_MAX
                left -= len(shard)
                self._add(tier, shard, teams)
        self._tier = len(TIERS)

    def follow(self, key: tuple[WorkerId, str], hashes: Sequence[int], unchanged: Sequence[int], sign: int) -> None:
        """The worker got (or, for -1, lost) these blocks, but for the unchanged ones."""
        passed = self._passed(key[1], hashes) - self._passed(key[1], unchanged)
        self.sums[key] += sign * passed

    def forget(self, worker: WorkerId) -> None:
        """The worker holds nothing any more."""
        for tier in TIERS:
            self.sums.pop((worker, tier), None)

    def _passed(self, tier: str, blocks: Sequence[int]) -> int:
        place = TIERS.index(tier)
        if place == self._tier:
            return sum(block for block in blocks if block >> SHARD_SHIFT < self._shard)
        return sum(blocks) if place < self._tier else 0

    def _add(self, tier: str, shard: dict[int, int], teams: Teams) -> None:
        sums: dict[int, int] = defaultdict(int)
        for block, mask in shard.items():
            sums[mask] += block
        for mask, total in sums.items():
            for worker in teams.members(mask & teams.live):
                self.sums[worker, tier] += total
