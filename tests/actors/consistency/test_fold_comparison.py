from __future__ import annotations

import msgspec

from actors.consistency.digest_comparison import compare_folds
from core.block_spans import single
from core.codec import encode_event
from core.ids import Epoch, StreamSeq, WorkerId
from projections.folds.state import POINTS_KEPT, State
from tests.projections.facts import joined, stored, worker_id
from tests.projections.site import KV
from tests.projections.speaker import CHAIN_KEY, Said, Speaker

A = worker_id(0)


def two(messages: int) -> tuple[State, State, list[Said]]:
    """Two states of one history."""
    speaker = Speaker(KV, A)
    said = [speaker.say(joined()), *(speaker.say(stored(number)) for number in range(messages - 1))]
    states = State(CHAIN_KEY), State(CHAIN_KEY)
    for state in states:
        state.open(KV, Epoch(1))
        fold(state, said)
    return *states, said


def fold(state: State, said: list[Said]) -> None:
    for each in said[state.cursor[KV].seq :]:
        state.apply(KV, StreamSeq(state.cursor[KV].seq + 1), each.subject, each.payload)


def test_compared_where_both_have_been() -> None:
    """The cursor of the one that is behind counts, whichever that is."""
    one, other, said = two(10)
    speaker = Speaker(KV, A)
    speaker.n_next, speaker.head = len(said), said[-1].digest
    said += [speaker.say(stored(100)), speaker.say(stored(101))]
    fold(one, said)
    for found in (compare_folds(one, other), compare_folds(other, one)):
        assert (found[KV].seq, found[KV].wrong) == (10, False)
    one.kv[KV].index.store(WorkerId(A), "device", single([0xBAD]))
    fold(one, said := [*said, speaker.say(stored(102))])
    fold(other, said)
    assert compare_folds(one, other)[KV].wrong
    assert compare_folds(one, other)[KV].rebuilt == other.digest_of(KV)


def test_not_comparable() -> None:
    """Streams of other epochs, unknown or incomplete ones, and folds too far apart for their points are left out."""
    one, other, said = two(10)
    assert compare_folds(one, State(CHAIN_KEY)) == {}
    remade = State(CHAIN_KEY)
    remade.open(KV, Epoch(2))
    fold(remade, said)
    assert compare_folds(one, remade) == {}
    gap = Speaker(KV, A)
    gap.n_next, gap.head = 20, bytes(16)
    unknown = gap.say_raw(encode_event(stored(1)))
    other.apply(KV, StreamSeq(11), unknown.subject, unknown.payload)
    one.apply(KV, StreamSeq(11), unknown.subject, unknown.payload)
    assert compare_folds(one, other) == {}
    one, other, said = two(10)
    speaker = Speaker(KV, A)
    speaker.n_next, speaker.head = len(said), said[-1].digest
    said += [speaker.say(stored(number)) for number in range(100, 100 + POINTS_KEPT)]
    fold(one, said)
    assert compare_folds(one, other) == {}
    assert msgspec.structs.asdict(one.kv[KV].members[WorkerId(A)])["cache_known"]
