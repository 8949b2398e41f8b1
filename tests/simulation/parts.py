"""The parts of a deployment as processes that can be killed: workers and replicas, all of them the real ones."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from actors.router import Router, RouterOptions
from actors.worker import Worker, WorkerOptions
from core.ids import ReplicaId, WorkerId
from core.settings import RoutingSettings
from projections.rebuild import take_snapshot
from streams.journal_file import SUFFIX
from streams.snapshots import SnapshotStore
from tests.simulation.engine import KEY, CacheEngine
from tests.simulation.loop import Process, VirtualClock, VirtualLoop
from tests.simulation.options import Options
from tests.simulation.remote_log import RemoteLog
from tests.simulation.remote_registry import RemoteRegistry

NAMESPACE = "test"
LEASE_MS = 2000
JOURNAL_BYTES = 256 * 1024


class Part:
    """One process with its ways to the log and to the registry."""

    def __init__(self, process: Process, log: RemoteLog, registry: RemoteRegistry, loop: VirtualLoop) -> None:
        self.process = process
        self.log = log
        self.registry = registry
        self.started = False
        self.loop = loop

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.process.name}>"

    @property
    def name(self) -> str:
        return self.process.name

    @property
    def unrest(self) -> str:
        """What it still has to do; empty if nothing."""
        raise NotImplementedError

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """It runs in this process."""
        return self.loop.create_task(coroutine, context=self.process.context)


class WorkerPart(Part):
    """A worker with an engine."""

    worker: Worker
    engine: CacheEngine

    async def start(self, clock: VirtualClock, random_: random.Random, options: Options) -> None:
        """It is registered, or will be when the registry is back."""
        self.engine = CacheEngine(random_, options)
        known = WorkerOptions(
            namespace=NAMESPACE, name=self.name, partitions=options.partitions, restate_every_s=options.restate_every_s
        )
        self.worker = Worker(known, self.engine, self.log, self.registry, clock, KEY)
        await self.worker.start({})
        self.started = True

    @property
    def id(self) -> WorkerId:
        """Who it is in the log now."""
        assert self.worker.presence is not None
        return self.worker.presence.id

    @property
    def unrest(self) -> str:
        """What it still has to do; empty if nothing."""
        if not self.started or self.worker.presence is None or not self.worker.ready:
            return "not ready"
        if not self.worker.presence.kv.idle or self.worker.presence.load.depth:
            return "has not said all"
        return ""


class ReplicaPart(Part):
    """A router."""

    router: Router
    journals: Path | None
    first_id: ReplicaId
    """Under which it began; another one if its end was written though it lived."""
    _clock: VirtualClock

    async def start(
        self, clock: VirtualClock, options: Options, folder: Path, folded: Callable[[ReplicaPart], None]
    ) -> None:
        """It follows the log; `folded` hears of it before it reads anything."""
        self._clock = clock
        self.journals = folder / self.name if options.journals else None
        if self.journals is not None:
            self.journals.mkdir(parents=True, exist_ok=True)
        known = RouterOptions(
            namespace=NAMESPACE,
            name=self.name,
            lease_ms=LEASE_MS,
            restate_every_s=options.restate_every_s,
            journal=self.journals,
            journal_bytes=JOURNAL_BYTES,
            snapshot_every_s=options.snapshot_every_s,
            take_snapshot=self._take_snapshot if options.snapshot_every_s else None,
        )
        self.router = Router(known, self.log, self.registry, clock, KEY, RoutingSettings(), lambda *_: None)
        self.first_id = self.router.voice.id
        folded(self)
        await self.router.start({})
        self.started = True

    @property
    def unrest(self) -> str:
        """What it still has to do; empty if nothing."""
        return next(self._reasons(), "") if self.started else "not started"

    def _reasons(self) -> Iterator[str]:
        router = self.router
        readiness = router.ready()
        if not readiness.ready:
            yield f"not ready: {readiness.waiting_for}"
        if not router.voice.outbox.idle or router.flights.open:
            yield "has not said all"
        if len(router.voice.ahead):
            yield "has not read all back"
        if self.journals is not None and len(list(self.journals.glob("*" + SUFFIX))) > 1:
            yield "has not told all that its predecessors left"
        if router.suspicion.suspected:
            yield "suspects a worker"
        if router.state.incomplete:
            yield f"{router.state.incomplete} sources are unknown to it"

    async def _take_snapshot(self, by: str, fence: int) -> None:
        store = SnapshotStore(self.log, NAMESPACE, KEY.chain_key)
        await take_snapshot(self.log, store, KEY.chain_key, by, fence, self._clock.wall_ms())
