"""The index against brute force: who holds which blocks, per level, whatever happened before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.ids import WorkerId
from core.prompt import Prompt, hashes_from_bytes, tokens_to_bytes
from core.settings import TIERS
from projections import prefixes
from projections.prefixes import PrefixIndex

SIZE = 2
LENGTH = 40
BRANCHES = (0, 1, 3, 8, 17, 39)
"""Document i shares its first BRANCHES[i] blocks with document 0."""
WORKERS = tuple(WorkerId(f"{number:016x}") for number in range(5))


def tokens_of(document: int) -> list[int]:
    own = [0] * BRANCHES[document] + [document + 1] * (LENGTH - BRANCHES[document])
    return [token for block in own for token in (block, 7)]


DOCUMENTS = [tokens_of(document) for document in range(len(BRANCHES))]
HASHES = [hashes_from_bytes(Prompt(tokens_to_bytes(tokens), SIZE, 0).hashes()) for tokens in DOCUMENTS]
PARENTS = {block: parent for chain in HASHES for parent, block in zip([0, *chain], chain, strict=False)}


@pytest.fixture(autouse=True, scope="module")
def slow_sweep() -> Iterator[None]:
    """Retired workers are swept over many changes, so that all else happens in between."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefixes, "SWEEP_ENTRIES_MAX", 3)
        yield


class Change(NamedTuple):
    """What happens to one worker's blocks [first, last) of a document."""

    kind: str
    worker: WorkerId
    document: int
    first: int
    last: int
    tier: int


class Cache:
    """What one worker's engine holds, and what its mirror says of it: each block on its worst prefix's tier."""

    def __init__(self) -> None:
        self.best: dict[int, int] = {}

    def reach(self) -> dict[int, int]:
        """Per block that a request can reach: the farthest tier among it and all before it."""
        found: dict[int, int] = {}
        for block, parent in PARENTS.items():  # parents come first
            if block in self.best and (not parent or parent in found):
                found[block] = max(self.best[block], found.get(parent, 0))
        return found


