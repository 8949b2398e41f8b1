"""Placement: where each of many held requests would go, were all of them sent now.

The longest is placed first, each where it costs least behind those placed before it: there it waits, for each of them,
for the shorter one of the two prefills, since a worker takes its shortest first. What does not depend on who asks is
looked up once for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from core.ids import WorkerId
from core.settings import RoutingSettings
from projections.backlog import MILLI, Backlog, Outstanding, PrefillTime
from projections.decide import considered
from projections.policies import Scored, rank, score
from projections.starts import Starts
from projections.view import NOTHING, Candidate, RouteRequest, View


class Held(NamedTuple):
    """One request that waits in the router."""

    request: RouteRequest
    since_ms: int
    """When it came, by the clock of `now_ms`."""
    seed: int = 0
    """Of its decision."""


class Asked(NamedTuple):
    """One of them with what does not depend on the others; the lists are in one order, and of one length."""

    held: Held
    scored: list[Scored]
    tokens: list[int]
    """What it would compute on each of those."""
    own_us: list[int]
    """How long that lasts."""


class Placed(NamedTuple):
    """One of them with its place."""

    held: Held
    worker: WorkerId
    tokens: int
    own_us: int
    held_us: dict[WorkerId, int]
    """How long others would hold it up, by worker; what these compute that declined one is in it."""


class Sight:
    """What all that are held see alike, at one moment."""

    def __init__(
        self, view: View, settings: RoutingSettings, now_ms: int, outstanding: Mapping[WorkerId, list[Outstanding]]
    ) -> None:
        self._view = view
        self._settings = settings
        self._now_ms = now_ms
        self._outstanding = outstanding
        self._starts = Starts(view)
        self._backlogs: dict[PrefillTime, Backlog] = {}
        self._candidates: dict[tuple[str, int], list[Candidate]] = {}
        """By model and block size: as one prompt saw them."""

    def __repr__(self) -> str:
        return f"<Sight {len(self._outstanding)} workers that prefill>"

    def asked(self, held: Held) -> Asked:
        """The request with its candidates, by id, as `decide` would score them for it alone."""
        request, settings = held.request, self._settings
        time = PrefillTime.of(settings, request.time)
        backlog = self._backlogs.get(time)
        if backlog is None:
            backlog = self._backlogs[time] = Backlog.of(time, self._outstanding, self._now_ms)
        scored = score(self._seen(request), request, settings, self._view.local.get("stale", ()), backlog)
        size = request.prompt.block_size
        tokens = [-(-prefill_m * size // MILLI) for _, _, prefill_m in scored]
        return Asked(held, scored, tokens, [time.us(each) for each in tokens])

    def _seen(self, request: RouteRequest) -> list[Candidate]:
        """Whom it can be sent to does not depend on the prompt, only what they have of it."""
        prompt = request.prompt
        kind = request.model, prompt.block_size
        candidates = self._candidates.get(kind)
        if candidates is None:
            found = self._candidates[kind] = considered(self._view, request, self._settings, self._now_ms).left
            return found
        overlap, pending = self._view.cached(prompt, self._settings, self._now_ms).get, self._starts.pending(prompt).get
        new = tuple.__new__
        return [
            new(Candidate, (*one[:5], overlap(one[0], NOTHING), pending(one[0], 0), *one[7:])) for one in candidates
        ]


class _Queue:
    """Those placed on one worker."""

    def __init__(self) -> None:
        self.placed: list[Placed] = []
        self._shortest = self._longest = self._sum = 0

    def __repr__(self) -> str:
        return f"<_Queue {len(self.placed)} requests>"

    def add(self, placed: Placed) -> None:
        own_us = placed.own_us
        self._shortest = min(self._shortest, own_us) if self.placed else own_us
        self._longest = max(self._longest, own_us)
        self._sum += own_us
        self.placed.append(placed)

    def wait_us(self, own_us: int) -> int:
        """How long one more that lasts so long waits for them: for each the shorter one of the two."""
        if own_us <= self._shortest:  # nearly always: the longest are placed first
            return own_us * len(self.placed)
        if own_us >= self._longest:
            return self._sum
        return sum([min(other.own_us, own_us) for other in self.placed])


def place_all(
    asked: Sequence[Asked], view: View, settings: RoutingSettings, busy_us: Mapping[WorkerId, int]
) -> dict[WorkerId, list[Placed]]:
    """Every one of them, by worker; each has a candidate. `busy_us` is what workers compute of which the view does not
    know. O(requests * workers), where those that are placed later are not much longer somewhere than those before."""
    queues: dict[WorkerId, _Queue] = {}
    turns: dict[str, int] = {}
    for each in sorted(asked, key=_longest_first):
        model = each.held.request.model
        if model not in turns:
            turns[model] = view.routed(model)
        placed = _place(each, queues, settings, busy_us, turns[model])
        queues.setdefault(placed.worker, _Queue()).add(placed)
    return {worker: queue.placed for worker, queue in queues.items()}


def _longest_first(asked: Asked) -> tuple[int, int, str, int]:
    """By its prefill where most of it is cached."""
    request = asked.held.request
    return -min(asked.own_us), asked.held.since_ms, request.id, request.attempt


def _place(
    asked: Asked,
    queues: Mapping[WorkerId, _Queue],
    settings: RoutingSettings,
    busy_us: Mapping[WorkerId, int],
    turn: int,
) -> Placed:
    """Where it costs least, with those that are placed already."""
    held_us: dict[WorkerId, int] = {}
    costs: list[int] = []
    for (candidate, cost, _), own_us in zip(asked.scored, asked.own_us, strict=True):
        worker = candidate[0]
        queue = queues.get(worker)
        more_us = busy_us.get(worker, 0) + (0 if queue is None else queue.wait_us(own_us))
        if more_us:
            held_us[worker] = more_us
        costs.append(cost + more_us)
    at = _cheapest(asked, costs, settings, turn)
    return Placed(asked.held, asked.scored[at].candidate.worker, asked.tokens[at], asked.own_us[at], held_us)


def _cheapest(asked: Asked, costs: list[int], settings: RoutingSettings, turn: int) -> int:
    """The place of the one that a decision with these costs would choose."""
    least = min(costs)
    if costs.count(least) == 1 and not (settings.temperature_m or settings.tie_margin_m):
        return costs.index(least)  # as `rank`, which would sort all
    dearer = [scored._replace(cost=cost) for scored, cost in zip(asked.scored, costs, strict=True)]
    chosen = rank(dearer, asked.held.request, settings, turn, asked.held.seed)[0]
    return dearer.index(chosen)
