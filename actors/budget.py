"""Budget: a share of a replica's time, for what may be left out when it would take more."""

from __future__ import annotations

from core.clock import Clock


class Budget:
    """One part in `parts` of all time comes in, up to `most_us`, which is there at first."""

    def __init__(self, clock: Clock, parts: int, most_us: int) -> None:
        self._clock = clock
        self._parts = parts
        self._most_us = most_us
        self._left_us = most_us
        self._since_us = clock.monotonic_us()

    def __repr__(self) -> str:
        return f"<Budget {self._left_us} us left>"

    @property
    def is_left(self) -> bool:
        """Whether something may be spent."""
        now_us = self._clock.monotonic_us()
        come_us, rest_us = divmod(now_us - self._since_us, self._parts)
        self._since_us = now_us - rest_us
        self._left_us = min(self._most_us, self._left_us + come_us)
        return self._left_us > 0

    def spend(self, us: int) -> None:
        """So much was; it may be more than there was, and then the next must wait for it."""
        self._left_us -= us
