"""How a policy orders candidates: each is a pure function from candidates to costs; integer arithmetic throughout.

The cost of `kv` is that of Dynamo's router in spirit (prefill that is left, plus active blocks), in thousandths:

    cost(w) = prefill_weight * (blocks to prefill on w, queued ones included, less overlap credit by tier)
            + decode_weight  * (active blocks on w with this request added)
            + request_weight * (active requests on w)
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

import xxhash

from core.ids import WorkerId
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


def score(
    candidates: list[Candidate], request: RouteRequest, settings: RoutingSettings, stale: Container[WorkerId]
) -> list[Scored]:
    """The candidates, in their order, with their costs; lower is better. Round-robin and random leave the costs 0.

    One loop without calls: with many workers it is most of a decision.
    """
    size, hold = request.prompt.block_size, request.prompt.blocks_to_hold
    wanted_m = request.prompt.tokens * MILLI // size
    credits_m, pending_credit_m = _Credits(settings.credits_m), settings.pending_credit_m
    per_prefill, per_block = settings.prefill_weight_m, settings.decode_weight_m
    per_request = settings.request_weight_m * MILLI
    new = tuple.__new__  # half the price of Scored(…)
    kv, least_loaded = settings.policy == "kv", settings.policy == "least-loaded"
    found = []
    for candidate in candidates:
        worker, _, _, _, _, overlap, pending, active_blocks, active_requests, prefill_tokens, waiting, _ = candidate
        credit = credits_m[overlap]
        queued = prefill_tokens * MILLI // size
        shared = pending - overlap[-1]  # as pending_beyond
        if shared > 0:  # blocks that both would compute are computed once
            credit += shared * pending_credit_m
            queued -= shared * MILLI
            active_blocks -= shared
        if worker in stale:
            credit = credit * settings.stale_credit_m // MILLI
        prefill_m = queued if queued > 0 else 0  # noqa: FURB136 — a call of max() costs as much as all of this
        if wanted_m > credit:
            prefill_m += wanted_m - credit
        cost = 0
        if kv:
            active_m = (active_blocks + hold) * MILLI
            cost = (per_prefill * prefill_m + per_block * active_m + per_request * active_requests) // MILLI
        elif least_loaded:
            cost = (active_requests + waiting) * MILLI
        found.append(new(Scored, (candidate, cost, prefill_m)))
    return found


class _Credits(dict[tuple[int, ...], int]):
    """What cached blocks take off the prefill, in thousandths, by overlap: most candidates have one of a few."""

    def __init__(self, credits_m: tuple[int, ...]) -> None:
        super().__init__()
        self._credits_m = credits_m

    def __missing__(self, overlap: tuple[int, ...]) -> int:
        credit = before = 0
        for depth, credit_m in zip(overlap, self._credits_m, strict=True):
            credit += (depth - before) * credit_m
            before = depth
        self[overlap] = credit
        return credit


def pending_beyond(candidate: Candidate) -> int:
    """Blocks of the prompt that are not cached there, but are being computed for another request."""
    return max(0, candidate.pending - candidate.overlap[-1])


def rank(scored: list[Scored], request: RouteRequest, settings: RoutingSettings, turn: int, seed: int) -> list[Scored]:
    """The one that serves the request, then the others by cost, equal ones by the hash of request and worker.

    `scored` is sorted by id and not empty; `turn` counts this replica's choices.
    """
    assert scored
    asked, costs = f"{request.id}/{request.attempt}/".encode(), [each.cost for each in scored]

    def tie(at: int) -> int:
        """Spread out, repeatable, and independent of what a replica happens to know."""
        return xxhash.xxh3_64_intdigest(asked + scored[at].candidate.worker.encode())

    order = list(range(len(scored)))
    if len(set(costs)) < len(costs):
        order.sort(key=tie)
    order.sort(key=costs.__getitem__)
    match settings.policy:
        case "round-robin":
            chosen = turn % len(scored)
        case "random":
            chosen = seed % len(scored)
        case _ if settings.temperature_m:
            chosen = _softened(costs, settings.temperature_m, seed)
        case _ if settings.tie_margin_m:
            highest = costs[order[0]] + settings.tie_margin_m
            chosen = min((at for at in order if costs[at] <= highest), key=tie)
        case _:
            chosen = order[0]
    order.remove(chosen)
    return [scored[at] for at in (chosen, *order)]


def _softened(costs: list[int], temperature_m: int, seed: int) -> int:
    """Which one: drawn with weights 2^(-(cost - min) / (spread * temperature)), by integers alone."""
    lowest, highest = min(costs), max(costs)
    scale = max(1, (highest - lowest) * temperature_m)
    weights = []
    for cost in costs:
        steps = (cost - lowest) * SOFT_STEPS * MILLI // scale
        weights.append(SOFT_TABLE[steps % SOFT_STEPS] >> (steps // SOFT_STEPS))
    draw = seed * sum(weights) >> 64
    for at, weight in enumerate(weights):
        draw -= weight
        if draw < 0:
            return at
    return len(costs) - 1
