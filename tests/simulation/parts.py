"""The parts of a deployment as processes that can be killed: workers and replicas, all of them the real ones."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from actors.disagg.decode_role import DecodeRole
from actors.disagg.prefill_role import PrefillRole
from actors.membership.worker_publisher import WorkerPublisher
from actors.router.router import Router, RouterOptions
from actors.worker.load_reporter import ReuseRate
from actors.worker.worker import Worker, WorkerOptions
from core.events.kv import PREFILL
from core.ids import ReplicaId, WorkerId
from core.settings import RoutingSettings
from projections.runner.rebuild import take_snapshot
from streams.outbox.journal_file import SUFFIX
from streams.snapshot_store import SnapshotStore
from tests.simulation.engine import BLOCK_SIZE, KEY, CacheEngine
from tests.simulation.loop import Process, VirtualClock, VirtualLoop
from tests.simulation.mix_ups import MixUps
from tests.simulation.moving_engine import MovingEngine
from tests.simulation.options import Options
from tests.simulation.remote_log import RemoteLog
from tests.simulation.remote_registry import RemoteRegistry
from tests.simulation.scale import PREFILL_WAIT_MAX_MS
from tests.simulation.waits import most_waited_s, timed
from tests.simulation.witness import Witness

NAMESPACE = "test"
LEASE_MS = 2000
JOURNAL_BYTES = 256 * 1024
ROUTING = RoutingSettings(
    policy="kv", remote_prefill_min_tokens=2 * BLOCK_SIZE, prefill_queue_max=4, prefill_wait_max_ms=PREFILL_WAIT_MAX_MS
)
"""What is configured: half of a world's prompts are long."""
ACTIVE_MAX = 64
"""Where prompts are computed elsewhere: engines are to run out of slots, too."""


def first_settings(options: Options) -> RoutingSettings:
    """What replicas begin with."""
    return RoutingSettings(
        policy="time" if options.pass_tokens or options.reuse_rates else "kv",
        candidates_recorded_max=options.candidates_recorded_max,
        active_max=ACTIVE_MAX if options.prefill_workers else RoutingSettings().active_max,
    )


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
    engine: CacheEngine | MovingEngine
    first_id: WorkerId
    """Under which it began; another one if its end was written though it lived."""

    async def start(
        self,
        clock: VirtualClock,
        random_: random.Random,
        options: Options,
        witness: Witness,
        reuse_rate: ReuseRate | None,
    ) -> None:
        """It is registered, or will be when the registry is back. It reports `reuse_rate` if there is any."""
        moves = options.prefill_workers > 0
        self.engine = MovingEngine(clock, options) if moves else CacheEngine(random_, options)
        known = WorkerOptions(
            namespace=NAMESPACE,
            name=self.name,
            role=PREFILL if self.name.startswith(PREFILL) else "decode",
            partitions=options.partitions,
            restate_every_s=options.restate_every_s,
            routing=ROUTING,
        )
        self.worker = Worker(known, self.engine, self.log, self.registry, clock, KEY)
        await self.worker.start({})
        self.first_id = self.id
        if reuse_rate is not None:
            assert self.worker.reports is not None
            self.worker.reports._reuse_rate = reuse_rate
        if isinstance(self.worker.role, PrefillRole) and options.mixed_up:
            MixUps(self.worker.role, random_, options.mixed_up)
        if isinstance(self.worker.role, DecodeRole):
            timed(self.worker.role, self.process, witness, most_waited_s(options))
        self.started = True

    @property
    def moving(self) -> MovingEngine:
        """Its engine, in a world where blocks move."""
        assert isinstance(self.engine, MovingEngine)
        return self.engine

    @property
    def decodes(self) -> DecodeRole | None:
        """What it does about prompts, if it may have them computed by others."""
        return self.worker.role if self.started and isinstance(self.worker.role, DecodeRole) else None

    @property
    def holding(self) -> bool:
        """Whether its engine holds blocks for others."""
        return self.moving.state.held.held > 0

    def give_blocks_up(self) -> None:
        """Its engine holds nothing for others any more."""
        assert isinstance(self.worker.role, PrefillRole)
        moves = self.moving._moves
        assert moves is not None
        for lease in self.worker.role.execution.leases.values():
            moves.free(lease.blocks.request, fetched=False)

    @property
    def id(self) -> WorkerId:
        """Who it is in the log now."""
        assert self.worker.publisher is not None
        return self.worker.publisher.id

    @property
    def unrest(self) -> str:
        """What it still has to do; empty if nothing."""
        if not self.started or self.worker.publisher is None or not self.worker.ready:
            return "not ready"
        if not self.worker.publisher.kv.idle or self.worker.publisher.load.depth:
            return "has not said all"
        if isinstance(self.engine, MovingEngine):
            return self._moving_unrest(self.worker.publisher)
        return ""

    def _moving_unrest(self, presence: WorkerPublisher) -> str:
        described, transfer = self.worker.role.describe(), self.moving.transfer
        assert transfer is not None
        if not presence.jobs.idle:
            return "has not said all of its jobs"
        if used := self.engine.load().blocks_used:
            return f"uses {used} blocks"
        if held := transfer.totals().held:
            return f"holds the blocks of {held} prompts"
        left = {what: described.get(what) for what in ("jobs_open", "jobs_under_way", "prompts_held")}
        return f"has work: {left}" if any(left.values()) else ""


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
        self.router = Router(known, self.log, self.registry, clock, KEY, first_settings(options), lambda *_: None)
        self.first_id = self.router.publisher.id
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
        if not router.publisher.outbox.idle or router.scheduler.running:
            yield "has not said all"
        if len(router.scheduler.held):
            yield "holds requests"
        if len(router.publisher.pending_events):
            yield "has not read all back"
        if self.journals is not None and len(list(self.journals.glob("*" + SUFFIX))) > 1:
            yield "has not told all that its predecessors left"
        if router.failure_detector.suspected:
            yield "suspects a worker"
        if router.state.incomplete:
            yield f"{router.state.incomplete} sources are unknown to it"

    async def _take_snapshot(self, by: str, fence: int) -> None:
        store = SnapshotStore(self.log, NAMESPACE, KEY.chain_key)
        await take_snapshot(self.log, store, KEY.chain_key, by, fence, self._clock.wall_ms())
