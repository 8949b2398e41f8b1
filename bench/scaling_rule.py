"""RateRule: a baseline for the planner, the fewest workers that arrivals divided by a constant need."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from actors.planning.planner import (
    CancelStart,
    DrainWorker,
    PeriodEnded,
    PlannerCommand,
    PlannerEvent,
    StartWorker,
    WorkerReady,
)
from core.machine import Tick
from projections.scaling.scale_settings import ScaleSettings

WINDOW_S = 60
"""Arrivals are counted over so many seconds."""
DOWN_S = 120
"""The fleet shrinks to the most workers that were required in so many seconds."""


class RateRule:
    """A machine with the interface of the planner's. `per_worker` is told to it, and tuned in hindsight."""

    def __init__(self, per_worker: float, settings: ScaleSettings) -> None:
        self._per_worker = per_worker
        self._settings = settings
        self._arrived: deque[tuple[int, int, int]] = deque()
        """End, arrivals and seconds of each period in the window."""
        self._required: deque[tuple[int, int]] = deque()
        self._starts = 0
        self._pending: list[int] = []

    def __repr__(self) -> str:
        return f"<RateRule of {self._per_worker} a worker>"

    @property
    def due_us(self) -> int | None:
        """Nothing is due by time."""
        return None

    def step(self, event: PlannerEvent | Tick, _now_us: int) -> Sequence[PlannerCommand]:
        """Orders that make the fleet what the rule wants."""
        if isinstance(event, WorkerReady):
            self._pending.remove(event.start)
        if not isinstance(event, PeriodEnded):
            return ()
        missing = self._target(event) - event.ready - len(self._pending)
        return [self._start() for _ in range(missing)] + [self._stop() for _ in range(-missing)]

    def _target(self, event: PeriodEnded) -> int:
        now_ms = event.rolled.at_ms
        self._arrived.append((now_ms, event.rolled.arrivals, event.rolled.period_s))
        while self._arrived[0][0] <= now_ms - WINDOW_S * 1000:
            self._arrived.popleft()
        rate = sum(count for _, count, _ in self._arrived) / sum(seconds for *_, seconds in self._arrived)
        fewest = max(self._settings.min, math.ceil(rate / self._per_worker))
        self._required.append((now_ms, min(self._settings.max, fewest)))
        while self._required[0][0] <= now_ms - DOWN_S * 1000:
            self._required.popleft()
        return max(workers for _, workers in self._required)

    def _start(self) -> PlannerCommand:
        self._starts += 1
        self._pending.append(self._starts)
        return StartWorker(self._starts)

    def _stop(self) -> PlannerCommand:
        return CancelStart(self._pending.pop()) if self._pending else DrainWorker()
