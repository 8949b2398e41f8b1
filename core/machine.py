"""Machine: the form of every actor that decides. Events go in, commands come out, and nothing else happens.

A machine owns its state. It knows no clock, socket, callback or randomness: the time is an argument, and what is random
stands in its events. So the live process and the simulator drive the same machine, each with a shell of its own
(`streams.machine_shell.MachineShell` and `replay.simulate.virtual_time`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

E_contra = TypeVar("E_contra", contravariant=True)
C_co = TypeVar("C_co", covariant=True)


class Tick(NamedTuple):
    """The time `due_us` of a machine has come."""


TICK = Tick()


class Machine(Protocol[E_contra, C_co]):
    """What a shell drives. `now_us` is monotonic and never falls from one step to the next."""

    @property
    def due_us(self) -> int | None:
        """When a Tick is wanted, if no event comes before; at or before the present: in this turn of the loop, after
        the events that wait. None: not at all."""

    def step(self, event: E_contra | Tick, now_us: int) -> Sequence[C_co]:
        """The state after the event, and what is to be done, in this order. A Tick before `due_us` changes nothing."""
