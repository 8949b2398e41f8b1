"""IndexAuditSchedule: the index is added up anew now and then, and compared with the blocks of the log's events.

Digests follow the events, so they cannot show a table that does not. A difference alone does not show its cause. After
it the log is folded anew and the new index is audited, too. One that differs as well was made by faulty code; one that
does not leaves damaged memory, or code at fault only after what the fold before had lived through.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from core.clock import Clock
from core.errors import Unavailable
from core.ids import WorkerId
from projections.folds.state import State

CHECK_EVERY_S = 60.0
"""A check costs some 0.3 s of CPU per million blocks, in slices of a millisecond."""
REBUILD_EVERY_MS = 3_600_000
"""An index is folded anew for this reason at most so often."""

EQUAL, DIFFERS = "equal", "differs"
"""Results of the audit of an index that was folded anew after a difference."""

_logger = logging.getLogger(__name__)


class IndexAuditSchedule:
    """Checks again and again; `rebuild` puts a fold of the log in the place of one that is wrong."""

    def __init__(self, state: State, clock: Clock, rebuild: Callable[[str], Awaitable[object]]) -> None:
        self.checked = 0
        self.damaged = 0
        """Counts audits that found other blocks in the tables than the events gave, for any reason."""
        self.workers: list[WorkerId] = []
        """The workers of the newest difference, by id."""
        self.after_rebuild = ""
        """The result for the index that was folded anew after the newest difference; empty if none was."""
        self._state = state
        self._clock = clock
        self._rebuild = rebuild
        self._rebuilt_ms: int | None = None

    def __repr__(self) -> str:
        return f"<IndexAuditSchedule {self.checked} made, {self.damaged} differed>"

    def describe(self) -> dict[str, Any]:
        """Facts for `/state`."""
        return {
            "checks": self.checked,
            "differences": self.damaged,
            "workers": self.workers,
            "after_rebuild": self.after_rebuild,
        }

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
            self.workers, self.after_rebuild = wrong, ""
            _logger.error(
                "the index differs from the log's events in blocks of %s; the cause is not known yet", ", ".join(wrong)
            )
            if await self._rebuild_index():
                await self._compare_rebuilt()
        return wrong

    async def _compare_rebuilt(self) -> None:
        """The new index is audited, and the result logged."""
        if again := await self._audited():
            self.after_rebuild = DIFFERS
            _logger.error("the index that was folded anew differs in blocks of %s: the code is wrong", ", ".join(again))
        else:
            self.after_rebuild = EQUAL
            _logger.warning(
                "the index that was folded anew does not differ: the memory was damaged, or the code is wrong only "
                "after what the fold before it had lived through"
            )

    async def _audited(self) -> list[WorkerId]:
        index = self._state.index
        for wrong in index.audit():
            if wrong is not None:
                return wrong
            await asyncio.sleep(0)
            if self._state.index is not index:  # another fold took its place meanwhile
                break
        return []

    async def _rebuild_index(self) -> bool:
        """True if the index was folded anew."""
        now = self._clock.monotonic_ms()
        if self._rebuilt_ms is not None and now - self._rebuilt_ms < REBUILD_EVERY_MS:
            _logger.error("the log was folded anew within the hour already: the index that differs serves on")
            return False
        self._rebuilt_ms = now
        try:
            await self._rebuild("the index differs from the log's events")
        except Unavailable as error:
            _logger.error("the index that differs serves on: %s", error)  # noqa: TRY400
            self._rebuilt_ms = None
            return False
        return True
