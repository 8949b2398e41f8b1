"""When workers of a simulation start and end: given lives, and failures drawn from the seed."""

from __future__ import annotations

from typing import NamedTuple

import xxhash

FOREVER = -1


class WorkerLife(NamedTuple):
    """All times are virtual microseconds since the start of the run."""

    place: int
    """In the fleet, from 0. Several lives may follow each other in one place."""
    from_us: int = 0
    until_us: int = FOREVER
    """When it ends."""
    told_us: int = FOREVER
    """When the log hears that it was lost; FOREVER for one that leaves by itself: it gets nothing new from its end on,
    and ends what it has."""
    capacity_blocks: int = 0
    """Of its cache; 0 for those of `Options.engine`."""


HOUR_US = 3_600_000_000


class FailureSchedule:
    """One falls into each stretch of equal length, at a moment of the seed's: the number of them does not vary."""

    def __init__(self, per_hour: int, workers: int, seed: int) -> None:
        """`per_hour` above 0."""
        self._every_us = HOUR_US // per_hour
        self._workers = workers
        self._seed = seed
        self._number = 0

    def __repr__(self) -> str:
        return f"<Failures, {self._number} so far, one in {self._every_us} us>"

    def next(self) -> tuple[int, int]:
        """The time of the next one, and the place in the fleet whose worker it takes; times rise."""
        number, self._number = self._number, self._number + 1
        at_us = number * self._every_us + self._draw(number, "time") % self._every_us
        return at_us, self._draw(number, "place") % self._workers

    def _draw(self, number: int, what: str) -> int:
        drawn: int = xxhash.xxh3_64_intdigest(f"{what}/{number}".encode(), self._seed)
        return drawn
