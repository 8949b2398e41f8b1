"""MachineShell: drives one machine in an event loop: Ticks come by its timers, times are those of a clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from core.clock import Clock
from core.machine import TICK, Machine, Shell

E = TypeVar("E")
C = TypeVar("C")


class MachineShell(Shell[E, C]):
    """Owned by one event loop; `feed` is called there only."""

    def __init__(self, machine: Machine[E, C], clock: Clock, execute: Callable[[C], None]) -> None:
        super().__init__(machine, execute, clock.monotonic_us)
        self._timer: asyncio.Handle | None = None
        self._timer_us: int | None = None

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
        loop, left_us = asyncio.get_running_loop(), due_us - self._now_us()
        self._timer_us = due_us
        # uvloop rounds to whole milliseconds: a Tick that came early would turn the loop until its time
        left_s = -(-left_us // 1000) / 1000
        self._timer = loop.call_later(left_s, self._tick) if left_us > 0 else loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._timer = self._timer_us = None
        self.feed(TICK)
