"""Holding: blocks that have the same holders on one tier: how a snapshot keeps the index."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator
from typing import NamedTuple

from core.ids import WorkerId
from projections.block_table import Shard, joined
from projections.teams import Teams

DUMP_ENTRIES_MAX = 4096
"""Entries gone through between two chances to do something else; a larger dictionary is gone through at once."""


class Holding(NamedTuple):
    """These workers, and nobody else, hold these blocks."""

    workers: tuple[WorkerId, ...]
    """By id."""
    hashes: bytes
    """Little-endian uint64, ascending."""


def holdings(shards: list[Shard], teams: Teams) -> Generator[None, None, list[Holding]]:
    """All of a table, by the ids of the holders; equal contents give equal lists. Yields between slices."""
    groups: dict[int, list[bytes]] = defaultdict(list)
    left = DUMP_ENTRIES_MAX
    for number, shard in enumerate(shards):
        if shard and len(shard) > left:
            yield
            left = DUMP_ENTRIES_MAX
        left -= len(shard)
        for mask, keys in _by_mask(shard, teams.live).items():
            groups[mask].append(joined(number, sorted(keys)))
    groups.pop(0, None)  # held by nobody who is still there
    return sorted(Holding(teams.members(mask), b"".join(parts)) for mask, parts in groups.items())


def _by_mask(shard: Shard, live: int) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for key, mask in shard.items():
        found[mask & live].append(key)
    return found
