from __future__ import annotations

import msgspec

from actors.consistency.mismatch_resolution import compare_folds, drift
from core.block_spans import single
from core.codec import encode_event
from core.events import CacheCleared, Event, WorkerLeft, WorkerLost
from core.ids import LOST_SUFFIX, Epoch, StreamSeq, WorkerId
from core.subjects import LOAD, ROUTING
from projections.folds.state import POINTS_KEPT, State
from tests.projections.facts import joined, removed, restated, stored, worker_id
from tests.projections.site import KV, Site
from tests.projections.speaker import CHAIN_KEY, Said, Speaker

A, B, C = (worker_id(number) for number in range(3))
HISTORY: list[tuple[str, list[Event]]] = [
    (A, [stored(9)]),  # before it joined
    (A, [joined()]),
    (B, [joined("decode-1"), stored(1, 2, 3)]),
    (A, [stored(1, 2), stored(5, tier="host")]),
    (A, [removed(2)]),
    (B, [CacheCleared(), stored(7)]),
    (A, [restated(0, 2, 1)]),
    (A, [restated(1, 2, 4, 5)]),
    (A, [joined("renamed")]),
    (C, [joined("decode-2"), stored(3)]),
    (B, [WorkerLeft(reason="over")]),
]


def test_no_message_makes_a_fold_drift() -> None:
    """Whatever is folded, the parts add up to what the fold says of itself."""
    site = Site()
    for worker, events in HISTORY:
        site.say(KV, worker, *events)
        assert [drift(site.state, stream) for stream in (KV, LOAD, ROUTING)] == [0, 0, 0]
    site._speakers[KV, A].say(stored(99))  # never delivered: a gap
    site.say(KV, A, stored(6))
    assert drift(site.state, KV) == 0
    lost = Speaker(KV, C + LOST_SUFFIX, about=C)
    site.hear(lost.say(WorkerLost(by="x", reason="silent")))
    assert drift(site.state, KV) == 0


def test_what_no_message_did_does() -> None:
    """A block more, a block less and a cache dropped behind the fold's back are each seen, and so is their undoing."""
    site = Site()
    site.say(KV, A, joined(), stored(1, 2, 3))
    site.say(KV, B, joined("decode-1"), stored(1))
    index, worker = site.state.index, WorkerId(A)
    index.store(worker, "device", single([4]))
    assert drift(site.state, KV)
    site.say(KV, B, stored(2))
    assert drift(site.state, KV)  # another's message accounts for nothing
    index.remove(worker, "device", single([4]))
    assert drift(site.state, KV) == 0
    index.remove(worker, "device", single([3]))
    assert drift(site.state, KV)
    index.store(worker, "device", single([3]))
    index.drop(WorkerId(B))
    assert drift(site.state, KV)


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
    one.index.store(WorkerId(A), "device", single([0xBAD]))
    assert compare_folds(one, other)[KV].wrong
    assert compare_folds(one, other)[KV].refolded == other.digest_of(KV)


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
