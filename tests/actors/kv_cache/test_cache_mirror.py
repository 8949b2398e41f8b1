"""The mirror against a brute-force model of the same cache, and its rules one by one."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.engines.engine import CacheChange, CacheCopied, CacheEmptied, CacheGap, CacheRemoved, CacheStored
from actors.kv_cache.cache_events import EVENT_HASHES_MAX, merge_events
from actors.kv_cache.cache_mirror import CacheMirror
from core.block_spans import stretch
from core.events import BlocksRemoved, BlocksStored, CacheCleared, Event
from core.prompt import Prompt, chain_hashes, hashes_from_bytes, hashes_to_bytes, scope_bytes, tokens_to_bytes
from core.settings import TIERS

SIZE = 2
SEED = 7
Path = tuple[str, ...]
"""A block: its scope, then one letter per block from the start of the prompt."""


def tokens_of(path: Path) -> tuple[int, ...]:
    return tuple(token for letter in path[1:] for token in (ord(letter), 9))


def name_of(path: Path) -> int:
    return xxhash.xxh3_64_intdigest("/".join(path).encode())


def salt_of(path: Path) -> str | None:
    return path[0] or None


def hash_of(path: Path) -> int:
    """Ours, from the canonical bytes at once."""
    raw = scope_bytes(None, salt_of(path)) + tokens_to_bytes(tokens_of(path))
    return xxhash.xxh3_64_intdigest(raw, SEED)


def prefixes(path: Path) -> list[Path]:
    """The block and those before it, shallow ones first."""
    return [path[:depth] for depth in range(2, len(path) + 1)]


def stored(path: Path, first: int = 0, tier: str = "device", *, salt: bool = True) -> CacheStored:
    """The blocks of the path from the one numbered `first` on."""
    chain = prefixes(path)
    return CacheStored(
        blocks=tuple(name_of(block) for block in chain[first:]),
        parent=name_of(chain[first - 1]) if first else None,
        tokens=tokens_of(path)[first * SIZE :],
        block_size=SIZE,
        tier=tier,
        adapter=None,
        cache_salt=salt_of(path) if salt else None,
        indexable=True,
    )


def removed(*paths: Path, tier: str = "device") -> CacheRemoved:
    return CacheRemoved(tuple(name_of(path) for path in paths), tier)


def stored_event(chain: list[int], first: int = 0, tier: str = "device") -> BlocksStored:
    """What the log hears of the chain's blocks from the one numbered `first` on."""
    hashes, pieces, heads = stretch(hashes_to_bytes(chain), first, len(chain))
    parent = chain[first - 1] if first else None
    return BlocksStored(hashes=hashes, pieces=pieces, heads=heads, parent=parent, tier=tier)


def removed_event(chain: list[int], first: int = 0, tier: str = "device") -> BlocksRemoved:
    """The same of their removal; they lie in one span."""
    hashes, pieces, heads = stretch(hashes_to_bytes(chain), first, len(chain))
    return BlocksRemoved(hashes=hashes, pieces=pieces, heads=heads, tier=tier)


class Model:
    """Brute force: copies by block and tier; what requests can reach is looked up from nothing else."""

    def __init__(self) -> None:
        self.copies: Counter[tuple[Path, str]] = Counter()
        self.told: set[Path] = set()
        """Blocks with copies whose content was told."""

    def store(self, path: Path, first: int, tier: str) -> CacheChange:
        self.copies.update((block, tier) for block in prefixes(path)[first:])
        self.told.update(prefixes(path)[first:])
        return stored(path, first, tier)

    def copy(self, path: Path, first: int, tier: str) -> CacheChange:
        blocks = prefixes(path)[first:]
        self.copies.update((block, tier) for block in blocks)
        return CacheCopied(tuple(map(name_of, blocks)), tier)

    def remove(self, path: Path, tier: str) -> CacheChange:
        if self.copies[path, tier]:
            self.copies[path, tier] -= 1
        if not any(self.copies[path, each] for each in TIERS):
            self.told.discard(path)
        return removed(path, tier=tier)

    def forget(self, change: CacheChange) -> CacheChange:
        self.copies.clear()
        self.told.clear()
        return change

    def within(self, level: int) -> set[int]:
        """Our hashes of the blocks that are taken from tiers up to this level."""
        return {hash_of(path) for path in self.told if self._taken_from(path) <= level}

    def _taken_from(self, path: Path) -> int:
        """The level from which an engine takes the block: it goes to slower tiers only, from block to block."""
        at = 0
        for block in prefixes(path):
            levels = [level for level, tier in enumerate(TIERS) if level >= at and self.copies[block, tier]]
            at = levels[0] if levels and block in self.told else len(TIERS)
        return at


