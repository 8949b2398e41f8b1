"""InFlightAuditSchedule: counts of requests in flight are added up anew now and then, and compared with the requests.

Digests cover the requests and not the tables that decisions read, so they cannot show a leak there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

from actors.membership.replica_membership import ReplicaMembership
from core.errors import Unavailable
from core.subjects import ROUTING
from projections.folds.state import State

CHECK_EVERY_S = 5.0
"""As often as digests are compared. A check of 1 000 requests in flight costs 1 ms of CPU, one of 4 096 takes 4 ms."""
SHARE_MAX = 0.01
"""Bound of the time that checks take; with more requests in flight they are rarer."""
OWN_EVENTS_MAX = 512
"""With more events that wait, as while the log is away, the own ones are left for a later check."""
TEXTS_KEPT = 16
"""Newest differences, for people; `damaged` counts the checks that found some."""

_logger = logging.getLogger(__name__)


class InFlightAuditSchedule:
    """Checks again and again. Wrong tables are counted anew at once; requests that are wrong themselves are folded anew
    by `rebuild`, once."""

    def __init__(
        self, state: State, membership: ReplicaMembership, rebuild: Callable[[str], Awaitable[object]]
    ) -> None:
        self.checked = 0
        self.damaged = 0
        """Counts audits that found a difference."""
        self.differences: deque[str] = deque(maxlen=TEXTS_KEPT)
        self._state = state
        self._membership = membership
        self._rebuild = rebuild
        self._has_rebuilt = False

    def __repr__(self) -> str:
        return f"<InFlightAuditSchedule {self.checked} made, {self.damaged} found differences>"

    async def run(self) -> None:
        """Checks for ever."""
        clock_s, took_s = asyncio.get_running_loop().time, 0.0
        while True:
            await asyncio.sleep(max(CHECK_EVERY_S, took_s / SHARE_MAX))
            began_s = clock_s()
            await self.check()
            took_s = clock_s() - began_s

    async def check(self) -> list[str]:
        """A text for each difference. Tables follow from the requests and events in flight again."""
        own = self._mend_own()
        tables = await _collected(self._state.routing.audit_load())
        if tables:
            self._state.routing.recount()
        requests = await _collected(self._state.routing.audit_requests())
        self.checked += 1
        found = [*own, *tables, *requests]
        if found:
            self.damaged += 1
            self.differences.extend(found)
            _logger.error("what is in flight was counted wrong, and is counted anew: %s", "; ".join(found[:TEXTS_KEPT]))
        if requests:
            await self._fold_anew()
        return found

    def _mend_own(self) -> list[str]:
        publisher, routing = self._membership.publisher, self._state.cursor.get(ROUTING)
        events, outbox = publisher.pending_events, publisher.outbox
        if len(events) and outbox.idle and not outbox.ended and routing and routing.seq >= outbox.last_seq:
            text = f"own events: {len(events)} still count, though the log has given all of them back"
            events.forget()
            return [text]
        if len(events) > OWN_EVENTS_MAX:
            return []
        found = events.differences()
        if found:
            events.recount()
        return found

    async def _fold_anew(self) -> None:
        if self._has_rebuilt:
            _logger.error("the log was folded anew for this reason already: a defect of this program is at fault")
            return
        self._has_rebuilt = True
        try:
            await self._rebuild("requests in flight were not those of the log")
        except Unavailable as error:
            _logger.error("the fold with other requests in flight serves on: %s", error)  # noqa: TRY400
            self._has_rebuilt = False


async def _collected(slices: Iterator[list[str]]) -> list[str]:
    found: list[str] = []
    for some in slices:
        found += some
        await asyncio.sleep(0)
    return found
