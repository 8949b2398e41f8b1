"""CacheMirror: the blocks in one engine's cache, kept from its events and published under our own hashes.

1. The engine names blocks; its events give their tokens, their parent, and each copy in a tier. The mirror keeps
   them as a tree and computes our hash of a block from the token ids on its way from the root. The scope (adapter,
   cache salt) belongs to the first block; those behind it inherit it.
2. A request reads blocks from the start of its prompt: a block behind a missing one is of no use. It takes them from
   the device as far as they go, then from the next tier, and never returns to a faster one. So tiers are nested sets
   ("on device", "on device or host", …), each closed under prefixes: what is reported of a block is the tier from
   which it would be taken: of those that have a copy the fastest that is not faster than that of the block before.
3. Only that level is published. Blocks move between levels when a first copy is stored, a last one is removed, or
   a middle block is removed or returns. Each move is one hash stored, one removed, or both.
4. Blocks that wait behind a missing one are kept, unreported, as long as the engine holds them. Stores behind a
   block that the mirror never saw (an image, or what came before a gap) wait in the same way.
5. A copy in a slower tier may be told by the block's name alone. It is kept as long as that tier holds it, and waits
   until the block's content is told.
6. After a gap everything is forgotten. Counts of copies then are too low, never too high: what is claimed is there.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import NamedTuple, assert_never

import xxhash

from actors.engines.engine import CacheChange, CacheCopied, CacheEmptied, CacheGap, CacheRemoved, CacheStored
from actors.kv_cache.cache_events import EVENT_HASHES_MAX, HASH_BYTES, split_pieces
from core.block_spans import SPAN_BLOCKS, Blocks, Piece, chain_pieces
from core.events import BlocksRemoved, BlocksStored, CacheCleared, CacheRestated, Event
from core.prompt import TOKEN_BYTES, Prompt, hashes_to_bytes, scope_bytes, tokens_to_bytes
from core.settings import TIERS

LEVELS = {tier: level for level, tier in enumerate(TIERS)}
"""A level is an index into TIERS, the fastest first."""
UNREACHABLE = len(TIERS)
"""The level of what no request can reach."""

DEVICE, HOST = LEVELS["device"], LEVELS["host"]
STATES_MAX = 1024
"""Tips remembered, at some 600 bytes each; another tip is rebuilt from the token bytes on its way to the root."""
_COPY_BITS = 32


class CachedBlock:
    """A node of the prefix tree: its parent, children and siblings, and the number of copies in each tier.

    A block without copies is *missing*: only its children know of it, by the engine's name. It has no parent and no
    tokens until it is stored (again), and is forgotten with its last child. One of which only the name was told has
    copies, but no parent and no tokens either.
    """

    __slots__ = (
        "after", "before", "copies", "first_child", "hash", "head", "level", "name", "parent", "place", "reach",
        "salt", "tokens",
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
        self.salt = ""
        """That of the prompts that it belongs to, known with the hash; a root's from the start."""
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
        """The level from which a request takes it: what is reported of it."""

    def __repr__(self) -> str:
        where = "missing" if not self.copies else TIERS[self.level]
        reach = "unreachable" if self.reach == UNREACHABLE else f"reached from {TIERS[self.reach]}"
        return f"<CachedBlock {self.name} {where}, {reach}, {len(list(self.children()))} behind it>"

    @classmethod
    def root(cls, scope: bytes, salt: str = "") -> CachedBlock:
        """The parent of the first blocks of prompts of one scope: always held, always reachable."""
        root = cls(-1)
        root.tokens = scope
        root.salt = salt
        root.add_copy(0)
        root.reach = 0
        return root

    def holds(self, level: int) -> bool:
        """That tier has a copy."""
        return self.copies >> (level * _COPY_BITS) & ((1 << _COPY_BITS) - 1) > 0

    def level_from(self, level: int) -> int:
        """The fastest tier with a copy that is not faster than that level; UNREACHABLE if there is none."""
        copies = self.copies >> (level * _COPY_BITS)
        lowest = copies & -copies
        return level + (lowest.bit_length() - 1) // _COPY_BITS if lowest else UNREACHABLE

    def add_copy(self, level: int) -> None:
        """That tier has one copy more."""
        self.copies += 1 << (level * _COPY_BITS)
        if level < self.level:  # noqa: PLR1730 (half the cost of a call to min)
            self.level = level

    def remove_copy(self, level: int) -> None:
        """That tier has one copy less."""
        assert self.holds(level)
        self.copies -= 1 << (level * _COPY_BITS)
        self.level = self.level_from(0)

    def set_hash(self, block: int) -> int:
        """Our hash, span, place and salt of the block are set, and the hash returned; the parent's must be known."""
        assert self.parent is not None
        self.hash = block
        self.salt = self.parent.salt
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

    def detach(self) -> CachedBlock:
        """The block has no parent and no tokens; returns its former parent."""
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


