"""Declines: workers that would not take a held request, because they compute prompts of other replicas of which the log
has not told yet."""

from __future__ import annotations

from collections.abc import Container

from core.ids import WorkerId


class Declines:
    """What this replica was told, until the log tells of it or it should be over."""

    def __init__(self) -> None:
        self.count = 0
        """How often a worker declined."""
        self._until_us: dict[WorkerId, int] = {}

    def __repr__(self) -> str:
        return f"<Declines: {self.count}, of {len(self._until_us)} workers now>"

    @property
    def stand(self) -> bool:
        """Whether any may count."""
        return bool(self._until_us)

    def note(self, worker: WorkerId, until_us: int) -> None:
        """The worker declined, and should compute until then."""
        self.count += 1
        self._until_us[worker] = until_us

    def busy_us(self, known: Container[WorkerId], now_us: int) -> dict[WorkerId, int]:
        """How long each should be busy yet with what the log has not told of; those of which something outstanding is
        known are forgotten. By worker's id."""
        if self._until_us:
            left = {each: at for each, at in sorted(self._until_us.items()) if at > now_us and each not in known}
            self._until_us = left
        return {worker: at - now_us for worker, at in self._until_us.items()}
