"""How a policy orders candidates: each is a pure function from candidates to costs; integer arithmetic throughout.

The cost of `kv` is that of Dynamo's router in spirit (prefill that is left, plus active blocks), in thousandths:

    cost(w) = prefill_weight * (blocks to prefill on w, queued ones included, less overlap credit by tier)
            + decode_weight  * (active blocks on w with this request added)
            + request_weight * (active requests on w)

That of `time` is an estimate in microseconds of what the request costs on w, itself and others (the weights were
searched on public traces; own_weight above 1 stands for what the copy that it makes pushes out):

    cost(w) = own_weight * own(w) + wait(w)
            + active_weight * (prefill of each token that fits into the active blocks on w)
            + own_request_weight * own(w) * (active requests on w)

where own(w) is how long the prefill that is left lasts there, with the same credits as above, and wait(w) how long
those outstanding hold it up (`projections.backlog`).

`approximate` has the cost of `kv`, with the cached blocks that were believed instead of reported
(`projections.believed`).

`session` keeps requests that name one session, or begin alike, on one worker: by rendezvous hashing, among those where
the wait is no longer than a bound; what it is beyond is the cost. `power-of-two` takes the one with fewer requests of
two that are drawn.
"""

from __future__ import annotations

from collections.abc import Container
from operator import attrgetter
from typing import NamedTuple

import xxhash

from core.ids import WorkerId
from core.settings import APPROXIMATE, RoutingSettings
from projections.backlog import NO_BACKLOG, Backlog
from projections.view import Candidate, RouteRequest

MILLI = 1000
SOFT_STEPS = 16
SOFT_TABLE = (
    4294967296, 4112874773, 3938502376, 3771522796, 3611622603, 3458501653, 3311872529, 3171459999,
    3037000500, 2908241642, 2784941738, 2666869345, 2553802834, 2445529972, 2341847524, 2242560872,
)  # fmt: skip
"""2^32 * 2^(-i/16), rounded: powers of two by integers alone."""
ESTIMATING = frozenset({"time", "session"})
"""Policies that look at how long outstanding prefills hold up a new one; their costs are in microseconds."""
BY_BLOCKS = frozenset({"kv", APPROXIMATE})
"""Policies with the cost of `kv`, in thousandths of a weighted block."""
SOFTENED = frozenset({"kv", "time", "least-loaded", APPROXIMATE})
"""Policies whose choice a temperature softens."""
SESSION_TOKENS = 128
"""Where no session is named, prompts that are equal up to here are taken for one."""


class Scored(NamedTuple):
    """A candidate with its cost and the terms of it that a record shows."""

    candidate: Candidate
    cost: int
    prefill_m: int
    """Blocks to prefill there, in thousandths: queued ones included, credit taken off."""


def score(
    candidates: list[Candidate],
    request: RouteRequest,
    settings: RoutingSettings,
    stale: Container[WorkerId],
    backlog: Backlog = NO_BACKLOG,
) -> list[Scored]:
    """The candidates, in their order, with their costs; lower is better. Round-robin and random leave the costs 0.

    One loop without calls: with many workers it is most of a decision.
    """
    if settings.policy in ESTIMATING:
        return _estimated(candidates, request, settings, stale, backlog)
    size, hold = request.prompt.block_size, request.prompt.blocks_to_hold
    wanted_m = request.prompt.tokens * MILLI // size
    credits_m, pending_credit_m = _Credits(settings.credits_m), settings.pending_credit_m
    per_prefill, per_block = settings.prefill_weight_m, settings.decode_weight_m
    per_request = settings.request_weight_m * MILLI
    new = tuple.__new__  # half the price of Scored(…)
    kv, least_loaded = settings.policy in BY_BLOCKS, settings.policy in {"least-loaded", "power-of-two"}
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


def _estimated(
    candidates: list[Candidate],
    request: RouteRequest,
    settings: RoutingSettings,
    stale: Container[WorkerId],
    backlog: Backlog,
) -> list[Scored]:
    """`score` of the policies that estimate times. The blocks to prefill are the request's own."""
    size = request.prompt.block_size
    wanted_m = request.prompt.tokens * MILLI // size
    credits_m, pending_credit_m = _Credits(settings.credits_m), settings.pending_credit_m
    (base_us, per_token_m), wait_us = backlog.time, backlog.waits_us.get
    per_own, per_request = settings.own_weight_m, settings.own_request_weight_m
    per_active = settings.active_weight_m * per_token_m * size // MILLI
    bound_us = settings.session_wait_max_ms * MILLI
    by_time, new = settings.policy == "time", tuple.__new__
    found = []
    for candidate in candidates:
        worker, _, _, _, _, overlap, pending, active_blocks, active_requests, _, _, _ = candidate
        credit = credits_m[overlap]
        shared = pending - overlap[-1]  # as pending_beyond
        if shared > 0:
            credit += shared * pending_credit_m
            active_blocks -= shared
        if worker in stale:
            credit = credit * settings.stale_credit_m // MILLI
        prefill_m = wanted_m - credit if wanted_m > credit else 0
        cost = wait_us(worker, 0)
        if by_time:  # as estimate(…), without the call
            own = base_us + per_token_m * -(-prefill_m * size // MILLI) // MILLI
            cost += per_own * own // MILLI + per_request * own * active_requests // MILLI
            cost += per_active * active_blocks // MILLI
        else:
            cost = cost - bound_us if cost > bound_us else 0
        found.append(new(Scored, (candidate, cost, prefill_m)))
    return found


class Estimate(NamedTuple):
    """What the cost of `time` is the sum of; microseconds."""

    own: int
    wait: int
    decode: int
    requests: int


def estimate(candidate: Candidate, prefill_m: int, settings: RoutingSettings, size: int, backlog: Backlog) -> Estimate:
    """The terms for a candidate with these blocks of the request to prefill, in thousandths."""
    own = backlog.time.us(-(-prefill_m * size // MILLI))
    active_blocks = candidate.active_blocks - pending_beyond(candidate)  # what both hold is held once
    return Estimate(
        own=settings.own_weight_m * own // MILLI,
        wait=backlog.waits_us.get(candidate.worker, 0),
        decode=settings.active_weight_m * backlog.time.per_token_m * size // MILLI * active_blocks // MILLI,
        requests=settings.own_request_weight_m * own * candidate.active_requests // MILLI,
    )


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
    """The one that serves the request, then the others by cost, equal ones by the hash of request and worker; under
    `session`, of session and worker.

    `scored` is sorted by id and not empty; `turn` counts this replica's choices.
    """
    assert scored
    asked, costs = _asked(request, settings), [*map(_cost, scored)]

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
        case "power-of-two":
            chosen = _of_two(costs, seed)
        case policy if settings.temperature_m and policy in SOFTENED:
            chosen = _softened(costs, settings.temperature_m, seed)
        case _ if settings.tie_margin_m:
            highest = costs[order[0]] + settings.tie_margin_m
            chosen = min((at for at in order if costs[at] <= highest), key=tie)
        case _:
            chosen = order[0]
    order.remove(chosen)
    return [scored[at] for at in (chosen, *order)]


_cost = attrgetter("cost")


def _asked(request: RouteRequest, settings: RoutingSettings) -> bytes:
    """What, with a worker's id, decides between equal costs."""
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


def _of_two(costs: list[int], seed: int) -> int:
    """The cheaper one of two that the seed draws; the first if they cost the same."""
    if len(costs) == 1:
        return 0
    first, second = two_of(len(costs), seed)
    return second if costs[second] < costs[first] else first


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
