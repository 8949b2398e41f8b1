"""Costs: what the cost of a candidate is the sum of, in its unit."""

from __future__ import annotations

from typing import NamedTuple

from projections.policy.cost import BLOCK_COST_POLICIES, MILLI, ScoredCandidate
from replay.explaining.estimated import taken_apart
from replay.explaining.ground import Ground
from replay.explaining.needs import terms


class Costs(NamedTuple):
    """Blocks under `kv`, milliseconds under `time`; all 0 where a cost is no sum, or is not known by its terms."""

    prefill: float = 0.0
    decode: float = 0.0
    request: float = 0.0
    wait: float = 0.0


def costs_of(on: Ground, scored: ScoredCandidate) -> Costs:
    """The terms of one candidate's cost."""
    settings = on.settings
    if settings.policy in BLOCK_COST_POLICIES:
        if not on.settings_known:
            return Costs()
        per = terms(scored, on.request)
        weights = (settings.prefill_weight_m, settings.decode_weight_m, settings.request_weight_m)
        return Costs(*(weight * term / MILLI**2 for weight, term in zip(weights, per, strict=True)))
    if settings.policy == "time":
        found = taken_apart(scored, settings, on.event.block_size, on.backlog)
        if found is not None:
            return Costs(found.own / MILLI, found.decode / MILLI, found.requests / MILLI, found.wait / MILLI)
    return Costs()
