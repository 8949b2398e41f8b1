"""Served: what became of one request of a simulation."""

from __future__ import annotations

from typing import NamedTuple

from core.ids import RequestId

TOO_LONG = "too_long"
"""No engine here has room for prompt and answer together."""
LOST = "worker_lost"
"""Too many workers ended that had it."""


class Served(NamedTuple):
    """All times are virtual microseconds since the start of the run."""

    id: RequestId
    arrival_us: int
    routed_us: int
    """When its worker was chosen for the last time; later than the arrival if it was held or went on elsewhere."""
    first_us: int
    """Of the first token; -1 if it failed."""
    end_us: int
    worker: int
    """Place of the worker in the fleet, from 0; -1 if it failed."""
    replica: int
    prompt_tokens: int
    cached_tokens: int
    """What the engine took from its cache."""
    predicted_tokens: int
    """What the decision expected of that."""
    output_tokens: int
    attempts: int = 1
    """But for those that a worker declined."""
    others_differ: int = -1
    """How many of the other replicas would have chosen another worker at that moment; -1 if they were not asked."""
    declined: int = 0
    """How often a worker would not take it, because it computed prompts of other replicas."""
    why: str = ""
    """Why it failed, in a word: of `core.events.routing.TURNED_AWAY`, as a RequestRejected has it, TOO_LONG or LOST.
    The last field: digests of runs leave it out."""
