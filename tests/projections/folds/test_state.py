"""State: one value of all folds and the cursor, the same by whatever way it came there."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from core.codec import encode_event
from core.events import Event, WorkerLeft
from core.events.kv import PREFILL
from core.ids import Epoch, StreamName, StreamSeq, WorkerId
from core.subjects import LOAD, ROUTING
from projections.digest import mix
from projections.folds.load_fold import LoadFold
from projections.folds.source_fold import Chain, stamp
from projections.folds.state import GAPS_KEPT, POINTS_KEPT, Applied, DigestPoint, State
from tests.projections.facts import joined, load, prefilled, restated, routed, stored, worker_id
from tests.projections.site import KV
from tests.projections.speaker import CHAIN_KEY, Said, Speaker

A, B, R = worker_id(1), worker_id(2), "ee" * 8
KV_1 = StreamName("kv_1")
STREAMS = (KV, KV_1, LOAD, ROUTING)


def history() -> list[Said]:
    a, b, loads, routing = Speaker(KV, A), Speaker(KV_1, B), Speaker(LOAD, A), Speaker(ROUTING, R)
    return [
        a.say(joined(), stored(1, 2, 3)),
        b.say(joined(), stored(1, 2)),
        loads.say(load(1)),
        routing.say(routed("a", A), routed("b", B)),
        a.say(stored(4)),
        routing.say(prefilled("a")),
        loads.say(load(2)),
    ]


def opened(epoch: int = 1) -> State:
    state = State(CHAIN_KEY)
    for stream in STREAMS:
        assert state.open(stream, Epoch(epoch)) == 0
    return state


def feed(state: State, said: list[Said]) -> list[Applied | None]:
    """Each message at the next sequence of its stream."""
    return [state.apply(each.stream, StreamSeq(state.cursor[each.stream].seq + 1), *each[1:]) for each in said]


def test_the_cursor_moves_with_every_record() -> None:
    """It names, per stream, the epoch and the last sequence applied; what was applied says so."""
    state = opened()
    applied = feed(state, history())
    assert [each is not None and each.changed for each in applied] == [True] * 7
    assert applied[4] is not None
    assert (applied[4].stream, applied[4].seq, applied[4].owner, applied[4].message.n) == (KV, 2, A, 1)
    assert dict(state.cursor) == {KV: (1, 2), KV_1: (1, 1), LOAD: (1, 2), ROUTING: (1, 2)}
    assert (state.open(KV, Epoch(1)), state.incomplete, state.unknown_events, state.corrupt) == (2, 0, 0, 0)
    assert repr(state) == f"<State at kv_0:2 kv_1:1 load:2 routing:2, digest {state.digest:016x}>"


def test_applying_again_changes_nothing() -> None:
    """A record at or before the cursor is passed over, whichever it is."""
    state = opened()
    said = history()
    feed(state, said)
    before, cursor = state.digest, dict(state.cursor)
    for each in said:
        assert state.apply(each.stream, StreamSeq(1), each.subject, each.payload) is None
    assert (state.digest, state.cursor) == (before, cursor)


def test_a_message_stored_twice_changes_only_the_cursor() -> None:
    """The broker may keep two copies; the fold has one."""
    state, said = opened(), history()
    feed(state, said)
    again = feed(state, [said[0]])[0]
    assert again is not None
    assert not again.changed
    assert state.index.held(WorkerId(A)) == {1, 2, 3, 4}
    assert state.cursor[KV].seq == 3


def test_states_that_differ_have_other_digests() -> None:
    """Contents and cursor are both in it; the order in which streams were opened and heard is not."""
    one, other = opened(), State(CHAIN_KEY)
    for stream in reversed(STREAMS):
        other.open(stream, Epoch(1))
    said = history()
    feed(one, said)
    feed(other, sorted(said, key=lambda each: each.stream, reverse=True))
    assert one.digest == other.digest
    digests = {one.digest, opened().digest}
    for count in range(1, len(said)):
        state = opened()
        feed(state, said[:count])
        digests.add(state.digest)
    assert len(digests) == len(said) + 1


def test_corrupt_records_are_counted_and_make_a_gap() -> None:
    """Bytes that are no message move the cursor and nothing else; what should have stood there is missed."""
    state = opened()
    a = Speaker(KV, A)
    feed(state, [a.say(joined(), stored(1))])
    broken = a.say(stored(2))
    damaged = Said(KV, broken.subject, broken.payload[:-3])
    assert feed(state, [damaged, Said(KV, broken.subject, b"\xff")]) == [None, None]
    assert (state.corrupt, state.cursor[KV].seq, state.incomplete) == (2, 3, 0)
    feed(state, [a.say(stored(3))])
    assert (state.incomplete, state.index.held(WorkerId(A))) == (1, set())
    feed(state, [a.say(restated(0, 1, 1, 2, 3))])
    assert (state.incomplete, state.index.held(WorkerId(A))) == (0, {1, 2, 3})


def test_unknown_events_are_counted_over_all_streams() -> None:
    """They are kept in the log; the fold goes on without them."""
    state = opened()
    strange = encode_event(WorkerLeft(reason="x")).replace(b"WorkerLeft", b"WorkerWept")
    for stream, source in ((KV, A), (LOAD, A), (ROUTING, R)):
        feed(state, [Speaker(stream, source).say_raw(strange, strange)])
    assert (state.unknown_events, state.incomplete, state.corrupt) == (6, 0, 0)


@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_made_anew_is_folded_anew(stream: StreamName) -> None:
    """reset(stream), then the same records again, gives the digest and the contents of a fresh fold."""
    state, fresh, said = opened(), opened(epoch=2), history()
    feed(state, said)
    state.reset(stream, Epoch(2))
    assert state.cursor[stream] == (2, 0)
    emptied = {KV: A, KV_1: B}.get(stream)
    for worker in (A, B):
        assert bool(state.index.held(WorkerId(worker))) == (worker != emptied)
    feed(state, [each for each in said if each.stream == stream])
    feed(fresh, said)
    assert state.digest == fresh.digest
    for worker in (A, B):
        assert state.index.held(WorkerId(worker)) == fresh.index.held(WorkerId(worker))
    assert state.routing.in_flight_load.busy == fresh.routing.in_flight_load.busy
    assert state.loads.reports == fresh.loads.reports


def test_workers_of_all_partitions_are_found() -> None:
    """alive() is by id, whichever stream a worker writes to; of a worker that ended the end is known still."""
    state = opened()
    b = Speaker(KV, B)
    feed(state, [b.say(joined("late")), Speaker(KV_1, A).say(joined("early"))])
    assert [member.worker for member in state.alive()] == [A, B]
    feed(state, [b.say(WorkerLeft(reason="done"))])
    assert [member.worker for member in state.alive()] == [A]
    member = state.member(WorkerId(B))
    assert member is not None
    assert (member.ended, member.alive) == ("left: done", False)
    assert state.member(WorkerId("99" * 8)) is None


def test_models_with_prefill_workers_are_known() -> None:
    """From the join of the first of them to the end of the last; other models have none by that."""
    state, prefill = opened(), Speaker(KV, B)
    feed(state, [Speaker(KV, A).say(joined()), prefill.say(replace(joined("prefill-0", "other"), role=PREFILL))])
    assert (state.has_prefill_workers("other"), state.has_prefill_workers("tiny")) == (True, False)
    feed(state, [prefill.say(WorkerLeft(reason="done"))])
    assert not state.has_prefill_workers("other")


def test_points_say_where_a_stream_stood() -> None:
    """After each of the last messages: digest, head, whether all sources were known; corrupt records have one too."""
    state, a = opened(), Speaker(KV, A)
    assert state.point(KV, StreamSeq(0)) is None
    first = a.say(joined(), stored(1))
    feed(state, [first])
    digest = state.digest_of(KV)
    a.say(stored(2))
    feed(state, [a.say(stored(3)), Said(KV, first.subject, b"no message")])
    assert state.point(KV, StreamSeq(1)) == DigestPoint(Epoch(1), StreamSeq(1), digest, first.digest, complete=True)
    second, third = state.point(KV, StreamSeq(2)), state.point(KV, StreamSeq(3))
    assert second is not None
    assert third is not None
    assert (second.complete, second.digest, third.digest) == (False, state.digest_of(KV), state.digest_of(KV))
    assert second.head != third.head
    assert state.point(KV, StreamSeq(4)) is None
    assert state.point(StreamName("kv_9"), StreamSeq(1)) is None


def test_points_are_bounded() -> None:
    """The last POINTS_KEPT of each stream are there, the one before is not; a stream made anew has none."""
    state, loads = opened(), Speaker(LOAD, A)
    feed(state, [loads.say(load(0)) for _ in range(POINTS_KEPT + 1)])
    assert state.point(LOAD, StreamSeq(1)) is None
    assert state.point(LOAD, StreamSeq(2)) is not None
    assert state.point(LOAD, StreamSeq(POINTS_KEPT + 1)) is not None
    state.reset(LOAD, Epoch(2))
    assert state.point(LOAD, StreamSeq(2)) is None


def test_a_state_becomes_another() -> None:
    """Whoever holds it sees the other's folds, cursor and points, and it goes on from there."""
    state, other = opened(), opened(epoch=2)
    said = history()
    feed(state, said[:2])
    feed(other, said[:5])
    digest, point = other.digest, other.point(KV, StreamSeq(2))
    assert [member.worker for member in state.alive()] == [A, B]
    state.become(other)
    assert (state.digest, state.point(KV, StreamSeq(2)), state.cursor[KV]) == (digest, point, (2, 2))
    assert state.index.held(WorkerId(A)) == {1, 2, 3, 4}
    assert (len(state.alive()), len(other.alive()), other.cursor[KV]) == (2, 2, (1, 1))
    feed(state, said[5:])
    assert state.digest != digest


