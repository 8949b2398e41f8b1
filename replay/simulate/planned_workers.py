"""PlannedWorkers: the places of one role's workers in a fleet that a planner sizes, and the orders that are on their
way."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

from replay.simulate.simulated_worker import SimulatedWorker


class WorkerLifetime:
    """One worker of a planner's fleet, in virtual microseconds."""

    def __init__(self, from_us: int, role: str) -> None:
        self.role = role
        self.from_us = from_us
        """When it was ordered; devices are taken from then on."""
        self.drained_us = self.until_us = -1
        """Begin of its drain and its end; -1 while it has none."""
        self.handed_over = False
        """Requests went on elsewhere when it left."""

    def __repr__(self) -> str:
        return f"<WorkerLifetime from {self.from_us} to {self.until_us} us>"

    @property
    def drains(self) -> bool:
        """The worker drains now."""
        return self.drained_us >= 0 > self.until_us


class StartingWorker(NamedTuple):
    """An order on its way."""

    number: int
    """Of the event in the agenda that ends the start."""
    place: int
    life: WorkerLifetime


class PlannedWorkers:
    """Places from the first one on; a place that is free again is taken before a new one."""

    def __init__(self, next_place: int) -> None:
        """`next_place` is the first place that has had no worker."""
        self.starting: dict[int, StartingWorker] = {}
        """By number of the order."""
        self.ready: dict[int, tuple[SimulatedWorker, WorkerLifetime]] = {}
        """Workers that do not drain, by place."""
        self._free: list[int] = []
        """A heap of places whose workers have left."""
        self._next_place = next_place

    def __repr__(self) -> str:
        return f"<PlannedWorkers, {len(self.ready)} ready, {len(self.starting)} start>"

    def take_place(self) -> int:
        """The first free place, which is free no more."""
        if not self._free:
            heappush(self._free, self._next_place)
            self._next_place += 1
        return heappop(self._free)

    def give_back(self, place: int) -> None:
        """The place is free."""
        heappush(self._free, place)
