"""Plan: requests held in the router, bound to a worker as late as can be.

Called at each arrival and each first token; those that come at one moment are to be in the queue together (on a trace
with ten at a time a hit rate of 0.271, one by one 0.261).

Every held request is placed tentatively on the worker where it costs least, the longest first, under the rules of
`time`; the wait there is what is outstanding plus, for each request placed there before, the shorter one of the two
prefills, since a worker takes its shortest first. Then each worker without outstanding prefills gets of its own the one
whose prefill is shortest, age counting for it, and more as long as all fit into one pass of the engine. What is left
stays held, to be placed anew next time.

Nobody is overtaken for ever: a request gains AGE_M of each millisecond that it waits. How long one may wait at most is
its caller's to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from core.ids import WorkerId
from core.settings import RoutingSettings
from projections.backlog import MILLI, SLACK_M, Backlog, Outstanding, PrefillTime
from projections.decide import Considered, Decision, concluded, considered
from projections.policies import Scored, rank, score
from projections.view import RouteRequest, View

AGE_M = 300
"""What a request gains on shorter ones for each unit of time that it was held, in thousandths."""
PASS_TOKENS = 4096
"""Prefills that together compute no more than this are given to a worker at once: an engine computes them in one
pass."""


class Held(NamedTuple):
    """One request that waits in the router."""

    request: RouteRequest
    since_ms: int
    """When it came, by the clock of `now_ms`."""


class Planned(NamedTuple):
    """One of them that is to be sent now, or that nobody can serve."""

    request: RouteRequest
    decision: Decision


class _Asked(NamedTuple):
    """One of them with what does not depend on the others."""

    held: Held
    time: PrefillTime
    backlog: Backlog
    considered: Considered
    scored: list[Scored]

    def own_us(self, scored: Scored) -> int:
        """How long its prefill lasts there."""
        return self.time.us(self.tokens(scored))

    def tokens(self, scored: Scored) -> int:
        """What it would compute there."""
        return -(-scored.prefill_m * self.held.request.prompt.block_size // MILLI)

    @property
    def shortest_us(self) -> int:
        """Its prefill where most of it is cached."""
        return min(self.own_us(scored) for scored in self.scored)


class _Placed(NamedTuple):
    asked: _Asked
    ranked: list[Scored]
    backlog: Backlog
    own_us: int


def plan(view: View, queue: Sequence[Held], settings: RoutingSettings, now_ms: int, seed: int) -> list[Planned]:
    """Decisions for those of the queue that are to be sent now, in the order in which each worker should get them; the
    others stay held. One that nobody can serve gets its decision too, for nobody.

    The costs are those of `time`, whatever the policy. O(queue * (workers + queue)); the order of the queue does not
    matter. Requests have ids of their own.
    """
    by_time = settings if settings.policy == "time" else RoutingSettings.parse({**settings.to_mapping(), **_BY_TIME})
    outstanding = view.outstanding()
    asked = [_asked(view, held, outstanding, by_time, now_ms) for held in queue]
    nobody = [each for each in asked if not each.scored]
    placed: dict[WorkerId, list[_Placed]] = {}
    for each in sorted((each for each in asked if each.scored), key=_longest_first):
        found = _place(each, placed, view, by_time, seed)
        placed.setdefault(found.ranked[0].candidate.worker, []).append(found)
    planned = []
    for each in sorted(nobody, key=lambda each: each.held.request.id):
        request = each.held.request
        decision = concluded([], each.considered.excluded, view, request, now_ms, seed, each.backlog)
        planned.append(Planned(request, decision))
    for worker in sorted(placed.keys() - outstanding.keys()):
        planned += _sent(placed[worker], view, now_ms, seed)
    return planned


_BY_TIME = {"policy": "time"}


def _asked(
    view: View,
    held: Held,
    outstanding: dict[WorkerId, list[Outstanding]],
    settings: RoutingSettings,
    now_ms: int,
) -> _Asked:
    request = held.request
    time = PrefillTime.of(settings, request.time)
    backlog = Backlog.of(time, outstanding, now_ms)
    found = considered(view, request, settings)
    scored = score(found.left, request, settings, view.local.get("stale", ()), backlog)
    return _Asked(held, time, backlog, found, scored)


def _longest_first(asked: _Asked) -> tuple[int, int, str, int]:
    request = asked.held.request
    return -asked.shortest_us, asked.held.since_ms, request.id, request.attempt


def _place(
    asked: _Asked, placed: dict[WorkerId, list[_Placed]], view: View, settings: RoutingSettings, seed: int
) -> _Placed:
    """Where it costs least, with those that are placed already."""
    waits, scored = dict(asked.backlog.waits_us), []
    for each in asked.scored:
        worker, own_us = each.candidate.worker, asked.own_us(each)
        more_us = sum(min(other.own_us, own_us) for other in placed.get(worker, ()))
        if more_us:
            waits[worker] = waits.get(worker, 0) + more_us
        scored.append(each._replace(cost=each.cost + more_us))
    request = asked.held.request
    ranked = rank(scored, request, settings, view.routed(request.model), seed)
    return _Placed(asked, ranked, asked.backlog._replace(waits_us=dict(sorted(waits.items()))), asked.own_us(ranked[0]))


def _sent(placed: list[_Placed], view: View, now_ms: int, seed: int) -> list[Planned]:
    """Of those placed on a worker that prefills nothing, the ones to send now."""

    def turn(each: _Placed) -> tuple[int, int, str, int]:
        held = each.asked.held
        age_us = (now_ms - held.since_ms) * MILLI
        return each.own_us - AGE_M * age_us // MILLI, held.since_ms, held.request.id, held.request.attempt

    planned: list[Planned] = []
    tokens = wait_us = 0
    for each in sorted(placed, key=turn):
        tokens += each.asked.tokens(each.ranked[0])
        if planned and tokens > PASS_TOKENS:
            break
        request, excluded = each.asked.held.request, each.asked.considered.excluded
        decision = concluded(each.ranked, excluded, view, request, now_ms, seed, each.backlog)
        decision = decision._replace(wait_us=wait_us)  # behind those just sent, and nobody else
        planned.append(Planned(request, decision))
        wait_us += SLACK_M * each.own_us // MILLI
    return planned
