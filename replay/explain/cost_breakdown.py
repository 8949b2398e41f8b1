"""The cost of each candidate by its terms, and the draws and session orders that decide beside the cost.

Under `kv` a cost is a sum of weighted blocks, under `time` and `session` one of microseconds. Texts that compare two
candidates term by term are made here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from core.event_json import hash_text
from core.events import RequestRouted
from core.events.routing import DECIDE_VERSION
from core.settings import TIERS, RoutingSettings
from projections.folds.load_fold import TURNOVER_STEPS
from projections.policy.cost import (
    BLOCK_COST_POLICIES,
    ESTIMATING_POLICIES,
    FIRST_ACTIVE_TIMES,
    FIRST_ACTIVE_TOKENS,
    MILLI,
    TURNOVER_TIMES,
    ScoredCandidate,
    TimeCostTerms,
    estimate,
    pending_beyond,
)
from projections.policy.delay_price import REUSE_FULL
from projections.policy.policies import SESSION_TOKENS, SOFT_STEPS, SOFT_TABLE, TEMPERATURE_POLICIES, two_of
from projections.policy.rules import RULES
from replay.explain.counterfactuals import weight_terms
from replay.explain.decision_inputs import DecisionInputs
from replay.explain.explanation import EstimateBasis, PassedWorker, SessionOrder, TierLoading, TimeEstimate


class CostTerms(NamedTuple):
    """Blocks under `kv`, milliseconds under `time`."""

    prefill: float = 0.0
    decode: float = 0.0
    request: float = 0.0
    wait: float = 0.0
    reuse: float = 0.0
    delays: float = 0.0
    load: float = 0.0
    turnover: float = 0.0


def cost_terms(on: DecisionInputs, scored: ScoredCandidate) -> CostTerms | None:
    """The terms of one candidate's cost; None where it is no sum, or is not known by its terms."""
    settings = on.settings
    if settings.policy in BLOCK_COST_POLICIES:
        if not on.settings_known:
            return None
        per = weight_terms(scored, on.request)
        weights = (settings.prefill_weight_m, settings.decode_weight_m, settings.request_weight_m)
        return CostTerms(*(weight * term / MILLI**2 for weight, term in zip(weights, per, strict=True)))
    if settings.policy == "time":
        found = _split_estimate(on, scored)
        if found is not None:
            own, wait, decode, requests, reuse, delays, load, turnover = (term / MILLI for term in found)
            return CostTerms(own, decode, requests, wait, reuse, delays, load, turnover)
    return None


WEIGHTS = {
    "time": ("own_weight", "active_weight", "own_request_weight", "reuse_weight", "delay_weight"),
    "session": ("session_wait_max_ms",),
}
"""The settings that make a cost, by policy."""
SET, LEARNED, DEFAULT = "set", "learned", "default"


def _split_estimate(on: DecisionInputs, scored: ScoredCandidate) -> TimeCostTerms | None:
    """The terms of a candidate's cost under `time`, in microseconds; None if they are not all of it, because it was
    made with other settings."""
    event = on.event
    parts = estimate(scored.candidate, scored.prefill_m, on.settings, event.prompt_tokens, event.block_size, on.backlog)
    return parts if sum(parts) == scored.cost else None


def estimate_basis(on: DecisionInputs) -> EstimateBasis | None:
    """The basis of the decision's estimates; None under a policy that estimates nothing. O(candidates)."""
    settings = on.settings
    if settings.policy not in ESTIMATING_POLICIES:
        return None
    exact = all(_adds_up(on, scored) for scored in on.ranked)
    given = settings.to_mapping()
    if not any(on.backlog.reuse.get(scored.candidate.worker) for scored in on.ranked):
        del given["reuse_weight"]  # nothing to weigh, or a version of the rules that has no such term
    if not on.backlog.reuse_max:
        del given["delay_weight"]  # the like
    has_first = settings.policy == "time" and on.backlog.prices_first_active and on.backlog.reuse_max > 0
    return EstimateBasis(
        exact=exact,
        weights={name: float(given[name]) for name in WEIGHTS.get(settings.policy, ()) if name in given and exact},
        weights_known=on.settings_known,
        base_ms=on.backlog.time.base_us / MILLI,
        per_token_us=on.backlog.time.per_token_m / MILLI,
        source=_estimate_source(on.event, settings),
        talks=min(on.backlog.reuse_max, REUSE_FULL) / REUSE_FULL,
        first_active_times=float(FIRST_ACTIVE_TIMES) if has_first else 0.0,
        first_active_tokens=FIRST_ACTIVE_TOKENS // on.event.block_size * on.event.block_size if has_first else 0,
        turnover_times=float(TURNOVER_TIMES) if any(on.backlog.turnover.values()) else 0.0,
        loading=_tier_loadings(on),
    )