class Reader:
    """A fold of the events, as an index keeps it."""

    def __init__(self) -> None:
        self.tiers: dict[str, set[int]] = {tier: set() for tier in TIERS}

    def fold(self, event: Event) -> None:
        match event:
            case BlocksStored(hashes=column, tier=tier, parent=parent):
                hashes = hashes_from_bytes(column)
                assert parent is None or parent in self.within(TIERS.index(tier)), "stored behind a block not held"
                assert not self.tiers[tier] & set(hashes), "stored twice"
                self.tiers[tier] |= set(hashes)
            case BlocksRemoved(hashes=column, tier=tier):
                hashes = hashes_from_bytes(column)
                assert self.tiers[tier] >= set(hashes), "removed what was not there"
                self.tiers[tier] -= set(hashes)
            case CacheCleared():
                self.__init__()  # type: ignore[misc]
            case _:
                raise AssertionError(event)

    def within(self, level: int) -> set[int]:
        return set().union(*(self.tiers[tier] for tier in TIERS[: level + 1]))


paths = st.builds(
    lambda scope, letters: (scope, *letters), st.sampled_from(["", "", "salt"]), st.text("ab", min_size=1, max_size=3)
)
tiers = st.sampled_from(["device", "device", "host"])
kinds = st.sampled_from(["store"] * 6 + ["copy"] * 3 + ["remove"] * 6 + ["clear", "gap"])
operations = st.tuples(kinds, paths, st.integers(0, 2), tiers)


def change_for(model: Model, operation: tuple[str, Path, int, str]) -> CacheChange:
    kind, path, first, tier = operation
    match kind:
        case "store":
            return model.store(path, min(first, len(path) - 2), tier)
        case "copy":
            return model.copy(path, min(first, len(path) - 2), "host" if tier == "device" else tier)
        case "remove":
            return model.remove(path, tier)
        case "clear":
            return model.forget(CacheEmptied())
        case _:
            return model.forget(CacheGap("missed"))


def assert_closed(reader: Reader, parents: dict[int, int]) -> None:
    for level in range(len(TIERS)):
        held = reader.within(level)
        assert all(parents[block] in held for block in held if block in parents)


@settings(max_examples=300, deadline=None)
@given(st.lists(operations, max_size=40))
def test_reported_is_what_can_be_reached(history: list[tuple[str, Path, int, str]]) -> None:
    """For every nested set of tiers, the folded events give the blocks that brute force can reach; closed all along."""
    hold_to_the_model(history)


@pytest.mark.parametrize("seed", range(6))
def test_long_histories(seed: int) -> None:
    """The same for long histories, in which blocks have many siblings and come and go many times."""
    dice = random.Random(seed)
    kinds = ["store"] * 40 + ["copy"] * 30 + ["remove"] * 80 + ["gap"]
    hold_to_the_model(
        [
            (
                dice.choice(kinds),
                (dice.choice(["", "salt"]), *dice.choices("abc", k=dice.randrange(1, 4))),
                dice.randrange(3),
                dice.choice(["device", "host", "disk"]),
            )
            for _ in range(400)
        ]
    )


def hold_to_the_model(history: list[tuple[str, Path, int, str]]) -> None:
    model, mirror, reader, told = Model(), CacheMirror(SIZE, SEED), Reader(), list[Event]()
    parents = {
        hash_of(deep): hash_of(shallow) for _, path, _, _ in history for shallow, deep in pairwise(prefixes(path))
    }
    for operation in history:
        events = mirror.apply(change_for(model, operation))
        told += events
        for event in events:
            reader.fold(event)
            assert_closed(reader, parents)
        for level in range(len(TIERS)):
            assert reader.within(level) == model.within(level)
        for tier in TIERS:
            assert set(mirror.held(tier)) == reader.tiers[tier]
        assert mirror.reported == len(reader.within(len(TIERS) - 1))
        assert all(block.copies or block.first_child for block in mirror._blocks.values()), "kept for nothing"
    again = Reader()
    for event in merge_events(told):
        again.fold(event)
    assert again.tiers == reader.tiers
    said: dict[str, set[int]] = {tier: set() for tier in TIERS}
    parts = mirror.restate(part_bytes_max=24)
    for at, part in enumerate(parts):
        assert (part.part, part.parts) == (at, len(parts))
        assert len(part.hashes) <= 24
        said[part.tier] |= set(hashes_from_bytes(part.hashes))
    assert said == reader.tiers


