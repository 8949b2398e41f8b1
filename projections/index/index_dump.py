"""Dump of the index as a snapshot keeps it: groups of blocks that have the same holders on one tier."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterator
from operator import itemgetter
from typing import NamedTuple

from core.ids import WorkerId
from core.prompt import HASH_BYTES, hashes_from_bytes, hashes_to_bytes
from projections.index.block_table import KEY_BITS, KEY_MASK, Shard, joined, split
from projections.index.worker_sets import WorkerSets

DUMP_ENTRIES_MAX = 4096
"""Entries gone through between two chances to do something else; a larger dictionary is gone through at once."""

PART_RUNS_MAX = 1024
"""Runs of one part: a run costs as much as three single blocks."""


class HolderGroup(NamedTuple):
    """Blocks with exactly this set of holders, in the form of the table: single or in runs."""

    workers: tuple[WorkerId, ...]
    """By id."""
    hashes: bytes
    """Little-endian uint64; single ones ascending, runs one behind the other, by their heads."""
    runs: bytes = b""
    """Blocks of each run, a byte each; empty if the blocks stand alone."""


def dump_groups(shards: list[Shard], sets: WorkerSets) -> Generator[None, None, list[HolderGroup]]:
    """All of a table, by the ids of the holders; equal tables give equal lists. Yields between slices."""
    single: dict[int, list[bytes]] = defaultdict(list)
    runs: dict[int, list[bytes]] = defaultdict(list)
    lengths: dict[int, list[bytes]] = defaultdict(list)
    left = DUMP_ENTRIES_MAX
    for number, shard in enumerate(shards):
        if shard and len(shard) > left:
            yield
            left = DUMP_ENTRIES_MAX
        left -= len(shard)
        keys, columns = _by_mask(shard, sets.live)
        for mask, alone in keys.items():
            single[mask].append(joined(number, alone))
        for mask, together in columns.items():
            runs[mask].append(b"".join(together))
            lengths[mask].append(bytes([len(run) // HASH_BYTES for run in together]))
    single.pop(0, None)  # no holder is left
    runs.pop(0, None)
    found = [HolderGroup(sets.members(mask), b"".join(parts)) for mask, parts in single.items()]
    found += [HolderGroup(sets.members(mask), b"".join(parts), b"".join(lengths[mask])) for mask, parts in runs.items()]
    return sorted(found)


def _by_mask(shard: Shard, live: int) -> tuple[dict[int, list[int]], dict[int, list[bytes]]]:
    """The keys of single blocks, and the runs, each by their holders and in one order."""
    keys: dict[int, list[int]] = defaultdict(list)
    runs: dict[int, list[bytes]] = defaultdict(list)
    for key, entry in sorted(shard.items(), key=itemgetter(0)):
        if isinstance(entry, int):
            keys[entry & live].append(key)
        else:
            runs[entry[0] & live].append(entry[1])
    return keys, runs


def load_group(shards: list[Shard], mask: int, holding: HolderGroup) -> None:
    """The blocks stand in the table as they did in the one that was dumped; nothing may stand there yet."""
    if not holding.runs:
        alone = split(holding.hashes)
        for number, key in zip(alone.shards, alone.keys, strict=True):
            shards[number][key] = mask
        return
    start, column = 0, holding.hashes
    for blocks in holding.runs:
        end = start + blocks * HASH_BYTES
        head = int.from_bytes(column[start : start + HASH_BYTES], "little")
        shards[head >> KEY_BITS][head & KEY_MASK] = (mask, column[start:end])
        start = end


def split_group(holding: HolderGroup, blocks_max: int) -> Iterator[HolderGroup]:
    """The same in parts of at most so many blocks, and of a bounded number of runs, which stay whole."""
    if not holding.runs:
        step = blocks_max * HASH_BYTES
        for start in range(0, len(holding.hashes), step):
            yield holding._replace(hashes=holding.hashes[start : start + step])
        return
    start, runs_max = 0, max(1, min(blocks_max // max(holding.runs), PART_RUNS_MAX))
    for first in range(0, len(holding.runs), runs_max):
        runs = holding.runs[first : first + runs_max]
        end = start + sum(runs) * HASH_BYTES
        yield HolderGroup(holding.workers, holding.hashes[start:end], runs)
        start = end


def block_groups(shards: list[Shard], sets: WorkerSets) -> list[HolderGroup]:
    """The same block by block, by the ids of the holders and ascending: equal contents give equal lists."""
    masks: dict[int, int] = defaultdict(int)
    for mask, hashes in columns(shards):
        for block in hashes:
            masks[block] |= mask & sets.live
    groups: dict[int, list[int]] = defaultdict(list)
    for block in sorted(masks):
        groups[masks[block]].append(block)
    groups.pop(0, None)
    return sorted(HolderGroup(sets.members(mask), hashes_to_bytes(hashes)) for mask, hashes in groups.items())


def columns(shards: list[Shard]) -> Iterator[tuple[int, list[int]]]:
    """Every entry's holders and blocks."""
    for number, shard in enumerate(shards):
        for key, entry in shard.items():
            if isinstance(entry, int):
                yield entry, [number << KEY_BITS | key]
            else:
                yield entry[0], hashes_from_bytes(entry[1])
