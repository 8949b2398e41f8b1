"""BlockTable: which workers hold each block on one tier, as many small dictionaries by the hash's first bits.

A dictionary that grows copies itself: at ten million blocks a single one would stand still for two seconds now and
then. A thousand small ones stand still for well under a millisecond each, and can be gone through one at a time.
"""

from __future__ import annotations

from core.prompt import HASH_BITS

SHARD_BITS = 10
SHARDS = 1 << SHARD_BITS
SHARD_SHIFT = HASH_BITS - SHARD_BITS
"""A block's shard is `hash >> SHARD_SHIFT`. The last bits would not do: a dictionary's own slots go by them."""

BlockTable = list[dict[int, int]]
"""By shard: block hash to the mask of its holders, which is never 0."""


def new_table() -> BlockTable:
    """A table that holds nothing."""
    return [{} for _ in range(SHARDS)]
