"""Reasons: why one candidate was chosen, and what the next best lacked, in words that follow from the rules alone."""

from __future__ import annotations

from collections.abc import Callable

from core.ids import WorkerId
from core.settings import RoutingSettings
from projections.policies import MILLI, Scored, two_of
from replay.explaining.draw import draw, drawn, probabilities
from replay.explaining.form import Need, RunnerUp
from replay.explaining.ground import Ground
from replay.explaining.needs import Case, needs

Name = Callable[[str], str]

LOOKS_AT = {
    "kv": "what is left to prefill there after what its cache saves, and the blocks and requests in flight there",
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
            return f"policy power-of-two drew two of {among}: {called} {_why_of_two(ground)}"
        case "session":
            return _why_session(ground, called)
    return _why_drawn(ground, name) if drawn(ground.settings) else _why_cheapest(ground, name)


def _why_of_two(ground: Ground) -> str:
    """Of more candidates than the record holds there is no telling who the other was."""
    by_id = sorted((scored.candidate for scored in ground.ranked), key=lambda each: each.worker)
    if len(by_id) < ground.event.candidates_total:
        return "had no more requests than the other"
    busy = [by_id[at].active_requests + by_id[at].waiting for at in two_of(len(by_id), ground.event.seed)]
    return f"had {min(busy)} requests, the other {max(busy)}"


def _why_session(ground: Ground, called: str) -> str:
    whose = "the session" if ground.request.session else "prompts that begin so"
    if ground.ranked[0].cost:
        return f"everywhere the wait for prefills is beyond the bound; {called} has the shortest"
    return f"{called} is the first in the order of {whose} where the wait for prefills is within the bound"


def _why_cheapest(ground: Ground, name: Name) -> str:
    chosen, best = ground.ranked[:2]
    called, next_best = name(chosen.candidate.worker), name(best.candidate.worker)
    if best.cost == chosen.cost:
        return f"{called} and {next_best} cost the same; the hash of request and worker decided"
    if abs(best.cost - chosen.cost) <= ground.settings.tie_margin_m:
        less = f"{_difference(chosen, best)} less" if chosen.cost < best.cost else f"{_difference(best, chosen)} more"
        margin = ground.settings.tie_margin_m / MILLI
        return (
            f"{called} costs {less} than {next_best}, which is within the tie margin of {margin:g}; "
            "the hash of request and worker decided"
        )
    because = _because(ground, chosen, best, name)
    return f"{called} costs {_difference(chosen, best)} less than {next_best}{because}"


def _why_drawn(ground: Ground, name: Name) -> str:
    chances_, chosen = chances(ground.ranked, ground.settings), ground.ranked[0]
    cheapest = min(ground.ranked, key=lambda scored: scored.cost)
    called, temperature = name(chosen.candidate.worker), ground.settings.temperature_m / MILLI
    text = f"temperature {temperature:g} draws: {called} had a chance of {chances_[chosen.candidate.worker]:.1%}"
    if chosen.cost == cheapest.cost:
        return f"{text}, and costs least"
    least = cheapest.candidate.worker
    return f"{text}, {name(least)}, which costs {_difference(cheapest, chosen)} less, {chances_[least]:.1%}"


def _because(ground: Ground, chosen: Scored, best: Scored, name: Name) -> str:
    ours, theirs = chosen.candidate, best.candidate
    if ground.settings.policy == "least-loaded":
        busy = [each.active_requests + each.waiting for each in (ours, theirs)]
        return f": {busy[0]} requests there against {busy[1]}"
    waits_us = [ground.backlog.waits_us.get(each.worker, 0) for each in (ours, theirs)]
    if max(ours.overlap[-1], ours.pending) > max(theirs.overlap[-1], theirs.pending):
        full = ground.request.prompt.blocks
        if ours.pending > ours.overlap[-1]:
            return f": it is computing {ours.pending} of the prompt's {full} full blocks for another request"
        held = f"{ours.overlap[-1]} of {full} full blocks of the prompt cached"
        return f": it has {held}, {name(theirs.worker)} has {theirs.overlap[-1]}"
    for said, our, their in (
        (": prefills there hold it up for {:g} ms against {:g}", waits_us[0] / MILLI, waits_us[1] / MILLI),
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
        weights = " or of a weight" if ground.settings.policy == "kv" else ""
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


def _difference(less: Scored, more: Scored) -> str:
    return f"{(more.cost - less.cost) / MILLI:g}"


def _listed(found: list[Need], weights: str) -> str:
    if not found:
        return f"by no single change of its own{weights}"
    *before, last = [need.text for need in found]
    return "with " + (f"{', '.join(before)}, or {last}" if before else last)
