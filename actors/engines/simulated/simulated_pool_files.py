"""PoolFiles: the files of a simulated pool, for the engines that read and write them and for the pool's keeper.

1. A block lies there from the end of its write on. Its stamp is the time at which the request that used it last came,
   less its depth in the prompt. So of one prompt the last block goes first.
2. The rules of a real folder that several workers share hold (`actors.kv_blocks.shared_pool_folder`): workers write no
   more than the keeper grants, and the keeper alone removes files.
3. Times are virtual microseconds, given by the caller. They never go back.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

from actors.kv_blocks.catalog_records import CatalogEntry

GRANT_SHARE = 16
"""As of a real folder: in a full one all workers together write so small a part of it between two listings."""
STAMPS_PER_US = 1000
"""Stamps are nanoseconds, so that a prompt's depth stays below the time between two requests."""


class PoolCounts(NamedTuple):
    """Blocks since the start of the run."""

    loads: int = 0
    stores: int = 0
    evictions: int = 0
    stores_dropped: int = 0
    """Not stored: the grant was spent, or too many waited for the disk."""
    loads_declined: int = 0
    """Not read, as too many were being read: computed."""


class _File:
    __slots__ = ("content", "parent", "stamp")

    def __init__(self, content: int, parent: int | None, stamp: int) -> None:
        self.content = content
        self.parent = parent
        self.stamp = stamp


class PoolFiles:
    """At most `capacity_blocks` blocks by name. Memory is some 200 bytes per block."""

    def __init__(self, capacity_blocks: int) -> None:
        self.capacity_blocks = capacity_blocks
        self.counts = PoolCounts()
        self._files: dict[int, _File] = {}
        self._writes: list[tuple[int, int, str, CatalogEntry, int]] = []
        """A heap of writes that have not ended: end, number, writer, block with its parent, content."""
        self._number = 0
        self._left: dict[str, int] = {}
        """Blocks that each writer may still write by the last grant."""
        self._granted = 0
        """Blocks of the last grant, of all writers together."""
        self._new: list[tuple[int, int]] = []
        """Blocks that came since `take_new`, with the end of their writes."""

    def __repr__(self) -> str:
        return f"<PoolFiles {len(self._files)} of {self.capacity_blocks} blocks>"

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, name: int) -> bool:
        return name in self._files

    def count(self, **more: int) -> None:
        """The counts of these names have grown by so much."""
        self.counts = self.counts._replace(**{name: getattr(self.counts, name) + by for name, by in more.items()})

    def find(self, names: list[int], now_us: int) -> list[int]:
        """The contents of the longest run of these names from the first on. O(blocks found)."""
        self._settle(now_us)
        found = []
        for name in names:
            file = self._files.get(name)
            if file is None:
                break
            found.append(file.content)
        return found

    def touch(self, names: list[int], at_us: int) -> None:
        """A request that came then uses the prompt with these blocks. O(blocks)."""
        get, stamp = self._files.get, at_us * STAMPS_PER_US
        for depth, name in enumerate(names):
            file = get(name)
            if file is not None and file.stamp < stamp - depth:
                file.stamp = stamp - depth

    def write(self, writer: str, entry: CatalogEntry, content: int, end_us: int) -> bool:
        """The block will lie there at `end_us`; False if the writer's grant is spent."""
        left = self._left.get(writer, 0)
        if not left:
            return False
        self._left[writer] = left - 1
        self._number += 1
        heappush(self._writes, (end_us, self._number, writer, entry, content))
        return True

    def end_writer(self, writer: str, now_us: int) -> None:
        """The writer has ended, and with it its writes."""
        self._settle(now_us)
        self._left.pop(writer, None)
        self._writes = sorted(write for write in self._writes if write[2] != writer)

    def take_new(self, until_us: int, now_us: int) -> list[CatalogEntry]:
        """Blocks that came before `until_us` and were not taken yet, as far as they still lie there."""
        self._settle(now_us)
        taken = [name for end_us, name in self._new if end_us < until_us]
        self._new = [each for each in self._new if each[0] >= until_us]
        return [CatalogEntry(name, self._files[name].parent) for name in taken if name in self._files]

    def choose(self, now_us: int) -> dict[int, int]:
        """The blocks that were used least recently, with their stamps, as many as must go until an eighth is free.
        O(blocks log blocks) in a full folder."""
        self._settle(now_us)
        excess = len(self._files) - (self.capacity_blocks - 2 * self._grant_least)
        if excess <= 0:
            return {}
        files = self._files
        oldest = sorted(files, key=lambda name: (files[name].stamp, name))[:excess]
        return {name: files[name].stamp for name in oldest}

    def grant(self, writers: list[str], now_us: int) -> None:
        """The writers may write until the next grant: together half of what is free, in a full folder a
        GRANT_SHARE-th. First what was granted before is taken off, as it may be on its way."""
        self._settle(now_us)
        free = max(0, self.capacity_blocks - len(self._files) - self._granted)
        room = min(free, max(self._grant_least, free // 2))
        share = room // len(writers) if writers else 0
        self._left = dict.fromkeys(writers, share)
        self._granted = share * len(writers)

    def remove(self, chosen: dict[int, int]) -> list[int]:
        """Those of the chosen blocks that were not used meanwhile are gone; returns them."""
        gone = [name for name, stamp in chosen.items() if name in self._files and self._files[name].stamp == stamp]
        for name in gone:
            del self._files[name]
        self.count(evictions=len(gone))
        return gone

    @property
    def _grant_least(self) -> int:
        return self.capacity_blocks // GRANT_SHARE

    def _settle(self, now_us: int) -> None:
        """Blocks whose writes have ended lie there."""
        writes, files = self._writes, self._files
        stored = 0
        while writes and writes[0][0] <= now_us:
            end_us, _, _, entry, content = heappop(writes)
            stored += 1
            if entry.block in files:  # another worker wrote it, too
                continue
            before = None if entry.parent is None else files.get(entry.parent)
            stamp = end_us * STAMPS_PER_US if before is None else before.stamp - 1
            files[entry.block] = _File(content, entry.parent, stamp)
            self._new.append((end_us, entry.block))
        if stored:
            self.count(stores=stored)
