"""BlockTable: which workers hold each block on one tier, as many small dictionaries (shards) by the hash's first byte.

An entry is of a single block: the mask of those who hold it. Or it is a run: blocks of one span (`core.block_spans`)
from its head on, which the same workers hold; it stands under its head. Most blocks lie in runs, as most prompts are
held by one worker or by all that hold their neighbours: an entry for sixteen blocks.

A dictionary that grows copies itself: at ten million entries a single one would stand still for two seconds now and
then. 256 small ones stand still for 2 ms each, and can be gone through one at a time.

A shard's keys are what follows the first byte: 56 bits, which Python keeps in a third less memory than 64. In a column
of hashes (little-endian uint64) the first byte is every eighth, so a column is split without a loop.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from core.prompt import HASH_BITS, HASH_BYTES, hashes_to_bytes

SHARD_BITS = 8
SHARDS = 1 << SHARD_BITS
KEY_BITS = HASH_BITS - SHARD_BITS
KEY_MASK = (1 << KEY_BITS) - 1
"""A block stands in shard `hash >> KEY_BITS` under the key `hash & KEY_MASK`."""
_FIRST_BYTES = slice(HASH_BYTES - 1, None, HASH_BYTES)

Run = tuple[int, bytes]
"""The mask of those who hold all of these blocks (little-endian uint64): two or more of a span, from its head on."""
Entry = int | Run
"""Of one block its holders, or a run that begins with it; never nobody, never nothing."""
Shard = dict[int, Entry]
"""By the key of a block."""


class BlockTable(NamedTuple):
    """One tier. The shards are exchanged in place."""

    place: int
    """Of the tier in TIERS."""
    shards: list[Shard]

    def get(self, block: int) -> Entry | None:
        """What stands under this hash."""
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