def test_hashes_are_those_of_the_prompt() -> None:
    """Blocks told as one chain, or one by one with salts only on the first, have the hashes of the router's prompt."""
    path = ("salt", *"abcdefgh")
    prompt = Prompt(tokens_to_bytes(tokens_of(path)), SIZE, SEED, scope_bytes(None, "salt"))
    whole = CacheMirror(SIZE, SEED).apply(stored(path))
    mirror = CacheMirror(SIZE, SEED)
    single = [
        event for depth in range(1, 9) for event in mirror.apply(stored(path[: depth + 1], depth - 1, salt=depth == 1))
    ]
    assert whole == [stored_event(hashes_from_bytes(prompt.hashes()))]
    assert merge_events(single) == whole


def test_forks_beyond_the_remembered_states() -> None:
    """Prefixes whose hash state was forgotten are rebuilt from the token bytes."""
    mirror = CacheMirror(SIZE, SEED)
    mirror._states._states_max = 2
    trunk = ("salt", *"abcdefgh")
    mirror.apply(stored(trunk))
    for depth in (8, 3, 5, 1, 8, 3):
        fork = (*trunk[: depth + 1], "x", str(depth))
        mirror.apply(stored(fork, depth, salt=False))
        assert hash_of(fork) in set(mirror.held("device"))
    assert len(mirror._states._kept) <= 2


def test_copies() -> None:
    """Two copies of a block are one to readers: told with the first stored, and with the last removed."""
    mirror = CacheMirror(SIZE, SEED)
    block = ("", "a")
    chain = [hash_of(block)]
    assert mirror.apply(stored(block)) == [stored_event(chain)]
    assert mirror.apply(stored(block)) == []
    assert mirror.apply(removed(block)) == []
    assert mirror.apply(removed(block)) == [removed_event(chain)]
    assert mirror.apply(removed(block)) == []
    assert mirror.strangers == 1
    assert not mirror._blocks


def test_middle_block_goes_and_comes_back() -> None:
    """Blocks behind a removed one go with it, and come back with it in prefix order."""
    mirror = CacheMirror(SIZE, SEED)
    path = ("", *"abcd")
    hashes = [hash_of(block) for block in prefixes(path)]
    mirror.apply(stored(path))
    assert mirror.apply(removed(path[:3])) == [removed_event(hashes, 1)]
    assert mirror.apply(stored(path[:3], 1)) == [stored_event(hashes, 1)]


def test_offload_keeps_the_wider_set() -> None:
    """A block that leaves the device but stays on the host moves with all behind it: first stored, then removed."""
    mirror = CacheMirror(SIZE, SEED)
    path = ("", *"abc")
    hashes = [hash_of(block) for block in prefixes(path)]
    mirror.apply(stored(path))
    assert mirror.apply(stored(path, tier="host")) == []
    assert mirror.apply(removed(path[:3])) == [
        stored_event(hashes, 1, "host"),
        removed_event(hashes, 1, "device"),
    ]


def test_no_way_back_to_a_faster_tier() -> None:
    """Behind a block that is taken from the host only copies there count: the engine loads up to the first without."""
    mirror = CacheMirror(SIZE, SEED)
    path = ("", *"abcd")
    hashes = [hash_of(block) for block in prefixes(path)]
    mirror.apply(stored(path))
    assert mirror.apply(CacheCopied((name_of(path[:3]), name_of(path)), "host")) == []
    assert mirror.apply(removed(path[:3])) == [
        stored_event(hashes[:2], 1, "host"),
        removed_event(hashes, 1, "device"),
    ]
    assert mirror.apply(CacheCopied((name_of(path[:4]),), "host")) == [stored_event(hashes, 2, "host")]
    assert mirror.apply(stored(path[:3], 1)) == [
        stored_event(hashes, 1, "device"),
        removed_event(hashes, 1, "host"),
    ]


def test_copies_that_are_told_by_name() -> None:
    """A copy of an unknown block waits until the device's events say what it is, also if that is much later."""
    mirror = CacheMirror(SIZE, SEED)
    path = ("salt", *"ab")
    hashes = [hash_of(block) for block in prefixes(path)]
    copies = CacheCopied(tuple(map(name_of, prefixes(path))), "host")
    assert mirror.apply(copies) == []
    assert (mirror.reported, mirror.strangers, mirror.blocks_unindexed) == (0, 0, 0)
    assert mirror.apply(stored(path)) == [stored_event(hashes)]
    assert len(mirror.apply(removed(*prefixes(path)))) == 3
    assert set(mirror.held("host")) == set(hashes)
    mirror.apply(removed(*prefixes(path), tier="host"))
    assert (mirror.reported, set(mirror.held("host"))) == (0, set())
    assert not mirror._blocks
    mirror.apply(copies)
    assert mirror.apply(removed(*prefixes(path), tier="host")) == []
    assert not mirror._blocks
    assert mirror.apply(copies._replace(tier="tape")) == []
    assert mirror.blocks_unindexed == 2


