"""The work that both indexes do: prompts and chains of blocks, the same in every program that is given the same case.

Nothing but the standard library is imported here: the peer's environment has none of ours.

Every chain begins with the same 37 blocks and goes on alone; chain i lies on worker i mod W. A few chains are prompts
that are looked up later, of 8192 and of 512 blocks; the rest, up to the size asked for, is there to be in the way.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle, islice
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NamedTuple

BLOCK_SIZE = 16
SHARED_BLOCKS = 37
"""Not whole spans of ours: every chain forks inside one."""
CHAIN_BLOCKS = 512
LONG_BLOCKS = 8192
LONGS_MAX = 24
MEDIUMS_MAX = 200
EVENT_BLOCKS = 64
"""Blocks per event, as an engine's prefill gives them."""
ROUNDS = 5
SMALL_EVENTS = 20_000
"""Events of one block each, as decode steps give them."""


class Case(NamedTuple):
    """So many entries, a block on a worker each, on so many workers."""

    entries: int
    workers: int
    repeat: int = 200
    """Lookups of each kind and round."""

    @property
    def longs(self) -> int:
        """Prompts of 8192 blocks."""
        return max(1, min(LONGS_MAX, self.entries // (4 * LONG_BLOCKS)))

    @property
    def mediums(self) -> int:
        """Prompts of 512 blocks."""
        return max(2, min(MEDIUMS_MAX, self.entries // (4 * CHAIN_BLOCKS)))


class Work:
    """The prompts of a case, as token ids."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._random = Random(7)
        self.shared = self._tokens(SHARED_BLOCKS)
        self.longs = [self.shared + self._tokens(LONG_BLOCKS - SHARED_BLOCKS) for _ in range(case.longs)]
        self.mediums = [self.shared + self._tokens(CHAIN_BLOCKS - SHARED_BLOCKS) for _ in range(case.mediums)]
        self.misses = [self._tokens(CHAIN_BLOCKS) for _ in range(100)]

    @property
    def known(self) -> list[array[int]]:
        """All prompts that are stored."""
        return [*self.longs, *self.mediums]

    def placed(self, known: Iterable[list[int]]) -> list[Placed]:
        """The chains of the known prompts, without the shared start."""
        return [(number % self.case.workers, chain[SHARED_BLOCKS:]) for number, chain in enumerate(known)]

    def fillers(self) -> Iterator[Placed]:
        """The chains that are never asked for; made as they are taken."""
        own = CHAIN_BLOCKS - SHARED_BLOCKS
        taken = self.case.longs * LONG_BLOCKS + self.case.mediums * CHAIN_BLOCKS
        for number in range(max(0, self.case.entries - taken) // own):
            yield number % self.case.workers, array("Q", self._random.randbytes(8 * own)).tolist()

    def fresh(self, count: int) -> list[int]:
        """Hashes of blocks that no worker holds."""
        return array("Q", self._random.randbytes(8 * count)).tolist()

    def _tokens(self, blocks: int) -> array[int]:
        """Of a vocabulary of 65 536."""
        return array("I", array("H", self._random.randbytes(2 * blocks * BLOCK_SIZE)).tolist())


Placed = tuple[int, list[int]]
"""A worker and the own blocks of one of its chains."""


def slices(chains: Iterable[Placed]) -> Iterator[list[Placed]]:
    """A hundred chains at a time: enough for a clock, little enough that preparing them takes no memory."""
    them = iter(chains)
    while some := list(islice(them, 100)):
        yield some


def batches(hashes: list[int]) -> Iterator[tuple[int | None, list[int]]]:
    """A chain as events: the parent's hash, and up to 64 blocks that follow it."""
    for start in range(0, len(hashes), EVENT_BLOCKS):
        yield (hashes[start - 1] if start else None), hashes[start : start + EVENT_BLOCKS]


def median_us(lookup: Callable[[Any], object], prompts: Iterable[Any], repeat: int) -> float:
    """Median microseconds of a lookup, the prompts in turn, in the quietest of so many rounds: others work here too."""
    turn, rounds = cycle(prompts), []
    for _ in range(ROUNDS):
        found = []
        for prompt in islice(turn, repeat):
            started = time.perf_counter()
            lookup(prompt)
            found.append(time.perf_counter() - started)
        rounds.append(median(found))
    return min(rounds) * 1e6


def rss_bytes() -> int:
    """Memory of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def asked() -> Case:
    """The case of the command line: entries, workers, repeat."""
    return Case(*map(int, sys.argv[1:4]))
