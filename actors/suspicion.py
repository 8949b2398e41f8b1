"""Suspicion: from a vanished lease to WorkerLost, and never from a vanished registry.

1. A worker of the log without a registration is absent; a lease time later at most it is judged.
2. While the registry is away, or if more than half of the workers vanished within one lease time, the leases are
   doubted, not the workers: nobody is suspected.
3. A suspected worker is left out of decisions. If it is silent on TCP too, its end is written to the log, expecting
   the last message that its subject has: whoever appends first wins, a word of the worker refutes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from actors.fleet import Fleet
from core.clock import Clock
from core.codec import CHAIN_START, decode_message, encode_event, encode_message
from core.errors import ContrailError, WrongSequence
from core.events import ReplicaLost, WorkerLost
from core.ids import ReplicaId, SourceId, StreamName, StreamSeq, WorkerId
from core.subjects import ROUTING, kv_stream, subject
from projections.kv import LOST_SUFFIX, Member
from projections.state import State
from streams.log import EventLog

LOOK_EVERY_S = 0.5
PING_TIMEOUT_S = 2.0

_logger = logging.getLogger(__name__)


class Suspicion:
    """Judges who is absent; `suspected` is what decisions go by."""

    def __init__(self, namespace: str, log: EventLog, fleet: Fleet, state: State, clock: Clock, lease_ms: int) -> None:
        self.suspected: frozenset[WorkerId] = frozenset()
        self._namespace = namespace
        self._log = log
        self._fleet = fleet
        self._state = state
        self._clock = clock
        self._lease_ms = lease_ms
        self._replicas_absent: dict[ReplicaId, int] = {}

    async def run(self, me: ReplicaLook) -> None:
        """Looks again and again, for ever."""
        while True:
            try:
                await self._look(me)
            except ContrailError as error:
                _logger.warning("could not write an end now, trying again: %s", error)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _look(self, me: ReplicaLook) -> None:
        alive = self._state.alive()
        absent = self._absent(member.worker for member in alive)
        if self._doubted(len(alive), absent):
            self.suspected = frozenset()
            return
        self.suspected = frozenset(absent)
        now = self._clock.monotonic_ms()
        for member in alive:
            if member.worker in absent and now - absent[member.worker] >= self._patience_ms(member.worker):
                await self._judge(member, me())
        await self._judge_replicas(me)

    def _absent(self, workers: Iterable[WorkerId]) -> dict[WorkerId, int]:
        """Who is in the log and not in the registry, and since when; those never seen there count from now."""
        now, since = self._clock.monotonic_ms(), self._fleet.absent_since
        return {w: since.setdefault(w, now) for w in workers if w not in self._fleet.registered}

    def _doubted(self, alive: int, absent: dict[WorkerId, int]) -> bool:
        now = self._clock.monotonic_ms()
        fresh = sum(now - since < self._lease_ms for since in absent.values())
        return not self._fleet.registry_healthy or (alive > 2 and 2 * fresh > alive)

    def _patience_ms(self, worker: WorkerId) -> int:
        """A broken connection beside the vanished lease leaves no doubt; else one more lease time to come back."""
        link = self._fleet.links.get(worker)
        return 0 if link is not None and not link.up and link.failures else self._lease_ms

    async def _judge(self, member: Member, me: ReplicaId) -> None:
        assert member.joined is not None
        link = self._fleet.connect(member.worker, member.joined.address)
        if not link.failures or await link.ping(PING_TIMEOUT_S):
            return
        event = WorkerLost(by=me, reason="no lease, no answer")
        await self._write_end(kv_stream(member.joined.partition), member.worker, encode_event(event))

    async def _judge_replicas(self, me: ReplicaLook) -> None:
        """A replica has no port to ask: two lease times without a registration, and its own word refutes it."""
        now = self._clock.monotonic_ms()
        for part in list(self._state.routing.replicas.values()):
            if part.ended or part.joined is None or part.replica == me() or part.replica in me.registered:
                self._replicas_absent.pop(part.replica, None)
            elif now - self._replicas_absent.setdefault(part.replica, now) >= 2 * self._lease_ms:
                event = ReplicaLost(by=me(), reason="no lease")
                await self._write_end(ROUTING, part.replica, encode_event(event))

    async def _write_end(self, stream: StreamName, who: str, event: bytes) -> None:
        """The end is in the log once, whoever wrote it; or the one concerned spoke up meanwhile."""
        where = subject(self._namespace, stream, who)
        last = await self._log.last(stream, where)
        source = SourceId(who + LOST_SUFFIX)
        if last is None or decode_message(last.payload).source == source:
            return  # cut away by retention, or told already
        payload = encode_message(source, 0, CHAIN_START, self._clock.wall_ms(), [event])
        try:
            await self._log.append(stream, where, payload, f"{source}:0", StreamSeq(last.seq))
        except WrongSequence:
            return  # another replica was first, or it lives
        _logger.warning("%s is lost: no lease, no answer", who)


class ReplicaLook:
    """Who we are now, and which replicas the registry knows."""

    def __init__(self, replica: ReplicaId) -> None:
        self.replica = replica
        self.registered: set[ReplicaId] = set()

    def __call__(self) -> ReplicaId:
        return self.replica
