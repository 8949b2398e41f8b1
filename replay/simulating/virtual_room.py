"""The places that the workers of a simulation have for requests, as one replica sees them."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from actors.router.capacity import SPARE_PART, WITH_PREFILL, Capacity
from core.ids import WorkerId
from core.settings import RoutingSettings
from projections.folds.pending_events import PendingEvents
from projections.folds.state import State


def room(
    state: State, ahead: PendingEvents, gone: AbstractSet[WorkerId], settings: RoutingSettings, slots: int
) -> Capacity | None:
    """As `actors.router.capacity.CapacityCalculator.of`, which tells more kinds of workers apart: here one is connected
    or gone, and each engine runs as many requests as `slots`. O(workers)."""
    usable: list[WorkerId] = []
    overloaded = False
    for member in state.serving():
        worker, report = member.worker, state.loads.reports.get(member.worker)
        if worker in gone or (report is not None and report.draining):
            continue
        if report is not None and report.waiting >= settings.waiting_max:
            overloaded = True
        else:
            usable.append(worker)
    if not (usable or overloaded):
        return None
    each = slots * WITH_PREFILL if state.prefilling() else slots + -(-slots // SPARE_PART)
    taken = sum(
        tally[worker].requests
        for worker in usable
        for tally in (state.routing.in_flight_load.busy, ahead.in_flight_load.busy)
        if worker in tally
    )
    return Capacity(len(usable) * (settings.active_max or each), taken, max(1, len(state.routing.replicas)), overloaded)