def test_gaps_are_named_and_bounded() -> None:
    """Which messages of whom are missing, and where that was noticed; the last GAPS_KEPT are kept, all are counted."""
    state, a, r = opened(), Speaker(KV, A), Speaker(ROUTING, R)
    feed(state, [a.say(joined()), r.say(routed("a", A))])
    for _ in range(2):
        a.say(stored(1))
    r.say(prefilled("a"))
    feed(state, [a.say(stored(2)), r.say(prefilled("a"))])
    assert [str(gap) for gap in state.gaps] == [
        f"messages 1 to 2 of worker {A} are missing before kv_0:2",
        f"message 1 of replica {R} is missing before routing:2",
    ]
    for _ in range(GAPS_KEPT):
        a.say(stored(1))
        feed(state, [a.say(stored(2))])
    assert (len(state.gaps), state.gaps_found) == (GAPS_KEPT, GAPS_KEPT + 2)


def test_a_stream_of_which_nothing_is_left_is_skipped() -> None:
    """The cursor stands at its end; what comes then follows."""
    state = opened()
    state.skip_to(KV, StreamSeq(7))
    assert (state.cursor[KV], state.point(KV, StreamSeq(7))) == ((1, 7), None)
    a = Speaker(KV, A).say(joined())
    assert state.apply(KV, StreamSeq(7), a.subject, a.payload) is None
    assert state.apply(KV, StreamSeq(8), a.subject, a.payload) is not None


