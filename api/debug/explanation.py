"""Explanation: why a decision fell as it did and what came of it, in full: `replay.explain` of one attempt."""

from __future__ import annotations

from typing import Any

import msgspec

from api.debug.decisions import PLACES
from replay.explain.explain import explain
from replay.recording.recording import Recording


def explanation(recording: Recording, request: str, n: int, number: int) -> dict[str, Any]:
    """The attempt of that number that was decided there; nothing but `known: False` for a request whose id was used
    again later."""
    found = explain(recording, request)
    for attempt in found.attempts:
        if (attempt.seq, attempt.attempt) == (n // PLACES, number):  # a message may hold several
            told: dict[str, Any] = msgspec.to_builtins(attempt)
            return told | {"known": True, "uses": found.uses}
    return {"known": False, "uses": found.uses}
