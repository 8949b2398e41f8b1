"""What the engine's cache holds, mirrored from its events and told to the log in our own hashes.

1. The engine names blocks, and says their tokens, their parent, and each copy that comes or goes in a tier. The
   mirror keeps them as a tree and computes our hash of a block from the token ids on its way from the root. The
   scope (adapter, cache salt) belongs to the first block; those behind it inherit it.
2. A request reads blocks from the start of its prompt: a block behind a missing one is of no use. So tiers are
   nested sets ("on device", "on device or host", …), each closed under prefixes: what is reported of a block is the
   *slowest tier on its way*, where each block before it, and itself, counts with its fastest copy.
3. That level is all that readers hear of: a first copy, a last one, a middle block that goes or comes back move
   blocks from level to level, and each move is one hash stored, one removed, or both.
4. Blocks that wait behind a missing one are kept, unreported, as long as the engine holds them. Stores behind a
   block that the mirror never saw (an image, or what came before a gap) wait in the same way.
5. After a gap everything is forgotten. Counts of copies then are too low, never too high: what is claimed is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from actors.engines.engine import CacheChange, CacheEmptied, CacheGap, CacheRemoved, CacheStored
from actors.kv_cache.cache_events import events_of, restatement_events
from actors.kv_cache.cached_block import LEVELS, UNREACHABLE, CachedBlock, PrefixHashStates
from core.events import CacheCleared, CacheRestated, Event
from core.prompt import TOKEN_BYTES, Prompt, scope_bytes, tokens_to_bytes
from core.settings import TIERS

DEVICE = LEVELS["device"]


class CacheMirror:
    """The blocks that requests can reach in one engine's cache, in step with its events.

    Memory is that of the engine's blocks: some 500 bytes each. A plain chain costs under 1 us per block.
    """

    def __init__(self, block_size: int, seed: int) -> None:
        assert block_size > 0
        self.block_size = block_size
        self.blocks_unindexed = 0
        """Blocks stored that can not be in the index: other content, kind, size or tier."""
        self.orphans = 0
        """Blocks stored behind one that is not held; they are reported if it comes (back)."""
        self.strangers = 0
        """Removals of indexable copies that the mirror does not know."""
        self.gaps = 0
        """How often everything was forgotten because events were missed."""
        self.reported = 0
        """Blocks that readers know of now, in any tier."""
        self._blocks: dict[int, CachedBlock] = {}
        self._plain_root = CachedBlock.root(b"")
        self._states = PrefixHashStates(seed)
        self._device_hashes: set[int] = set()
        """Our hashes of what is reported on the device."""

    def __repr__(self) -> str:
        return (
            f"<CacheMirror {self.reported} blocks of {self.block_size} reported, {len(self._blocks)} known, "
            f"{self.blocks_unindexed} unindexed, {self.orphans} orphans, {self.gaps} gaps>"
        )

    def apply(self, change: CacheChange) -> list[Event]:
        """The mirror is as the engine's cache after this change; returns what readers must hear of it, in order."""
        match change:
            case CacheStored():
                return self._apply_stored(change)
            case CacheRemoved():
                return self._apply_removed(change)
            case CacheEmptied():
                return self._forget_all("the engine emptied it")
            case CacheGap(detail):
                self.gaps += 1
                return self._forget_all(detail)
            case _:
                assert_never(change)

    def held(self, tier: str) -> Iterator[int]:
        """Our hashes of the blocks that are reported in this tier: O(blocks)."""
        return (block.hash for block in self._reported(tier) if block.hash is not None)

    def holds(self, block: int) -> bool:
        """Whether a request can take the block with this hash of ours from the device."""
        return block in self._device_hashes

    def overlap(self, prompt: Prompt) -> int:
        """How many first blocks of the prompt a request can take from the device; at most those reusable.
        O(log blocks) probes: what is reported is closed under prefixes."""
        low, high = 0, prompt.blocks_reusable
        while low < high:
            middle = (low + high + 1) // 2
            if prompt.key(middle) in self._device_hashes:
                low = middle
            else:
                high = middle - 1
        return low

    def restate(self, part_bytes_max: int) -> list[CacheRestated]:
        """All that is reported, said again in parts with at most that many bytes of hashes each."""
        return restatement_events({tier: self._reported(tier) for tier in TIERS}, part_bytes_max)

    def _reported(self, tier: str) -> Iterator[CachedBlock]:
        level = LEVELS[tier]
        return (block for block in self._blocks.values() if block.reach == level and block.hash is not None)

    def _apply_stored(self, change: CacheStored) -> list[Event]:
        if not self._is_indexed(change):
            self.blocks_unindexed += len(change.blocks)
            return []
        if not change.blocks:
            return []
        parent = self._parent_of(change)
        level = LEVELS[change.tier]
        raw = tokens_to_bytes(change.tokens)
        step = self.block_size * TOKEN_BYTES
        moved: dict[CachedBlock, int] = {}
        known = self._blocks
        for at, name in enumerate(change.blocks):
            block = known.get(name)
            if block is None:
                block = known[name] = CachedBlock(name)
            if block.parent is None:
                block.attach(parent, raw[at * step : (at + 1) * step])
            block.gain(level)
            if block.reach > level:  # else this copy is no nearer than what readers know
                _move(block, moved)
            parent = block
        return self._move_levels(moved)

    def _apply_removed(self, change: CacheRemoved) -> list[Event]:
        level = LEVELS.get(change.tier)
        if level is None or not change.indexable:
            return []
        moved: dict[CachedBlock, int] = {}
        touched = []
        for name in change.blocks:
            block = self._blocks.get(name)
            if block is None or not block.holds(level):
                self.strangers += 1
                continue
            block.lose(level)
            touched.append(block)
        for block in reversed(touched):  # engines free the tail first, readers hear of parents first
            _move(block, moved)
        events = self._move_levels(moved)
        for block in touched:
            self._forget_if_missing(block)
        return events

    def _is_indexed(self, change: CacheStored) -> bool:
        return (
            change.indexable
            and change.block_size == self.block_size
            and len(change.tokens) == len(change.blocks) * self.block_size
            and change.tier in LEVELS
        )

    def _parent_of(self, change: CacheStored) -> CachedBlock:
        if change.parent is None:
            scope = scope_bytes(change.adapter, change.cache_salt)
            return CachedBlock.root(scope) if scope else self._plain_root
        parent = self._block(change.parent)
        if not parent.copies:
            self.orphans += len(change.blocks)
        return parent

    def _block(self, name: int) -> CachedBlock:
        block = self._blocks.get(name)
        if block is None:
            block = self._blocks[name] = CachedBlock(name)
        return block

    def _move_levels(self, moved: dict[CachedBlock, int]) -> list[Event]:
        for block, old in moved.items():
            if old == DEVICE and block.hash is not None:
                self._device_hashes.discard(block.hash)
            if block.reach == UNREACHABLE:
                self.reported -= old != UNREACHABLE
                continue
            ours = block.hash if block.hash is not None else block.call(self._states.hash_of(block))
            if block.reach == DEVICE:
                self._device_hashes.add(ours)
            self.reported += old == UNREACHABLE
        return events_of(moved)

    def _forget_if_missing(self, block: CachedBlock) -> None:
        if block.copies or block.parent is None:
            return
        parent = block.take_away()
        for missing in (block, parent):
            if not missing.copies and not missing.first_child:
                self._blocks.pop(missing.name, None)

    def _forget_all(self, reason: str) -> list[Event]:
        self._blocks.clear()
        self._plain_root = CachedBlock.root(b"")
        self._states.clear()
        self._device_hashes.clear()
        self.reported = 0
        return [CacheCleared(reason=reason)]


def _move(start: CachedBlock, moved: dict[CachedBlock, int]) -> None:
    """Levels are right again from this block down to where nothing changes; `moved` has the levels from before."""
    if not _relevel(start, moved) or start.first_child is None:
        return
    stack = list(start.children())
    while stack:
        block = stack.pop()
        if _relevel(block, moved):
            stack.extend(block.children())


def _relevel(block: CachedBlock, moved: dict[CachedBlock, int]) -> bool:
    """The block's own level is right; returns whether it was not."""
    assert block.parent is not None
    reach, above = block.level, block.parent.reach
    if above > reach:  # noqa: PLR1730 (a call to max costs more than all else here)
        reach = above
    if reach == block.reach:
        return False
    moved.setdefault(block, block.reach)
    block.reach = reach
    return True
