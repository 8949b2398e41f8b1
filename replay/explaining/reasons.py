"""Reasons: why one candidate was chosen, and what the next best lacked, in words that follow from the rules alone."""

from __future__ import annotations

from core.ids import WorkerId
from core.settings import APPROXIMATE, RoutingSettings
from projections.policy.cost import BLOCK_COST_POLICIES, ESTIMATING_POLICIES, MILLI, ScoredCandidate, pending_beyond
from replay.explaining.draw import draw, drawn, probabilities
from replay.explaining.form import Need, RunnerUp
from replay.explaining.ground import Ground
from replay.explaining.needs import Case, needs, terms
from replay.explaining.ordered import Name, why_of_two, why_session
from replay.explaining.weighed import ms_text, weighed

LOOKS_AT = {
    "kv": "what is left to prefill there after what its cache saves, and the blocks and requests in flight there",
    "approximate": "the same as kv, its cache taken to hold what was sent there, whatever its engine reports",
    "time": "how long its prefill would last there and hold up others, the wait for those before it, and active blocks",
    "session": "whose turn it is for the session, or for the prompt's beginning, where the wait for prefills is short",
    "power-of-two": "requests in flight and waiting at two workers that are drawn",
    "least-loaded": "requests in flight and waiting there, and not at caches",
    "round-robin": "no cost: workers take turns by id",
    "random": "no cost: the seed chooses",
}
"""What a policy goes by."""


PART = "of which the record holds the first; fold the log (--whole) for their chances"


def chances(on: Ground) -> dict[WorkerId, float]:
    """How likely each candidate was, where a draw decided and can be made again; else nothing. Of more candidates than
    the record holds a draw by costs cannot."""
    among = among_all(on)
    if not on.settings_known:
        return {}
    if len(on.ranked) < among:
        return {scored.candidate.worker: 1 / among for scored in on.ranked} if on.settings.policy == "random" else {}
    found = probabilities([scored.cost for scored in on.ranked], on.settings) or []
    return {scored.candidate.worker: chance for scored, chance in zip(on.ranked, found, strict=False)}


def among_all(on: Ground) -> int:
    """How many candidates there were, those that the record left out included."""
    return max(len(on.ranked), on.event.candidates_total)


def why(ground: Ground, name: Name) -> str:
    """Why the first of the ranked was chosen."""
    called = name(ground.ranked[0].candidate.worker)
    if len(ground.ranked) == 1:
        return f"{called} was the only candidate"
    among = among_all(ground)
    match ground.settings.policy:
        case "round-robin":
            turn = "" if ground.turn is None else f", after {ground.turn} decisions of this replica for the model"
            return f"policy round-robin looks at no cost: it was {called}'s turn among {among}{turn}"
        case "random":
            return f"policy random looks at no cost: the seed gave {called}, one of {among}"
        case "power-of-two":
            return why_of_two(ground, name)
        case "session" if ground.settings_known:
            return why_session(ground, name)
    return _why_by_cost(ground, name)


def _why_by_cost(ground: Ground, name: Name) -> str:
    if not ground.settings_known:
        return _why_unknown(ground, name)
    return _why_drawn(ground, name) if drawn(ground.settings) else _why_cheapest(ground, name)


def _why_unknown(ground: Ground, name: Name) -> str:
    """What costs tell where the log does not have what was weighed, and how."""
    chosen, best = ground.ranked[:2]
    more = _difference(ground, *sorted((chosen, best), key=lambda scored: scored.cost))
    than = "as much as" if chosen.cost == best.cost else f"{more} {'less' if chosen.cost < best.cost else 'more'} than"
    points = weighed(ground, chosen, best) if ground.settings.policy == "time" else ""
    because = f": it {points}" if points else ""
    revision = f"revision {ground.event.settings_revision} of the settings is not in this log"
    return f"{name(chosen.candidate.worker)} costs {than} {name(best.candidate.worker)}{because}; {revision}"


def _why_cheapest(ground: Ground, name: Name) -> str:
    chosen, best = ground.ranked[:2]
    called, next_best = name(chosen.candidate.worker), name(best.candidate.worker)
    if best.cost == chosen.cost:
        return f"{called} and {next_best} cost the same; the hash of request and worker decided"
    if abs(best.cost - chosen.cost) <= ground.settings.tie_margin_m:
        cheaper = chosen.cost < best.cost
        less = f"{_difference(ground, chosen, best)} less" if cheaper else f"{_difference(ground, best, chosen)} more"
        margin = f"{ground.settings.tie_margin_m / MILLI:g}{_unit(ground.settings)}"
        return (
            f"{called} costs {less} than {next_best}, which is within the tie margin of {margin}; "
            "the hash of request and worker decided"
        )
    because = _because(ground, chosen, best, name)
    return f"{called} costs {_difference(ground, chosen, best)} less than {next_best}{because}"


