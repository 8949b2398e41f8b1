"""Where moments lie in the routing stream of a recording."""

from __future__ import annotations

from core.subjects import ROUTING
from replay.recording.moment import Moment
from replay.recording.recording import Recording


def positions(recording: Recording, start: Moment | None, end: Moment | None) -> tuple[int, int | None]:
    """From which sequence, and up to which (not included; None for no end). CallerError for a moment that the
    recording does not know."""
    if ROUTING not in recording.streams:
        return 1, None
    first = 1 if start is None else recording.position(ROUTING, start)
    return first, None if end is None else recording.position(ROUTING, end)
