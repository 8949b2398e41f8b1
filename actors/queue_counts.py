"""QueueCounts: what became of requests that found no free place, counted for metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Any

WAIT_MS = (1, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000)
"""Upper bounds of the waits that are counted together; one more for longer ones."""


class Waits:
    """The waits of one model's requests that were let in."""

    def __init__(self) -> None:
        self.counts = [0] * (len(WAIT_MS) + 1)
        self.sum_ms = 0

    def __repr__(self) -> str:
        return f"<Waits of {sum(self.counts)} requests, {self.sum_ms} ms>"

    def note(self, waited_ms: int) -> None:
        """One more."""
        self.counts[bisect_left(WAIT_MS, waited_ms)] += 1
        self.sum_ms += waited_ms


class QueueCounts:
    """Grows with models, not with requests."""

    def __init__(self) -> None:
        self._refused = Counter[tuple[str, str]]()
        self._waits: dict[str, Waits] = {}

    def __repr__(self) -> str:
        return f"<QueueCounts: {self._refused.total()} turned away>"

    def let_in(self, model: str, waited_ms: int) -> None:
        """One got its place after a wait."""
        self._waits.setdefault(model, Waits()).note(waited_ms)

    def turned_away(self, model: str, reason: str) -> None:
        """One will get none; the reason is of `core.events.routing.TURNED_AWAY`."""
        self._refused[model, reason] += 1

    def describe(self) -> dict[str, Any]:
        """Rows by model, and by reason."""
        return {
            "turned_away": [
                {"model": model, "reason": reason, "requests": count}
                for (model, reason), count in sorted(self._refused.items())
            ],
            "waits": [
                {"model": model, "counts": list(waits.counts), "sum_ms": waits.sum_ms}
                for model, waits in sorted(self._waits.items())
            ],
        }
