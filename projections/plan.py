"""Plan: requests held in the router, bound to a worker as late as can be.

Asked at each arrival and each first token, again and again until nobody is to go. Every held request is placed
tentatively on the worker where it costs least, the longest first, under the rules of `time`; the wait there is what is
outstanding plus, for each request placed there before, the shorter one of the two prefills, since a worker takes its
shortest first. Then a worker without outstanding prefills, or with so few that one more fits into a pass of its engine
with them, gets of its own, of those whose priority comes first, the one whose prefill is shortest, age counting for it.
What is left stays held, to be placed anew.

A request that goes is one decision like any other, with one input more: how long those placed before it would hold it
up (`RouteRequest.held`), which stands in its record. So each is made again, bit for bit, without the queue.

Nobody is overtaken for ever by its equals: a request gains AGE_M of each millisecond that it waits. How long one may
wait at most is its caller's to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from core.ids import WorkerId
from core.settings import RoutingSettings
from projections.backlog import MILLI, Outstanding
from projections.decide import Decision, decide
from projections.placement import Held, Placed, Sight, place_all
from projections.policies import Scored
from projections.view import RouteRequest, View

HELD_MAX = 64
"""Requests that a replica holds at a time: a plan looks at all of them, and is made anew for each that goes …"""
PLACES_MAX = 1024
"""… and fewer where that times the workers were more than this: then a plan takes 5 ms."""
AGE_M = 300
"""What a request gains on shorter ones for each unit of time that it was held, in thousandths."""
PASS_TOKENS = 4096
"""Prefills that together compute no more than this may be with a worker at a time: an engine computes them in one pass,
or the last ones in its next."""


def held_max(workers: int) -> int:
    """How many requests a replica may hold, with so many workers."""
    return min(HELD_MAX, max(1, PLACES_MAX // max(1, workers)))


def computing(
    outstanding: Mapping[WorkerId, Iterable[Outstanding]], settings: RoutingSettings, now_ms: int
) -> dict[WorkerId, int]:
    """The workers that others wait for, with the tokens of their outstanding prefills. Not for a prefill that should
    have begun longer ago than anybody is held: who would tell of its end may be gone, or out of reach."""
    since_us = (now_ms - settings.hold_max_ms) * MILLI
    found: dict[WorkerId, int] = {}
    for worker, all_ in outstanding.items():
        for begins_us, _, _, tokens in all_:
            if begins_us > since_us:
                found[worker] = found.get(worker, 0) + tokens
    return found


def is_one_pass(tokens: int) -> bool:
    """Whether prefills that compute so many tokens together may be with a worker at a time."""
    return tokens <= PASS_TOKENS


def fits(tokens: int, worker: WorkerId, computes: Mapping[WorkerId, int]) -> bool:
    """Whether the worker may get a prefill of so many tokens now."""
    return worker not in computes or computes[worker] + tokens <= PASS_TOKENS


SMALL_TOKENS = PASS_TOKENS // 8
"""A prompt of so many tokens, cached or not, holds nobody up: it goes as if it were alone, ahead of longer ones, so
that a crowd of such costs no more than their decisions."""


LIGHT_TOKENS = PASS_TOKENS // 4
"""A prompt of so many tokens, where nobody waits, need not wait for what else comes at the same moment: it would hardly
go elsewhere for that."""


class Planned(NamedTuple):
    """One of them that is to be sent now, or that nobody can serve."""

    request: RouteRequest
    """With what else is held."""
    decision: Decision


def plan(
    view: View,
    queue: Sequence[Held],
    settings: RoutingSettings,
    now_ms: int,
    busy_us: Mapping[WorkerId, int],
) -> Planned | None:
    """The one of the queue that is to be sent now, or that nobody can serve; None if all stay held.

    Whoever sends it says so, takes it out of the queue, and asks again: the next one's view has this one. `busy_us` is
    how long workers should compute yet what the view does not know of, as they said when they declined a request: they
    are not free. `settings` are of the policy `time`. O(queue * (workers + queue)), or O(workers) if nobody is free;
    the order of the queue does not matter. Requests have ids of their own.
    """
    assert settings.policy == "time"
    outstanding = view.outstanding()
    computes = computing(outstanding, settings, now_ms)
    if _nobody_is_free(view, computes, busy_us):
        return None
    if not busy_us:
        if len(queue) == 1:
            return _alone(view, queue[0], settings, now_ms, outstanding, computes)
        small = [held for held in queue if held.request.prompt.tokens <= SMALL_TOKENS]
        if small and (planned := _alone(view, min(small, key=_came), settings, now_ms, outstanding, computes)):
            return planned
    sight = Sight(view, settings, now_ms, outstanding)
    asked = [sight.asked(held) for held in queue]
    nobody = min((each.held for each in asked if not each.scored), key=lambda held: held.request.id, default=None)
    if nobody is not None:
        return Planned(nobody.request, decide(view, nobody.request, settings, now_ms, nobody.seed, outstanding))
    for worker, placed in sorted(place_all(asked, view, settings, busy_us).items()):
        if worker in busy_us or not fits(0, worker, computes):
            continue
        next_one = min(placed, key=lambda each: _turn(each, now_ms))
        if fits(next_one.tokens, worker, computes):
            request = next_one.held.request._replace(held=next_one.held_us)
            return Planned(request, decide(view, request, settings, now_ms, next_one.held.seed, outstanding))
    return None


def _tokens(scored: Scored, request: RouteRequest) -> int:
    return -(-scored.prefill_m * request.prompt.block_size // MILLI)


def _came(held: Held) -> tuple[int, int, str, int]:
    return held.request.priority, held.since_ms, held.request.id, held.request.attempt


def _nobody_is_free(view: View, computes: Mapping[WorkerId, int], busy_us: Mapping[WorkerId, int]) -> bool:
    if not computes and not busy_us:
        return False
    serving = view.state.serving()
    if not len(computes) + len(busy_us) >= len(serving) > 0:
        return False
    return all(each.worker in busy_us or not fits(1, each.worker, computes) for each in serving)


def _alone(
    view: View,
    held: Held,
    settings: RoutingSettings,
    now_ms: int,
    outstanding: dict[WorkerId, list[Outstanding]],
    computes: Mapping[WorkerId, int],
) -> Planned | None:
    """As `plan` where nobody else is to be placed, at a third of its price."""
    decision = decide(view, held.request, settings, now_ms, held.seed, outstanding)
    goes = decision.worker is None or fits(_tokens(decision.ranked[0], held.request), decision.worker, computes)
    return Planned(held.request, decision) if goes else None


def _turn(placed: Placed, now_ms: int) -> tuple[int, int, int, str, int]:
    """In which order a worker should get its own; lower first."""
    held = placed.held
    age_us = (now_ms - held.since_ms) * MILLI
    turn = placed.own_us - AGE_M * age_us // MILLI
    return held.request.priority, turn, held.since_ms, held.request.id, held.request.attempt