class NamedBlock(NamedTuple):
    """A block that has our hash since it was reachable for the first time."""

    name: int
    """The engine's."""
    block: int
    """Our hash."""
    parent: int | None
    """That of the block before it; None at the start of a prompt."""
    salt: str = ""
    """That of the prompts that it belongs to."""


class CacheMirror:
    """The blocks that requests can reach in one engine's cache, in step with its events.

    Memory is that of the engine's blocks: some 500 bytes each. A plain chain costs 3 to 4 us per block, stored or
    removed.
    """

    def __init__(self, block_size: int, seed: int, *, notes_names: bool = False) -> None:
        """With `notes_names`, `take_named` has what it names."""
        assert block_size > 0
        self.block_size = block_size
        self._named: list[NamedBlock] | None = [] if notes_names else None
        self.blocks_unindexed = 0
        """Blocks stored that can not be in the index: other content, kind, size or tier."""
        self.orphans = 0
        """Blocks stored behind one that is not held; they are reported if it comes (back)."""
        self.strangers = 0
        """Removals of indexable copies that the mirror does not know."""
        self.gaps = 0
        """Times that everything was forgotten because events were missed."""
        self._counts = [0] * (UNREACHABLE + 1)
        """Blocks per level that readers know of now; the last number means nothing."""
        self._blocks: dict[int, CachedBlock] = {}
        self._plain_root = CachedBlock.root(b"")
        self._states = PrefixHashStates(seed)
        self._device_hashes: set[int] = set()
        """Our hashes of what is reported on the device."""
        self._host_hashes: set[int] = set()
        """Likewise on the host: device and host together are closed under prefixes."""

    def __repr__(self) -> str:
        return (
            f"<CacheMirror {self.reported} blocks of {self.block_size} reported, {len(self._blocks)} known, "
            f"{self.blocks_unindexed} unindexed, {self.orphans} orphans, {self.gaps} gaps>"
        )

    @property
    def reported(self) -> int:
        """Blocks that readers know of now, in any tier."""
        return sum(self._counts[:UNREACHABLE])

    @property
    def reported_by_tier(self) -> dict[str, int]:
        """The same per tier, of each that has any, and of the device."""
        return {tier: count for tier, count in zip(TIERS, self._counts, strict=False) if count or tier == TIERS[DEVICE]}

    def apply(self, change: CacheChange) -> list[Event]:
        """The mirror equals the engine's cache after this change; returns the events to publish, in order."""
        match change:
            case CacheStored():
                return self._apply_stored(change)
            case CacheRemoved():
                return self._apply_removed(change)
            case CacheCopied():
                return self._apply_copied(change)
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
        """True if a request can use the block with this hash of ours on the device."""
        return block in self._device_hashes

    def overlap(self, prompt: Prompt) -> int:
        """The number of first blocks of the prompt that a request can use on the device; at most those reusable.
        O(log blocks) probes: what is reported is closed under prefixes."""
        return _depth(prompt, self._device_hashes.__contains__)

    def loadable(self, prompt: Prompt) -> int:
        """The same on the device or on the host, from which a request would load them."""
        return _depth(prompt, lambda block: block in self._device_hashes or block in self._host_hashes)

    def restate(self, part_bytes_max: int) -> list[CacheRestated]:
        """All reported blocks, in parts with at most that many bytes of hashes each."""
        return restatement_events({tier: self._reported(tier) for tier in TIERS}, part_bytes_max)

    def take_named(self) -> list[NamedBlock]:
        """Blocks that were named since the last call, each behind its parent. Those that were forgotten meanwhile are
        among them."""
        named, self._named = self._named or [], None if self._named is None else []
        return named

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
            block.add_copy(level)
            if block.reach > level:  # else a copy as near is known already
                _move(block, moved)
            parent = block
        return self._move_levels(moved)

    def _apply_copied(self, change: CacheCopied) -> list[Event]:
        level = LEVELS.get(change.tier)
        if level is None:
            self.blocks_unindexed += len(change.blocks)
            return []
        moved: dict[CachedBlock, int] = {}
        for block in map(self._block, change.blocks):
            block.add_copy(level)
            if block.parent is not None and block.reach > level:
                _move(block, moved)
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
            block.remove_copy(level)
            touched.append(block)
        for block in reversed(touched):  # engines free the tail first, events name parents first
            if block.parent is not None:
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
            return CachedBlock.root(scope, change.cache_salt or "") if scope else self._plain_root
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
        counts = self._counts
        for block, old in moved.items():
            counts[old] -= 1
            counts[block.reach] += 1
            if block.hash is not None and old <= HOST:
                (self._host_hashes if old else self._device_hashes).discard(block.hash)
            if block.reach == UNREACHABLE:
                continue
            ours = block.hash if block.hash is not None else self._set_hash(block)
            if block.reach <= HOST:
                (self._host_hashes if block.reach else self._device_hashes).add(ours)
        return events_of(moved)

    def _set_hash(self, block: CachedBlock) -> int:
        ours = block.set_hash(self._hash_of(block))
        if self._named is not None:
            assert block.parent is not None
            self._named.append(NamedBlock(block.name, ours, block.parent.hash, block.salt))
        return ours

    def _hash_of(self, block: CachedBlock) -> int:
        return self._states.hash_of(block)

    def _forget_if_missing(self, block: CachedBlock) -> None:
        if block.copies:
            return
        parent = block.detach() if block.parent is not None else block
        for missing in (block, parent):
            if not missing.copies and not missing.first_child:
                self._blocks.pop(missing.name, None)

    def _forget_all(self, reason: str) -> list[Event]:
        self._blocks.clear()
        self._plain_root = CachedBlock.root(b"")
        self._states.clear()
        self._device_hashes.clear()
        self._host_hashes.clear()
        self._counts = [0] * (UNREACHABLE + 1)
        return [CacheCleared(reason=reason)]


