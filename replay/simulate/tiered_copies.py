"""TieredCopies: the blocks of a simulated worker with slower tiers, and the events about them.

The same mirror as a worker's own, but for an engine that names blocks by our hashes and tells no tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

from actors.engines.engine import CacheChange, CacheStored
from actors.kv_cache.cache_events import merge_events
from actors.kv_cache.cache_mirror import LEVELS, UNREACHABLE, CachedBlock, CacheMirror, PrefixHashStates
from core.events import Event


class TieredCopies:
    """See `replay.simulate.simulated_worker.BlockCopies`. A plain chain costs some 3 us per block."""

    def __init__(self, block_size: int) -> None:
        self._mirror = _NameMirror(block_size)

    def __repr__(self) -> str:
        return f"<TieredCopies of {len(self)} blocks>"

    def __len__(self) -> int:
        return self._mirror.reported

    def __contains__(self, block: int) -> bool:
        return self._mirror.reaches(block)

    def overlap(self, hashes: list[int]) -> int:
        """Number of the prompt's leading blocks in any tier."""
        reaches = self._mirror.reaches
        return next((depth for depth, name in enumerate(hashes) if not reaches(name)), len(hashes))

    def apply(self, changes: Iterable[CacheChange]) -> list[Event]:
        """Events about these changes, in their order, and as few as possible."""
        return merge_events([event for change in changes for event in self._mirror.apply(change)])


class _NameMirror(CacheMirror):
    def __init__(self, block_size: int) -> None:
        super().__init__(block_size, 0)
        self._states = _NamesAsHashes(0)

    def reaches(self, block: int) -> bool:
        """A request can take the block from some tier."""
        known = self._blocks.get(block)
        return known is not None and known.reach != UNREACHABLE

    def _is_indexed(self, change: CacheStored) -> bool:
        return change.tier in LEVELS


class _NamesAsHashes(PrefixHashStates):
    def hash_of(self, block: CachedBlock) -> int:
        """Its name."""
        return block.name
