"""Sentences on why one candidate was chosen and what the next best lacked, from the rules alone."""

from __future__ import annotations

from core.ids import WorkerId
from core.settings import APPROXIMATE
from projections.policy.cost import BLOCK_COST_POLICIES, ESTIMATING_POLICIES, MILLI, ScoredCandidate, pending_beyond
from projections.policy.rules import RULES
from replay.explain.cost_breakdown import (
    NameOf,
    choice_probabilities,
    compare_costs,
    draw_position,
    draws_by_cost,
    ms_text,
    pair_reason,
    score_text,
    session_reason,
)
from replay.explain.counterfactuals import Counterfactual, required_changes, weight_terms
from replay.explain.decision_inputs import DecisionInputs
from replay.explain.explanation import RequiredChange, RunnerUp

POLICY_INPUTS = {
    "kv": "what is left to prefill there after what its cache saves, and the blocks and requests in flight there",
    "approximate": "the same as kv, its cache taken to hold what was sent there, whatever its engine reports",
    "time": "how long its prefill would last there and hold up others, the wait for those before it, and active blocks",
    "session": "whose turn it is for the session, or for the prompt's beginning, where the wait for prefills is short",
    "power-of-two": "requests in flight and waiting at two workers that are drawn",
    "least-loaded": "requests in flight and waiting there, and not at caches",
    "round-robin": "no cost: workers take turns by id",
    "random": "no cost: the seed chooses",
}
"""The inputs of each policy, as a phrase."""


RECORDED_PART = "of which the record holds the first; fold the log (--whole) for their chances"


def chances(on: DecisionInputs) -> dict[WorkerId, float]:
    """The probability of each candidate, where a draw decided and can be made again; else nothing. A draw by costs
    cannot be made again if the record does not hold all candidates."""
    among = candidate_count(on)
    if not on.settings_known:
        return {}
    if len(on.ranked) < among:
        return {scored.candidate.worker: 1 / among for scored in on.ranked} if on.settings.policy == "random" else {}
    found = choice_probabilities([scored.cost for scored in on.ranked], on.settings) or []
    return {scored.candidate.worker: chance for scored, chance in zip(on.ranked, found, strict=False)}


def candidate_count(on: DecisionInputs) -> int:
    """The number of candidates, with those that the record left out."""
    return max(len(on.ranked), on.event.candidates_total)


def decision_reason(inputs: DecisionInputs, name: NameOf) -> str:
    """Why the first of the ranked was chosen."""
    called = name(inputs.ranked[0].candidate.worker)
    if len(inputs.ranked) == 1:
        return f"{called} was the only candidate"
    among = candidate_count(inputs)
    match inputs.settings.policy:
        case "round-robin":
            turn = "" if inputs.turn is None else f", after {inputs.turn} decisions of this replica for the model"
            return f"policy round-robin looks at no cost: it was {called}'s turn among {among}{turn}"
        case "random":
            return f"policy random looks at no cost: the seed gave {called}, one of {among}"
        case "power-of-two":
            return pair_reason(inputs, name)
        case "session" if inputs.settings_known:
            return session_reason(inputs, name)
    why = _why_drawn if draws_by_cost(inputs.settings) else _why_cheapest
    return why(inputs, name) if inputs.settings_known else _why_unknown(inputs, name)


def _why_unknown(inputs: DecisionInputs, name: NameOf) -> str:
    """The reason by costs alone, where the log does not have the weights."""
    chosen, best = inputs.ranked[:2]
    more = _difference(inputs, *sorted((chosen, best), key=lambda scored: scored.cost))
    than = "as much as" if chosen.cost == best.cost else f"{more} {'less' if chosen.cost < best.cost else 'more'} than"
    points = compare_costs(inputs, chosen, best) if inputs.settings.policy == "time" else ""
    because = f": it {points}" if points else ""
    revision = f"revision {inputs.event.settings_revision} of the settings is not in this log"
    return f"{name(chosen.candidate.worker)} costs {than} {name(best.candidate.worker)}{because}; {revision}"


def _why_cheapest(inputs: DecisionInputs, name: NameOf) -> str:
    chosen, best = inputs.ranked[:2]
    called, next_best = name(chosen.candidate.worker), name(best.candidate.worker)
    if best.cost == chosen.cost:
        return f"{called} and {next_best} cost the same; the hash of request and worker decided"
    if abs(best.cost - chosen.cost) <= inputs.settings.tie_margin_m:
        cheaper = chosen.cost < best.cost
        less = f"{_difference(inputs, chosen, best)} less" if cheaper else f"{_difference(inputs, best, chosen)} more"
        unit = " ms" if inputs.settings.policy == "session" else ""
        margin = f"{inputs.settings.tie_margin_m / MILLI:g}{unit}"
        return (
            f"{called} costs {less} than {next_best}, which is within the tie margin of {margin}; "
            "the hash of request and worker decided"
        )
    because = _because(inputs, chosen, best, name)
    return f"{called} costs {_difference(inputs, chosen, best)} less than {next_best}{because}"


