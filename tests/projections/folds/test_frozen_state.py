"""Frozen states: a state that is thawed is the one that was frozen, and folds on as that one does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.events import CacheCleared, WorkerLeft
from core.ids import StreamName, WorkerId
from projections.folds.frozen_state import FrozenState, freeze, freezing
from projections.folds.snapshot import encode, run_through
from projections.folds.state import State
from tests.projections.facts import joined, prompt, stored, stored_chain, worker_id
from tests.projections.histories import STREAMS, Log, feed, opened, shuffled, worlds
from tests.projections.speaker import CHAIN_KEY, Speaker

A, B, C = worker_id(1), worker_id(2), WorkerId(worker_id(3))


def packed(state: State) -> FrozenState:
    return run_through(freezing(state, pack=True))


def written(state: State) -> bytes:
    return b"".join(encode(state))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_thawed_state_with_its_tail_is_the_whole(data: st.DataObject) -> None:
    """Frozen anywhere in any history, packed or not: digests, cursors and every byte of the next snapshot."""
    log = Log(data.draw(shuffled([source.said for source in data.draw(worlds())])))
    cut, packs = data.draw(st.integers(0, len(log.records))), data.draw(st.booleans())
    whole, start = feed(opened(), log.records), feed(opened(), log.records[:cut])
    again = feed((packed(start) if packs else freeze(start)).thaw(CHAIN_KEY), log.records[cut:])
    assert (again.digest, again.cursor, again.incomplete) == (whole.digest, whole.cursor, whole.incomplete)
    assert written(again) == written(whole)
    assert again.index.contents() == whole.index.contents()
    assert again.index.overlaps(prompt(*range(3))) == whole.index.overlaps(prompt(*range(3)))
    for stream in map(StreamName, STREAMS):
        assert again.digest_of(stream) == whole.digest_of(stream)


def test_the_states_are_independent() -> None:
    """Neither sees what the other folds, and one frozen state gives any number."""
    said = Speaker("kv_0", A)
    log = Log([said.say(joined(), stored_chain(*range(100, 140))), said.say(CacheCleared(reason="reset"))])
    state = feed(opened(), log.records[:1])
    frozen, before = freeze(state), written(state)
    feed(state, log.records[1:])
    first, second = frozen.thaw(CHAIN_KEY), frozen.thaw(CHAIN_KEY)
    feed(first, log.records[1:])
    assert written(state) == written(first) != before
    assert written(second) == before


def test_bits_to_be_swept_stay_so() -> None:
    """A worker left with entries in the table; behind the thaw nobody is given its bit before it is swept."""
    left, other = Speaker("kv_0", A), Speaker("kv_0", B)
    log = Log(
        [left.say(joined(), stored(1, 2, 3)), other.say(joined("other"), stored(1)), left.say(WorkerLeft(reason="x"))]
    )
    state = feed(opened(), log.records)
    assert state.index.sweeping
    again = freeze(state).thaw(CHAIN_KEY)
    assert again.index.sets.retired == state.index.sets.retired != 0
    assert again.index.sets.join(C) == state.index.sets.join(C)
    assert again.index.held(WorkerId(B)) == state.index.held(WorkerId(B)) == {1}


def test_a_packed_state_says_its_size() -> None:
    state = feed(opened(), Log([Speaker("kv_0", A).say(joined(), stored_chain(*range(2000)))]).records)
    frozen, small = freeze(state), packed(state)
    assert frozen.size == len(frozen.folds) + sum(len(piece) for piece in frozen.blocks)
    assert small.size < frozen.size
    assert small.thaw(CHAIN_KEY).digest == frozen.thaw(CHAIN_KEY).digest == state.digest


def test_freezing_stops_often() -> None:
    """A large state is frozen in slices."""
    state = feed(opened(), Log([Speaker("kv_0", A).say(joined(), stored(*range(3000)))]).records)
    assert sum(1 for _ in freezing(state, pack=True)) == sum(1 for _ in freezing(state, pack=False)) * 2 + 1


def test_an_index_thaws_only_when_it_is_empty() -> None:
    state = feed(opened(), Log([Speaker("kv_0", A).say(joined(), stored(1))]).records)
    with pytest.raises(AssertionError):
        state.index.thaw(freeze(state).blocks)
