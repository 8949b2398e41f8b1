"""The worker process: an engine with its cache and load events, from start to drain."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from actors.engines.attached.attached_engine import AttachedEngine
from actors.engines.engine import Engine
from actors.membership.worker_publisher import WorkerPublisher
from actors.metrics.worker_metrics import WorkerMetrics
from actors.worker.worker import Worker, WorkerOptions
from api.config.addresses import reachable
from api.config.deployment_ref import DeploymentRef
from api.config.run_file import announce_if_supervised
from api.config.schema import OperationsSection
from api.process.engine_factory import EngineArguments, make_engine
from api.process.lifecycle import ignore_stop_signals, install_stop_handlers, tune_garbage_collection
from api.process.logging_setup import log_as
from api.process.operations import OPERATIONS_GRACE_S, operations_server, watch_outbox
from api.process.planes import open_planes
from api.server.http_server import HttpServer
from core.clock import SystemClock
from core.errors import PeerError
from core.readiness import Readiness
from core.subjects import LOAD
from streams.jetstream.broker_accounts import WORKER

ENGINE_DEAD = "engine dead"
FAILED = (ENGINE_DEAD, "defect")
"""Ends that are no wish of anybody: the exit status says so."""
ATTACH_RETRY_S = 0.5
"""Between attempts to attach a server that was there before; for as long as it is away."""


_logger = logging.getLogger(__name__)


async def serve_worker(
    connection: DeploymentRef,
    options: WorkerOptions,
    arguments: EngineArguments,
    operations: OperationsSection,
    ops_address: str = "",
) -> str:
    """Serves until told to end or the engine dies; then requests in flight finish and the engine is gone.

    With an attached server, the process goes on when the server is dead: as another worker, once it answers again.
    """
    async with open_planes(connection, WORKER) as both:

        def worker_of(engine: Engine) -> Worker:
            return Worker(options, engine, both.log, both.registry, SystemClock(), connection.key)

        present = _PresentWorker(worker_of(make_engine(arguments)))
        metrics = WorkerMetrics(arguments.model, options.name)
        _watch(present, metrics)
        ops = operations_server(
            operations,
            ops_address,
            lambda: _ready(present.worker),
            metrics.registry,
            present.describe,
        )
        await ops.start()
        announce_if_supervised(arguments.home, options.name, ops.address)
        watching = install_stop_handlers(arguments.home, present.leave)
        try:
            reason = await _run(present.worker, arguments.home, ops)
            while isinstance(present.worker.engine, AttachedEngine) and reason.startswith(ENGINE_DEAD):
                present.worker = worker_of(present.worker.engine.successor())  # until it is told to end
                reason = await _run_when_back(present.worker, arguments.home, ops)
            return reason
        finally:
            for task in watching:
                task.cancel()
            await ops.stop(OPERATIONS_GRACE_S)
            ignore_stop_signals()


class _PresentWorker:
    """The worker that this process is now."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def __repr__(self) -> str:
        return f"<_PresentWorker {self.worker!r}>"

    def describe(self) -> dict[str, Any]:
        """Its state."""
        return self.worker.describe()

    def leave(self, reason: str) -> None:
        """It ends for this reason."""
        self.worker.leave(reason)


async def _run_when_back(it: Worker, home: Path | None, ops: HttpServer) -> str:
    """As `_run`; if its server is away now, it has ended after ATTACH_RETRY_S."""
    try:
        return await _run(it, home, ops)
    except PeerError as error:
        _logger.debug("the server cannot be attached yet: %s", error)
        try:
            async with asyncio.timeout(ATTACH_RETRY_S):
                return await it.serve()
        except TimeoutError:
            return f"{ENGINE_DEAD}: {error}"


async def _run(it: Worker, home: Path | None, ops: HttpServer) -> str:
    """From the engine's start to its end; told to end in between, it is not waited for."""
    starting = asyncio.create_task(it.start({"ops": reachable(ops.address, it.options.advertise)}))
    ending = asyncio.create_task(it.serve())
    await asyncio.wait((starting, ending), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait((starting,))
        return ending.result()
    ending_early = starting.exception()
    if ending_early is not None:
        ending.cancel()
        raise ending_early
    assert it.membership is not None

    def known_as(id: str) -> None:
        log_as(worker=id)
        announce_if_supervised(home, it.options.name, ops.address, id=id, address=it.address)

    it.membership.on_new_id = known_as
    known_as(it.membership.publisher.id)
    tune_garbage_collection()
    _logger.info("serves %s on %s, operations on %s", it.engine.info.model, it.address, ops.address)
    reason = await ending
    _logger.info("ending: %s", reason)
    await it.stop(reason, drain=not reason.startswith(FAILED))
    return reason


def _ready(it: Worker) -> Readiness:
    if it.ready:
        return Readiness(ready=True, waiting_for={}, degraded=it.degraded())
    if it.publisher is None:
        return Readiness(ready=False, waiting_for={"engine": "is starting"})
    if it.port.draining:
        return Readiness(ready=False, waiting_for={"end": "draining"})
    return Readiness(ready=False, waiting_for={"log": "has not stored the worker's first message"})


def _disk_counts(it: Worker) -> Mapping[str, int]:
    counts = None if it.publisher is None else it.engine.info.disk_counts
    return {} if counts is None else counts()


def _tier_loads(it: Worker) -> Mapping[str, tuple[int, int]]:
    loads = None if it.publisher is None else it.engine.info.tier_loads
    return {} if loads is None else loads()


def _watch(present: _PresentWorker, metrics: WorkerMetrics) -> None:
    """State is read when metrics are scraped."""

    def publisher() -> WorkerPublisher | None:
        return present.worker.publisher

    watch_outbox(metrics.log, "kv", lambda: it.kv if (it := publisher()) else None)
    watch_outbox(metrics.log, LOAD, lambda: it.load if (it := publisher()) else None)
    metrics.watch_totals(lambda: present.worker.totals)
    metrics.watch_tiers(lambda: present.worker.blocks_by_tier)
    metrics.watch_disk(lambda: _disk_counts(present.worker))
    metrics.watch_loads(lambda: _tier_loads(present.worker))
    metrics.watch_load(
        lambda: present.worker.engine.load().running,
        lambda: present.worker.engine.load().waiting,
        lambda: present.worker.engine.load().blocks_used,
        lambda: present.worker.engine.load().blocks_total,
    )
