"""Reasons: why one candidate was chosen, and what the next best lacked, in words that follow from the rules alone."""

from __future__ import annotations

from core.ids import WorkerId
from core.settings import APPROXIMATE, RoutingSettings
from projections.policies import BY_BLOCKS, ESTIMATING, MILLI, Scored
from replay.explaining.draw import draw, drawn, probabilities
from replay.explaining.form import Need, RunnerUp
from replay.explaining.ground import Ground
from replay.explaining.needs import Case, needs
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


def chances(ranked: list[Scored], settings: RoutingSettings) -> dict[WorkerId, float]:
    """How likely each candidate was, where a draw decided; else nothing."""
    found = probabilities([scored.cost for scored in ranked], settings)
    if found is None:
        return {}
    return {scored.candidate.worker: chance for scored, chance in zip(ranked, found, strict=True)}


def why(ground: Ground, name: Name) -> str:
    """Why the first of the ranked was chosen."""
    called = name(ground.ranked[0].candidate.worker)
    if len(ground.ranked) == 1:
        return f"{called} was the only candidate"
    among = max(len(ground.ranked), ground.event.candidates_total)
    match ground.settings.policy:
        case "round-robin":
            turn = "" if ground.turn is None else f", after {ground.turn} decisions of this replica for the model"
            return f"policy round-robin looks at no cost: it was {called}'s turn among {among}{turn}"
        case "random":
            return f"policy random looks at no cost: the seed gave {called}, one of {among}"
        case "power-of-two":
            return why_of_two(ground, name)
        case "session":
            return why_session(ground, name)
    return _why_drawn(ground, name) if drawn(ground.settings) else _why_cheapest(ground, name)


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
    chances_, chosen = chances(ground.ranked, ground.settings), ground.ranked[0]
    cheapest = min(ground.ranked, key=lambda scored: scored.cost)
    called, temperature = name(chosen.candidate.worker), ground.settings.temperature_m / MILLI
    text = f"temperature {temperature:g} draws: {called} had a chance of {chances_[chosen.candidate.worker]:.1%}"
    if chosen.cost == cheapest.cost:
        return f"{text}, and costs least"
    least = cheapest.candidate.worker
    return f"{text}, {name(least)}, which costs {_difference(ground, cheapest, chosen)} less, {chances_[least]:.1%}"


def _because(ground: Ground, chosen: Scored, best: Scored, name: Name) -> str:
    ours, theirs = chosen.candidate, best.candidate
    if ground.settings.policy == "least-loaded":
        busy = [each.active_requests + each.waiting for each in (ours, theirs)]
        return f": {busy[0]} requests there against {busy[1]}"
    if ground.settings.policy == "time":
        points = weighed(ground, chosen, best)
        return f": it {points}" if points else ""
    if max(ours.overlap[-1], ours.pending) > max(theirs.overlap[-1], theirs.pending):
        full = ground.request.prompt.blocks
        if ours.pending > ours.overlap[-1]:
            return f": it is computing {ours.pending} of the prompt's {full} full blocks for another request"
        taken = "taken to be cached" if ground.settings.policy == APPROXIMATE else "cached"
        held = f"{ours.overlap[-1]} of {full} full blocks of the prompt {taken}"
        return f": it has {held}, {name(theirs.worker)} has {theirs.overlap[-1]}"
    for said, our, their in (
        (": {} active blocks against {}", ours.active_blocks, theirs.active_blocks),
        (": {:g} blocks to prefill against {:g}", chosen.prefill_m / MILLI, best.prefill_m / MILLI),
    ):
        if our < their:
            return said.format(our, their)
    return ""


def runner_up(ground: Ground, name: Name) -> RunnerUp | None:
    """The next best, and what each alone would have made it win; None where costs are not looked at, or nobody else
    was a candidate."""
    if len(ground.ranked) == 1 or ground.settings.policy in {"round-robin", "random", "power-of-two"}:
        return None
    chosen, other = ground.ranked[:2]
    called = name(other.candidate.worker)
    if drawn(ground.settings):
        chance = chances(ground.ranked, ground.settings)[other.candidate.worker]
        found = list[Need]()
        text = f"{called} had a chance of {chance:.1%}; the draw fell at {draw(ground.event.seed):.3f}"
    else:
        found = needs(case(ground), other.candidate)
        weights = " or of a weight" if ground.settings.policy in BY_BLOCKS else ""
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


def _difference(ground: Ground, less: Scored, more: Scored) -> str:
    if ground.settings.policy in ESTIMATING:
        return ms_text(more.cost - less.cost)
    return f"{(more.cost - less.cost) / MILLI:g}"


def _unit(settings: RoutingSettings) -> str:
    return " ms" if settings.policy in ESTIMATING else ""


def _listed(found: list[Need], weights: str) -> str:
    if not found:
        return f"by no single change of its own{weights}"
    *before, last = [need.text for need in found]
    return "with " + (f"{', '.join(before)}, or {last}" if before else last)
