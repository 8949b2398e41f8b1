"""Agenda: the events to come in virtual time, and the present time; VirtualShell: drives one machine in it."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TypeVar

from core.machine import TICK, Machine, Shell

E = TypeVar("E")
C = TypeVar("C")


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


class VirtualShell(Shell[E, C]):
    """As `streams.machine_shell.MachineShell`, with the agenda instead of an event loop."""

    def __init__(self, machine: Machine[E, C], agenda: Agenda, execute: Callable[[C], None]) -> None:
        super().__init__(machine, execute, lambda: agenda.now_us)
        self._agenda = agenda
        self._timer = 0
        """Its number in the agenda."""
        self._timer_us: int | None = None

    def close(self) -> None:
        """No Tick comes any more."""
        self._agenda.cancel(self._timer)
        self._timer_us = None

    def _set_timer(self) -> None:
        due_us = self.machine.due_us
        if due_us != self._timer_us:
            self.close()
            if due_us is not None:
                self._timer, self._timer_us = self._agenda.put(due_us, self._tick), due_us

    def _tick(self) -> None:
        self._timer_us = None
        self.feed(TICK)
