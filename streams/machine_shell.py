"""MachineShell: drives one machine in an event loop: events in order, commands executed, Ticks at their times."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from core.clock import Clock
from core.machine import TICK, Machine, Tick

E = TypeVar("E")
C = TypeVar("C")


class MachineShell(Generic[E, C]):
    """Owned by one event loop; `feed` is called there only."""

    def __init__(self, machine: Machine[E, C], clock: Clock, execute: Callable[[C], None]) -> None:
        """`execute` does what a command says, at once or in a task. What goes wrong with it is an event, not raised."""
        self.machine = machine
        self._clock = clock
        self._execute = execute
        self.step_began_us = 0
        """When the present step began, or the last one."""
        self._inbox: deque[E | Tick] = deque()
        self._is_running = False
        self._timer: asyncio.Handle | None = None
        self._timer_us: int | None = None

    def __repr__(self) -> str:
        return f"<MachineShell of {self.machine!r}, {len(self._inbox)} events wait>"

    def feed(self, event: E | Tick) -> None:
        """The event was handled, and all that its commands led to; during a command, it is handled behind those that
        the same step still has."""
        self._inbox.append(event)
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._inbox:
                self.step_began_us = self._clock.monotonic_us()
                for command in self.machine.step(self._inbox.popleft(), self.step_began_us):
                    self._execute(command)
        finally:
            self._is_running = False
            self._set_timer()

    def close(self) -> None:
        """No Tick comes any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._timer_us = None

    def _set_timer(self) -> None:
        due_us = self.machine.due_us
        if due_us == self._timer_us:
            return
        self.close()
        if due_us is None:
            return
        loop, left_us = asyncio.get_running_loop(), due_us - self._clock.monotonic_us()
        self._timer_us = due_us
        # uvloop rounds to whole milliseconds: a Tick that came early would turn the loop until its time
        left_s = -(-left_us // 1000) / 1000
        self._timer = loop.call_later(left_s, self._tick) if left_us > 0 else loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._timer = self._timer_us = None
        self.feed(TICK)
