"""Policies: how each one orders the candidates by their costs (`projections.policy.cost`), and which one it chooses.

`session` keeps requests that name one session, or begin alike, on one worker: by rendezvous hashing, among those where
the wait is no longer than a bound; what it is beyond is the cost. `power-of-two` takes the one with fewer requests of
two that are drawn.
"""

from __future__ import annotations

from operator import attrgetter

import xxhash

from core.settings import APPROXIMATE, RoutingSettings
from projections.policy.cost import MILLI, ScoredCandidate
from projections.policy.view import RouteRequest

SOFT_STEPS = 16
SOFT_TABLE = (
    4294967296, 4112874773, 3938502376, 3771522796, 3611622603, 3458501653, 3311872529, 3171459999,
    3037000500, 2908241642, 2784941738, 2666869345, 2553802834, 2445529972, 2341847524, 2242560872,
)  # fmt: skip
"""2^32 * 2^(-i/16), rounded: powers of two by integers alone."""
TEMPERATURE_POLICIES = frozenset({"kv", "time", "least-loaded", APPROXIMATE})
"""Policies that choose by temperature."""
OVERLAP_POLICIES = frozenset({"kv", "time", APPROXIMATE})
"""Policies under which equal costs go to the larger overlap: less of it is an estimate."""
SESSION_TOKENS = 128
"""Without a session id, prompts that are equal up to this token count as one session."""


def rank(
    scored: list[ScoredCandidate], request: RouteRequest, settings: RoutingSettings, turn: int, seed: int
) -> list[ScoredCandidate]:
    """The one that serves the request, then the others by cost; of equal ones first, under OVERLAP_POLICIES, the one
    with more cached blocks on its device, then by the hash of request and worker; under `session`, of session and
    worker.

    `scored` is sorted by id and not empty; `turn` counts this replica's choices.
    """
    return rank_ties(scored, request, settings, turn, seed, by_overlap=settings.policy in OVERLAP_POLICIES)


def rank_ties(
    scored: list[ScoredCandidate],
    request: RouteRequest,
    settings: RoutingSettings,
    turn: int,
    seed: int,
    *,
    by_overlap: bool,
) -> list[ScoredCandidate]:
    """`rank`, with ties to the larger overlap or not."""
    assert scored
    asked, costs = tie_key(request, settings), [*map(_cost, scored)]

    def tie(at: int) -> int:
        """Spread out, repeatable, and independent of what a replica happens to know."""
        return xxhash.xxh3_64_intdigest(asked + scored[at].candidate.worker.encode())

    order = list(range(len(scored)))
    if len(set(costs)) < len(costs):
        order.sort(key=tie)
        if by_overlap:
            order.sort(key=lambda at: -scored[at].candidate.overlap[0])
    order.sort(key=costs.__getitem__)
    match settings.policy:
        case "round-robin":
            chosen = turn % len(scored)
        case "random":
            chosen = seed % len(scored)
        case "power-of-two":
            chosen = of_two(costs, seed)
        case policy if settings.temperature_m and policy in TEMPERATURE_POLICIES:
            chosen = draw_by_temperature(costs, settings.temperature_m, seed)
        case _ if settings.tie_margin_m:
            highest = costs[order[0]] + settings.tie_margin_m
            chosen = min((at for at in order if costs[at] <= highest), key=tie)
        case _:
            chosen = order[0]
    order.remove(chosen)
    return [scored[at] for at in (chosen, *order)]


_cost = attrgetter("cost")


def tie_key(request: RouteRequest, settings: RoutingSettings) -> bytes:
    """The key that decides between equal costs, together with a worker's id."""
    if settings.policy != "session":
        return f"{request.id}/{request.attempt}/".encode()
    if request.session:
        return f"session {request.session}/".encode()
    prompt = request.prompt
    depth = min(prompt.blocks, max(1, SESSION_TOKENS // prompt.block_size))
    return f"prefix {prompt.key(depth) if depth else request.id}/".encode()


def two_of(workers: int, seed: int) -> tuple[int, int]:
    """Two different places among so many, at least 2, by the halves of the seed."""
    first, second = (seed >> 32) * workers >> 32, (seed & 0xFFFFFFFF) * (workers - 1) >> 32
    return first, second + (second >= first)


def of_two(costs: list[int], seed: int) -> int:
    """The cheaper one of two that the seed draws; the first if they cost the same."""
    if len(costs) == 1:
        return 0
    first, second = two_of(len(costs), seed)
    return second if costs[second] < costs[first] else first


def draw_by_temperature(costs: list[int], temperature_m: int, seed: int) -> int:
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