def _why_drawn(ground: Ground, name: Name) -> str:
    chances_, chosen = chances(ground), ground.ranked[0]
    cheapest = min(ground.ranked, key=lambda scored: scored.cost)
    called, temperature = name(chosen.candidate.worker), ground.settings.temperature_m / MILLI
    if not chances_:
        return f"temperature {temperature:g} draws: {called} was drawn of {among_all(ground)}, {PART}"
    text = f"temperature {temperature:g} draws: {called} had a chance of {chances_[chosen.candidate.worker]:.1%}"
    if chosen.cost == cheapest.cost:
        return f"{text}, and costs least"
    least = cheapest.candidate.worker
    return f"{text}, {name(least)}, which costs {_difference(ground, cheapest, chosen)} less, {chances_[least]:.1%}"


def _because(ground: Ground, chosen: ScoredCandidate, best: ScoredCandidate, name: Name) -> str:
    ours, theirs = chosen.candidate, best.candidate
    if ground.settings.policy == "least-loaded":
        busy = [each.active_requests + each.waiting for each in (ours, theirs)]
        return f": {busy[0]} requests there against {busy[1]}"
    if ground.settings.policy == "time":
        points = weighed(ground, chosen, best)
        return f": it {points}" if points else ""
    return _because_of_blocks(ground, chosen, best, name)


def _because_of_blocks(ground: Ground, chosen: ScoredCandidate, best: ScoredCandidate, name: Name) -> str:
    """The weightiest of the terms in which the chosen one is cheaper."""
    ours, theirs, settings = chosen.candidate, best.candidate, ground.settings
    mine, other = (terms(scored, ground.request) for scored in (chosen, best))
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
    full = ground.request.prompt.blocks
    if ours.pending > ours.overlap[-1]:
        return f": it is computing {ours.pending} of the prompt's {full} full blocks for another request"
    taken = "taken to be cached" if settings.policy == APPROXIMATE else "cached"
    held = f"{ours.overlap[-1]} of {full} full blocks of the prompt {taken}"
    return f": it has {held}, {name(theirs.worker)} has {theirs.overlap[-1]}"


def runner_up(ground: Ground, name: Name) -> RunnerUp | None:
    """The next best, and what each alone would have made it win; None where costs are not looked at, or nobody else
    was a candidate."""
    if len(ground.ranked) == 1 or ground.settings.policy in {"round-robin", "random", "power-of-two"}:
        return None
    chosen, other = ground.ranked[:2]
    called = name(other.candidate.worker)
    found = list[Need]()
    if not ground.settings_known:
        text = f"what {called} lacked rests on weights that are not in this log"
    elif drawn(ground.settings):
        chance = chances(ground).get(other.candidate.worker)
        had = f"had a chance of {chance:.1%}" if chance is not None else "costs least of the others"
        text = f"{called} {had}; the draw fell at {draw(ground.event.seed):.3f}"
    else:
        found = needs(case(ground), other.candidate)
        weights = " or of a weight" if ground.settings.policy in BLOCK_COST_POLICIES else ""
        text = f"{called} would have won {_listed(found, weights)}"
    return RunnerUp(
        worker=other.candidate.worker,
        name=called,
        cost_more=(other.cost - chosen.cost) / MILLI,
        needs=found,
        text=text,
    )


def case(ground: Ground) -> Case:
    """The decision, to be tried with changes."""
    candidates = sorted((scored.candidate for scored in ground.ranked), key=lambda each: each.worker)
    event = ground.event
    stale, turn = frozenset(ground.stale), ground.turn or 0
    return Case(candidates, ground.request, ground.settings, stale, turn, event.seed, ground.backlog)


def _difference(ground: Ground, less: ScoredCandidate, more: ScoredCandidate) -> str:
    if ground.settings.policy in ESTIMATING_POLICIES:
        return ms_text(more.cost - less.cost)
    return f"{(more.cost - less.cost) / MILLI:g}"


def _unit(settings: RoutingSettings) -> str:
    return " ms" if settings.policy in ESTIMATING_POLICIES else ""


def _listed(found: list[Need], weights: str) -> str:
    if not found:
        return f"by no single change of its own{weights}"
    *before, last = [need.text for need in found]
    return "with " + (f"{', '.join(before)}, or {last}" if before else last)
