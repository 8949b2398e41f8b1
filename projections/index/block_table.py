"""BlockTable: the workers that hold each block on one tier, as many small dictionaries (shards) by the hash's first
byte.

An entry is a single block with the mask of its holders. Or it is a run, stored under its head: blocks of one span
(`core.block_spans`) from the head on, with the same holders. Most blocks lie in runs, because most prompts are held by
one worker, or by the same workers as their neighbours: one entry for sixteen blocks.

A dictionary that grows copies itself: at ten million entries a single one would stand still for two seconds now and
then. 256 small ones stand still for 2 ms each, and can be gone through one at a time.

A shard's keys are the hash without its first byte: 56 bits, which Python keeps in a third less memory than 64. In a
column of hashes (little-endian uint64) the first byte is every eighth, so a column is split without a loop.

The bits of workers that are gone are swept out of the tables, a bounded number of entries at a time.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from core.prompt import HASH_BITS, HASH_BYTES, hashes_to_bytes
from projections.index.worker_sets import WorkerSets

SHARD_BITS = 8
SHARDS = 1 << SHARD_BITS
KEY_BITS = HASH_BITS - SHARD_BITS
KEY_MASK = (1 << KEY_BITS) - 1
"""A block stands in shard `hash >> KEY_BITS` under the key `hash & KEY_MASK`."""
_FIRST_BYTES = slice(HASH_BYTES - 1, None, HASH_BYTES)

Run = tuple[int, bytes]
"""The mask of the holders of all these blocks (little-endian uint64): two or more of a span, from its head on."""
Entry = int | Run
"""The holders of one block, or a run that begins with it; never an empty mask, never an empty run."""
Shard = dict[int, Entry]
"""By the key of a block."""


class BlockTable(NamedTuple):
    """One tier. The shards are exchanged in place."""

    place: int
    """Of the tier in TIERS."""
    shards: list[Shard]

    def get(self, block: int) -> Entry | None:
        """The entry under this hash."""
        return self.shards[block >> KEY_BITS].get(block & KEY_MASK)


def new_table(place: int) -> BlockTable:
    """A table that holds nothing."""
    return BlockTable(place, [{} for _ in range(SHARDS)])


class Keys(NamedTuple):
    """Blocks as a table has them: the shard of each, and its key there."""

    shards: bytes
    keys: list[int]


def split(hashes: bytes) -> Keys:
    """A column of block hashes for a table; some 50 ns each."""
    column = bytearray(hashes)
    shards = bytes(column[_FIRST_BYTES])
    column[_FIRST_BYTES] = bytes(len(shards))
    return Keys(shards, array("Q", column).tolist())


def joined(shard: int, keys: Sequence[int]) -> bytes:
    """Blocks of one shard as a column: the inverse of `split`."""
    column = bytearray(hashes_to_bytes(keys))
    column[_FIRST_BYTES] = bytes([shard]) * len(keys)
    return bytes(column)


SWEEP_ENTRIES_MAX = 1024
"""Entries looked at per change while retired workers are swept out: some 0.4 ms."""
SPARSE_BYTES = 400
"""A dictionary of so many bytes per entry is mostly holes, left by a worker that is gone: it is made anew."""


def sweeping(tables: list[list[Shard]], sets: WorkerSets) -> Iterator[None]:
    """Takes the bits that are retired now out of all tables, then frees them; yields before each bound is passed.

    Entries may change in between: new ones have none of these bits, because they are not given out before.
    """
    swept, left = sets.retired, SWEEP_ENTRIES_MAX
    for shards in tables:
        for number, shard in enumerate(shards):
            blocks = list(shard)
            for start in range(0, len(blocks), SWEEP_ENTRIES_MAX):
                part = blocks[start : start + SWEEP_ENTRIES_MAX]
                if len(part) > left:
                    yield
                    left = SWEEP_ENTRIES_MAX
                left -= len(part)
                _take_out(swept, shard, part, sets)
            if sys.getsizeof(shard) > SPARSE_BYTES * (len(shard) + 1):
                shards[number] = dict(shard)
    sets.free(swept)


def _take_out(swept: int, shard: Shard, blocks: list[int], sets: WorkerSets) -> None:
    keep, shared = ~swept, sets.shared
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
