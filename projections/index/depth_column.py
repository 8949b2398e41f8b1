"""Depth column: the overlap of each worker with a prompt, as an array by the places of their bits.

Where many workers end in a prompt, each at another depth, a search pays for each of these groups. The masks of all
blocks, one below the other, are a matrix of bits; a worker's depth is the sum of its column. That takes some 40 us for
a thousand workers and 125 blocks, however many groups there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from core.block_spans import SPAN_BLOCKS
from core.prompt import HASH_BYTES, Prompt
from projections.index.block_table import BlockTable, Entry, split
from projections.index.galloping_search import gallop

Column = NDArray[np.int64]

MATRIX_BLOCKS_MAX = 255
"""Blocks of a prompt that are summed up as bytes."""
PLACES_KEPT = 4096
"""Masks of which the places are remembered."""


def depth_column(tables: list[BlockTable], prompt: Prompt, live: int, size: int) -> Column:
    """The depths that `gallop` finds, by place; 0 for workers that hold nothing, and for the last place. Places from
    `size` on are left out."""
    found: Column = np.zeros(size, np.int64)
    if not tables or not prompt.blocks_reusable:
        return found
    if len(tables) == 1 and prompt.blocks_reusable <= MATRIX_BLOCKS_MAX:
        masks = _masks(tables[0], prompt, live)
        if not masks[0]:
            return found
        sums = _column_sums(masks)
        if sums is not None:
            count = min(size - 1, len(sums))
            found[:count] = sums[:count]
            return found
    groups = gallop(tables, prompt, live)
    columns = [_places(mask) for _, mask in groups]
    places = np.frombuffer(b"".join(columns), np.int64) if columns else found[:0]
    depths = np.repeat([depth for depth, _ in groups], [len(column) // found.itemsize for column in columns])
    kept = places < size - 1
    found[places[kept]] = depths[kept]
    return found


def _masks(table: BlockTable, prompt: Prompt, live: int) -> list[int]:
    """The holders of each block that can be reused."""
    hashes, shards = prompt.hashes()[: prompt.blocks_reusable * HASH_BYTES], table.shards
    numbers, keys = split(hashes)
    entries = [shards[number].get(key, 0) for number, key in zip(numbers, keys, strict=True)]
    masks = _resolved(entries, hashes) if tuple in map(type, entries) else entries
    return masks if live == -1 else [mask & live for mask in masks]  # type: ignore[return-value, operator]  # all ints


def _resolved(entries: Sequence[Entry], hashes: bytes) -> list[int]:
    """The same for blocks of which some stand in runs."""
    found, shared, run = [], 0, b""
    for at, entry in enumerate(entries):
        mask = entry if isinstance(entry, int) else entry[0]
        start = at % SPAN_BLOCKS * HASH_BYTES
        if not start:
            shared, run = (0, b"") if isinstance(entry, int) else entry
        elif run and run[start : start + HASH_BYTES] == hashes[at * HASH_BYTES : (at + 1) * HASH_BYTES]:
            mask |= shared
        found.append(mask)
    return found


def _column_sums(masks: Sequence[int]) -> NDArray[np.uint8] | None:
    """For each place, the number of masks that have its bit; None if one has a bit that the mask before it lacks: then
    the depths depend on the blocks that a search probes."""
    width = masks[0].bit_length() // 8 + 1
    try:
        raw = b"".join([mask.to_bytes(width, "little") for mask in masks])
    except OverflowError:
        return None
    packed = np.frombuffer(raw, np.uint8).reshape(len(masks), width)
    if (packed[1:] & ~packed[:-1]).any():
        return None
    sums: NDArray[np.uint8] = np.unpackbits(packed, axis=1, bitorder="little").sum(axis=0, dtype=np.uint8)
    return sums


@lru_cache(maxsize=PLACES_KEPT)
def _places(mask: int) -> bytes:
    """The places of its bits, as the bytes of a column."""
    raw = np.frombuffer(mask.to_bytes(mask.bit_length() // 8 + 1, "little"), np.uint8)
    return np.unpackbits(raw, bitorder="little").nonzero()[0].astype(np.int64).tobytes()
