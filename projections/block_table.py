"""BlockTable: which workers hold each block on one tier, as many small dictionaries (shards) by the hash's first byte.

A dictionary that grows copies itself: at ten million blocks a single one would stand still for two seconds now and
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

Shard = dict[int, int]
"""Key of a block to the mask of its holders, which is never 0."""


class BlockTable(NamedTuple):
    """One tier. The shards are exchanged in place."""

    place: int
    """Of the tier in TIERS."""
    shards: list[Shard]


def new_table(place: int) -> BlockTable:
    """A table that holds nothing."""
    return BlockTable(place, [{} for _ in range(SHARDS)])


class Blocks(NamedTuple):
    """Blocks as a table has them: the shard of each, and its key there."""

    shards: bytes
    keys: list[int]

    @property
    def total(self) -> int:
        """The sum of the hashes."""
        return (sum(self.shards) << KEY_BITS) + sum(self.keys)


def split(hashes: Sequence[int] | bytes) -> Blocks:
    """Block hashes, as a list or as a column, for a table; some 50 ns each."""
    column = bytearray(hashes if isinstance(hashes, bytes) else hashes_to_bytes(hashes))
    shards = bytes(column[_FIRST_BYTES])
    column[_FIRST_BYTES] = bytes(len(shards))
    return Blocks(shards, array("Q", column).tolist())


def joined(shard: int, keys: Sequence[int]) -> bytes:
    """Blocks of one shard as a column: the inverse of `split`."""
    column = bytearray(hashes_to_bytes(keys))
    column[_FIRST_BYTES] = bytes([shard]) * len(keys)
    return bytes(column)
