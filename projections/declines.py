"""Declines: workers that would not take a held request, because they compute prompts of other replicas of which the log
has not told yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from core.ids import WorkerId


class Decline(NamedTuple):
    """What one worker said."""

    tokens: int
    """What it computes for other replicas."""
    until_us: int
    """When that should be over."""


class Declines:
    """What this replica was told, until the log tells of it or it should be over."""

    def __init__(self) -> None:
        self.count = 0
        """How often a worker declined."""
        self._said: dict[WorkerId, Decline] = {}

    def __repr__(self) -> str:
        return f"<Declines: {self.count}, of {len(self._said)} workers now>"

    @property
    def stand(self) -> bool:
        """Whether any may count."""
        return bool(self._said)

    def note(self, worker: WorkerId, tokens: int, until_us: int) -> None:
        """The worker declined: it computes so many tokens for others, and should be done with them then."""
        self.count += 1
        self._said[worker] = Decline(tokens, until_us)

    def busy_us(self, known: Mapping[WorkerId, int], now_us: int) -> dict[WorkerId, int]:
        """How long each should be busy yet with what the log has not told of, by worker's id.

        `known` are the tokens of its outstanding prefills. With as many as it said it is forgotten: what it declined
        does not fit beside those either, so a plan knows all that it knew.
        """
        self._said = {
            worker: said
            for worker, said in sorted(self._said.items())
            if said.until_us > now_us and known.get(worker, 0) < max(1, said.tokens)
        }
        return {worker: said.until_us - now_us for worker, said in self._said.items()}
