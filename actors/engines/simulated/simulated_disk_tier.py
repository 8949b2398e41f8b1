"""SimulatedDiskTier: one simulated engine's way to the files of a pool, behind its host tier.

As the disk tier of a vLLM engine (`actors.engines.vllm.disk_tier`):

1. What the host keeps is written, one block after the other. At most one half of the host waits for that; blocks beyond
   it are not stored.
2. A request whose prompt goes on in the pool, behind its blocks on device and host, waits for the read; others go on.
   What was read lies in the host first, and is loaded from there. Blocks are read one after the other, too.
3. At most one half of the host is read at once, of all requests together, and each request reads each block once, so
   many in all. What is beyond it is computed.

Reads and writes have the disk's whole speed each. Times are virtual microseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from actors.engines.engine import CacheChange, CacheCopied, CacheStored
from actors.engines.simulated.simulated_host_tier import TIER, HostTier
from actors.engines.simulated.simulated_pool_files import PoolFiles
from actors.kv_blocks.catalog_records import CatalogEntry

LOADS_SHARE, STORES_SHARE = 2, 2
"""As in vLLM's disk tier: blocks that are read at once, and those that wait to be written, are at most this part of the
host."""


class SimulatedDiskTier:
    """See the module's text."""

    def __init__(self, files: PoolFiles, writer: str, us_per_block: int, host_blocks: int) -> None:
        """`writer` names the engine's worker in the pool's grants."""
        self.files = files
        self.load_blocks = max(1, host_blocks // LOADS_SHARE)
        """Blocks that are read at once."""
        self._writer = writer
        self.us_per_block = us_per_block
        """To read a block, or to write it."""
        self._stores_max = max(1, host_blocks // STORES_SHARE)
        self._reads: deque[tuple[int, int]] = deque()
        """Reads under way: end and blocks, in order."""
        self._writes: deque[int] = deque()
        """Ends of the writes under way, in order."""

    def __repr__(self) -> str:
        return f"<SimulatedDiskTier of {self._writer}, {self.files!r}>"

    def read(self, names: list[int], read_before: int, now_us: int) -> tuple[list[int], int]:
        """The contents of the first blocks of these, and when they will be in the host's memory; none if the first one
        does not lie there, or too many are being read. The request has read `read_before` blocks already."""
        found = self.files.find(names[: self.load_blocks], now_us)
        while self._reads and self._reads[0][0] <= now_us:
            self._reads.popleft()
        room = self.load_blocks - max(read_before, sum(blocks for _, blocks in self._reads))
        if len(found) > room:
            self.files.count(loads_declined=len(found) - max(0, room))
            found = found[: max(0, room)]
        if not found:
            return [], now_us
        begin_us = self._reads[-1][0] if self._reads else now_us
        end_us = begin_us + len(found) * self.us_per_block
        self._reads.append((end_us, len(found)))
        self.files.count(loads=len(found))
        return found, end_us

    def write(self, changes: Iterable[CacheChange], host: HostTier, now_us: int) -> None:
        """Blocks that came to the host by these changes will lie in the pool, as far as grant and queue allow."""
        parents: dict[int, int | None] = {}
        for change in changes:
            if isinstance(change, CacheStored):
                parents.update(zip(change.blocks, (change.parent, *change.blocks), strict=False))
            elif isinstance(change, CacheCopied) and change.tier == TIER:
                self._write([name for name in change.blocks if name in parents], parents, host, now_us)

    def _write(self, names: list[int], parents: dict[int, int | None], host: HostTier, now_us: int) -> None:
        writes, dropped = self._writes, 0
        while writes and writes[0] <= now_us:
            writes.popleft()
        for name in names:
            contents = host.find([name])
            if not contents or name in self.files:
                continue
            end_us = (writes[-1] if writes else now_us) + self.us_per_block
            entry = CatalogEntry(name, parents[name])
            if len(writes) < self._stores_max and self.files.write(self._writer, entry, contents[0], end_us):
                writes.append(end_us)
            else:
                dropped += 1
        if dropped:
            self.files.count(stores_dropped=dropped)