def test_one_removal_in_two_tiers() -> None:
    """What goes from several tiers at once goes from the slow one first: it stands behind blocks of the fast one."""
    mirror = CacheMirror(SIZE, SEED)
    first, second = hash_of(("", "a")), hash_of(("", *"ab"))
    mirror.apply(stored(("", "a")))
    mirror.apply(stored(("", *"ab"), 1, tier="host"))
    assert mirror.apply(removed(("", "a"))) == [
        removed_event([first, second], 1, "host"),
        removed_event([first], 0, "device"),
    ]


def test_not_indexed_is_counted() -> None:
    """Blocks of other content, size, tier or without tokens are counted, never told, nor those behind them."""
    mirror = CacheMirror(SIZE, SEED)
    good = stored(("", *"ab"))
    for bad in (
        good._replace(indexable=False),
        good._replace(block_size=4),
        good._replace(tier="tape"),
        good._replace(tokens=()),
    ):
        assert mirror.apply(bad) == []
    assert mirror.apply(removed(("", "a"), ("", *"ab"))._replace(indexable=False)) == []
    assert mirror.apply(stored(("", *"abc"), 2)) == []
    assert (mirror.blocks_unindexed, mirror.orphans, mirror.strangers) == (8, 1, 0)
    assert repr(mirror) == "<CacheMirror 0 blocks of 2 reported, 2 known, 8 unindexed, 1 orphans, 0 gaps>"


def test_gap() -> None:
    """After a gap all is cleared; what is stored behind forgotten blocks waits until they are stored again."""
    mirror = CacheMirror(SIZE, SEED)
    path = ("", *"abc")
    mirror.apply(stored(path[:3]))
    assert mirror.apply(CacheGap("7 batches lost")) == [CacheCleared(reason="7 batches lost")]
    assert mirror.apply(stored(path, 2)) == []
    assert (mirror.gaps, mirror.orphans, mirror.reported) == (1, 1, 0)
    hashes = [hash_of(block) for block in prefixes(path)]
    assert mirror.apply(stored(path[:3])) == [stored_event(hashes)]


def test_an_event_has_a_maximum() -> None:
    """No event has more than EVENT_HASHES_MAX hashes, from the mirror or merged; the order stays."""
    blocks = EVENT_HASHES_MAX + 5
    tokens = tuple(range(blocks * SIZE))
    chain = CacheStored(tuple(range(blocks)), None, tokens, SIZE, "device", None, None, indexable=True)
    mirror = CacheMirror(SIZE, SEED)
    told = mirror.apply(chain)
    gone = mirror.apply(CacheRemoved((0,), "device"))
    hashes = chain_hashes(tokens_to_bytes(tokens), 0, SIZE, SEED)
    assert told == [
        stored_event(hashes[:EVENT_HASHES_MAX]),
        stored_event(hashes, EVENT_HASHES_MAX),
    ]
    assert [len(event.hashes) // 8 for event in gone if isinstance(event, BlocksRemoved)] == [blocks - 16, 16]
    assert isinstance(gone[0], BlocksRemoved)
    assert gone[0].hashes[-128:] == hashes_to_bytes(hashes[16:32]), "the deepest pieces first"
    assert merge_events(told) == told
    assert mirror.restate(1 << 20)[0].hashes == b""


def test_named_blocks_are_noted_on_request() -> None:
    """Each once while it is known, behind its parent, when it can be reached for the first time."""
    path = ("salt", *"abcd")
    chain = [hash_of(block) for block in prefixes(path)]
    mirror = CacheMirror(SIZE, SEED, notes_names=True)
    mirror.apply(stored(path, 2))  # behind blocks that are not held
    assert mirror.take_named() == []
    mirror.apply(stored(path[:3]))
    expected = zip([name_of(block) for block in prefixes(path)], chain, [None, *chain], strict=False)
    assert mirror.take_named() == [(name, block, parent, "salt") for name, block, parent in expected]
    mirror.apply(removed(path))
    mirror.apply(stored(path))
    assert [block for _, block, *_ in mirror.take_named()] == chain[3:]
    assert mirror.take_named() == []
    unasked = CacheMirror(SIZE, SEED)
    unasked.apply(stored(path))
    assert unasked.take_named() == []
