"""The simulated engine's slower tiers: names and contents of the blocks that it keeps behind its cache, as vLLM does.

Every block that the cache stores is kept, too. The least recently used one goes: used is what a request looks up, and
of one prompt the first block last, so that its tail goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from actors.engines.engine import CacheChange, CacheCopied, CacheRemoved
from core.settings import TIERS

HOST, DISK = TIERS[1:3]


class SlowerTier:
    """At most `capacity_blocks` contents by name. Each call costs O(blocks that it names)."""

    def __init__(self, capacity_blocks: int, tier: str = HOST) -> None:
        self.capacity_blocks = capacity_blocks
        self.tier = tier
        self._kept: OrderedDict[int, int] = OrderedDict()
        """Content by name, the least recently used first."""

    def __repr__(self) -> str:
        return f"<SlowerTier {self.tier} {len(self._kept)} of {self.capacity_blocks} blocks>"

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, names: Iterable[int]) -> list[int]:
        """The contents of the longest run of these names from the first on."""
        found = []
        for name in names:
            content = self._kept.get(name)
            if content is None:
                break
            found.append(content)
        return found

    def use(self, names: Sequence[int]) -> None:
        """Those of them that are kept were used, the first one last."""
        kept = self._kept
        for name in reversed(names):
            if name in kept:
                kept.move_to_end(name)

    def keep(self, names: Sequence[int], contents: Sequence[int]) -> list[CacheChange]:
        """They are kept; returns the changes, in their order."""
        kept = self._kept
        new = []
        for name, content in zip(names, contents, strict=True):
            if name not in kept:
                new.append(name)
            kept[name] = content
        gone = [kept.popitem(last=False)[0] for _ in range(len(kept) - self.capacity_blocks)]
        changes: list[CacheChange] = [CacheCopied(tuple(new), self.tier)] if new else []
        return [*changes, CacheRemoved(tuple(gone), self.tier)] if gone else changes

    def clear(self) -> None:
        """Nothing is kept."""
        self._kept.clear()
