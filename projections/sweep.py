"""Sweep: bits of workers that are gone leave the tables, a bounded number of entries at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from projections.block_table import Shard
from projections.teams import Teams

SWEEP_ENTRIES_MAX = 1024
"""Entries looked at per change while retired workers are swept out: some 0.4 ms."""
SPARSE_BYTES = 400
"""A dictionary of so many bytes per entry is mostly holes, left by a worker that is gone: it is made anew."""


def sweeping(tables: list[list[Shard]], teams: Teams) -> Iterator[None]:
    """Takes the bits that are retired now out of all tables, then frees them; yields before each bound is passed.

    Entries may change in between: new ones have none of these bits, because they are not given out before.
    """
    swept, left = teams.retired, SWEEP_ENTRIES_MAX
    for shards in tables:
        for number, shard in enumerate(shards):
            blocks = list(shard)
            for start in range(0, len(blocks), SWEEP_ENTRIES_MAX):
                part = blocks[start : start + SWEEP_ENTRIES_MAX]
                if len(part) > left:
                    yield
                    left = SWEEP_ENTRIES_MAX
                left -= len(part)
                _take_out(swept, shard, part, teams)
            if sys.getsizeof(shard) > SPARSE_BYTES * (len(shard) + 1):
                shards[number] = dict(shard)
    teams.free(swept)


def _take_out(swept: int, shard: Shard, blocks: list[int], teams: Teams) -> None:
    keep, shared = ~swept, teams.shared
    for block in blocks:
        entry = shard.get(block, 0)
        mask = entry if isinstance(entry, int) else entry[0]
        if mask & swept:
            kept = mask & keep
            if not kept:
                del shard[block]
            elif isinstance(entry, int):
                shard[block] = shared(kept)
            else:
                shard[block] = (shared(kept), entry[1])
