"""PoolMirror: the blocks of a pool that requests can reach, closed under prefixes, as events of the pool's source."""

from __future__ import annotations

from collections.abc import Iterable

from actors.engines.engine import CacheCopied, CacheRemoved
from actors.kv_blocks.catalog_records import CatalogEntry
from actors.kv_cache.cache_mirror import CachedBlock, CacheMirror
from core.events import Event


class PoolMirror(CacheMirror):
    """A mirror in which a block's name is our hash of it. A block is reported once all blocks before it lie there, too.

    Memory is some 500 bytes per block.
    """

    def __init__(self, tier: str) -> None:
        """`tier` is where the pool's files lie: `disk` or `remote`."""
        super().__init__(block_size=1, seed=0)
        self._tier = tier

    def __repr__(self) -> str:
        return f"<PoolMirror {self.reported} blocks reported, {len(self._blocks)} known>"

    def store(self, entries: Iterable[CatalogEntry]) -> list[Event]:
        """Each of these blocks has one file more; returns the events to publish."""
        stored = [*entries]
        for entry in stored:
            block = self._block(entry.block)
            if block.parent is None:
                block.attach(self._plain_root if entry.parent is None else self._block(entry.parent), b"")
        return self.apply(CacheCopied(tuple(entry.block for entry in stored), self._tier))

    def remove(self, entries: Iterable[CatalogEntry]) -> list[Event]:
        """Each of these blocks has one file less; returns the events to publish."""
        return self.apply(CacheRemoved(tuple(entry.block for entry in entries), self._tier))

    def _hash_of(self, block: CachedBlock) -> int:
        return block.name
