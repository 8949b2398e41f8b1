"""The simulated engine's cache: blocks with counted users, found again by content, evicted oldest first.

1. A block is free or has users. A free block may still hold content, and can be taken by either who asks for it.
2. Blocks are named when they are full. Several blocks may hold the same content, as in vLLM: two requests that make
   equal tokens at once fill a block each. Each copy is told when it comes and when it goes.
3. Freed blocks join the end of the line, the tail of a sequence first; new ones are taken from its head. So the
   least recently used content is evicted first, and of one sequence the deepest block.
4. A block's name says what should be in it, its content what is in it: memory, that changes only when it is written.
   They part when blocks come from another engine, and nothing here looks whether they fit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import xxhash

from actors.engines.engine import CacheChange, CacheEmptied, CacheRemoved, CacheStored
from core.prompt import scope_bytes

TIER = "device"
_NAME_SEED = 0x51
_CONTENT_SEED = 0x52
NEVER_WRITTEN = 0
"""The content of memory that nothing was computed into."""


class PoolBlock:
    """Room for block_size tokens."""

    __slots__ = ("content", "id", "name", "users")

    def __init__(self, id: int) -> None:
        self.id = id
        self.name: int | None = None
        """Of its content with all before it; None while it is not full."""
        self.users = 0
        self.content = NEVER_WRITTEN
        """Digest of what its memory holds; stays when it is freed and even when it is taken, until it is written."""


class BlockPool:
    """A fixed number of blocks; collects what happens to them in `changes`."""

    def __init__(self, capacity_blocks: int) -> None:
        self.capacity_blocks = capacity_blocks
        self.changes: list[CacheChange] = []
        """What was stored and removed, in order, until somebody takes it."""
        self._blocks = [PoolBlock(i) for i in range(capacity_blocks)]
        self._free = OrderedDict((block.id, block) for block in self._blocks)
        self._named: dict[int, dict[int, PoolBlock]] = {}

    def __repr__(self) -> str:
        return f"<BlockPool {self.used} of {self.capacity_blocks} blocks used, {len(self._named)} contents>"

    @property
    def free(self) -> int:
        """Blocks without users."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks with users."""
        return self.capacity_blocks - len(self._free)

    def find(self, names: Iterable[int]) -> list[PoolBlock]:
        """A block for each of the longest run of these names from the first on."""
        found = []
        for name in names:
            copies = self._named.get(name)
            if copies is None:
                break
            found.append(next(iter(copies.values())))
        return found

    def share(self, blocks: Sequence[PoolBlock]) -> None:
        """Each block has one user more."""
        for block in blocks:
            self._free.pop(block.id, None)
            block.users += 1

    def take(self) -> PoolBlock:
        """An empty block with one user; what it held before is evicted. There must be a free one."""
        assert self._free
        _, block = self._free.popitem(last=False)
        assert block.users == 0
        if block.name is not None:
            self._evict(block, block.name)
        block.users = 1
        return block

    def release(self, blocks: Sequence[PoolBlock]) -> None:
        """Each block of this sequence has one user less; those without any can be taken, the last one first."""
        for block in reversed(blocks):
            assert block.users > 0
            block.users -= 1
            if block.users == 0:
                self._free[block.id] = block

    def store(self, blocks: Sequence[PoolBlock], names: Sequence[int], chain: CacheStored) -> None:
        """These blocks, now full, are found by these names; `chain` says so to others."""
        assert len(blocks) == len(names)
        for block, name in zip(blocks, names, strict=True):
            assert block.name is None
            block.name = name
            self._named.setdefault(name, {})[block.id] = block
        self.changes.append(chain)

    def contents(self, ids: Iterable[int]) -> list[int]:
        """What the memory of these blocks holds now, whoever they belong to; where there is no block, nothing."""
        return [self._blocks[i].content if 0 <= i < self.capacity_blocks else NEVER_WRITTEN for i in ids]

    def forget(self) -> None:
        """No block is found any more; those with users keep them and their content."""
        for copies in self._named.values():
            for block in copies.values():
                block.name = None
        self._named.clear()
        self.changes.append(CacheEmptied())

    def _evict(self, block: PoolBlock, name: int) -> None:
        copies = self._named[name]
        del copies[block.id]
        if not copies:
            del self._named[name]
        block.name = None
        self.changes.append(CacheRemoved((name,), TIER))


def block_names(raw: bytes, step: int, parent: int | None, adapter: str | None, cache_salt: str | None) -> list[int]:
    """The engine's names of the full blocks in these token bytes, `step` bytes each, behind `parent`."""
    if parent is None:
        parent = xxhash.xxh3_64_intdigest(scope_bytes(adapter, cache_salt), _NAME_SEED)
    names = []
    for start in range(0, len(raw) - step + 1, step):
        parent = xxhash.xxh3_64_intdigest(parent.to_bytes(8, "little") + raw[start : start + step], _NAME_SEED)
        names.append(parent)
    return names


def content_root(vocab: int, block_size: int, adapter: str | None) -> int:
    """What a prompt's first block builds on: an engine of another kind reads the same bytes as something else.

    A cache salt keeps names apart, and changes nothing in memory.
    """
    return xxhash.xxh3_64_intdigest(f"{vocab}/{block_size}".encode() + scope_bytes(adapter, None), _CONTENT_SEED)


def content_behind(parent: int, raw: bytes) -> int:
    """What a block holds once these tokens, all that are in it, are computed behind that content."""
    return xxhash.xxh3_64_intdigest(parent.to_bytes(8, "little") + raw, _CONTENT_SEED)
