"""The state at a moment, as the log has it or as one replica believed, once the fold has come so far."""

from __future__ import annotations

from typing import Any

import msgspec

from core.errors import ContrailError
from core.ids import StreamSeq
from core.subjects import ROUTING
from replay.recording.moment import AtSequence, AtTime
from replay.recording.recording import Cursor, Recording
from replay.recording.request_history import PLACES
from replay.state_at.state_at import summary_at, within

REQUESTS_MAX = 500
"""In flight, in one answer; all are counted."""
FOLD_MAX = 8_000
"""Messages that are folded for one question, some 0.15 s; with keyframes in place it is half of that."""


class StateNotFolded(ContrailError):
    """The fold has not come so far; asking again in a moment helps."""


def state(recording: Recording, n: int | None, ms: int | None, replica: str | None) -> dict[str, Any]:
    """Before a decision, or at a time. StateNotFolded if a state near enough is not at hand, CallerError if the replica
    was not there."""
    moment = before(n) if n is not None else AtTime(ms or 0)
    check_near(recording, within(recording, moment))
    found: dict[str, Any] = msgspec.to_builtins(summary_at(recording, moment, replica))
    flying = found["in_flight"]
    return found | {"in_flight": flying[:REQUESTS_MAX], "in_flight_total": len(flying)}


def before(n: int) -> AtSequence:
    """The moment before the message of that decision."""
    return AtSequence(ROUTING, StreamSeq(n // PLACES))


def check_near(recording: Recording, cursor: Cursor) -> None:
    """StateNotFolded if too much would have to be folded for the state at the cursor."""
    if recording.to_fold(cursor) > FOLD_MAX:
        raise StateNotFolded("states are being folded up to there")