class Model:
    """Caches by brute force beside the index that is told of their changes."""

    def __init__(self) -> None:
        self.index = PrefixIndex()
        self.caches: dict[WorkerId, Cache] = {}

    def apply(self, change: Change) -> None:
        if change.kind == "drop":
            self.caches.pop(change.worker, None)
            self.index.drop(change.worker)
            return
        cache = self.caches.setdefault(change.worker, Cache())
        before = cache.reach()
        for block in HASHES[change.document][change.first : change.last]:
            if change.kind == "store":
                cache.best[block] = min(change.tier, cache.best.get(block, change.tier))
            else:
                cache.best.pop(block, None)
        after = cache.reach()
        self._tell(change.worker, before, after)

    def _tell(self, worker: WorkerId, before: dict[int, int], after: dict[int, int]) -> None:
        for level, tier in enumerate(TIERS):
            self.index.store(worker, tier, [b for b in after if after[b] == level != before.get(b)])
            self.index.remove(worker, tier, [b for b in before if before[b] == level != after.get(b)])

    def overlaps(self, document: int, tokens: int) -> dict[WorkerId, tuple[int, ...]]:
        chain = HASHES[document][: max(0, tokens - 1) // SIZE]
        found = {}
        for worker, cache in self.caches.items():
            reach = cache.reach()
            depths = tuple(
                next((i for i, b in enumerate(chain) if reach.get(b, len(TIERS)) > level), len(chain))
                for level in range(len(TIERS))
            )
            if any(depths):
                found[worker] = depths
        return found

    def check(self, document: int, tokens: int) -> None:
        prompt = Prompt(tokens_to_bytes(DOCUMENTS[document][:tokens]), SIZE, 0)
        assert self.index.overlaps(prompt) == self.overlaps(document, tokens)

    def check_all(self) -> None:
        for document in range(len(DOCUMENTS)):
            for tokens in (0, 1, SIZE, SIZE + 1, SIZE * BRANCHES[document] + 1, LENGTH * SIZE):
                self.check(document, tokens)
        for worker in WORKERS:
            self._check_sets(worker)

    def _check_sets(self, worker: WorkerId) -> None:
        reach = self.caches[worker].reach() if worker in self.caches else {}
        anew = PrefixIndex()
        for level, tier in reversed(list(enumerate(TIERS))):
            expected = {block for block in reach if reach[block] == level}
            assert self.index.held(worker, tier) == expected
            assert self.index.blocks(worker, tier) == len(expected)
            anew.store(worker, tier, reversed(list(expected)))
        assert self.index.digest(worker) == anew.digest(worker)


documents = st.integers(0, len(DOCUMENTS) - 1)
places = st.integers(0, LENGTH)


@st.composite
def changes(draw: st.DrawFn) -> Change:
    kind = draw(st.sampled_from(("store", "store", "store", "remove", "remove", "drop")))
    tail = draw(st.booleans())
    first, last = sorted((draw(places), LENGTH if tail else draw(places)))
    if kind == "store" and draw(st.booleans()):
        first = 0
    tier = draw(st.sampled_from((0, 0, 0, 1, 2, 3)))
    return Change(kind, draw(st.sampled_from(WORKERS)), draw(documents), first, last, tier)


@settings(deadline=None, max_examples=150)
@given(st.lists(changes(), min_size=5, max_size=40), st.lists(st.tuples(documents, st.integers(0, LENGTH * SIZE))))
def test_the_index_agrees_with_brute_force(given_: list[Change], looks: list[tuple[int, int]]) -> None:
    """After any stores, removals of tails and middles, and drops, every lookup is that of a walk over all blocks."""
    model = Model()
    for i, change in enumerate(given_):
        model.apply(change)
        model.check(*(looks[i] if i < len(looks) else (change.document, LENGTH * SIZE)))
    model.check_all()


def test_a_slot_is_used_again_only_when_it_is_swept() -> None:
    """However often workers come and go, none inherits a block, and masks stay as narrow as the fleet."""
    index = PrefixIndex()
    prompt = Prompt(tokens_to_bytes(DOCUMENTS[0]), SIZE, 0)
    for life in range(200):
        worker = WorkerId(f"{life:016x}")
        assert worker not in index.overlaps(prompt)
        for block in HASHES[0]:
            index.store(worker, "device", [block])
        assert set(index.overlaps(prompt)) == {worker}
        index.drop(worker)
        assert index.overlaps(prompt) == {}
        assert (index.held(worker), index.blocks(worker), index.digest(worker)) == (set(), 0, 0)
    masks = [mask for table in index._tables.values() for mask in table.values()]
    assert max(mask.bit_length() for mask in masks) < 10
    assert repr(index) == "<PrefixIndex 0 workers, 0 blocks>"


def test_a_worker_that_goes_during_a_sweep_waits_for_the_next() -> None:
    """Its slot is not free when that sweep ends: its entries may lie behind the sweep."""
    index = PrefixIndex()
    prompt = Prompt(tokens_to_bytes(DOCUMENTS[0]), SIZE, 0)
    first, second, busy, late = WORKERS[:4]
    index.store(second, "device", HASHES[0])
    index.store(first, "device", HASHES[0])
    index.drop(first)
    index.store(busy, "device", [1])
    index.drop(second)
    while index._sweep is not None:
        index.store(busy, "device", [2])
    index.store(late, "device", HASHES[0][:1])
    assert index.overlaps(prompt) == {late: (1, 1, 1, 1)}
    assert index.held(late) == {HASHES[0][0]}


def test_what_is_retired_leaves_the_tables() -> None:
    """A worker's blocks leave with it, lazily: some changes later nothing is left of it."""
    index, first, second = PrefixIndex(), WORKERS[0], WORKERS[1]
    for chain in HASHES:
        index.store(first, "device", chain)
        index.store(first, "host", chain)
    index.drop(first)
    for block in range(1000):
        index.store(second, "device", [block])
        index.remove(second, "device", [block])
    assert not any(index._tables.values())


def test_digests_tell_sets_workers_and_tiers_apart() -> None:
    """Equal sets give equal digests by any way; another set, worker or tier gives another."""
    index = PrefixIndex()
    blocks = HASHES[0][:6]
    index.store(WORKERS[0], "device", blocks)
    index.store(WORKERS[1], "device", blocks)
    index.store(WORKERS[2], "host", blocks)
    index.store(WORKERS[3], "device", blocks[:5])
    assert len({index.digest(worker) for worker in WORKERS}) == len(WORKERS)
    once = index.digest(WORKERS[0])
    index.store(WORKERS[0], "device", [*blocks, *blocks])
    index.remove(WORKERS[0], "device", [blocks[1], blocks[1], 12345])
    index.store(WORKERS[0], "device", [blocks[1], blocks[1]])
    assert index.digest(WORKERS[0]) == once
    index.drop(WORKERS[0])
    index.store(WORKERS[0], "device", reversed(blocks))
    assert index.digest(WORKERS[0]) == once
