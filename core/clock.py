"""The only file that may ask the time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks: one that agrees with other machines more or less, and one that never goes back."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970; may jump."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some start; never goes back."""

    def monotonic_us(self) -> int:
        """The same in microseconds, for durations that are shown, or that bound what a process does for itself."""

    def monotonic_ns(self) -> int:
        """The same in nanoseconds; the cheapest to ask."""


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1000

    monotonic_ns = staticmethod(time.monotonic_ns)


class ManualClock:
    """A clock moved by hand, for tests and simulation; all of its readings are the same moment."""

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms

    def advance(self, by_ms: int) -> None:
        """All readings are `by_ms` later; never negative."""
        assert by_ms >= 0
        self.now_ms += by_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ms(self) -> int:
        return self.now_ms

    def monotonic_us(self) -> int:
        return self.now_ms * 1000

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000
