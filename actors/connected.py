"""Connected: how many workers of each model this replica could send a request to now."""

from __future__ import annotations

from collections import Counter

from actors.fleet import Fleet
from projections.folds.kv_fold import Member
from projections.folds.state import State


class Connected:
    """Counted anew when somebody came, went, or a link did: every request asks."""

    def __init__(self, state: State, fleet: Fleet) -> None:
        self._state = state
        self._fleet = fleet
        self._alive: list[Member] = []
        self._changes = -1
        self._counts: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<Connected {dict(self._counts)}>"

    def of(self, model: str) -> int:
        """So many workers of the model; O(1) while nobody comes or goes, O(workers) else."""
        alive, changes = self._state.alive(), self._fleet.changes
        if self._alive is not alive or self._changes != changes:
            self._alive, self._changes = alive, changes
            there = (each.joined for each in self._state.serving() if self._fleet.connected(each.worker))
            self._counts = Counter(joined.model for joined in there if joined is not None)
        return self._counts[model]
