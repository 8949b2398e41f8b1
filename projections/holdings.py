"""Holding: blocks that have the same holders on one tier: how a snapshot keeps the index."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator
from typing import NamedTuple

from core.ids import WorkerId
from core.prompt import hashes_to_bytes
from projections.block_table import BlockTable
from projections.teams import Teams

DUMP_ENTRIES_MAX = 4096
"""Entries gone through between two chances to do something else; a larger shard is gone through at once."""


class Holding(NamedTuple):
    """These workers, and nobody else, hold these blocks."""

    workers: tuple[WorkerId, ...]
    """By id."""
    hashes: bytes
    """Little-endian uint64, ascending."""


def holdings(table: BlockTable, teams: Teams) -> Generator[None, None, list[Holding]]:
    """All of a table, by the ids of the holders; equal contents give equal lists. Yields between slices."""
    groups: dict[int, list[bytes]] = defaultdict(list)
    left = DUMP_ENTRIES_MAX
    for shard in table:
        if shard and len(shard) > left:
            yield
            left = DUMP_ENTRIES_MAX
        left -= len(shard)
        for mask, blocks in _by_mask(shard, teams.live).items():
            groups[mask].append(hashes_to_bytes(sorted(blocks)))
    groups.pop(0, None)  # held by nobody who is still there
    return sorted(Holding(teams.members(mask), b"".join(parts)) for mask, parts in groups.items())


def _by_mask(shard: dict[int, int], live: int) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for block, mask in shard.items():
        found[mask & live].append(block)
    return found
