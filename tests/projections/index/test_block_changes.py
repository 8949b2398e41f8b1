"""Runs of blocks: when they stay one entry, when they dissolve, and that nobody can tell but by the cost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.block_spans import SPAN_BLOCKS, Blocks, Piece, packed, single, stretch
from core.ids import WorkerId
from core.prompt import hashes_to_bytes
from projections.index import block_table
from projections.index.prefix_index import PrefixIndex

A, B, C = (WorkerId(f"{number:016x}") for number in range(3))
TRUNK = list(range(1000, 1048))
FORK = [*TRUNK[:20], *range(2000, 2028)]


def chain(blocks: list[int], first: int, last: int) -> Blocks:
    return stretch(hashes_to_bytes(blocks), first, last)


def entries(index: PrefixIndex) -> tuple[int, int]:
    """How many runs, and how many single blocks, live or not."""
    found = [entry for shard in index._tables["device"].shards for entry in shard.values()]
    runs = sum(isinstance(entry, tuple) for entry in found)
    return runs, len(found) - runs


def indexed(*stored: tuple[WorkerId, list[int], int, int]) -> PrefixIndex:
    index = PrefixIndex()
    for worker, blocks, first, last in stored:
        index.store(worker, "device", chain(blocks, first, last))
    return index


def test_a_chain_is_a_run_per_span() -> None:
    """Told at once or bit by bit."""
    assert entries(indexed((A, TRUNK, 0, 48))) == (3, 0)
    assert entries(indexed(*((A, TRUNK, at, at + 1) for at in range(48)))) == (3, 0)
    assert entries(indexed((A, TRUNK, 0, 5), (A, TRUNK, 5, 30), (A, TRUNK, 30, 41))) == (3, 0)


def test_who_holds_the_same_joins_the_run() -> None:
    """Two workers, one entry; when one lets it go it is the other's."""
    index = indexed((A, TRUNK, 0, 48), (B, TRUNK, 0, 48))
    assert entries(index) == (3, 0)
    index.remove(A, "device", chain(TRUNK, 32, 48))
    index.remove(A, "device", chain(TRUNK, 16, 32))
    assert entries(index) == (3, 0)
    assert (index.held(A), index.held(B)) == ({*TRUNK[:16]}, {*TRUNK})


@pytest.mark.parametrize(
    ("stored", "runs", "single"),
    [
        ((B, FORK, 0, 48), 3, 28),  # 16 together, 4 shared, 12 each behind the fork, then a span each, and A's
        ((B, TRUNK, 0, 20), 2, 16),
        ((B, TRUNK, 0, 16), 3, 0),
        ((C, [*TRUNK[:3], 7, 8], 0, 5), 2, 18),
    ],
)
def test_what_is_not_the_same_dissolves_one_span(
    stored: tuple[WorkerId, list[int], int, int], runs: int, single: int
) -> None:
    """The others stay what they were, and everybody holds what they were said to."""
    index = indexed((A, TRUNK, 0, 48), stored)
    worker, blocks, first, last = stored
    assert entries(index) == (runs, single)
    assert index.held(A) == {*TRUNK}
    assert index.held(worker) == {*blocks[first:last]}