def _tier_loadings(on: DecisionInputs) -> list[TierLoading]:
    learned, loading = on.request.load_time, on.backlog.loading
    if learned is None or loading is None:
        return []
    pairs = zip(TIERS[1:], learned.tiers_m, loading.slow[1:], strict=True)
    return [TierLoading(tier=tier, ms=time_m / MILLI**2, slow=slow) for tier, time_m, slow in pairs if time_m]


def _estimate_source(event: RequestRouted, settings: RoutingSettings) -> str:
    """The source of the decision's time per prefill token."""
    if event.prefill_time:
        return LEARNED
    return SET if settings.prefill_us_per_token_m else DEFAULT


def _adds_up(on: DecisionInputs, scored: ScoredCandidate) -> bool:
    if on.settings.policy == "time":
        return _split_estimate(on, scored) is not None
    beyond_us = on.backlog.waits_us.get(scored.candidate.worker, 0) - on.settings.session_wait_max_ms * MILLI
    return scored.cost == max(0, beyond_us)


def _computed_tokens(scored: ScoredCandidate, size: int) -> int:
    """Of the prompt, that would be computed there, as `estimate` counts them."""
    return -(-scored.prefill_m * size // MILLI)


def time_estimate(on: DecisionInputs, scored: ScoredCandidate, *, exact: bool) -> TimeEstimate:
    """The estimates of one candidate."""
    size, candidate = on.event.block_size, scored.candidate
    computes, asks = _computed_tokens(scored, size), exact and on.settings.policy == "time"
    return TimeEstimate(
        tokens=computes,
        own_ms=on.backlog.time.us(computes) / MILLI if asks else None,
        outstanding_ms=on.backlog.outstanding_us(candidate.worker) / MILLI,
        held_ms=on.backlog.held_us.get(candidate.worker, 0) / MILLI,
        decode_tokens=(candidate.active_blocks - pending_beyond(candidate)) * size,
        reuse=on.backlog.reuse.get(candidate.worker, 0),
        turnover=on.backlog.turnover.get(candidate.worker, 0) / TURNOVER_STEPS,
        load_ms=0.0 if on.backlog.loading is None else on.backlog.loading.load_us(candidate.overlap) / MILLI,
    )


class _CostDifference(NamedTuple):
    """One term in which two candidates differ."""

    gain_us: int
    """By how much it makes the first one cheaper; negative if dearer."""
    text: str


def compare_costs(on: DecisionInputs, ours: ScoredCandidate, theirs: ScoredCandidate) -> str:
    """The advantages and drawbacks of the first against the second, the largest first: `computes 3,100 tokens more
    (760), but waits 800 ms less`; weighted numbers stand in brackets. Empty if the terms of the costs are not known."""
    points = list(_points(on, ours, theirs))
    better = sorted((point for point in points if point.gain_us > 0), key=lambda point: -point.gain_us)
    worse = sorted((point for point in points if point.gain_us < 0), key=lambda point: point.gain_us)
    if not better or not worse:
        return _joined(better or worse)
    return f"{_joined(worse)}, but {_joined(better)}"


def _points(on: DecisionInputs, ours: ScoredCandidate, theirs: ScoredCandidate) -> Iterator[_CostDifference]:
    size = on.event.block_size
    mine, other = (_split_estimate(on, each) for each in (ours, theirs))
    if mine is None or other is None:
        return
    more = _computed_tokens(ours, size) - _computed_tokens(theirs, size)
    gain_us = other.own - mine.own
    yield _CostDifference(gain_us, f"computes {_by(more)} ({score_text(abs(gain_us))})" if more else "")
    gain_us = other.wait - mine.wait
    yield _CostDifference(gain_us, f"waits {ms_text(abs(gain_us))} {'less' if gain_us > 0 else 'longer'}")
    gain_us = other.decode - mine.decode
    blocks = _active(ours) - _active(theirs)
    fewer = f"{abs(blocks):,} {'fewer' if blocks < 0 else 'more'} active blocks"
    yield _CostDifference(gain_us, f"has {fewer} ({score_text(abs(gain_us))})")
    yield _CostDifference(other.requests - mine.requests, _holding_up(ours, theirs, other.requests - mine.requests))
    gain_us = other.reuse - mine.reuse
    yield _CostDifference(gain_us, f"has {'fewer' if gain_us > 0 else 'more'} talks ({ms_text(abs(gain_us))})")
    gain_us = other.delays - mine.delays
    yield _CostDifference(gain_us, f"delays talks {'less' if gain_us > 0 else 'more'} ({ms_text(abs(gain_us))})")
    gain_us = other.turnover - mine.turnover
    yield _CostDifference(gain_us, f"pushes out {'less' if gain_us > 0 else 'more'} ({ms_text(abs(gain_us))})")
    gain_us = other.load - mine.load
    yield _CostDifference(gain_us, f"loads {ms_text(abs(gain_us))} {'less' if gain_us > 0 else 'longer'}")


def _by(more: int) -> str:
    return f"{abs(more):,} token{'' if abs(more) == 1 else 's'} {'fewer' if more < 0 else 'more'}"


def _active(scored: ScoredCandidate) -> int:
    return scored.candidate.active_blocks - pending_beyond(scored.candidate)


def _holding_up(ours: ScoredCandidate, theirs: ScoredCandidate, gain_us: int) -> str:
    mine, other = ours.candidate.active_requests, theirs.candidate.active_requests
    requests = f"{mine} request{'' if mine == 1 else 's'}"
    if mine == other:
        how = f"holds up {requests} for {'less' if gain_us > 0 else 'more'} time"
    else:
        how = f"holds up {requests}, not {other}"
    return f"{how} ({score_text(abs(gain_us))})"


def ms_text(us: float) -> str:
    """`240 ms`, `13.7 ms`, `1.48 ms`: three digits that count."""
    return f"{score_text(us)} ms"


def score_text(us: float) -> str:
    """The same as a score: weighted times are no times."""
    ms = us / MILLI
    digits = 0 if ms >= 100 else 1 if ms >= 10 else 2 if ms >= 1 else 3
    text = f"{ms:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text


def _joined(points: list[_CostDifference]) -> str:
    *before, last = [point.text for point in points] or [""]
    return f"{', '.join(before)} and {last}" if before else last


SEED_BITS = 64


def draws_by_cost(settings: RoutingSettings) -> bool:
    """True if the policy draws among candidates by their costs."""
    return settings.policy in TEMPERATURE_POLICIES and settings.temperature_m > 0


def choice_probabilities(costs: Sequence[int], settings: RoutingSettings) -> list[float] | None:
    """Of being chosen, in the order of the costs; None where no draw decides."""
    if settings.policy == "random":
        return [1 / len(costs)] * len(costs)
    if settings.policy == "power-of-two" and len(costs) > 1:
        return [_of_pairs(costs, cost) for cost in costs]
    if not draws_by_cost(settings):
        return None
    weights = _weights(costs, settings.temperature_m)
    return [weight / sum(weights) for weight in weights]


def _of_pairs(costs: Sequence[int], cost: int) -> float:
    """Of the ordered pairs of candidates, the share that one of this cost wins: the cheaper does, or the first."""
    dearer, same = sum(each > cost for each in costs), costs.count(cost) - 1
    return (2 * dearer + same) / (len(costs) * (len(costs) - 1))


def draw_position(seed: int) -> float:
    """The position of the draw in [0, 1), which candidates share by id, each by its probability."""
    return seed / (1 << SEED_BITS)


def _weights(costs: Sequence[int], temperature_m: int) -> list[int]:
    """As `projections.policy.policies` has them: 2^(-(cost - min) / (spread * temperature)), in integers."""
    lowest, highest = min(costs), max(costs)
    scale = max(1, (highest - lowest) * temperature_m)
    steps = [(cost - lowest) * SOFT_STEPS * MILLI // scale for cost in costs]
    return [SOFT_TABLE[step % SOFT_STEPS] >> (step // SOFT_STEPS) for step in steps]


NameOf = Callable[[str], str]


def session_order(on: DecisionInputs, name: NameOf) -> SessionOrder | None:
    """The chosen worker's position in the order of the session, and the workers before it; None under other policies,
    and where the log does not have the bound."""
    if on.settings.policy != "session" or not on.settings_known:
        return None
    of, key, blocks = _session_of(on)
    order = _order(on)
    at = order.index(on.ranked[0]) if _follows(on, order) else None
    return SessionOrder(
        of=of,
        key=key,
        blocks=blocks,
        position=None if at is None else at + 1,
        wait_max_ms=on.settings.session_wait_max_ms,
        passed=[_passed(on, scored, name) for scored in order[:at]] if at is not None else [],
    )


def drawn_pair(on: DecisionInputs) -> list[ScoredCandidate]:
    """The two that `power-of-two` drew, the first one first; none under other policies, of a single candidate, and
    where the record does not hold all: places are drawn, and they count by id."""
    if on.settings.policy != "power-of-two" or len(on.ranked) < max(2, on.event.candidates_total):
        return []
    by_id = sorted(on.ranked, key=lambda scored: scored.candidate.worker)
    return [by_id[at] for at in two_of(len(by_id), on.event.seed)]


def session_reason(on: DecisionInputs, name: NameOf) -> str:
    """Why the first of the ranked was chosen under `session`."""
    order = session_order(on, name)
    assert order is not None
    chosen = on.ranked[0]
    called, bound = name(chosen.candidate.worker), f"the bound of {order.wait_max_ms:g} ms (session_wait_max_ms)"
    if min(scored.cost for scored in on.ranked):
        wait = ms_text(on.backlog.waits_us.get(chosen.candidate.worker, 0))
        return f"everywhere the wait for prefills is beyond {bound}; {called} has the shortest, {wait}"
    whose = SESSION_TEXTS[order.of].format(order)
    if order.position is None:
        return f"{called} is the first in the order of {whose} where the wait for prefills is within {bound}"
    if order.position == 1:
        return f"{called} is the first in the order of {whose}, and the wait for prefills there is within {bound}"
    waits = ", ".join(f"{each.name} {ms_text(each.wait_ms * MILLI)}" for each in order.passed)
    passed = f"before it, the wait for prefills is beyond {bound}: {waits}"
    return f"{called} is number {order.position} in the order of {whose}; {passed}"


SESSION_TEXTS = {
    "session": "the session {0.key}",
    "prefix": "prompts that begin so ({0.blocks} blocks, hash {0.key})",
    "request": "this request alone, whose prompt has no full block",
}


def pair_reason(on: DecisionInputs, name: NameOf) -> str:
    """Why the first of the ranked was chosen under `power-of-two`, of at least two candidates."""
    chosen, drew = on.ranked[0], drawn_pair(on)
    called, among = name(chosen.candidate.worker), max(len(on.ranked), on.event.candidates_total)
    if not drew:  # the record does not hold all candidates, so the other one is unknown
        return f"policy power-of-two drew two of {among}: {called} had no more requests than the other"
    first, second = (name(scored.candidate.worker) for scored in drew)
    (other,) = (scored for scored in drew if scored != chosen)
    busy, others = (scored.candidate.active_requests + scored.candidate.waiting for scored in (chosen, other))
    text = f"policy power-of-two drew {first} and {second} of {among}"
    if busy == others:
        return f"{text}: both had {busy} requests, and {first} was drawn first"
    return f"{text}: {called} had {busy} requests, {name(other.candidate.worker)} had {others}"


def _session_of(on: DecisionInputs) -> tuple[str, str, int]:
    """The session by `rank`: its kind, its key, and the blocks of the prompt that make it."""
    if on.request.session:
        return "session", on.request.session, 0
    prompt = on.request.prompt
    depth = min(prompt.blocks, max(1, SESSION_TOKENS // prompt.block_size))
    if not depth:
        return "request", on.request.id, 0
    return "prefix", hash_text(prompt.key(depth)), depth


def _order(on: DecisionInputs) -> list[ScoredCandidate]:
    """The order of the candidates if no worker had any wait."""
    idle = [scored._replace(cost=0) for scored in on.ranked]
    settings = msgspec.structs.replace(on.settings, tie_margin_m=0)
    places = {scored.candidate.worker: scored for scored in on.ranked}
    idle.sort(key=lambda scored: scored.candidate.worker)
    rules = RULES.get(on.event.decide_version, RULES[DECIDE_VERSION])
    order = rules.rank(idle, on.request, settings, on.turn or 0, on.event.seed)
    return [places[scored.candidate.worker] for scored in order]


def _follows(on: DecisionInputs, order: list[ScoredCandidate]) -> bool:
    """True if the order decides: it has all candidates, and the first of the cheapest is the chosen one."""
    highest = min(scored.cost for scored in order) + on.settings.tie_margin_m
    first = next(scored for scored in order if scored.cost <= highest)
    return len(order) >= on.event.candidates_total and first == on.ranked[0]


def _passed(on: DecisionInputs, scored: ScoredCandidate, name: NameOf) -> PassedWorker:
    worker = scored.candidate.worker
    return PassedWorker(worker=worker, name=name(worker), wait_ms=on.backlog.waits_us.get(worker, 0) / MILLI)
