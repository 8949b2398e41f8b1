"""The worker process: an engine with its cache and load events, from start to drain."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

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
from core.readiness import Readiness
from core.subjects import LOAD
from streams.jetstream.broker_accounts import WORKER

FAILED = ("engine dead", "defect")
"""Ends that are no wish of anybody: the exit status says so."""


_logger = logging.getLogger(__name__)


async def serve_worker(
    connection: DeploymentRef,
    options: WorkerOptions,
    arguments: EngineArguments,
    operations: OperationsSection,
    ops_address: str = "",
) -> str:
    """Serves until told to end or the engine dies; then requests in flight finish and the engine is gone."""
    async with open_planes(connection, WORKER) as both:
        it = Worker(options, make_engine(arguments), both.log, both.registry, SystemClock(), connection.key)
        metrics = WorkerMetrics(arguments.model, options.name)
        _watch(it, metrics)
        ops = operations_server(operations, ops_address, lambda: _ready(it), metrics.registry, it.describe)
        await ops.start()
        announce_if_supervised(arguments.home, options.name, ops.address)
        watching = install_stop_handlers(arguments.home, it.leave)
        try:
            return await _run(it, arguments.home, ops)
        finally:
            for task in watching:
                task.cancel()
            await ops.stop(OPERATIONS_GRACE_S)
            ignore_stop_signals()


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


def _watch(it: Worker, metrics: WorkerMetrics) -> None:
    """State is read when metrics are scraped."""
    watch_outbox(metrics.log, "kv", lambda: it.publisher.kv if it.publisher else None)
    watch_outbox(metrics.log, LOAD, lambda: it.publisher.load if it.publisher else None)
    metrics.watch_totals(lambda: it.totals)
    metrics.watch_tiers(lambda: it.blocks_by_tier)
    metrics.watch_disk(lambda: _disk_counts(it))
    metrics.watch_load(
        lambda: it.engine.load().running,
        lambda: it.engine.load().waiting,
        lambda: it.engine.load().blocks_used,
        lambda: it.engine.load().blocks_total,
    )
