"""Agenda: the events to come in virtual time, and the present time."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush


class Agenda:
    """Things happen in the order of their times; at one time, in the order in which they were put here."""

    def __init__(self) -> None:
        self.now_us = 0
        """Virtual microseconds since the start of the run."""
        self._heap: list[tuple[int, int]] = []
        self._acts: dict[int, Callable[[], object]] = {}
        """By number, those that are not cancelled."""
        self._number = 0

    def __repr__(self) -> str:
        return f"<Agenda at {self.now_us} us, {len(self._acts)} things to come>"

    def put(self, at_us: int, act: Callable[[], object]) -> int:
        """It will happen then, or now if that has passed; returns the number to cancel it by. O(log n)."""
        self._number += 1
        heappush(self._heap, (max(at_us, self.now_us), self._number))
        self._acts[self._number] = act
        return self._number

    def cancel(self, number: int) -> None:
        """It will not happen; it may have happened already."""
        self._acts.pop(number, None)

    def advance(self) -> bool:
        """The next thing has happened, at its time; False if there is none."""
        while self._heap:
            at_us, number = heappop(self._heap)
            act = self._acts.pop(number, None)
            if act is not None:
                self.now_us = at_us
                act()
                return True
        return False
