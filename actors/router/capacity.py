"""Capacity: how many requests a model's workers may have in flight, and how many of these slots are free.

Every replica fills the same slots and sees the others' requests a few milliseconds late. A replica may take any place
that it sees free. Beyond that, each replica may always have its part of all slots, so that none starves behind another
whose requests follow on each other without a gap. Where both are taken at once, engines queue the excess: never more
than as much again, and only until requests end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from actors.router.fleet import Fleet
from core.ids import WorkerId
from core.settings import RoutingSettings
from projections.folds.kv_fold import Member
from projections.folds.state import State
from projections.policy.candidates import LAST_RESORT_REASONS
from projections.policy.view import View


def has_prefill_workers(state: State, model: str) -> bool:
    """Whether prompts of the model are computed elsewhere, by prefill workers of its own. O(prefill workers)."""
    return any(each.joined is not None and each.joined.model == model for each in state.prefilling())


class ConnectedWorkers:
    """How many workers of each model this replica could send a request to now. Counted anew after each change."""

    def __init__(self, state: State, fleet: Fleet) -> None:
        self._state = state
        self._fleet = fleet
        self._alive: list[Member] = []
        self._changes = -1
        self._counts: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<ConnectedWorkers {dict(self._counts)}>"

    def of(self, model: str) -> int:
        """So many workers of the model; O(1) while nobody comes or goes, O(workers) else."""
        alive, changes = self._state.alive(), self._fleet.changes
        if self._alive is not alive or self._changes != changes:
            self._alive, self._changes = alive, changes
            there = (each.joined for each in self._state.serving() if self._fleet.connected(each.worker))
            self._counts = Counter(joined.model for joined in there if joined is not None)
        return self._counts[model]


SPARE_PART = 8
"""One in so many slots more than an engine runs at once: the next request is there when one ends."""
WITH_PREFILL = 2
"""Where prompts are computed elsewhere, a worker has this many times its engine's slots: who waits for its prompt
takes none in the engine."""
UNBOUNDED = 1 << 30
"""Places of a worker that does not say how many requests its engine runs at once."""


class Capacity(NamedTuple):
    """The slots of one model's workers, as one replica sees them now."""

    slots: int
    taken: int
    """By requests in flight of all replicas."""
    replicas: int
    overloaded: bool
    """Workers are left out because too much waits in their engines."""

    @property
    def share(self) -> int:
        """What each replica may have whatever the others have."""
        return -(-self.slots // self.replicas)

    def free(self, own: int, admitted: int) -> int:
        """How many more may start; `own` of ours have a place, `admitted` of them are not yet counted in `taken`."""
        return max(0, self.share - own, self.slots - max(own, self.taken + admitted))


def find_capacity(
    view: View, model: str, settings: RoutingSettings, slots: Callable[[WorkerId], int]
) -> Capacity | None:
    """The slots of those workers among which a decision would choose now. None if it would find none even if all were
    idle: then waiting helps no request. `slots` is how many requests a worker's engine runs at once, 0 if unknown.
    O(workers)."""
    sure, doubtful, overloaded = _usable(view, model, settings)
    if not (sure or doubtful or overloaded):
        return None
    workers = sure or doubtful
    with_prefill = has_prefill_workers(view.state, model)
    folded, pending = view.state.routing.in_flight_load.busy, view.ahead.in_flight_load.busy
    taken = sum(load[worker].requests for worker in workers for load in (folded, pending) if worker in load)
    return Capacity(
        slots=sum(settings.active_max or _slots(slots(worker), with_prefill=with_prefill) for worker in workers),
        taken=taken,
        replicas=max(1, len(view.state.routing.replicas)),
        overloaded=overloaded,
    )


def _usable(view: View, model: str, settings: RoutingSettings) -> tuple[list[WorkerId], list[WorkerId], bool]:
    """Workers that can take a request, workers that would only if no other could, and whether others are overloaded;
    as `projections.policy.decide` sorts them out."""
    down = view.local.get("not_connected", frozenset())
    last_resort = [view.local.get(reason, frozenset()) for reason in LAST_RESORT_REASONS]
    reports = view.state.loads.reports
    sure: list[WorkerId] = []
    doubtful: list[WorkerId] = []
    overloaded = False
    for member in view.state.serving():
        worker, report = member.worker, reports.get(member.worker)
        if member.joined is None or member.joined.model != model or worker in down:
            continue
        if report is not None and report.draining:
            continue
        if report is not None and report.waiting >= settings.waiting_max:
            overloaded = True
        elif any(worker in reason_workers for reason_workers in last_resort):
            doubtful.append(worker)
        else:
            sure.append(worker)
    return sure, doubtful, overloaded


def _slots(slots: int, *, with_prefill: bool) -> int:
    if not slots:
        return UNBOUNDED
    return slots * WITH_PREFILL if with_prefill else slots + -(-slots // SPARE_PART)
