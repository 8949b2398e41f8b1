"""ReadTurns: the turns of requests whose blocks are read from the disk into the host.

Reads at once take a part of the host at most. A request whose blocks do not fit in what is left of that part waits for
its turn, at most WAIT_MS, instead of computing them. A turn ends when the request is scheduled, since then its blocks
are on the device. A request that has a turn never waits: so none waits for one that waits.
"""

from __future__ import annotations

from collections.abc import Iterable

WAIT_MS = 1000
"""A request waits so long at most; then it reads what there is room for, and computes the rest."""
WAITING_MAX = 64
"""Requests that wait; a further one does not. Each is looked up again with each step of the engine."""


class ReadTurns:
    """Turns over so many blocks."""

    def __init__(self, blocks_max: int) -> None:
        self._blocks_max = blocks_max
        self._turns: dict[str, int] = {}
        """Blocks of requests that have begun, by id; 0 of those that were scheduled, or have waited in vain."""
        self._until_ms: dict[str, int] = {}
        """The ends of the waits, by id."""
        self._blocks = 0
        """Of all turns."""

    def __repr__(self) -> str:
        return f"<ReadTurns {self._blocks} of {self._blocks_max} blocks, {len(self._until_ms)} wait>"

    def may_begin(self, request: str, blocks: int, now_ms: int) -> bool:
        """True if the request, which is to read so many blocks, may read now, and from then on."""
        if request in self._turns:
            return True
        if not self._blocks or self._blocks + blocks <= self._blocks_max:
            self._begin(request, blocks)
            return True
        until_ms = self._until_ms.get(request)
        if until_ms is None and len(self._until_ms) < WAITING_MAX:
            self._until_ms[request] = now_ms + WAIT_MS
            return False
        if until_ms is not None and now_ms < until_ms:
            return False
        self._begin(request, 0)
        return True

    def scheduled(self, requests: Iterable[str]) -> None:
        """The blocks of these requests are on the device, or never will be. If a request comes to wait again, as it was
        preempted, it reads what there is room for."""
        for request in requests:
            self.ended(request)
            self._turns[request] = 0

    def ended(self, request: str) -> None:
        """The request is over, whether it had a turn or not."""
        self._until_ms.pop(request, None)
        self._blocks -= self._turns.pop(request, 0)

    def _begin(self, request: str, blocks: int) -> None:
        self._until_ms.pop(request, None)
        self._turns[request] = blocks
        self._blocks += blocks
