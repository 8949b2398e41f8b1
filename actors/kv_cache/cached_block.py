"""One block of the engine's cache as the mirror knows it, and hash states at the tips of prefixes.

With the state at the tip of a prefix, the hash of one more block costs one more block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import xxhash

from core.block_spans import SPAN_BLOCKS
from core.settings import TIERS

LEVELS = {tier: level for level, tier in enumerate(TIERS)}
"""A level is an index into TIERS, the fastest first."""
UNREACHABLE = len(TIERS)
"""The level of what no request can reach."""

_COPY_BITS = 32


class CachedBlock:
    """A node of the prefix tree: who is before it, who behind it, and how many copies each tier holds.

    A block without copies is *missing*: only its children know of it, by the engine's name. It has no parent and no
    tokens until it is stored (again), and is forgotten with its last child.
    """

    __slots__ = (
        "after", "before", "copies", "first_child", "hash", "head", "level", "name", "parent", "place", "reach",
        "tokens",
    )  # fmt: skip

    def __init__(self, name: int) -> None:
        self.name = name
        """The engine's."""
        self.hash: int | None = None
        """Ours; computed when the block is reachable for the first time."""
        self.place = SPAN_BLOCKS - 1
        """In its span (`core.block_spans`), known with the hash; a root's first child begins one."""
        self.head = 0
        """Our hash of the block that begins its span, known with its own."""
        self.tokens = b""
        """Its own token ids as canonical bytes; a root's are the scope."""
        self.parent: CachedBlock | None = None
        self.first_child: CachedBlock | None = None
        self.before: CachedBlock | None = None
        """The sibling before it; siblings are a linked list, as most blocks have one child and a few have thousands."""
        self.after: CachedBlock | None = None
        self.copies = 0
        """A counter per tier, packed: the fastest tier lowest, so that the lowest bit set names the level."""
        self.level = UNREACHABLE
        """The fastest tier that holds a copy; UNREACHABLE if it is missing."""
        self.reach = UNREACHABLE
        """The slowest level on the way from the root to here: what is reported of it."""

    def __repr__(self) -> str:
        where = "missing" if not self.copies else TIERS[self.level]
        reach = "unreachable" if self.reach == UNREACHABLE else f"reached from {TIERS[self.reach]}"
        return f"<CachedBlock {self.name} {where}, {reach}, {len(list(self.children()))} behind it>"

    @classmethod
    def root(cls, scope: bytes) -> CachedBlock:
        """What stands before a prompt's first block: always there, always reachable."""
        root = cls(-1)
        root.tokens = scope
        root.gain(0)
        root.reach = 0
        return root

    def holds(self, level: int) -> bool:
        """That tier has a copy."""
        return self.copies >> (level * _COPY_BITS) & ((1 << _COPY_BITS) - 1) > 0

    def gain(self, level: int) -> None:
        """That tier has one copy more."""
        self.copies += 1 << (level * _COPY_BITS)
        if level < self.level:  # noqa: PLR1730 (half the cost of a call to min)
            self.level = level

    def lose(self, level: int) -> None:
        """That tier has one copy less."""
        assert self.holds(level)
        self.copies -= 1 << (level * _COPY_BITS)
        lowest = self.copies & -self.copies
        self.level = (lowest.bit_length() - 1) // _COPY_BITS if lowest else UNREACHABLE

    def call(self, block: int) -> int:
        """This is our hash of it; its parent's is known. Returns it."""
        assert self.parent is not None
        self.hash = block
        self.place = (self.parent.place + 1) % SPAN_BLOCKS
        self.head = self.parent.head if self.place else block
        return block

    def children(self) -> Iterator[CachedBlock]:
        """The blocks right behind it; they must not come or go meanwhile."""
        child = self.first_child
        while child is not None:
            yield child
            child = child.after

    def attach(self, parent: CachedBlock, tokens: bytes) -> None:
        """The block is a child of `parent`."""
        assert self.parent is None
        self.parent = parent
        self.tokens = tokens
        self.after = parent.first_child
        if self.after is not None:
            self.after.before = self
        parent.first_child = self

    def take_away(self) -> CachedBlock:
        """The block is nobody's child and has no tokens; returns its former parent."""
        parent = self.parent
        assert parent is not None
        if self.before is None:
            parent.first_child = self.after
        else:
            self.before.after = self.after
        if self.after is not None:
            self.after.before = self.before
        self.parent = self.before = self.after = None
        self.tokens = b""
        return parent


STATES_MAX = 1024
"""Tips remembered, at some 600 bytes each; another tip is rebuilt from the token bytes on its way to the root."""


class PrefixHashStates:
    """XXH3-64 states after certain blocks, by the engine's name of the block; the least recently used go first.

    One state is hot: that of the block hashed last. A chain of blocks goes on with it without a copy.
    """

    def __init__(self, seed: int, states_max: int = STATES_MAX) -> None:
        assert states_max > 0
        self._seed = seed
        self._states_max = states_max
        self._kept: OrderedDict[int, xxhash.xxh3_64] = OrderedDict()
        self._hot: CachedBlock | None = None
        self._state = xxhash.xxh3_64(seed=seed)

    def __repr__(self) -> str:
        return f"<PrefixHashStates {len(self._kept)} of at most {self._states_max}>"

    def clear(self) -> None:
        """No state is remembered."""
        self._kept.clear()
        self._hot = None

    def hash_of(self, block: CachedBlock) -> int:
        """Our hash of the block; every block on its way to the root must have its tokens."""
        state = self._state if block.parent is self._hot else self._fork(block.parent)
        state.update(block.tokens)
        self._hot, self._state = block, state
        digest: int = state.intdigest()
        return digest

    def _fork(self, block: CachedBlock | None) -> xxhash.xxh3_64:
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

    def _rebuild(self, block: CachedBlock) -> xxhash.xxh3_64:
        parts = []
        at: CachedBlock | None = block
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
