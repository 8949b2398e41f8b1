"""VirtualFleet: a fleet that carries out each decision. An ordered worker is ready when its start-up time is over."""

from __future__ import annotations

from collections import deque


class VirtualFleet:
    """Workers come in time, never fail, and leave at once. Times are milliseconds of the recorded decisions."""

    def __init__(self, ready: int, starting: int, now_ms: int, startup_ms: int) -> None:
        """Workers that start already take their start-up time from now on: their orders may not be known."""
        self.ready = ready
        self._due_ms: deque[int] = deque([now_ms + startup_ms] * starting)
        """The times when starting workers will be ready, in the order of their orders."""
        self.started = self.drained = 0
        """Workers that were ordered, and ready ones that left."""

    def __repr__(self) -> str:
        return f"<VirtualFleet, {self.ready} ready, {self.starting} starting>"

    @property
    def starting(self) -> int:
        """Workers that were ordered and are not ready."""
        return len(self._due_ms)

    @property
    def workers(self) -> int:
        """All that take devices."""
        return self.ready + self.starting

    def advance(self, now_ms: int) -> None:
        """Workers whose start-up time is over are ready."""
        due = sum(due_ms <= now_ms for due_ms in self._due_ms)
        for _ in range(due):
            self._due_ms.remove(min(self._due_ms))
        self.ready += due

    def resize(self, target: int, now_ms: int, startup_ms: int) -> None:
        """The fleet becomes so many workers. As the planner does, the newest starts are cancelled before workers
        drain."""
        missing = target - self.workers
        self._due_ms.extend([now_ms + startup_ms] * missing)
        self.started += max(0, missing)
        for _ in range(min(-missing, self.starting)):
            self._due_ms.pop()
        leaving = max(0, self.workers - target)
        self.ready -= leaving
        self.drained += leaving
