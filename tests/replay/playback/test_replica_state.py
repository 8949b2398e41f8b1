"""The state of one replica at a moment, by the log."""

from __future__ import annotations

from core.ids import Epoch
from core.subjects import ROUTING
from projections.folds.state import State
from replay.playback.replica_state import UNKNOWN, ReplicaState
from tests.projections.facts import replica_restated
from tests.replay.staged import KEY, R


def test_a_restatement_ends_the_doubt_that_a_missing_message_casts() -> None:
    state = State(KEY.chain_key)
    state.open(ROUTING, Epoch(1))
    found = ReplicaState(R, state)
    found.note_missing(5)
    assert list(found.unverifiable) == [UNKNOWN]
    found.apply_own(6, replica_restated([]))
    assert found.unverifiable == {}
