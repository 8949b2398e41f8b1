"""Arrival: one request of a trace, as the simulation gets it: when it comes, what is known of its prompt, how long its
answer is."""

from __future__ import annotations

from typing import NamedTuple

from core.ids import RequestId


class Arrival(NamedTuple):
    """In the order of `at_us`; equal times keep the order of the trace."""

    id: RequestId
    at_us: int
    """Virtual microseconds since the start of the run."""
    prompt_tokens: int
    hashes: bytes
    """Of each full block of the prompt, in the engine's block size: uint64, little-endian; equal hash, equal prefix."""
    output_tokens: int
    """At least 1."""
    tenant: str = ""
    session: str = ""
    """What turns of one conversation share, where the trace says so."""
    priority: int = 0
