"""Gallop: how deep each group of workers reaches into a prompt, by a few probes instead of a walk.

Whoever holds block d holds all before it, so holders only become fewer with depth. Depths that grow by leaps are
probed until nobody is left; between two neighbours with different holders the range is halved until each group's
last depth is found: O(groups * log blocks) probes, each one digest of a piece of the prompt and one lookup per tier.

Of a worker whose blocks have a hole (which its mirror never reports) this may find a depth beyond the hole, but
always one whose block it holds, and never less than what it holds without a hole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from core.prompt import Prompt
from projections.block_table import KEY_BITS, KEY_MASK, BlockTable

LEAP = 4
"""How much deeper the next probe lies while a digest costs less than the probe itself…"""
STRIDE = 2
"""… and where it costs more, from this many blocks on: there a leap too far is work for nothing."""
LEAPS_BLOCKS_MAX = 512

At = Callable[[int], int]
"""From a depth to the mask of those who hold the block that ends there."""


class Reach(NamedTuple):
    """These workers (a bit mask) hold the first `depth` blocks and not the next."""

    depth: int
    mask: int


def gallop(tables: list[BlockTable], prompt: Prompt, live: int) -> list[Reach]:
    """Who of `live` reaches how deep in the union of these tables, deepest first; who holds nothing is not told."""
    limit = prompt.blocks_reusable
    if not limit:
        return []
    at = _prober(tables, prompt, live)
    depth, mask = 1, at(1)
    if not mask:
        return []
    passed = [Reach(1, mask)]
    while mask and depth < limit:
        depth = min(depth * (LEAP if depth < LEAPS_BLOCKS_MAX else STRIDE), limit)
        mask = at(depth)
        passed.append(Reach(depth, mask))
    found = [passed[-1]] if mask else []  # those who hold all of it
    high, beyond = passed.pop()
    while passed:
        low, mask = passed.pop()
        if mask != beyond and (gone := mask & ~beyond):
            _narrow(at, low, high, gone, found)
        high, beyond = low, mask
    return found


def _prober(tables: list[BlockTable], prompt: Prompt, live: int) -> At:
    key = prompt.key
    (first, *others) = (table.shards for table in tables)

    def nearest(depth: int) -> int:
        block = key(depth)
        return first[block >> KEY_BITS].get(block & KEY_MASK, 0) & live

    def any_of_them(depth: int) -> int:
        block = key(depth)
        shard, rest = block >> KEY_BITS, block & KEY_MASK
        mask = first[shard].get(rest, 0)
        for shards in others:
            mask |= shards[shard].get(rest, 0)
        return mask & live

    return any_of_them if others else nearest


def _narrow(at: At, low: int, high: int, gone: int, found: list[Reach]) -> None:
    """Tells where each of `gone` ends: all of them hold block `low`, none of them block `high`."""
    while high - low > 1:
        middle = (low + high) // 2
        further = gone & at(middle)
        if further == gone:
            low = middle
            continue
        if further:
            _narrow(at, middle, high, further, found)
            gone ^= further
        high = middle
    found.append(Reach(low, gone))
