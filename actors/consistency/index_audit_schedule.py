"""IndexAuditSchedule: the index is added up anew now and then, and compared with the blocks of the log's events.

Digests follow the events, so they cannot show a table that was changed in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from core.clock import Clock
from core.errors import Unavailable
from core.ids import WorkerId
from projections.folds.state import State

CHECK_EVERY_S = 60.0
"""A check costs some 0.3 s of CPU per million blocks, in slices of a millisecond."""
REBUILD_EVERY_MS = 3_600_000
"""An index is folded anew for this reason at most so often."""

_logger = logging.getLogger(__name__)


class IndexAuditSchedule:
    """Checks again and again; `rebuild` puts a fold of the log in the place of one that is wrong."""

    def __init__(self, state: State, clock: Clock, rebuild: Callable[[str], Awaitable[object]]) -> None:
        self.checked = 0
        self.damaged = 0
        """Counts audits that found other blocks in the tables than the events gave."""
        self._state = state
        self._clock = clock
        self._rebuild = rebuild
        self._rebuilt_ms: int | None = None

    def __repr__(self) -> str:
        return f"<IndexAuditSchedule {self.checked} made, {self.damaged} found damage>"

    async def run(self) -> None:
        """Checks for ever."""
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            await self.check()

    async def check(self) -> list[WorkerId]:
        """Workers with other blocks in the index than their events gave, by id; if there are any, the log was folded
        anew."""
        wrong = await self._audited()
        self.checked += 1
        if wrong:
            self.damaged += 1
            _logger.error("the index does not hold what the log told of %s: its memory was changed", ", ".join(wrong))
            await self._rebuild_index()
        return wrong

    async def _audited(self) -> list[WorkerId]:
        index = self._state.index
        for wrong in index.audit():
            if wrong is not None:
                return wrong
            await asyncio.sleep(0)
            if self._state.index is not index:  # another fold took its place meanwhile
                break
        return []

    async def _rebuild_index(self) -> None:
        now = self._clock.monotonic_ms()
        if self._rebuilt_ms is not None and now - self._rebuilt_ms < REBUILD_EVERY_MS:
            _logger.error("it was folded anew within the hour already: something keeps changing it")
            return
        self._rebuilt_ms = now
        try:
            await self._rebuild("the index was damaged")
        except Unavailable as error:
            _logger.error("the damaged index serves on: %s", error)  # noqa: TRY400
            self._rebuilt_ms = None
