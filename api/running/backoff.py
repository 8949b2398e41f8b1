"""How long to wait before a part that died is started again."""

from __future__ import annotations

RESTART_DELAY_FIRST_S = 1.0
RESTART_DELAY_MAX_S = 30.0
STEADY_S = 60.0
"""A part that was up for so long is trusted again: its next delay is the first."""


class Backoff:
    """Doubles from the first delay to the longest; starts over after a steady life."""

    def __init__(
        self,
        first_s: float = RESTART_DELAY_FIRST_S,
        max_s: float = RESTART_DELAY_MAX_S,
        steady_s: float = STEADY_S,
    ) -> None:
        assert 0 < first_s <= max_s
        self._first_s, self._max_s, self._steady_s = first_s, max_s, steady_s
        self._next_s = first_s

    def after(self, up_s: float) -> float:
        """The delay after a life of that length."""
        delay_s = self._first_s if up_s >= self._steady_s else self._next_s
        self._next_s = min(2 * delay_s, self._max_s)
        return delay_s
