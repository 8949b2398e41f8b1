"""FreedRoom: the rule by which a removed block gives its room to a block that is stored later.

An engine removes blocks to make room for those that it computes next, and reports the removals before the stores. So
on each tier of each worker the room of the block that was removed first goes to the block that is stored next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from core.ids import WorkerId
from replay.cache.copy_fold import Copies

Label = TypeVar("Label")


class FreedRoom(Generic[Label]):
    """Labels of removed blocks whose room is empty, the oldest first: never more than the caches have blocks."""

    def __init__(self) -> None:
        self._empty: dict[WorkerId, dict[str, deque[Label]]] = {}

    def __repr__(self) -> str:
        return f"<FreedRoom of {len(self._empty)} workers>"

    def free(self, copies: Copies, labels: Sequence[Label]) -> None:
        """The worker removed these blocks."""
        self._empty.setdefault(copies.worker, {}).setdefault(copies.tier, deque()).extend(labels)

    def fill(self, copies: Copies) -> list[Label]:
        """The labels of the blocks whose room the first of these stored blocks take; each is given once."""
        empty = self._empty.get(copies.worker, {}).get(copies.tier)
        if not empty:
            return []
        return [empty.popleft() for _ in range(min(len(empty), len(copies.blocks)))]

    def end(self, worker: WorkerId) -> list[Label]:
        """No block that is stored later takes the room that is empty there; gives its labels."""
        return [label for labels in self._empty.pop(worker, {}).values() for label in labels]

    def end_all(self) -> list[Label]:
        """The same for all workers."""
        return [label for worker in list(self._empty) for label in self.end(worker)]
