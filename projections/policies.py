"""How a policy orders candidates: each is a pure function from candidates to costs; integer arithmetic throughout.

The cost of `kv` is that of Dynamo's router in spirit (prefill that is left, plus active blocks), in thousandths:

    cost(w) = prefill_weight * (blocks to prefill on w, queued ones included, less overlap credit by tier)
            + decode_weight  * (active blocks on w with this request added)
            + request_weight * (active requests on w)
"""

from __future__ import annotations

from typing import NamedTuple

import xxhash

from core.settings import RoutingSettings
from projections.view import Candidate, RouteRequest

MILLI = 1000
SOFT_STEPS = 16
SOFT_TABLE = (
    4294967296, 4112874773, 3938502376, 3771522796, 3611622603, 3458501653, 3311872529, 3171459999,
    3037000500, 2908241642, 2784941738, 2666869345, 2553802834, 2445529972, 2341847524, 2242560872,
)  # fmt: skip
"""2^32 * 2^(-i/16), rounded: powers of two by integers alone."""


class Scored(NamedTuple):
    """A candidate with its cost and the terms of it that a record shows."""

    candidate: Candidate
    cost: int
    prefill_m: int
    """Blocks to prefill there, in thousandths: queued ones included, credit taken off."""


def score(candidate: Candidate, request: RouteRequest, settings: RoutingSettings, *, stale: bool) -> Scored:
    """The candidate under the settings' policy; lower is better. Round-robin and random leave the cost 0."""
    prefill_m = _prefill_m(candidate, request, settings, stale=stale)
    match settings.policy:
        case "kv":
            added = request.prompt.blocks_to_hold - pending_beyond(candidate)
            active_m = (candidate.active_blocks + added) * MILLI
            cost = (
                settings.prefill_weight_m * prefill_m
                + settings.decode_weight_m * active_m
                + settings.request_weight_m * candidate.active_requests * MILLI
            ) // MILLI
        case "least-loaded":
            cost = (candidate.active_requests + candidate.waiting) * MILLI
        case _:
            cost = 0
    return Scored(candidate, cost, prefill_m)


def pending_beyond(candidate: Candidate) -> int:
    """Blocks of the prompt that are not cached there, but are being computed for another request."""
    return max(0, candidate.pending - candidate.overlap[-1])


def _prefill_m(candidate: Candidate, request: RouteRequest, settings: RoutingSettings, *, stale: bool) -> int:
    """What is queued and what this one adds; blocks that both would compute are computed once."""
    size = request.prompt.block_size
    shared = pending_beyond(candidate)
    queued = max(0, candidate.prefill_tokens * MILLI // size - shared * MILLI)
    credit = before = 0
    for depth, credit_m in zip(candidate.overlap, settings.credits_m, strict=True):
        credit += (depth - before) * credit_m
        before = depth
    credit += shared * settings.pending_credit_m
    if stale:
        credit = credit * settings.stale_credit_m // MILLI
    return queued + max(0, request.prompt.tokens * MILLI // size - credit)


def choose(scored: list[Scored], request: RouteRequest, settings: RoutingSettings, turn: int, seed: int) -> Scored:
    """The one that serves the request; `scored` is sorted by id and not empty, `turn` counts this replica's choices."""
    assert scored
    if settings.policy == "round-robin":
        return scored[turn % len(scored)]
    if settings.policy == "random":
        return scored[seed % len(scored)]
    if settings.temperature_m:
        return _softened(scored, settings.temperature_m, seed)
    lowest = min(each.cost for each in scored)
    equal = [each for each in scored if each.cost <= lowest + settings.tie_margin_m]
    return min(equal, key=lambda each: tie_break(request, each.candidate))


def tie_break(request: RouteRequest, candidate: Candidate) -> int:
    """Spread out, repeatable, and independent of what a replica happens to know."""
    return xxhash.xxh3_64_intdigest(f"{request.id}/{request.attempt}/{candidate.worker}".encode())


def _softened(scored: list[Scored], temperature_m: int, seed: int) -> Scored:
    """Drawn with weights 2^(-(cost - min) / (spread * temperature)), by integers alone."""
    lowest, highest = min(each.cost for each in scored), max(each.cost for each in scored)
    scale = max(1, (highest - lowest) * temperature_m)
    weights = []
    for each in scored:
        steps = (each.cost - lowest) * SOFT_STEPS * MILLI // scale
        weights.append(SOFT_TABLE[steps % SOFT_STEPS] >> (steps // SOFT_STEPS))
    draw = seed * sum(weights) >> 64
    for each, weight in zip(scored, weights, strict=True):
        draw -= weight
        if draw < 0:
            return each
    return scored[-1]
