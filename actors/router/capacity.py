"""Capacity: how many requests a model's workers may have in flight, and how many of these slots are free.

All replicas fill the same slots, and each sees the requests of the others a few milliseconds late. A replica may take
any slot that it sees free. Beyond that, each replica may always have its share of all slots, so that no replica starves
behind a busier one. Where both happen at once, engines queue the excess: at most as many requests again, until some
end.
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


class ConnectedWorkers:
    """The number of connected workers of each model, counted anew after each change of the fleet or the fold."""

    def __init__(self, state: State, fleet: Fleet) -> None:
        self._state = state
        self._fleet = fleet
        self._alive: list[Member] = []
        self._changes = -1
        self._counts: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<ConnectedWorkers {dict(self._counts)}>"

    def of(self, model: str) -> int:
        """Connected workers of the model. O(1) while no worker joins or leaves, else O(workers)."""
        alive, changes = self._state.alive(), self._fleet.changes
        if self._alive is not alive or self._changes != changes:
            self._alive, self._changes = alive, changes
            there = (each.joined for each in self._state.serving() if self._fleet.connected(each.worker))
            self._counts = Counter(joined.model for joined in there if joined is not None)
        return self._counts[model]


SPARE_PART = 8
"""A worker gets one slot more for each SPARE_PART of its engine: the next request is there when one ends."""
WITH_PREFILL = 2
"""With prefill workers, a worker has this many times the slots of its engine: a request takes none of these while
its prompt is computed elsewhere."""
UNBOUNDED = 1 << 30
"""Slots of a worker that does not report how many requests its engine runs at once."""


class Capacity(NamedTuple):
    """The slots of one model's workers, as one replica sees them now."""

    slots: int
    taken: int
    """Slots taken by requests in flight of all replicas."""
    replicas: int
    overloaded: bool
    """Workers are left out because too many requests wait in their engines."""

    @property
    def share(self) -> int:
        """Slots that each replica may always take."""
        return -(-self.slots // self.replicas)

    def free(self, own: int, admitted: int) -> int:
        """Requests that may still start. `own` requests of this replica have a slot; `admitted` of them are not
        counted in `taken` yet."""
        return max(0, self.share - own, self.slots - max(own, self.taken + admitted))


def find_capacity(
    view: View, model: str, settings: RoutingSettings, slots: Callable[[WorkerId], int]
) -> Capacity | None:
    """The slots of the workers among which a decision would choose now. None if it would find no worker even if all
    were idle: then waiting helps no request. `slots` returns how many requests an engine runs at once, 0 if unknown.
    O(workers)."""
    sure, doubtful, overloaded = _usable(view, model, settings)
    if not (sure or doubtful or overloaded):
        return None
    workers = sure or doubtful
    with_prefill = view.state.has_prefill_workers(model)
    folded, pending = view.state.routing.in_flight_load.busy, view.pending_events.in_flight_load.busy
    taken = sum(load[worker].requests for worker in workers for load in (folded, pending) if worker in load)
    return Capacity(
        slots=sum(settings.active_max or _slots(slots(worker), with_prefill=with_prefill) for worker in workers),
        taken=taken,
        replicas=max(1, len(view.state.routing.replicas)),
        overloaded=overloaded,
    )


def _usable(view: View, model: str, settings: RoutingSettings) -> tuple[list[WorkerId], list[WorkerId], bool]:
    """Workers that can take a request, workers of the last resort, and True if others are overloaded. The order of the
    checks is that of `projections.policy.decide`."""
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
