"""Galloping search: the depth of each group of workers in a prompt, by a few probes instead of a walk.

A worker that holds block d holds all blocks before it, so holders only become fewer with depth. Depths that grow by
leaps are probed until no holder is left. Between two neighbouring probes with different holders, the range is halved
until each group's last depth is found: O(groups * log blocks) probes. A probe is one digest of a piece of the prompt
and one lookup per tier.

Probes keep to the heads of spans (`core.block_spans`) as long as they can: a block inside one may stand in a run, which
is found by its head, and then costs a second digest.

For a worker with a hole in its blocks (which its mirror never reports) the depth found may lie beyond the hole. It is
never less than the depth before the hole, and the worker always holds the block there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from core.block_spans import SPAN_BLOCKS
from core.prompt import HASH_BYTES, Prompt
from projections.index.block_table import KEY_BITS, KEY_MASK, BlockTable

LEAP = 4
"""Factor between the depths of two probes, while a digest costs less than the probe itself."""
STRIDE = 2
"""… and where it costs more, from this many blocks on: there a leap too far is work for nothing."""
LEAPS_BLOCKS_MAX = 512

HoldersAt = Callable[[int], int]
"""From a depth to the mask of the workers that hold the block that ends there."""


class OverlapGroup(NamedTuple):
    """These workers (a bit mask) hold the first `depth` blocks and not the next."""

    depth: int
    mask: int


def gallop(tables: list[BlockTable], prompt: Prompt, live: int) -> list[OverlapGroup]:
    """The overlap of each worker of `live` with the prompt in the union of these tables, deepest first; workers without
    any block are left out."""
    limit = prompt.blocks_reusable
    if not limit:
        return []
    at = _prober(tables, prompt, live)
    depth, mask = 1, at(1)
    if not mask:
        return []
    passed = [OverlapGroup(1, mask)]
    while mask and depth < limit:
        depth = min(head_near(depth * (LEAP if depth < LEAPS_BLOCKS_MAX else STRIDE), depth), limit)
        mask = at(depth)
        passed.append(OverlapGroup(depth, mask))
    found = [passed[-1]] if mask else []  # holders of the whole prompt
    high, beyond = passed.pop()
    while passed:
        low, mask = passed.pop()
        if mask != beyond and (gone := mask & ~beyond):
            _narrow(at, low, high, gone, found)
        high, beyond = low, mask
    return found


def _prober(tables: list[BlockTable], prompt: Prompt, live: int) -> HoldersAt:
    (first, *others) = (_prober_of(table, prompt, live) for table in tables)

    def any_of_them(depth: int) -> int:
        mask = first(depth)
        for at in others:
            mask |= at(depth)
        return mask

    return any_of_them if others else first


def _prober_of(table: BlockTable, prompt: Prompt, live: int) -> HoldersAt:
    key, shards = prompt.key, table.shards

    def at(depth: int) -> int:
        """Holders of the block alone, and of the run of its span."""
        place = (depth - 1) % SPAN_BLOCKS
        head = key(depth - place)  # before the block's own: that goes on from its state
        found = shards[head >> KEY_BITS].get(head & KEY_MASK, 0)
        if not place:
            return (found if isinstance(found, int) else found[0]) & live
        block = key(depth)
        own = shards[block >> KEY_BITS].get(block & KEY_MASK, 0)
        mask = own if isinstance(own, int) else own[0]
        if not isinstance(found, int):
            start = place * HASH_BYTES
            if found[1][start : start + HASH_BYTES] == block.to_bytes(HASH_BYTES, "little"):
                mask |= found[0]
        return mask & live

    return at


def _narrow(at: HoldersAt, low: int, high: int, gone: int, found: list[OverlapGroup]) -> None:
    """Tells where each of `gone` ends: all of them hold block `low`, none of them block `high`."""
    while high - low > 1:
        middle = (low + high) // 2
        if high - low > SPAN_BLOCKS:
            middle = head_near(middle, low)
        further = gone & at(middle)
        if further == gone:
            low = middle
            continue
        if further:
            _narrow(at, middle, high, further, found)
            gone ^= further
        high = middle
    found.append(OverlapGroup(low, gone))


def head_near(depth: int, low: int) -> int:
    """The depth of the head of the span that `depth` lies in; of the next one if that is not beyond `low`."""
    head = (depth - 1) // SPAN_BLOCKS * SPAN_BLOCKS + 1
    return head if head > low else head + SPAN_BLOCKS
