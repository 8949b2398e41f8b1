"""Hash states at the tips of prefixes, so that one more block costs one more block."""

from __future__ import annotations

from collections import OrderedDict

import xxhash

from actors.mirrored_block import MirroredBlock

STATES_MAX = 1024
"""Tips remembered, at some 600 bytes each; another tip is rebuilt from the token bytes on its way to the root."""


class PrefixStates:
    """XXH3-64 states after certain blocks, by the engine's name of the block; the least recently used go first.

    One state is hot: that of the block hashed last. A chain of blocks goes on with it without a copy.
    """

    def __init__(self, seed: int, states_max: int = STATES_MAX) -> None:
        assert states_max > 0
        self._seed = seed
        self._states_max = states_max
        self._kept: OrderedDict[int, xxhash.xxh3_64] = OrderedDict()
        self._hot: MirroredBlock | None = None
        self._state = xxhash.xxh3_64(seed=seed)

    def __repr__(self) -> str:
        return f"<PrefixStates {len(self._kept)} of at most {self._states_max}>"

    def clear(self) -> None:
        """No state is remembered."""
        self._kept.clear()
        self._hot = None

    def hash_of(self, block: MirroredBlock) -> int:
        """Our hash of the block; every block on its way to the root must have its tokens."""
        state = self._state if block.parent is self._hot else self._fork(block.parent)
        state.update(block.tokens)
        self._hot, self._state = block, state
        digest: int = state.intdigest()
        return digest

    def _fork(self, block: MirroredBlock | None) -> xxhash.xxh3_64:
        """A state of its own after the block; the hot one is kept for later."""
        assert block is not None
        if self._hot is not None:
            self._keep(self._hot.name, self._state)
        if block.parent is None:
            return xxhash.xxh3_64(block.tokens, seed=self._seed)
        if (kept := self._kept.get(block.name)) is None:
            kept = self._rebuild(block)
        self._keep(block.name, kept)
        return kept.copy()

    def _rebuild(self, block: MirroredBlock) -> xxhash.xxh3_64:
        parts = []
        at: MirroredBlock | None = block
        kept = None
        while at is not None and (at.parent is None or (kept := self._kept.get(at.name)) is None):
            parts.append(at.tokens)
            at = at.parent
        state = kept.copy() if kept is not None else xxhash.xxh3_64(seed=self._seed)
        state.update(b"".join(reversed(parts)))
        return state

    def _keep(self, name: int, state: xxhash.xxh3_64) -> None:
        self._kept[name] = state
        self._kept.move_to_end(name)
        if len(self._kept) > self._states_max:
            self._kept.popitem(last=False)
