"""Room: how many requests the workers of a model may have in flight, and how many of these places are free.

Every replica fills the same places and sees the others' requests a few milliseconds late. A replica may take any place
that it sees free; beyond that, each may always have its part of them all, so that none starves behind another whose
requests follow on each other without a gap. Where both are taken at once, engines queue what is too much: never more
than as much again, and only until requests end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from actors.fleet import Fleet
from actors.live_settings import LiveSettings
from actors.suspicion import Suspicion
from actors.voice import Voice
from core.ids import WorkerId
from projections.folds.state import State
from projections.policy.candidates import LAST_RESORT_REASONS

SPARE_PART = 8
"""One in so many places more than an engine runs at once: the next request is there when one ends."""
WITH_PREFILL = 2
"""Where prompts are computed elsewhere, a worker has this many times its engine's places: who waits for its prompt
takes none in the engine."""
UNBOUNDED = 1 << 30
"""Places of a worker that does not say how many requests its engine runs at once."""


class Room(NamedTuple):
    """The places of one model's workers, as one replica sees them now."""

    places: int
    taken: int
    """By requests in flight of all replicas."""
    replicas: int
    overloaded: bool
    """Workers are left out because too much waits in their engines."""

    @property
    def share(self) -> int:
        """What each replica may have whatever the others have."""
        return -(-self.places // self.replicas)

    def free(self, own: int, coming: int) -> int:
        """How many more may start; `own` of ours have a place, `coming` of them are not yet counted in `taken`."""
        return max(0, self.share - own, self.places - max(own, self.taken + coming))


class Rooms:
    """Counts them from the fold, from what is ahead of it, and from what only this replica knows."""

    def __init__(
        self, state: State, fleet: Fleet, suspicion: Suspicion, live: LiveSettings, voice: Callable[[], Voice]
    ) -> None:
        self._state = state
        self._fleet = fleet
        self._suspicion = suspicion
        self._live = live
        self._voice = voice

    def of(self, model: str) -> Room | None:
        """Of those workers among which a decision would choose now. None if it would find none even if all were idle:
        then waiting helps nobody. O(workers)."""
        sure, doubtful, overloaded = self._usable(model)
        if not (sure or doubtful or overloaded):
            return None
        workers = sure or doubtful
        folded, ahead = self._state.routing.in_flight_load.busy, self._voice().ahead.in_flight_load.busy
        taken = sum(tally[worker].requests for worker in workers for tally in (folded, ahead) if worker in tally)
        return Room(
            places=sum(map(self._places, workers)),
            taken=taken,
            replicas=max(1, len(self._state.routing.replicas)),
            overloaded=overloaded,
        )

    def _usable(self, model: str) -> tuple[list[WorkerId], list[WorkerId], bool]:
        """Those who can take a request, those who would only if nobody else could, and whether others are overloaded;
        as `projections.policy.decide` sorts them out."""
        serving = self._state.serving()
        local = self._fleet.local(self._state.workers(), self._suspicion.suspected)
        reports, waiting_max = self._state.loads.reports, self._live.current.waiting_max
        sure: list[WorkerId] = []
        doubtful: list[WorkerId] = []
        overloaded = False
        for member in serving:
            worker, report = member.worker, reports.get(member.worker)
            if member.joined is None or member.joined.model != model or worker in local["not_connected"]:
                continue
            if report is not None and report.draining:
                continue
            if report is not None and report.waiting >= waiting_max:
                overloaded = True
            elif any(worker in local[doubt] for doubt in LAST_RESORT_REASONS):
                doubtful.append(worker)
            else:
                sure.append(worker)
        return sure, doubtful, overloaded

    def _places(self, worker: WorkerId) -> int:
        if self._live.current.active_max:
            return self._live.current.active_max
        registration = self._fleet.registered.get(worker)
        slots = registration.slots if registration is not None else 0
        if not slots:
            return UNBOUNDED
        return slots * WITH_PREFILL if self._state.prefilling() else slots + -(-slots // SPARE_PART)