def test_sources_of_another_key_are_known() -> None:
    """Two messages of one chain are evidence, and the newer pair counts. A gap alone is none, and an end is the end."""
    state = State(CHAIN_KEY)
    state.open(KV, Epoch(1))
    a, seqs = Speaker(KV, A), iter(range(1, 100))

    def fold(said: Said) -> frozenset[str]:
        state.apply(KV, StreamSeq(next(seqs)), said.subject, said.payload)
        return state.foreign

    assert fold(a.say(joined())) == set()
    a.head = b"another key's   "
    assert fold(a.say(stored(1))) == {A}
    assert fold(a.say(stored(2))) == set()
    a.say(stored(3))
    assert fold(a.say(stored(4))) == set()
    a.head = b"another key's   "
    assert fold(a.say(stored(5))) == {A}
    assert fold(a.say(WorkerLeft(reason="test"))) == set()


def test_a_key_with_a_removed_generation_finds_no_source_of_another_key() -> None:
    """Chains of the removed generation fit no key, either."""
    state = State(bytes(32) + CHAIN_KEY)
    state.open(KV, Epoch(1))
    a = Speaker(KV, A)
    for seq, said in enumerate((a.say(joined()), a.say(stored(1))), start=1):
        state.apply(KV, StreamSeq(seq), said.subject, said.payload)
    assert state.kv[KV].foreign == {A}
    assert state.foreign == set()


def loads_of(*reports: Event) -> LoadFold:
    """The fold of these reports of A."""
    state, speaker = opened(), Speaker(LOAD, A)
    feed(state, [speaker.say(each) for each in reports])
    return state.loads


def test_turnover_is_kept_while_there_is_some() -> None:
    """It goes with a report of 0 and with the end of the worker."""
    a, b, state = Speaker(LOAD, A), Speaker(LOAD, B), opened()
    feed(state, [a.say(load()), b.say(load(turnover=0))])
    assert (state.loads.turnover, state.loads.turnovers_reported) == ({}, False)
    feed(state, [a.say(load(turnover=64)), b.say(load(turnover=1))])
    assert (state.loads.turnover, state.loads.turnovers_reported) == ({A: 64, B: 1}, True)
    feed(state, [a.say(load(turnover=12)), b.say(load(turnover=0))])
    assert state.loads.turnover == {A: 12}
    feed(state, [a.say(WorkerLeft(reason="done"))])
    assert (state.loads.turnover, state.loads.turnovers_reported) == ({}, True)


def test_the_digest_of_loads_without_turnover_is_that_of_earlier_programs() -> None:
    """A turnover counts apart from a reuse rate of the same number."""
    chains: dict[int, Chain] = {}
    for rate, turnover, values in (
        (0, 0, ()),
        (9, 0, (9,)),
        (0, 9, ("turnover", 9)),
        (9, 9, (9, "turnover", 9)),
    ):
        fold = loads_of(load(3, reuse_rate=rate, turnover=turnover))
        chain = fold.parts[WorkerId(A)].chain
        assert fold.digest == stamp(chain, mix(A, 0, 3, False, *values))
        chains[fold.digest] = chain
    chain = next(iter(chains.values()))
    read = ((), (9,), ("turnover", 9), (9, "turnover", 9), ("turnover", 10))
    assert len({stamp(chain, mix(A, 0, 3, False, *values)) for values in read}) == len(read)


def test_a_turnover_that_is_gone_leaves_no_trace_in_the_digest() -> None:
    """Only the last report of a worker counts, and its place in the chain."""
    fold = loads_of(load(turnover=5), load(3))
    assert fold.digest == stamp(fold.parts[WorkerId(A)].chain, mix(A, 0, 3, False))
