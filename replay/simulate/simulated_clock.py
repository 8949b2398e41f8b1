"""SimulatedClock: the clocks of one machine of a simulation, which may be off, drift and step."""

from __future__ import annotations

from typing import NamedTuple

import xxhash

from replay.simulate.virtual_time import Agenda
from streams.broker_clock import BrokerClock

ROUND_TRIP_US = 2000
"""Bound of each way of an exchange with the broker; how long it takes is drawn."""


class ClockError(NamedTuple):
    """The error of one machine's clocks."""

    offset_ms: int = 0
    """The wall clock is so far ahead."""
    drift_ppm: int = 0
    """Both clocks gain so many millionths."""
    step_ms: int = 0
    """The wall clock jumps by so much …"""
    step_at_us: int = 0
    """… at this virtual time."""


NO_ERROR = ClockError()


class SimulatedClock:
    """As `core.clock.Clock`, in virtual time."""

    def __init__(self, agenda: Agenda, start_ms: int, error: ClockError) -> None:
        """Without an error the wall clock begins at `start_ms`."""
        self._agenda = agenda
        self._start_ms = start_ms
        self._error = error

    def wall_us(self, at_us: int) -> int:
        """The wall clock at that virtual time, in microseconds since 1970."""
        offset_ms, _, step_ms, step_at_us = self._error
        jumped_ms = offset_ms + (step_ms if at_us >= step_at_us else 0)
        return (self._start_ms + jumped_ms) * 1000 + self._drifted_us(at_us)

    def wall_ms(self) -> int:
        return self.wall_us(self._agenda.now_us) // 1000

    def monotonic_ms(self) -> int:
        return self.monotonic_us() // 1000

    def monotonic_us(self) -> int:
        return self._drifted_us(self._agenda.now_us)

    def monotonic_ns(self) -> int:
        return self.monotonic_us() * 1000

    def _drifted_us(self, at_us: int) -> int:
        return at_us + at_us * self._error.drift_ppm // 1_000_000


def sample(clock: SimulatedClock, estimate: BrokerClock, broker: SimulatedClock, at_us: int, seed: int) -> None:
    """The estimate has one sample more, of an exchange that ends now; each way takes up to ROUND_TRIP_US."""
    ways = xxhash.xxh3_64_intdigest(f"clock/{at_us}".encode(), seed)
    there_us, back_us = ways % ROUND_TRIP_US, ways // ROUND_TRIP_US % ROUND_TRIP_US
    received_us = clock.monotonic_us()
    estimate.add(received_us - there_us - back_us, broker.wall_us(at_us - back_us), received_us)
