"""Verdict: where the prompt of one request of a simulation was computed, and what that took."""

from __future__ import annotations

from typing import NamedTuple

from core.ids import RequestId


class Verdict(NamedTuple):
    """Of an attempt that had its first token. Times are virtual microseconds; those behind `place` are of a job whose
    blocks were pulled, else -1 or 0."""

    request: RequestId
    reason: str
    """`projections.policy.prefill_choice.PREFILL_REASONS`."""
    outcome: str
    """What became of the job; empty if there was none."""
    place: int = -1
    """Of the prefill worker, in the fleet."""
    pulled_tokens: int = 0
    """Prompt tokens that the decode worker neither had nor computed."""
    blocks: int = 0
    cached_tokens: int = 0
    """Of the prompt, in the prefill worker's cache."""
    computed_tokens: int = 0
    """The others."""
    queue_us: int = -1
    """From asking until the one who answered took the job."""
    wait_us: int = -1
    """From asking to the answer."""
    pull_us: int = -1
    """From the answer to the first token."""
