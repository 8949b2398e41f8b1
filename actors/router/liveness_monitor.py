"""LivenessMonitor: the live shell of FailureDetector.

It observes the log, the registry and the connections, and executes the detector's commands.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from typing import assert_never

from actors.membership import failure_detector
from actors.membership.failure_detector import FailureDetector
from actors.membership.loss_log import LossLog
from actors.membership.replica_membership import ReplicaMembership
from actors.router.fleet import Fleet
from actors.transport.reconnecting_client import ReconnectingClient
from core.clock import Clock
from core.events import PoolLost, ReplicaLost, WorkerLost
from core.failure import log_failure
from core.ids import ReplicaId, WorkerId
from core.subjects import JOBS, LOAD, ROUTING, kv_stream
from projections.folds.source_fold import SourcePart
from projections.folds.state import State
from streams.machine_shell import MachineShell
from streams.registry import Change, Registry

PING_TIMEOUT_S = 2.0
"""A worker that does not answer within this is silent."""

_logger = logging.getLogger(__name__)


class LivenessMonitor:
    """Feeds the detector an observation every OBSERVE_EVERY_S."""

    def __init__(
        self,
        detector: FailureDetector,
        loss_log: LossLog,
        fleet: Fleet,
        membership: ReplicaMembership,
        state: State,
        clock: Clock,
    ) -> None:
        self.loss_log = loss_log
        self._shell = MachineShell[failure_detector.Event, failure_detector.Command](detector, clock, self._execute)
        self._fleet = fleet
        self._membership = membership
        self._state = state
        self._replicas: set[ReplicaId] = set()
        """Registered replicas."""
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<LivenessMonitor of {self._shell.machine!r}>"

    async def follow(self, registry: Registry) -> None:
        """The registered replicas are known, and changes are followed."""
        await registry.watch("replicas/", self._on_replica)

    async def run(self) -> None:
        """Observes periodically until it is cancelled; pings and writes end with it."""
        try:
            while True:
                self._feed_observation()
                await asyncio.sleep(failure_detector.OBSERVE_EVERY_S)
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    def _feed_observation(self) -> None:
        try:
            self._shell.feed(self._observe())
        except Exception:  # by any defect: lost workers must go on being found
            _logger.exception("an observation failed by a defect, trying again")

    def _observe(self) -> failure_detector.Observed:
        fleet = self._fleet
        alive = {
            member.worker: failure_detector.AliveWorker(member.joined.address, kv_stream(member.joined.partition))
            for member in self._state.alive()
            if member.joined is not None
        }
        fleet.forget_all_but(alive.keys())
        connections = {
            worker: failure_detector.ConnectionState(client.up, client.failures, client.silence(), client.streams)
            for worker, client in fleet.clients.items()
        }
        return failure_detector.Observed(
            alive,
            frozenset(fleet.registered),
            fleet.registry_healthy,
            connections,
            list(self._silent_sources()),
            {source: self._messages_of(source) for source in self._state.foreign},
        )

    def _messages_of(self, source: str) -> int:
        """Messages of the source so far, in all streams."""
        state, worker = self._state, WorkerId(source)
        parts: list[SourcePart | None] = [
            state.routing.replicas.get(ReplicaId(source)),
            state.loads.parts.get(worker),
            state.jobs.parts.get(worker),
            *(kv.members.get(worker) for kv in state.kv.values()),
        ]
        return sum(part.chain.n_next for part in parts if part is not None)

    def _silent_sources(self) -> Iterator[failure_detector.SilentSource]:
        """Sources that are not registered and have no address in the log, and pools whose keepers are over."""
        registered, state = self._fleet.registered, self._state
        alive = set(state.workers())
        for replica, part in state.routing.replicas.items():
            if replica != self._membership.publisher.id and replica not in self._replicas:
                yield failure_detector.SilentSource(ROUTING, replica, part.chain.n_next)
        for stream, kv in state.kv.items():
            for worker, member in kv.members.items():
                keeper = WorkerId(member.pool.keeper) if member.pool else worker
                if member.joined is None and keeper not in registered and keeper not in alive:
                    yield failure_detector.SilentSource(stream, worker, member.chain.n_next)
        chains = [(LOAD, worker, chain) for worker, chain in state.loads.chains.items()]
        chains += [(JOBS, worker, part.chain) for worker, part in state.jobs.parts.items()]
        for stream, worker, chain in chains:
            if worker not in registered and all(worker not in kv.members for kv in state.kv.values()):
                yield failure_detector.SilentSource(stream, worker, chain.n_next)

    def _execute(self, command: failure_detector.Command) -> None:
        clients = self._fleet.clients
        match command:
            case failure_detector.PingWorker(worker):
                self._spawn(self._ping(clients[worker]))
            case failure_detector.Connect(worker, address):
                self._fleet.connect(worker, address)
            case failure_detector.CutConnection(worker, reason):
                _logger.warning("the connection is cut: %s", reason, extra={"worker": worker})
                clients[worker].cut()
            case failure_detector.DropConnection(worker):
                self._fleet.drop(clients[worker])
            case failure_detector.WriteEnd():
                self._spawn(self._write_end(command))
            case _:
                assert_never(command)

    async def _ping(self, client: ReconnectingClient) -> None:
        answered = True  # a defect of ours does not count against the worker
        try:
            answered = await client.ping(PING_TIMEOUT_S)
        finally:
            self._shell.feed(failure_detector.PingResult(client.worker, answered))

    async def _write_end(self, end: failure_detector.WriteEnd) -> None:
        lost: type[ReplicaLost | WorkerLost | PoolLost] = WorkerLost
        if end.streams[0] == ROUTING:
            lost = ReplicaLost
        elif any(end.source in kv.pools for kv in self._state.kv.values()):
            lost = PoolLost
        event = lost(by=self._membership.publisher.id, reason=end.reason)
        try:
            for stream in end.streams:
                if not await self.loss_log.append(stream, end.source, event, end.messages_seen):
                    break
        finally:
            self._shell.feed(failure_detector.EndWritten(end.streams[0], end.source))

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(log_failure(_logger, "a ping or the end of a source failed by a defect"))

    def _on_replica(self, change: Change) -> None:
        replica = ReplicaId(change.key.rpartition("/")[2])
        if change.value is None:
            self._replicas.discard(replica)
        else:
            self._replicas.add(replica)
