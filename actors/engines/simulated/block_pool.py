"""The simulated engine's cache: blocks with counted users, found again by content, evicted oldest first.

1. A block is free or has users. A free block may still hold content, and can be taken by either who asks for it.
2. Blocks are named when they are full. Several blocks may hold the same content, as in vLLM: two requests that make
   equal tokens at once fill a block each. Each copy is told when it comes and when it goes.
3. Freed blocks join the end of the free queue, the tail of a sequence first; new ones are taken from its head. So the
   least recently used content is evicted first, and of one sequence the deepest block. A block without a name is never
   found: when it is freed, it is the next to be taken.
4. A block's name says what should be in it, its content what is in it: memory, that changes only when it is written.
   They part when blocks come from another engine, and nothing here looks whether they fit.
5. With a host tier behind it, what is stored here is kept there as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence

from actors.engines.engine import CacheChange, CacheEmptied, CacheRemoved, CacheStored
from actors.engines.simulated.simulated_host_tier import TIER as HOST
from actors.engines.simulated.simulated_host_tier import HostTier

TIER = "device"
NEVER_WRITTEN = 0
"""The content of memory that nothing was computed into."""
FREE_QUEUE_MAX = 3
"""The queue of freed blocks is at most so many times as long as the cache; then it is made anew."""


class PoolBlock:
    """Room for block_size tokens."""

    __slots__ = ("content", "id", "name", "places", "users")

    def __init__(self, id: int) -> None:
        self.id = id
        self.name: int | None = None
        """Of its content with all before it; None while it is not full."""
        self.users = 0
        self.places = 0
        """The block's entries in the queue of freed blocks; only the last counts, and only without users."""
        self.content = NEVER_WRITTEN
        """Digest of what its memory holds; stays when it is freed and even when it is taken, until it is written."""


