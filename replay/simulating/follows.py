"""Follows: a request that comes some time after the end of another one, as the next turn of a talk does."""

from __future__ import annotations

from typing import NamedTuple

from core.ids import RequestId


class Follows(NamedTuple):
    """Instead of the arrival's own time."""

    request: RequestId
    """Whose end is waited for; it stands before this one among the arrivals."""
    pause_us: int
    """Between that end and this arrival."""
