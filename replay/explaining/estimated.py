"""Estimated: the costs of `time` and `session` taken apart, to the microsecond, and what the estimates went by."""

from __future__ import annotations

from core.events import RequestRouted
from core.settings import RoutingSettings
from projections.policy.cost import ESTIMATING_POLICIES, MILLI, ScoredCandidate, TimeCostTerms, estimate, pending_beyond
from projections.policy.prefill_backlog import PrefillBacklog
from replay.explaining.ground import Ground
from replay.explaining.timed_form import Estimates, Timed

WEIGHTS = {
    "time": ("own_weight", "active_weight", "own_request_weight"),
    "session": ("session_wait_max_ms",),
}
"""The settings that make a cost, by policy."""
SET, LEARNED, DEFAULT = "set", "learned", "default"


def taken_apart(
    scored: ScoredCandidate, settings: RoutingSettings, size: int, backlog: PrefillBacklog
) -> TimeCostTerms | None:
    """The terms of a candidate's cost under `time`, in microseconds; None if they are not all of it, because it was
    made with other settings."""
    terms = estimate(scored.candidate, scored.prefill_m, settings, size, backlog)
    return terms if sum(terms) == scored.cost else None


def estimates(on: Ground) -> Estimates | None:
    """What the decision estimated by; None under a policy that estimates nothing. O(candidates)."""
    settings = on.settings
    if settings.policy not in ESTIMATING_POLICIES:
        return None
    exact = all(_adds_up(on, scored) for scored in on.ranked)
    given = settings.to_mapping()
    return Estimates(
        exact=exact,
        weights={name: float(given[name]) for name in WEIGHTS.get(settings.policy, ())} if exact else {},
        weights_known=on.settings_known,
        base_ms=on.backlog.time.base_us / MILLI,
        per_token_us=on.backlog.time.per_token_m / MILLI,
        source=source(on.event, settings),
    )


def source(event: RequestRouted, settings: RoutingSettings) -> str:
    """Where the decision had from how long a prefill lasts."""
    if event.prefill_time:
        return LEARNED
    return SET if settings.prefill_us_per_token_m else DEFAULT


def _adds_up(on: Ground, scored: ScoredCandidate) -> bool:
    if on.settings.policy == "time":
        return taken_apart(scored, on.settings, on.event.block_size, on.backlog) is not None
    beyond_us = on.backlog.waits_us.get(scored.candidate.worker, 0) - on.settings.session_wait_max_ms * MILLI
    return scored.cost == max(0, beyond_us)


def tokens(scored: ScoredCandidate, size: int) -> int:
    """Of the prompt, that would be computed there, as `estimate` counts them."""
    return -(-scored.prefill_m * size // MILLI)


def timed(on: Ground, scored: ScoredCandidate, *, exact: bool) -> Timed:
    """What was estimated of one candidate."""
    size, candidate = on.event.block_size, scored.candidate
    computes, asks = tokens(scored, size), exact and on.settings.policy == "time"
    return Timed(
        tokens=computes,
        own_ms=on.backlog.time.us(computes) / MILLI if asks else None,
        outstanding_ms=on.backlog.outstanding_us(candidate.worker) / MILLI,
        held_ms=on.backlog.held_us.get(candidate.worker, 0) / MILLI,
        decode_tokens=(candidate.active_blocks - pending_beyond(candidate)) * size,
    )
