"""The state of one replica at a moment, by the log."""

from __future__ import annotations

from core.ids import Epoch, StreamSeq, WorkerId
from core.subjects import ROUTING
from projections.folds.state import State
from replay.playback.replica_state import UNKNOWN, ReplicaState
from tests.projections.facts import finished, replica_restated, routed
from tests.replay.staged import KEY, A, R, Stage


def test_a_restatement_ends_the_doubt_that_a_missing_message_casts() -> None:
    state = State(KEY.chain_key)
    state.open(ROUTING, Epoch(1))
    found = ReplicaState(R, state)
    found.note_missing(5)
    assert list(found.unverifiable) == [UNKNOWN]
    found.apply_own(6, replica_restated([]))
    assert found.unverifiable == {}


def test_pending_events_count_on_what_a_snapshot_has() -> None:
    """A fold from behind the start of the stream lacks a request. Its end, which is pending, counts once the fold of a
    snapshot has the request; an end that this fold has counts no more."""
    stage = Stage()
    stage.replica()
    stage.tell(routed("one", A), routed("other", A))
    stage.tell(finished("other"))
    whole = stage.seat(R).state
    cut = State(KEY.chain_key)
    cut.open(ROUTING, Epoch(1))
    cut.skip_to(ROUTING, StreamSeq(2))
    found = ReplicaState(R, cut)
    found.move_to(cut, {ROUTING: "routing begins behind its start"})
    found.apply_own(3, finished("other"))
    found.apply_own(4, finished("one"))
    assert found.pending_events.in_flight_load.busy == {}

    found.move_to(whole)

    worker = WorkerId(A)
    folded, pending = whole.routing.in_flight_load.busy[worker], found.pending_events.in_flight_load.busy[worker]
    assert (folded.requests, pending.requests) == (1, -1)
    assert (folded.blocks, len(found.pending_events)) == (-pending.blocks, 1)
