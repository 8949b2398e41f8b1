"""Cost of a candidate: a pure function of the candidate and the settings, in integers.

The cost of `kv` is that of Dynamo's router in spirit (prefill that is left, plus active blocks), in thousandths:

    cost(w) = prefill_weight * (blocks to prefill on w, queued ones included, less overlap credit by tier)
            + decode_weight  * (active blocks on w with this request added)
            + request_weight * (active requests on w)

That of `time` is an estimate in microseconds of what the request costs on w, itself and others (the weights were
searched on public traces; own_weight above 1 stands for what the copy that it makes pushes out):

    cost(w) = own_weight * own(w) + wait(w)
            + active_weight * (prefill of each token that fits into the active blocks on w)
            + FIRST_ACTIVE_TIMES * active_weight * talks * (the same of the first FIRST_ACTIVE_TOKENS of them)
            + own_request_weight * own(w) * (active requests on w)
            + reuse_weight * (prefill of the whole prompt) * (what the talks reuse that live on w)
            + delay_weight * talks * (OWN_DELAYS * (wait(w) + own(w)) + own(w) * (active requests on w))
            + TURNOVER_TIMES * own(w) * (how much more of w's cache prompts filled of late than elsewhere)
            + load(w) * (1 + delay_weight * talks * OWN_DELAYS)

where own(w) is how long the prefill that is left lasts there, with the same credits as above, and wait(w) how long
those outstanding hold it up (`projections.policy.prefill_backlog`). `talks` is 0 where no worker reuses the prompts of
talks, and 1 where one reuses as much as REUSE_FULL; so delays count more where answers come from long talks. load(w) is
how long the blocks from slower tiers are loaded there, where that was learned (`projections.policy.load_time`); then
they take off as much as blocks on the device. A load delays its own request alone: the engine goes on.

`approximate` has the cost of `kv`, with the cached blocks that were believed instead of reported
(`projections.folds.approximate_index`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from core.ids import WorkerId
from core.settings import APPROXIMATE, RoutingSettings
from projections.folds.load_fold import REUSE_STEPS, TURNOVER_STEPS
from projections.policy.delay_price import OWN_DELAYS, REUSE_FULL, delay_price_m
from projections.policy.load_time import LoadPrices
from projections.policy.prefill_backlog import NO_BACKLOG, PrefillBacklog
from projections.policy.view import Candidate, RouteRequest

MILLI = 1000
FIRST_ACTIVE_TOKENS = 80_000
"""Tokens in active blocks of a worker that count more than further ones: one talk of coding agents. Where each worker
has as many, the price is the same everywhere, and prompts stay where their caches are."""
FIRST_ACTIVE_TIMES = 10
"""They cost so many times `active_weight` more: searched on a public trace of coding agents. So while another worker
has less, company costs about a prefill of each of its tokens."""
TURNOVER_TIMES = 4
"""A prefill costs so many times more where all of the cache was filled of late, and nothing of another one: it pushes
out what is still needed, and a talk brings a few times as much as its first turn. Searched on made talks and on public
traces."""
TURNOVER_SLACK = 8
"""A worker whose turnover is below the mean by more than so many 64ths draws prompts no more than with that: one that
has just joined is not flooded."""
ESTIMATING_POLICIES = frozenset({"time", "session"})
"""Policies that look at how long outstanding prefills hold up a new one; their costs are in microseconds."""
TURNOVER_POLICY = "time"
"""The policy that reads turnovers."""
BLOCK_COST_POLICIES = frozenset({"kv", APPROXIMATE})
"""Policies with the cost of `kv`, in thousandths of a weighted block."""
REQUEST_COST_POLICIES = frozenset({"least-loaded", "power-of-two"})
"""Policies with costs in thousandths of a request. The costs of all further policies are 0."""


class ScoredCandidate(NamedTuple):
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
    backlog: PrefillBacklog = NO_BACKLOG,
) -> list[ScoredCandidate]:
    """The candidates, in their order, with their costs; lower is better. Round-robin and random leave the costs 0.

    One loop without calls: with many workers it is most of a decision.
    """
    if settings.policy in ESTIMATING_POLICIES:
        return _score_by_time(candidates, request, settings, stale, backlog)
    size, hold = request.prompt.block_size, request.prompt.blocks_to_hold
    needed_m = request.prompt.tokens * MILLI // size
    credits_m, pending_credit_m = _Credits(settings.credits_m), settings.pending_credit_m
    per_prefill, per_block = settings.prefill_weight_m, settings.decode_weight_m
    per_request = settings.request_weight_m * MILLI
    new = tuple.__new__  # half the price of ScoredCandidate(…)
    kv, least_loaded = settings.policy in BLOCK_COST_POLICIES, settings.policy in REQUEST_COST_POLICIES
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
        if needed_m > credit:
            prefill_m += needed_m - credit
        cost = 0
        if kv:
            active_m = (active_blocks + hold) * MILLI
            cost = (per_prefill * prefill_m + per_block * active_m + per_request * active_requests) // MILLI
        elif least_loaded:
            cost = (active_requests + waiting) * MILLI
        found.append(new(ScoredCandidate, (candidate, cost, prefill_m)))
    return found


def _score_by_time(
    candidates: list[Candidate],
    request: RouteRequest,
    settings: RoutingSettings,
    stale: Container[WorkerId],
    backlog: PrefillBacklog,
) -> list[ScoredCandidate]:
    """`score` of the policies that estimate times. The blocks to prefill are the request's own."""
    size = request.prompt.block_size
    needed_m = request.prompt.tokens * MILLI // size
    loading, pending_credit_m = backlog.loading, settings.pending_credit_m
    credits_m = _Credits(settings.credits_m if loading is None else loading.credits_m)
    loads_us = None if loading is None else _Loads(loading)
    (base_us, per_token_m), wait_us = backlog.time, backlog.waits_us.get
    per_own, per_request = settings.own_weight_m, settings.own_request_weight_m
    per_active = settings.active_weight_m * per_token_m * size // MILLI
    first, per_first = FIRST_ACTIVE_TOKENS // size, first_active_price_m(settings, backlog, size)
    bound_us = settings.session_wait_max_ms * MILLI
    reuse, per_reuse = backlog.reuse.get, reuse_price_us(settings, request.prompt.tokens, per_token_m)
    per_delay = delay_price_m(settings, backlog.reuse_max)
    per_load = load_price_m(per_delay)
    turnover, by_time, new = backlog.turnover.get, settings.policy == "time", tuple.__new__
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
        prefill_m = needed_m - credit if needed_m > credit else 0
        cost = wait = wait_us(worker, 0)
        if by_time:  # as estimate(…), without the call
            own = base_us + per_token_m * -(-prefill_m * size // MILLI) // MILLI
            cost += per_own * own // MILLI + per_request * own * active_requests // MILLI
            cost += per_active * active_blocks // MILLI + per_reuse * reuse(worker, 0) // REUSE_STEPS
            if per_first:
                cost += per_first * min(first, active_blocks) // MILLI
            cost += per_delay * (OWN_DELAYS * (wait + own) + own * active_requests) // MILLI
            cost += TURNOVER_TIMES * own * turnover(worker, 0) // TURNOVER_STEPS
            if loads_us is not None:
                cost += per_load * loads_us[overlap] // MILLI
        else:
            cost = cost - bound_us if cost > bound_us else 0
        found.append(new(ScoredCandidate, (candidate, cost, prefill_m)))
    return found


class TimeCostTerms(NamedTuple):
    """Terms of the cost of `time`; microseconds."""

    own: int
    wait: int
    decode: int
    """Of the active blocks."""
    requests: int
    reuse: int
    """Of the talks that live there."""
    delays: int
    """Of what the request waits, and holds up, where talks are."""
    load: int = 0
    """Of the blocks that it loads."""
    turnover: int = 0
    """Of what it pushes out."""


def estimate(
    candidate: Candidate, prefill_m: int, settings: RoutingSettings, tokens: int, size: int, backlog: PrefillBacklog
) -> TimeCostTerms:
    """The terms for a candidate with these blocks of the request to prefill, in thousandths. `tokens` has all of its
    prompt."""
    own, wait = backlog.time.us(-(-prefill_m * size // MILLI)), backlog.waits_us.get(candidate.worker, 0)
    active_blocks = candidate.active_blocks - pending_beyond(candidate)  # what both hold is held once
    load_us = 0 if backlog.loading is None else backlog.loading.load_us(candidate.overlap)
    return TimeCostTerms(
        own=settings.own_weight_m * own // MILLI,
        wait=wait,
        decode=settings.active_weight_m * backlog.time.per_token_m * size // MILLI * active_blocks // MILLI
        + first_active_price_m(settings, backlog, size) * min(active_blocks, FIRST_ACTIVE_TOKENS // size) // MILLI,
        requests=settings.own_request_weight_m * own * candidate.active_requests // MILLI,
        reuse=reuse_price_us(settings, tokens, backlog.time.per_token_m)
        * backlog.reuse.get(candidate.worker, 0)
        // REUSE_STEPS,
        delays=delay_price_m(settings, backlog.reuse_max)
        * (OWN_DELAYS * (wait + own) + own * candidate.active_requests)
        // MILLI,
        load=load_price_m(delay_price_m(settings, backlog.reuse_max)) * load_us // MILLI,
        turnover=TURNOVER_TIMES * own * backlog.turnover.get(candidate.worker, 0) // TURNOVER_STEPS,
    )


def first_active_price_m(settings: RoutingSettings, backlog: PrefillBacklog, size: int) -> int:
    """The price of each of a worker's first active blocks beside that of any, in thousandths of a microsecond, by how
    full of talks the workers are; 0 by rules that have none. Decision 78 has the reasons."""
    if not backlog.prices_first_active:
        return 0
    price_m = FIRST_ACTIVE_TIMES * settings.active_weight_m * min(backlog.reuse_max, REUSE_FULL) // REUSE_FULL
    return price_m * backlog.time.per_token_m * size // MILLI


def reuse_price_us(settings: RoutingSettings, tokens: int, per_token_m: int) -> int:
    """The price of a doubling of the reuse, for a prompt of so many tokens."""
    return settings.reuse_weight_m * (per_token_m * tokens // MILLI) // MILLI


def most_reuse(candidates: Iterable[Candidate], reuse: Mapping[WorkerId, int]) -> int:
    """The greatest reuse of these candidates, by which delays have their price; 0 where none is reported."""
    return max((reuse.get(each.worker, 0) for each in candidates), default=0) if reuse else 0


def excess_turnover(candidates: Iterable[Candidate], turnover: Mapping[WorkerId, int]) -> dict[WorkerId, int]:
    """By how much each candidate's turnover is above the least one, where it is: in 64ths of a cache. One that is below
    the mean by more than TURNOVER_SLACK counts as that. O(candidates), and nothing where none is reported."""
    if not turnover:
        return {}
    known = {each.worker: turnover.get(each.worker, 0) for each in candidates}
    base = turnover_base(min(known.values(), default=0), sum(known.values()), len(known))
    return {worker: share - base for worker, share in known.items() if share > base}


def turnover_base(least: int, total: int, candidates: int) -> int:
    """The turnover from which on that of a candidate costs, of the least and the sum of all."""
    return max(least, total // max(1, candidates) - TURNOVER_SLACK)


def load_price_m(per_delay: int) -> int:
    """The price of a microsecond that blocks are loaded, in thousandths, where a delay has that price: the request is
    delayed by it, as by a wait, and nothing else."""
    return MILLI + OWN_DELAYS * per_delay


class _Credits(dict[tuple[int, ...], int]):
    """Discount of cached blocks on the prefill, in thousandths, by overlap: most candidates have one of a few."""

    def __init__(self, credits_m: tuple[int, ...]) -> None:
        super().__init__()
        self._credits_m = credits_m

    def __missing__(self, overlap: tuple[int, ...]) -> int:
        before = overlap[0]
        credit = before * self._credits_m[0]
        if overlap.count(before) < len(overlap):  # slower tiers have more
            for depth, credit_m in zip(overlap[1:], self._credits_m[1:], strict=True):
                credit += (depth - before) * credit_m
                before = depth
        self[overlap] = credit
        return credit


class _Loads(dict[tuple[int, ...], int]):
    """`LoadPrices.load_us` by overlap."""

    def __init__(self, loading: LoadPrices) -> None:
        super().__init__()
        self._load_us = loading.load_us

    def __missing__(self, overlap: tuple[int, ...]) -> int:
        load_us = self[overlap] = self._load_us(overlap)
        return load_us


def pending_beyond(candidate: Candidate) -> int:
    """Blocks of the prompt that are not cached there, but are being computed for another request."""
    return max(0, candidate.pending - candidate.overlap[-1])
