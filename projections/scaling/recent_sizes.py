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
        self._kept: deque[SizesEvent] = deque()
        """Oldest first."""
        self._requests = 0
        """Of these events."""
        self._summed: deque[SizesEvent] = deque()
        """The newest ones, whose requests count. Some of them may be kept no more …"""
        self._unsummed = 0
        """… and so many newer ones are not yet in the sums."""
        self._sums: dict[tuple[int, int], list[int]] = {}
        """Sums of these events by class …"""
        self._cells: tuple[DemandCell, ...] = ()
        """… and the result."""

    def __repr__(self) -> str:
        return f"<RecentSizes of {self._requests} requests>"

    @property
    def cells(self) -> tuple[DemandCell, ...]:
        """Each class once, in their order. O(classes + cells of the events that came or went) once behind events."""
        if not self._unsummed:
            return self._cells
        counted = self._alike()
        newest = list(islice(reversed(self._kept), counted))
        while self._summed and len(self._summed) + self._unsummed > counted:
            self._take(self._summed.popleft(), -1)
        for event in newest[: self._unsummed][::-1]:
            self._summed.append(event)
            self._take(event, 1)
        for event in newest[len(self._summed) :]:
            self._summed.appendleft(event)
            self._take(event, 1)
        self._unsummed = 0
        self._cells = tuple(DemandCell(*found) for _, found in sorted(self._sums.items()))
        return self._cells

    def _take(self, event: SizesEvent, sign: int) -> None:
        """The event is in the sums, or with a negative sign in them no more."""
        for key, values in event.cells:
            found = self._sums.setdefault(key, [0, 0, 0, 0])
            for place, value in enumerate(values):
                found[place] += sign * value
            if not found[0]:
                del self._sums[key]

    def add(self, event: SizesEvent) -> None:
        """One event more; the oldest ones beyond the bounds count no more. O(1)."""
        self._kept.append(event)
        self._unsummed += 1
        self._requests += event.requests
        first_ms = event.at_ms - self._window_ms
        while self._kept[0].at_ms <= first_ms and self._requests - self._kept[0].requests >= self._least:
            self._requests -= self._kept.popleft().requests

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


class SizesEvent(NamedTuple):
    """Sizes of one period."""

    at_ms: int
    cells: tuple[tuple[tuple[int, int], tuple[int, ...]], ...]
    """Class and values of each."""
    requests: int
    uncached: int
    output: int

    @staticmethod
    def of(at_ms: int, cells: tuple[DemandCell, ...]) -> SizesEvent:
        """Of the period that ended then."""
        classes = [size_classes(it.uncached_tokens // it.count, it.output_tokens // it.count) for it in cells]
        return SizesEvent(
            at_ms,
            tuple(zip(classes, map(astuple, cells), strict=True)),
            sum(it.count for it in cells),
            sum(it.uncached_tokens for it in cells),
            sum(it.output_tokens for it in cells),
        )


def _is_alike(one: int, other: int) -> bool:
    """The larger of these is at most ALIKE_BP above the other."""
    return max(one, other) * ALL_BP <= min(one, other) * (ALL_BP + ALIKE_BP)
