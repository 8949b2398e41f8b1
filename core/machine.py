"""Machine: the form of every actor that decides. Events go in, commands come out, and nothing else happens.

A machine owns its state. It knows no clock, socket, callback or randomness: the time is an argument, and what is random
stands in its events. So the live process and the simulator drive the same machine, each with a shell of its own
(`streams.machine_shell.MachineShell` and `replay.simulate.virtual_time`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

E = TypeVar("E")
C = TypeVar("C")
E_contra = TypeVar("E_contra", contravariant=True)
C_co = TypeVar("C_co", covariant=True)


class Tick(NamedTuple):
    """The time `due_us` of a machine has come."""


TICK = Tick()


class Machine(Protocol[E_contra, C_co]):
    """The interface that a shell drives. `now_us` is monotonic and never falls from one step to the next."""

    @property
    def due_us(self) -> int | None:
        """When a Tick is wanted, if no event comes before; at or before the present: in this turn of the loop, after
        the events that wait. None: not at all."""

    def step(self, event: E_contra | Tick, now_us: int) -> Sequence[C_co]:
        """The state after the event, and what is to be done, in this order. A Tick before `due_us` changes nothing."""


class Shell(ABC, Generic[E, C]):
    """Drives one machine: events in order, commands executed, Ticks at their times. Subclasses have the timer."""

    def __init__(self, machine: Machine[E, C], execute: Callable[[C], None], now_us: Callable[[], int]) -> None:
        """`execute` does what a command says, at once or in a task. What goes wrong with it is an event, not raised.
        `now_us` returns the present time."""
        self.machine = machine
        self.step_began_us = 0
        """When the present step began, or the last one."""
        self._execute = execute
        self._now_us = now_us
        self._inbox: deque[E | Tick] = deque()
        self._is_running = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.machine!r}, {len(self._inbox)} events wait>"

    def feed(self, event: E | Tick) -> None:
        """The event was handled, and all that its commands led to; during a command, it is handled behind those that
        the same step still has."""
        self._inbox.append(event)
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._inbox:
                self.step_began_us = self._now_us()
                for command in self.machine.step(self._inbox.popleft(), self.step_began_us):
                    self._execute(command)
        finally:
            self._is_running = False
            self._set_timer()

    @abstractmethod
    def close(self) -> None:
        """No Tick comes any more."""

    @abstractmethod
    def _set_timer(self) -> None:
        """A Tick comes at the machine's `due_us`, and at no other time."""