def _why_drawn(inputs: DecisionInputs, name: NameOf) -> str:
    chances_, chosen = chances(inputs), inputs.ranked[0]
    cheapest = min(inputs.ranked, key=lambda scored: scored.cost)
    called, temperature = name(chosen.candidate.worker), inputs.settings.temperature_m / MILLI
    if not chances_:
        return f"temperature {temperature:g} draws: {called} was drawn of {candidate_count(inputs)}, {RECORDED_PART}"
    text = f"temperature {temperature:g} draws: {called} had a chance of {chances_[chosen.candidate.worker]:.1%}"
    if chosen.cost == cheapest.cost:
        return f"{text}, and costs least"
    least = cheapest.candidate.worker
    return f"{text}, {name(least)}, which costs {_difference(inputs, cheapest, chosen)} less, {chances_[least]:.1%}"


def _because(inputs: DecisionInputs, chosen: ScoredCandidate, best: ScoredCandidate, name: NameOf) -> str:
    ours, theirs = chosen.candidate, best.candidate
    if inputs.settings.policy == "least-loaded":
        busy = [each.active_requests + each.waiting for each in (ours, theirs)]
        return f": {busy[0]} requests there against {busy[1]}"
    if inputs.settings.policy == "time":
        points = compare_costs(inputs, chosen, best)
        return f": it {points}" if points else ""
    return _because_of_blocks(inputs, chosen, best, name)


def _because_of_blocks(inputs: DecisionInputs, chosen: ScoredCandidate, best: ScoredCandidate, name: NameOf) -> str:
    """The weightiest of the terms in which the chosen one is cheaper."""
    ours, theirs, settings = chosen.candidate, best.candidate, inputs.settings
    mine, other = (weight_terms(scored, inputs.request) for scored in (chosen, best))
    gains = {
        "prefill": settings.prefill_weight_m * (other.prefill - mine.prefill),
        "decode": settings.decode_weight_m * (other.decode - mine.decode),
        "request": settings.request_weight_m * (other.request - mine.request),
    }
    most = max(gains, key=gains.__getitem__)
    if gains[most] <= 0:
        return ""
    if most == "request":
        return f": {ours.active_requests} active requests against {theirs.active_requests}"
    if most == "decode":
        active = (each.active_blocks - pending_beyond(each) for each in (ours, theirs))
        return ": {} active blocks against {}".format(*active)
    if max(ours.overlap[-1], ours.pending) <= max(theirs.overlap[-1], theirs.pending):
        return f": {chosen.prefill_m / MILLI:g} blocks to prefill against {best.prefill_m / MILLI:g}"
    full = inputs.request.prompt.blocks
    if ours.pending > ours.overlap[-1]:
        return f": it is computing {ours.pending} of the prompt's {full} full blocks for another request"
    taken = "taken to be cached" if settings.policy == APPROXIMATE else "cached"
    held = f"{ours.overlap[-1]} of {full} full blocks of the prompt {taken}"
    return f": it has {held}, {name(theirs.worker)} has {theirs.overlap[-1]}"


def runner_up(inputs: DecisionInputs, name: NameOf) -> RunnerUp | None:
    """The next best candidate, and the single changes that would have made it win; None where the policy ignores costs,
    or there was one candidate."""
    if len(inputs.ranked) == 1 or inputs.settings.policy in {"round-robin", "random", "power-of-two"}:
        return None
    chosen, other = inputs.ranked[:2]
    called = name(other.candidate.worker)
    found = list[RequiredChange]()
    if not inputs.settings_known:
        text = f"what {called} lacked rests on weights that are not in this log"
    elif inputs.event.decide_version not in RULES:
        text = f"what {called} lacked rests on rules that this program does not have"
    elif draws_by_cost(inputs.settings):
        chance = chances(inputs).get(other.candidate.worker)
        had = f"had a chance of {chance:.1%}" if chance is not None else "costs least of the others"
        text = f"{called} {had}; the draw fell at {draw_position(inputs.event.seed):.3f}"
    else:
        case = counterfactual_of(inputs)
        found = [] if case.is_by_fetch else required_changes(case, other.candidate)
        weights = " there or of a weight" if inputs.settings.policy in BLOCK_COST_POLICIES else ""
        text = (
            f"{called} would have won with {_listed(found)}"
            if found
            else f"no single change{weights} would have made {called} win"
        )
        if case.is_by_fetch:
            text = f"without the fetch {name(case.chosen())} would have won"
    return RunnerUp(
        worker=other.candidate.worker,
        name=called,
        cost_more=(other.cost - chosen.cost) / MILLI,
        needs=found,
        text=text,
    )


def counterfactual_of(inputs: DecisionInputs) -> Counterfactual:
    """The decision, to be tried with changes."""
    candidates = sorted((scored.candidate for scored in inputs.ranked), key=lambda each: each.worker)
    event = inputs.event
    stale, turn = frozenset(inputs.stale), inputs.turn or 0
    request, settings, version = inputs.request, inputs.settings, event.decide_version
    recorded = inputs.ranked[0].candidate.worker
    return Counterfactual(candidates, request, settings, stale, turn, event.seed, inputs.backlog, version, recorded)


def _difference(inputs: DecisionInputs, less: ScoredCandidate, more: ScoredCandidate) -> str:
    if inputs.settings.policy in ESTIMATING_POLICIES:
        return (score_text if inputs.settings.policy == "time" else ms_text)(more.cost - less.cost)
    return f"{(more.cost - less.cost) / MILLI:g}"


def _listed(found: list[RequiredChange]) -> str:
    *before, last = [need.text for need in found]
    return f"{', '.join(before)}, or {last}" if before else last
