"""RestatementRequests: sources with messages missing in a fold restate themselves.

Each replica that lacks messages of a worker asks it over TCP. A replica has no port for that: it restates its requests
in flight when its own fold lacks messages of replicas, or another replica reports so.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import NamedTuple

from core.events import ReplicaReported
from core.ids import ReplicaId, WorkerId
from core.subjects import ROUTING
from projections.folds.state import State

CHECK_EVERY_S = 1.0
ASK_MS = 10_000
"""A worker is asked this often at most."""
RESTATE_MS = 10_000
"""The replica restates itself this often at most."""

_logger = logging.getLogger(__name__)


class AskWorker(NamedTuple):
    """The worker is to restate its cache."""

    worker: WorkerId


class RestateReplica(NamedTuple):
    """This replica is to restate itself."""

    reason: str


class RestatementRequests:
    """Says which restatements are due now, each source at a bounded rate."""

    def __init__(self, state: State) -> None:
        self.asked = 0
        self.restated = 0
        self._state = state
        self._asked_ms: dict[WorkerId, int] = {}
        """Workers that were asked within ASK_MS."""
        self._restated_ms: int | None = None

    def __repr__(self) -> str:
        return f"<RestatementRequests {self.asked} asked for, {self.restated} published>"

    def check(self, me: ReplicaId, connected: Collection[WorkerId], now_ms: int) -> list[AskWorker | RestateReplica]:
        """Due for the sources of which our fold lacks messages; `me` is this replica's present id."""
        self._asked_ms = {worker: asked for worker, asked in self._asked_ms.items() if now_ms - asked < ASK_MS}
        due: list[AskWorker | RestateReplica] = []
        for source in self._state.unknown():
            worker = self._state.asked_for(source)
            if worker in connected and worker not in self._asked_ms:
                self._asked_ms[worker] = now_ms
                self.asked += 1
                _logger.warning("lost track of the cache of worker %s: asking for a restatement", worker)
                due.append(AskWorker(worker))
        part = self._state.routing.replicas.get(me)
        if part is not None and not part.known:
            due += self._restate("messages of ours are missing in the log", now_ms)
        return due

    def on_report(self, replica: ReplicaId, report: ReplicaReported, now_ms: int) -> list[RestateReplica]:
        """Due when another replica's fold lacks messages of replicas; its report does not name them."""
        if ROUTING not in report.incomplete:
            return []
        return self._restate(f"replica {replica} lost track of a replica", now_ms)

    def _restate(self, reason: str, now_ms: int) -> list[RestateReplica]:
        if self._restated_ms is not None and now_ms - self._restated_ms < RESTATE_MS:
            return []
        self._restated_ms = now_ms
        self.restated += 1
        return [RestateReplica(reason)]
