"""RestatementRequests: a source of which a fold lacks messages restates itself.

A worker is asked over TCP by each replica whose fold lacks messages of it. A replica has no port for that: it publishes
what is in flight again when its own fold, or another's by its report, lacks messages of replicas.
"""

from __future__ import annotations

import asyncio
import logging

from actors.membership.replica_membership import ReplicaMembership
from actors.router.fleet import Fleet
from core.clock import Clock
from core.events import DivergenceFound, ReplicaReported
from core.ids import ReplicaId, WorkerId
from core.subjects import ROUTING
from projections.folds.state import State

LOOK_EVERY_S = 1.0
ASK_MS = 10_000
"""A worker is asked this often at most."""
SAY_MS = 10_000
"""We say again what is in flight this often at most."""

_logger = logging.getLogger(__name__)


class RestatementRequests:
    """Asks workers and restates this replica, each at a bounded rate."""

    def __init__(self, state: State, clock: Clock, membership: ReplicaMembership, fleet: Fleet) -> None:
        self.asked = 0
        self.restated = 0
        self._state = state
        self._clock = clock
        self._membership = membership
        self._fleet = fleet
        self._asked_ms: dict[WorkerId, int] = {}
        self._restated_ms: int | None = None

    def __repr__(self) -> str:
        return f"<RestatementRequests {self.asked} asked for, {self.restated} said>"

    async def run(self) -> None:
        """Looks again and again, for ever."""
        while True:
            self.refresh()
            await asyncio.sleep(LOOK_EVERY_S)

    def refresh(self) -> None:
        """Whoever our fold lacks messages of was asked, unless that was done just now."""
        unknown = self._state.unknown()
        for worker in unknown:
            self._ask(worker)
        if self._asked_ms:
            for gone in self._asked_ms.keys() - self._fleet.links.keys():
                del self._asked_ms[gone]
        part = self._state.routing.replicas.get(self._membership.publisher.id)
        if part is not None and not part.known:
            self._restate("messages of ours are missing in the log")

    def on_report(self, replica: ReplicaId, event: ReplicaReported | DivergenceFound) -> None:
        """Another's report may say that it lost track of a replica: it does not know which one we are to it."""
        if (
            isinstance(event, ReplicaReported)
            and ROUTING in event.incomplete
            and replica != self._membership.publisher.id
        ):
            self._restate(f"replica {replica} lost track of a replica")

    def _ask(self, worker: WorkerId) -> None:
        now, link = self._clock.monotonic_ms(), self._fleet.links.get(worker)
        if link is None or not link.up or now - self._asked_ms.get(worker, -ASK_MS) < ASK_MS:
            return
        self._asked_ms[worker] = now
        self.asked += 1
        _logger.warning("lost track of the cache of worker %s: asking for a restatement", worker)
        link.restate()

    def _restate(self, why: str) -> None:
        now = self._clock.monotonic_ms()
        if self._restated_ms is not None and now - self._restated_ms < SAY_MS:
            return
        self._restated_ms = now
        self.restated += 1
        self._membership.restate(why)