def test_a_tail_is_cut_off() -> None:
    """In one piece or block by block; the entry goes with its head."""
    index = indexed((A, TRUNK, 0, 40))
    for at in range(39, 20, -1):
        index.remove(A, "device", chain(TRUNK, at, at + 1))
        left = -(-at // SPAN_BLOCKS)
        assert entries(index) == ((left - 1, 1) if at % SPAN_BLOCKS == 1 else (left, 0)), "one block alone is no run"
    index.remove(A, "device", chain(TRUNK, 0, 21))
    assert entries(index) == (0, 0)
    assert (index.blocks(A), index.digest(A)) == (0, 0)


def test_a_block_from_the_middle_leaves_the_others() -> None:
    """So does a head; what is stored again is there again, once."""
    index = indexed((A, TRUNK, 0, 16))
    digest = index.digest(A)
    for at in (7, 0):
        index.remove(A, "device", chain(TRUNK, at, at + 1))
    assert index.held(A) == {*TRUNK[1:7], *TRUNK[8:16]}
    for at in (0, 7):
        index.store(A, "device", chain(TRUNK, at, at + 1))
    assert (index.held(A), index.blocks(A), index.digest(A)) == ({*TRUNK[:16]}, 16, digest)


def test_a_span_stands_together_again_when_it_was_empty() -> None:
    """A fork leaves single blocks only as long as anybody holds its head."""
    index = indexed((A, TRUNK, 0, 32), (B, FORK, 0, 32))
    assert entries(index)[1]
    index.remove(B, "device", chain(FORK, 0, 32))
    index.remove(A, "device", chain(TRUNK, 0, 32))
    index.store(A, "device", chain(TRUNK, 0, 32))
    assert entries(index) == (2, 0)


def test_an_older_workers_blocks_stand_alone_beside_runs() -> None:
    """It says only which; a head that it holds too is no run any more."""
    index = indexed((A, TRUNK, 0, 32))
    index.store(B, "device", single(TRUNK[:20]))
    assert (index.held(A), index.held(B)) == ({*TRUNK[:32]}, {*TRUNK[:20]})
    index.store(C, "device", chain(TRUNK, 0, 32))
    index.remove(B, "device", single(TRUNK[:20]))
    assert (index.held(A), index.held(B), index.held(C)) == ({*TRUNK[:32]}, set(), {*TRUNK[:32]})


def test_what_is_told_twice_counts_once() -> None:
    """A run, a part of one, and one that goes on behind what is there."""
    index = indexed((A, TRUNK, 0, 40), (A, TRUNK, 0, 40), (A, TRUNK, 3, 9), (A, TRUNK, 36, 48))
    assert (entries(index), index.blocks(A)) == ((3, 0), 48)
    index.remove(A, "device", chain(FORK, 20, 32))
    index.remove(B, "device", chain(TRUNK, 0, 16))
    assert index.digest(A) == indexed((A, TRUNK, 0, 48)).digest(A)


def test_runs_inside_runs_dissolve_with_them() -> None:
    """Where block sizes differ, one worker's head lies inside another's span; nobody loses a block, or hangs."""
    inside = [5000, *TRUNK[:15]]
    circle = [TRUNK[15], *range(6000, 6014), TRUNK[0]]
    index = indexed((A, TRUNK, 0, 16), (B, inside, 0, 16), (C, circle, 0, 16))
    index.store(A, "device", chain([*TRUNK[:3], 7], 0, 4))
    index.remove(B, "device", chain(inside, 2, 3))
    index.store(B, "device", single([circle[0]]))
    assert index.held(A) == {*TRUNK[:16], 7}
    assert index.held(B) == {*inside, circle[0]} - {inside[2]}
    assert index.held(C) == {*circle}
    assert list(index.audit())[-1] == []


def test_a_bit_that_is_swept_out_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of a worker that is gone dissolves into shards that were swept already: its heir holds none of it."""
    monkeypatch.setattr(block_table, "SWEEP_ENTRIES_MAX", 1)
    late = [(255 << 56) + 1, *range(1, 16)]
    index = indexed((A, late, 0, 16), (B, late, 0, 16), (A, TRUNK, 0, 48))
    index.drop(A)
    for _ in range(3):
        index.store(C, "host", single([1]))
    index.store(B, "device", chain([*late[:8], 77], 8, 9))
    while index.sweeping:
        index.store(C, "host", single([1]))
    index.store(A, "host", single([2]))
    assert index.held(A) == set()
    assert index.held(B) == {*late, 77}


def test_a_run_of_nobody_is_no_hindrance() -> None:
    """What only those held who are gone is written over, before it is swept."""
    index = indexed((A, TRUNK, 0, 48), (B, [1], 0, 1))
    index.drop(A)
    index.store(B, "device", chain(TRUNK, 0, 20))
    assert index.held(B) == {1, *TRUNK[:20]}
    while index.sweeping:
        index.store(B, "host", single([1]))
    assert entries(index) == (2, 1)


places = st.integers(0, SPAN_BLOCKS - 1)
lies = st.builds(
    lambda head, place, hashes: Piece(hashes[0] if not place else head, place, b"".join(hashes[: SPAN_BLOCKS - place])),
    st.integers(0, 9).map(lambda n: n.to_bytes(8, "little")),
    places,
    st.lists(st.integers(0, 9).map(lambda n: n.to_bytes(8, "little")), min_size=1, max_size=5, unique=True),
)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(("store", "store", "remove", "drop")), st.sampled_from((A, B, C)), lies)))
def test_lies_do_no_harm_to_others(told: list[tuple[str, WorkerId, Piece]]) -> None:
    """One worker tells the truth, the others anything at all: its blocks are what it said, and nothing breaks."""
    index, honest = indexed((WorkerId("ff" * 8), TRUNK, 0, 48)), WorkerId("ff" * 8)
    digest = index.digest(honest)
    for kind, worker, piece in told:
        if kind == "drop":
            index.drop(worker)
        else:
            change = index.store if kind == "store" else index.remove
            change(worker, "device", packed([piece]))
    assert index.held(honest) == {*TRUNK}
    assert index.digest(honest) == digest
    assert honest not in (list(index.audit())[-1] or [])
    index.remove(honest, "device", chain(TRUNK, 0, 48))
    assert index.held(honest) == set()
