"""The index against brute force: who holds which blocks, per level, whatever happened before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.block_spans import single
from core.ids import WorkerId
from core.settings import TIERS
from projections.index import block_table
from projections.index.block_table import new_table
from projections.index.prefix_index import PrefixIndex
from projections.index.worker_sets import WorkerSets
from tests.projections.index.index_model import (
    HASHES,
    LENGTH,
    SIZE,
    Cache,
    Change,
    Model,
    changes,
    documents,
    prompt_of,
)

A, B, C, D = (WorkerId(f"{number:016x}") for number in range(4))
STEP = 3


@pytest.fixture(autouse=True, scope="module")
def slow_sweep() -> Iterator[None]:
    """Retired workers are swept over many changes, so that all else happens in between."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_table, "SWEEP_ENTRIES_MAX", STEP)
        yield


@settings(deadline=None, max_examples=150)
@given(st.lists(changes(), min_size=5, max_size=40), st.lists(st.tuples(documents, st.integers(0, LENGTH * SIZE))))
def test_the_index_agrees_with_brute_force(told: list[Change], looks: list[tuple[int, int]]) -> None:
    """After any stores, removals of tails and middles, clears and restarts, every lookup is that of a walk."""
    model = Model()
    for i, change in enumerate(told):
        model.apply(change)
        model.check_lookup(*(looks[i] if i < len(looks) else (change.document, LENGTH * SIZE)))
    for document in range(len(HASHES)):
        for tokens in (0, 1, SIZE, SIZE + 1, SIZE * 17 + 1, LENGTH * SIZE):
            model.check_lookup(document, tokens)
    model.check_sets()


@settings(deadline=None, max_examples=150)
@given(st.lists(changes(), min_size=5, max_size=40), documents)
def test_holes_are_never_taken_for_nothing(told: list[Change], document: int) -> None:
    """Told of middle removals raw, as no mirror does, the sets are exact, and a lookup finds at least what a walk
    finds, at most a block that the worker holds."""
    model = Model(Cache.raw)
    for change in told:
        model.apply(change)
    model.check_sets()
    found = model.index.overlaps(prompt_of(document))
    walked = model.overlaps(document, LENGTH * SIZE)
    assert found.keys() >= walked.keys()
    for worker, depths in found.items():
        said = model.caches[worker].raw()
        for level, depth in enumerate(depths):
            assert depth >= walked.get(worker, (0,) * len(TIERS))[level]
            assert not depth or said[HASHES[document][depth - 1]] <= level


@pytest.mark.parametrize("workers", [1, 8, 64, 200])
def test_a_million_blocks_of_one_set_of_holders_share_its_mask(workers: int) -> None:
    """However many workers hold a block, it costs no int of its own."""
    index = PrefixIndex()
    ids = [WorkerId(f"{number:016x}") for number in range(workers)]
    for turn in range(2):
        for worker in ids:
            index.store(worker, "device", single(HASHES[turn][:8]))
            index.remove(worker, "device", single([]))
    masks = [mask for shard in index._tables["device"].shards for mask in shard.values()]
    assert len({id(mask) for mask in masks}) == 1
    assert index.overlaps(prompt_of(0)) == {worker: (8,) * len(TIERS) for worker in ids}


def test_a_slot_is_used_again_only_when_it_is_swept() -> None:
    """However often workers come and go, none inherits a block, and masks stay as narrow as the fleet."""
    index = PrefixIndex()
    for life in range(200):
        worker = WorkerId(f"{life:016x}")
        assert worker not in index.overlaps(prompt_of(0))
        for block in HASHES[0]:
            index.store(worker, "device", single([block]))
        assert set(index.overlaps(prompt_of(0))) == {worker}
        index.drop(worker)
        assert index.overlaps(prompt_of(0)) == {}
        assert (index.held(worker), index.blocks(worker), index.digest(worker)) == (set(), 0, 0)
    masks = [mask for table in index._tables.values() for shard in table.shards for mask in shard.values()]
    assert max(mask.bit_length() for mask in masks if isinstance(mask, int)) < 10
    assert repr(index) == "<PrefixIndex 0 workers, 0 blocks>"


def test_a_worker_that_goes_during_a_sweep_waits_for_the_next() -> None:
    """Its slot is not free when that sweep ends: its entries may lie behind the sweep."""
    index = PrefixIndex()
    index.store(B, "device", single(HASHES[0]))
    index.store(A, "device", single(HASHES[0]))
    index.drop(A)
    index.store(C, "device", single([1]))
    index.drop(B)
    while index._sweep is not None:
        index.store(C, "device", single([2]))
    index.store(D, "device", single(HASHES[0][:1]))
    assert index.overlaps(prompt_of(0)) == {D: (1, 1, 1, 1)}
    assert index.held(D) == {HASHES[0][0]}


def test_what_is_retired_leaves_the_tables() -> None:
    """A worker's blocks leave with it, lazily: some changes later nothing is left of it."""
    index = PrefixIndex()
    for chain in HASHES:
        index.store(A, "device", single(chain))
        index.store(A, "host", single(chain))
    index.drop(A)
    for block in range(1000):
        index.store(B, "device", single([block]))
        index.remove(B, "device", single([block]))
    assert not any(shard for table in index._tables.values() for shard in table.shards)


def test_a_sweep_looks_at_a_bounded_number_of_entries_at_a_time() -> None:
    """However large a dictionary is, a step takes out no more; the last one frees bit and room."""
    shards, sets = new_table(0).shards, WorkerSets()
    for number, size in ((0, 500), (1, 1), (2, 1), (3, 1), (9, 497)):
        shards[number].update(dict.fromkeys(range(size), sets.join(A)))
    roomy = shards[0].__sizeof__()
    sets.retire(A)
    left, pauses = 1000, 0
    for _ in block_table.sweeping([shards], sets):
        assert left - sum(map(len, shards)) <= STEP
        left, pauses = sum(map(len, shards)), pauses + 1
        assert sets.retired
    assert pauses >= 1000 // STEP
    assert (sets.retired, any(shards)) == (0, False)
    assert shards[0].__sizeof__() < roomy / 10


def test_digests_tell_sets_workers_and_tiers_apart() -> None:
    """Equal sets give equal digests by any way; another set, worker or tier gives another."""
    index = PrefixIndex()
    blocks = HASHES[0][:6]
    index.store(A, "device", single(blocks))
    index.store(B, "device", single(blocks))
    index.store(C, "host", single(blocks))
    index.store(D, "device", single(blocks[:5]))
    assert len({index.digest(worker) for worker in (A, B, C, D)}) == 4
    once = index.digest(A)
    index.store(A, "device", single([*blocks, *blocks]))
    index.remove(A, "device", single([blocks[1], blocks[1], 12345]))
    index.store(A, "device", single([blocks[1], blocks[1]]))
    assert index.digest(A) == once
    index.drop(A)
    index.store(A, "device", single(blocks[::-1]))
    assert index.digest(A) == once


def test_who_never_stored_has_nothing_to_lose() -> None:
    """Removals and drops of unknown workers change nothing."""
    index = PrefixIndex()
    index.remove(A, "device", single(HASHES[0]))
    index.drop(A)
    assert (repr(index), index.contents()) == ("<PrefixIndex 0 workers, 0 blocks>", {})
