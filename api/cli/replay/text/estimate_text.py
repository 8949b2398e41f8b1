"""A decision by estimated time, or by a session's order, as lines of text: the cost formula, and held requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from api.cli.quantities import count_text
from replay.explain.explanation import AttemptExplanation, CandidateRow, EstimateBasis, TierLoading

Line = tuple[str, str]
"""A title, which may be empty, and what stands behind it."""
FORMULA = (
    "own_weight {own_weight:g} * prefill + wait + active_weight {active_weight:g} * prefill of the tokens in active "
    "blocks{first} + own_request_weight {own_request_weight:g} * prefill * active requests"
)
OF_FIRST = ", {times:g} times more{talks} for the first {tokens}"
"""The price of the first active tokens, by rules that have it and where talks are."""
OF_RATES = " + reuse_weight {reuse_weight:g} * prefill of the whole prompt * doublings of the reuse there"
"""Its next term, where workers report reuse, …"""
OF_DELAYS = " + delay_weight {delay_weight:g}{talks} * (twice wait and prefill + prefill * active requests)"
"""… delays …"""
OF_LOADS = " + load{delays}"
"""… loads, where their time was learned …"""
OF_TURNOVER = " + {times:g} * prefill * how much more of the cache prompts filled of late than elsewhere"
"""… and what it pushes out."""
BOUND = "how much longer than session_wait_max_ms {session_wait_max_ms:g} the wait is"
TIER_NAMES = {"host": "host", "disk": "disk", "remote": "remote disk"}
SOURCES = {
    "set": "as set",
    "learned": "as this replica had learned from first tokens",
    "default": "by default: this replica had not learned it yet",
}
"""The words of `EstimateBasis.source` as phrases."""
SOURCES_ASKED = {
    "set": "as set",
    "learned": "as was learned from first tokens by the newest decision that says it",
    "default": "by default: no decision by then says what was learned",
}
"""The same for a decision that was not made."""


def estimate_lines(estimates: EstimateBasis | None, sources: Mapping[str, str] = SOURCES) -> Iterator[Line]:
    """The formula of the costs in the table; none under a policy that estimates nothing."""
    if estimates is not None:
        yield "score" if "own_weight" in estimates.weights else "cost", _formula(estimates)
        if "own_weight" in estimates.weights:
            yield "", f"a prefill lasts {_lasts(estimates, sources)}"
            if estimates.loading:
                yield "", f"a block is loaded {', '.join(map(_loaded, estimates.loading))}"


def hold_lines(attempt: AttemptExplanation) -> Iterator[Line]:
    """The reason why it was held in the router, and the requests held beside it; follows the line on its wait."""
    hold = attempt.hold
    if hold is None:
        return
    if hold.held_ms is not None:
        did = "was done with" if hold.by else "computed nothing that the log tells of"
        part = "" if _waited_ms(attempt) == hold.held_ms else f"for {hold.held_ms} ms of it held in the router; "
        yield "", f"{part}meanwhile {attempt.worker_name} {did}"
    for by in hold.by:
        yield "", f"{by.after_ms:+} ms {by.request}, of which it computed {count_text(by.tokens, 'token')}"
    for at, beside in enumerate(hold.beside):
        waiting = f"{beside.request} ({count_text(beside.tokens, 'token')})"
        went = f"{waiting}, which went to {beside.name} {beside.after_ms} ms later"
        yield "" if at else "beside", f"{'held too when it was sent: ' * (not at)}{went}"


def _waited_ms(attempt: AttemptExplanation) -> int | None:
    return None if attempt.queued is None else attempt.queued.waited_ms


def _formula(it: EstimateBasis) -> str:
    if not it.exact:
        why = "made under other rules" if it.weights_known else "weighed by settings that the log does not have"
        return f"the recorded costs were {why}, and are not taken apart"
    known = "" if it.weights_known else "; these weights are the defaults, which give the recorded costs"
    if "own_weight" in it.weights:
        talks = OF_RATES if "reuse_weight" in it.weights else ""
        delays = OF_DELAYS if "delay_weight" in it.weights else ""
        share = "" if it.talks == 1 else f" * {it.talks:g}"
        tokens = count_text(it.first_active_tokens, "token")
        first = (
            OF_FIRST.format(times=it.first_active_times, talks=share, tokens=tokens) if it.first_active_times else ""
        )
        counted = any(not tier.slow for tier in it.loading)
        delayed = f" * (1 + twice delay_weight{share})" if delays else ""
        loads = OF_LOADS.format(delays=delayed) if counted else ""
        pushed = OF_TURNOVER.format(times=it.turnover_times) if it.turnover_times else ""
        return f"{(FORMULA + talks + delays).format(**it.weights, talks=share, first=first)}{loads}{pushed}{known}"
    return f"in ms: {BOUND.format(**it.weights)}{known}"


def _lasts(it: EstimateBasis, sources: Mapping[str, str]) -> str:
    return f"{it.base_ms:g} ms and {it.per_token_us:g} us per token that it computes, {sources[it.source]}"


def _loaded(tier: TierLoading) -> str:
    late = ": slower than computing it, so none is counted or loaded" if tier.slow else ""
    return f"from the {TIER_NAMES[tier.tier]} in {tier.ms:.3g} ms{late}"


def timed_heads(rows: Sequence[CandidateRow]) -> tuple[str, ...]:
    """The heads of the cost columns of such candidates."""
    held = ("+ held",) if _held(rows) else ()
    if not _by_terms(rows):
        return ("cost", "wait", *held)
    talks = ("+ talks",) if _has_reuse(rows) else ()
    delays = ("+ delays",) if _has_delays(rows) else ()
    loads = ("+ load",) if _has_loads(rows) else ()
    pushed = ("+ pushed out",) if _has_turnover(rows) else ()
    terms = ("= prefill", "+ wait", *held, "+ decode", "+ requests", *talks, *delays, *loads, *pushed)
    return ("score", *terms, "computes", "lasts, ms")


def timed_costs(row: CandidateRow, rows: Sequence[CandidateRow]) -> tuple[str, ...]:
    """One of them: its cost and the terms, which add up to the microsecond."""
    timed = row.timed
    assert timed is not None
    wait = (_ms(timed.outstanding_ms), *[_ms(timed.held_ms)] * _held(rows))
    if not _by_terms(rows):
        return (_ms(row.cost), *wait)
    own = "" if timed.own_ms is None else _ms(timed.own_ms)
    terms = (_ms(row.prefill_cost), *wait, _ms(row.decode_cost), _ms(row.request_cost))
    terms += (_ms(row.reuse_cost),) * _has_reuse(rows) + (_ms(row.delay_cost),) * _has_delays(rows)
    terms += (_ms(row.load_cost),) * _has_loads(rows) + (_ms(row.turnover_cost),) * _has_turnover(rows)
    return (_ms(row.cost), *terms, count_text(timed.tokens, "token"), own)


def _held(rows: Sequence[CandidateRow]) -> bool:
    return any(row.timed is not None and row.timed.held_ms for row in rows)


def _has_reuse(rows: Sequence[CandidateRow]) -> bool:
    return any(row.timed is not None and row.timed.reuse for row in rows)


def _has_delays(rows: Sequence[CandidateRow]) -> bool:
    return any(row.delay_cost for row in rows)


def _has_loads(rows: Sequence[CandidateRow]) -> bool:
    return any(row.load_cost for row in rows)


def _has_turnover(rows: Sequence[CandidateRow]) -> bool:
    return any(row.turnover_cost for row in rows)


def _by_terms(rows: Sequence[CandidateRow]) -> bool:
    return any(row.timed is not None and row.timed.own_ms is not None for row in rows)


def _ms(ms: float) -> str:
    return f"{ms:,.3f}"
