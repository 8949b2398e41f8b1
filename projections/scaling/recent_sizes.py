"""RecentSizes: the sizes of the requests that ended lately.

Sizes vary within minutes, and mostly come back to their mean: those of a few minutes say little of the next ones. A
change of the workload does not come back. So the sizes of an hour count, as long as they are like the last ones.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import NamedTuple

from msgspec.structs import astuple

from core.events.scale import DemandCell
from projections.scaling.queue_model import ALL_BP, MILLI
from projections.scaling.request_demand import size_classes

ALIKE_BP = 2_500
"""Two means are alike if the larger one is at most so much above the other."""


class RecentSizes:
    """Sums of cells by class, over the last requests, and over those before them that are like them.

    These are the longest time, up to a bound, whose mean request has as many uncached tokens and as many output tokens
    as that of the last requests, but for ALIKE_BP: the nearest time with a mean beyond that ends it.
    """

    def __init__(self, requests: int, seconds: int) -> None:
        """The last so many requests count, with the others of their event, and others of so many seconds."""
        self._least, self._window_ms = requests, seconds * MILLI
        self._kept: deque[_SizesEvent] = deque()
        """Oldest first."""
        self._requests = 0
        """Of these events."""
        self._cells: tuple[DemandCell, ...] | None = ()
        """The result; None where it is not up to date."""

    def __repr__(self) -> str:
        return f"<RecentSizes of {self._requests} requests>"

    @property
    def cells(self) -> tuple[DemandCell, ...]:
        """Each class once, in their order. O(cells of all events) once behind each event; 4 ms for an hour of them."""
        if self._cells is None:
            sums: dict[tuple[int, int], list[int]] = {}
            for event in islice(reversed(self._kept), self._alike()):
                for key, values in event.cells:
                    found = sums.setdefault(key, [0, 0, 0, 0])
                    for place, value in enumerate(values):
                        found[place] += value
            self._cells = tuple(DemandCell(*found) for _, found in sorted(sums.items()))
        return self._cells

    def add(self, at_ms: int, cells: tuple[DemandCell, ...]) -> None:
        """One event more; the oldest ones beyond the bounds count no more. O(cells)."""
        event = _SizesEvent.of(at_ms, cells)
        self._kept.append(event)
        self._requests += event.requests
        while self._kept[0].at_ms <= at_ms - self._window_ms and self._requests - self._kept[0].requests >= self._least:
            self._requests -= self._kept.popleft().requests
        self._cells = None

    def _alike(self) -> int:
        """The number of the newest events whose requests count."""
        count = uncached = output = found = 0
        last: tuple[int, int, int] | None = None
        for number, event in enumerate(reversed(self._kept), 1):
            count, uncached, output = count + event.requests, uncached + event.uncached, output + event.output
            if last is None:
                last = (count, uncached, output) if count >= self._least else None
            elif not (_is_alike(uncached * last[0], last[1] * count) and _is_alike(output * last[0], last[2] * count)):
                break
            found = number
        return found


class _SizesEvent(NamedTuple):
    """Sizes of one period."""

    at_ms: int
    cells: tuple[tuple[tuple[int, int], tuple[int, ...]], ...]
    """Class and values of each."""
    requests: int
    uncached: int
    output: int

    @staticmethod
    def of(at_ms: int, cells: tuple[DemandCell, ...]) -> _SizesEvent:
        """Of the period that ended then."""
        classes = [size_classes(it.uncached_tokens // it.count, it.output_tokens // it.count) for it in cells]
        return _SizesEvent(
            at_ms,
            tuple(zip(classes, map(astuple, cells), strict=True)),
            sum(it.count for it in cells),
            sum(it.uncached_tokens for it in cells),
            sum(it.output_tokens for it in cells),
        )


def _is_alike(one: int, other: int) -> bool:
    """The larger of these is at most ALIKE_BP above the other."""
    return max(one, other) * ALL_BP <= min(one, other) * (ALL_BP + ALIKE_BP)