def _depth(prompt: Prompt, holds: Callable[[int], bool]) -> int:
    """The number of first blocks of the prompt, at most those reusable, for which that holds; of a block for which it
    does it does for those before it, too."""
    low, high = 0, prompt.blocks_reusable
    while low < high:
        middle = (low + high + 1) // 2
        if holds(prompt.key(middle)):
            low = middle
        else:
            high = middle - 1
    return low


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
    if above > reach:
        reach = block.level_from(above)
    if reach == block.reach:
        return False
    moved.setdefault(block, block.reach)
    block.reach = reach
    return True


def events_of(moved: dict[CachedBlock, int]) -> list[Event]:
    """Events after which a reader sees each of these blocks at its present level; `moved` has the levels before.

    Stored first, in the order given (prefix order), then removed, slow tiers before fast ones: after each single
    event the blocks up to any level are closed under prefixes.
    """
    return [*_stored(moved), *_removed(moved)]


def restatement_events(reported: Mapping[str, Iterable[CachedBlock]], part_bytes_max: int) -> list[CacheRestated]:
    """The whole cache, by tier, in parts of one tier each; one empty part if it is empty."""
    assert part_bytes_max >= HASH_BYTES
    size = part_bytes_max // HASH_BYTES
    found = [(tier, part) for tier, blocks in reported.items() for part in split_pieces(_by_span(blocks), size)]
    found = found or [(TIERS[0], Blocks(b""))]
    return [
        CacheRestated(part=i, parts=len(found), hashes=part.hashes, pieces=part.pieces, heads=part.heads, tier=tier)
        for i, (tier, part) in enumerate(found)
    ]


def _stored(moved: dict[CachedBlock, int]) -> list[BlocksStored]:
    runs: list[list[CachedBlock]] = []
    last = None
    for block, old in moved.items():
        if block.reach in (UNREACHABLE, old):
            continue
        if last is None or block.parent is not last or block.reach != last.reach or len(runs[-1]) == EVENT_HASHES_MAX:
            runs.append([])
        runs[-1].append(block)
        last = block
    return [_stored_run(run) for run in runs]


def _stored_run(run: list[CachedBlock]) -> BlocksStored:
    first = run[0]
    assert first.parent is not None
    return BlocksStored(
        hashes=_column(run),
        pieces=chain_pieces(first.place, len(run)),
        heads=_head(first) if first.place else b"",
        parent=first.parent.hash,
        tier=TIERS[first.reach],
    )


def _removed(moved: dict[CachedBlock, int]) -> list[BlocksRemoved]:
    by_level: dict[int, list[CachedBlock]] = {}
    for block, old in moved.items():
        if old not in (UNREACHABLE, block.reach):
            by_level.setdefault(old, []).append(block)
    return [
        BlocksRemoved(hashes=part.hashes, pieces=part.pieces, heads=part.heads, tier=TIERS[level])
        for level in sorted(by_level, reverse=True)
        for part in split_pieces([*_pieces(by_level[level])][::-1], EVENT_HASHES_MAX)
    ]


def _by_span(blocks: Iterable[CachedBlock]) -> Iterator[Piece]:
    """A piece per span, or one per block where a span forks."""
    spans: dict[int, list[CachedBlock]] = defaultdict(list)
    for block in blocks:
        spans[block.head].append(block)
    for span in spans.values():
        span.sort(key=attrgetter("place"))
        yield from _pieces(span)


def _pieces(blocks: Iterable[CachedBlock]) -> Iterator[Piece]:
    """Blocks that follow each other in the order given are one piece, within spans."""
    run: list[CachedBlock] = []
    for block in blocks:
        if run and (not block.place or block.parent is not run[-1]):
            yield Piece(_head(run[0]), run[0].place, _column(run))
            run = []
        run.append(block)
    if run:
        yield Piece(_head(run[0]), run[0].place, _column(run))


def _column(blocks: list[CachedBlock]) -> bytes:
    return hashes_to_bytes([block.hash for block in blocks if block.hash is not None])


def _head(block: CachedBlock) -> bytes:
    return block.head.to_bytes(HASH_BYTES, "little")