class BlockPool:
    """A fixed number of blocks; collects what happens to them in `changes`. Each call costs O(blocks that it names)."""

    def __init__(self, capacity_blocks: int, host_blocks: int = 0) -> None:
        self.capacity_blocks = capacity_blocks
        self.host = HostTier(host_blocks) if host_blocks else None
        self.changes: list[CacheChange] = []
        """Blocks stored and removed, in order, until the changes are taken."""
        self._blocks: list[PoolBlock] = []
        """Those that were taken at least once, by id; the others are made when they are taken."""
        self._nameless: list[PoolBlock] = []
        """Freed blocks without a name; the last one is taken next, and blocks that were never taken come after all."""
        self._free_queue: deque[PoolBlock] = deque()
        """Blocks with a name that were freed, in that order; some are in use again."""
        self.free = capacity_blocks
        """Blocks without users."""
        self._named: dict[int, PoolBlock] = {}
        """Of the blocks with this name, the one that has had it longest."""
        self._copies: dict[int, list[PoolBlock]] = {}
        """The others with this name, in their order, if there are any."""

    def __repr__(self) -> str:
        return f"<BlockPool {self.used} of {self.capacity_blocks} blocks used, {len(self._named)} contents>"

    @property
    def used(self) -> int:
        """Blocks with users."""
        return self.capacity_blocks - self.free

    def find(self, names: Iterable[int]) -> list[PoolBlock]:
        """A block for each of the longest run of these names from the first on."""
        found = []
        get = self._named.get
        for name in names:
            block = get(name)
            if block is None:
                break
            found.append(block)
        return found

    def share(self, blocks: Sequence[PoolBlock]) -> None:
        """Each block has one user more."""
        for block in blocks:
            self.free -= not block.users
            block.users += 1

    def take(self, count: int) -> list[PoolBlock]:
        """So many empty blocks with one user each; what they held before is evicted. There must be as many free."""
        assert count <= self.free
        nameless = self._nameless
        blocks = [nameless.pop() for _ in range(min(count, len(nameless)))]
        if count > len(blocks):
            blocks += self._make(count - len(blocks))
        if count > len(blocks):
            blocks += self._evict(count - len(blocks))
        for block in blocks:
            block.users = 1
        self.free -= count
        return blocks

    def release(self, blocks: Sequence[PoolBlock]) -> None:
        """Each block of this sequence has one user less; those without any can be taken, the last one first."""
        free, join = self.free, self._free_queue.append
        for block in reversed(blocks):
            users = block.users = block.users - 1
            assert users >= 0
            if users:
                continue
            free += 1
            if block.name is None:
                self._nameless.append(block)
            else:
                block.places += 1
                join(block)
        self.free = free
        if len(self._free_queue) > FREE_QUEUE_MAX * self.capacity_blocks:
            self._shorten()

    def store(self, blocks: Sequence[PoolBlock], names: Sequence[int], chain: CacheStored) -> None:
        """These blocks, now full, are found by these names; `chain` says so to others."""
        assert len(blocks) == len(names)
        named = self._named
        for block, name in zip(blocks, names, strict=True):
            assert block.name is None
            block.name = name
            if named.setdefault(name, block) is not block:
                self._copies.setdefault(name, []).append(block)
        self.changes.append(chain)
        if self.host is not None:
            self.changes += self.host.keep(names, [block.content for block in blocks])

    def find_behind(self, names: Sequence[int], found: int, skip: Collection[str] = ()) -> list[int]:
        """The contents of the longest run of these names in the host, behind the first so many; these, too, count as
        used there. None of them if the host is a tier to skip."""
        if self.host is None:
            return []
        self.host.use(names)
        return [] if HOST in skip else self.host.find(names[found:])

    def keep_behind(self, names: Sequence[int], contents: Sequence[int], prompt: Sequence[int]) -> None:
        """The host keeps these blocks of the prompt, which came from the disk, and the prompt counts as used there."""
        assert self.host is not None
        self.changes += self.host.keep(names, contents)
        self.host.use(prompt)

    def named(self) -> Iterator[tuple[int, PoolBlock]]:
        """Every block that has a name, with it."""
        yield from self._named.items()
        for name, copies in self._copies.items():
            for block in copies:
                yield name, block

    def contents(self, ids: Iterable[int]) -> list[int]:
        """The contents of these blocks' memory now, of any owner; nothing for a block that does not exist."""
        return [self._blocks[i].content if 0 <= i < len(self._blocks) else NEVER_WRITTEN for i in ids]

    def forget(self) -> None:
        """No block is found any more; those with users keep them and their content."""
        for _, block in self.named():
            block.name = None
        self._named.clear()
        self._copies.clear()
        self._shorten()
        self._nameless += reversed(self._free_queue)
        for block in self._free_queue:
            block.places = 0
        self._free_queue.clear()
        if self.host is not None:
            self.host.clear()
        self.changes.append(CacheEmptied())

    def _make(self, most: int) -> list[PoolBlock]:
        """So many blocks that were never taken, or all there are."""
        first = len(self._blocks)
        made = list(map(PoolBlock, range(first, min(first + most, self.capacity_blocks))))
        self._blocks += made
        return made

    def _evict(self, count: int) -> list[PoolBlock]:
        """The blocks that were used least recently, without their names."""
        named, copies, first = self._named, self._copies, self._free_queue.popleft
        blocks: list[PoolBlock] = []
        gone: list[int] = []
        while len(blocks) < count:
            block = first()
            places = block.places = block.places - 1
            if places or block.users:
                continue
            name = block.name
            assert name is not None
            block.name = None
            if name in copies:
                self._forget_copy(block, name)
            else:
                del named[name]
            blocks.append(block)
            gone.append(name)
        self.changes.append(CacheRemoved(tuple(gone), TIER))
        return blocks

    def _shorten(self) -> None:
        """Only free blocks are in the queue, each once."""
        kept: deque[PoolBlock] = deque()
        for block in self._free_queue:
            block.places -= 1
            if not block.places and not block.users:
                kept.append(block)
        for block in kept:
            block.places = 1
        self._free_queue = kept

    def _forget_copy(self, block: PoolBlock, name: int) -> None:
        copies = self._copies[name]
        if self._named[name] is block:
            self._named[name] = copies.pop(0)
        else:
            copies.remove(block)
        if not copies:
            del self._copies[name]
