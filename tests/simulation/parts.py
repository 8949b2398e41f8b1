"""The parts of a deployment as processes that can be killed: workers and replicas, all of them the real ones."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from actors.router import Router, RouterOptions
from actors.worker import Worker, WorkerOptions
from core.ids import WorkerId
from core.settings import RoutingSettings
from tests.simulation.engine import KEY, CacheEngine
from tests.simulation.loop import Process, VirtualClock, VirtualLoop
from tests.simulation.options import Options
from tests.simulation.remote_log import RemoteLog
from tests.simulation.remote_registry import RemoteRegistry

NAMESPACE = "test"
LEASE_MS = 2000
RESTATE_EVERY_S = 40.0
"""A quarter of a retention time that a world can live to see."""


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
            namespace=NAMESPACE, name=self.name, partitions=options.partitions, restate_every_s=RESTATE_EVERY_S
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

    async def start(self, clock: VirtualClock, folded: Callable[[ReplicaPart], None]) -> None:
        """It follows the log; `folded` hears of it before it reads anything."""
        known = RouterOptions(
            namespace=NAMESPACE, name=self.name, lease_ms=LEASE_MS, restate_every_s=RESTATE_EVERY_S
        )
        self.router = Router(known, self.log, self.registry, clock, KEY, RoutingSettings(), lambda *_: None)
        folded(self)
        await self.router.start({})
        self.started = True

    @property
    def unrest(self) -> str:
        """What it still has to do; empty if nothing."""
        router = self.router
        if not self.started:
            return "not started"
        readiness = router.ready()
        if not readiness.ready:
            return f"not ready: {readiness.waiting_for}"
        if not router.voice.outbox.idle or router.flights.open:
            return "has not said all"
        if len(router.voice.ahead):
            return "has not read all back"
        if router.suspicion.suspected:
            return "suspects a worker"
        if router.state.incomplete:
            return f"{router.state.incomplete} sources are unknown to it"
        return ""
