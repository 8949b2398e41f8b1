"""`contrail worker`: one worker, an engine with its cache told to the log."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import orjson
import uvloop

from actors.engines.engine import Engine
from actors.metrics import WorkerMetrics
from actors.worker import Worker, WorkerOptions
from api.addresses import reachable, split_address
from api.connection import Connection, connection_options
from api.logs import configure_engine_logging, configure_logging, log_as
from api.part import OPERATIONS_GRACE_S, name_option, on_stop, operations, planes, tell, watch_outbox
from api.parts import SUPERVISED
from api.server import Server
from core.clock import SystemClock
from core.errors import CallerError
from core.ids import WorkerId
from core.readiness import Readiness
from core.subjects import LOAD

FAILED = ("engine dead", "defect")
"""Ends that are no wish of anybody: the exit status says so."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArguments:
    """Which engine, with what, and for whom."""

    engine: str
    model: str
    model_path: str
    engine_args: dict[str, Any]
    home: Path | None
    """Data folder of the `contrail up` that supervises us."""


@click.command(context_settings={"ignore_unknown_options": True})
@connection_options
@name_option("decode-0")
@click.option("--role", default="decode", show_default=True, type=click.Choice(["decode"]))
@click.option("--model", required=True, help="What clients call the model.")
@click.option("--model-path", default="", help="Folder or hub name of the model; --model if not given.")
@click.option("--engine", default="vllm", show_default=True, type=click.Choice(["vllm", "simulated"]))
@click.option("--engine-args", "engine_json", default="{}", help="Arguments for the engine, as a JSON object.")
@click.option(
    "--listen", default="127.0.0.1:0", show_default=True, help="HOST:PORT for requests; port 0 is a free one."
)
@click.option("--advertise", default="", help="HOST or HOST:PORT under which front ends reach it.")
@click.option(SUPERVISED, is_flag=True, hidden=True)
@click.argument("more", nargs=-1, type=click.UNPROCESSED)
def worker(connection: Connection, name: str, role: str, listen: str, advertise: str, **rest: Any) -> None:
    """Start one worker: an engine and its cache. What follows `--` goes to the engine as it stands.

    \b
    contrail worker --data data --name decode-2 --model tiny --model-path data/models/tiny
    contrail worker --data data --name decode-3 --model tiny --engine simulated
    contrail worker --nats nats://10.0.0.1:4222 --etcd 10.0.0.1:2379 --namespace prod --key-file key \\
        --name gpu-7 --model Qwen/Qwen3-0.6B --listen 10.0.0.7:9100 -- --max-num-seqs 64
    """
    configure_logging()
    configure_engine_logging()
    try:
        host, port = split_address(listen)
    except ValueError as error:
        raise CallerError(f"--listen: {error}") from error
    options = WorkerOptions(
        namespace=connection.namespace,
        name=name,
        role=role,
        listen_host=host,
        listen_port=port,
        advertise=advertise,
        partitions=connection.topology.kv_partitions,
        restate_every_s=connection.restate_every_s,
    )
    arguments = EngineArguments(
        engine=rest["engine"],
        model=rest["model"],
        model_path=rest["model_path"] or rest["model"],
        engine_args={**_object(rest["engine_json"]), **_pairs(rest["more"])},
        home=connection.data if rest["supervised"] else None,
    )
    reason = uvloop.run(serve(connection, options, arguments))
    if reason.startswith(FAILED):
        click.echo(f"contrail: {reason}", err=True)  # the last words, which the supervisor repeats
        raise SystemExit(1)  # whoever supervises starts another


async def serve(connection: Connection, options: WorkerOptions, arguments: EngineArguments) -> str:
    """Serves until told to end or the engine dies; then requests in flight finish and the engine is gone."""
    async with planes(connection) as both:
        it = Worker(options, make_engine(arguments), both.log, both.registry, SystemClock(), connection.key)
        metrics = WorkerMetrics(arguments.model, options.name)
        _watch(it, metrics)
        ops = operations(options.listen_host, lambda: _ready(it), metrics.registry, it.describe)
        await ops.start()
        tell(arguments.home, options.name, ops)
        watching = on_stop(arguments.home, it.leave)
        try:
            return await _live(it, arguments.home, ops)
        finally:
            for task in watching:
                task.cancel()
            await ops.stop(OPERATIONS_GRACE_S)


async def _live(it: Worker, home: Path | None, ops: Server) -> str:
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
    assert it.presence is not None

    def known_as(id: WorkerId) -> None:
        log_as(worker=id)
        tell(home, it.options.name, ops, id=id, address=it.address)

    it.on_new_id = known_as
    known_as(it.presence.id)
    _logger.info("serves %s on %s, operations on %s", it.engine.info.model, it.address, ops.address)
    reason = await ending
    _logger.info("ending: %s", reason)
    await it.stop(reason, drain=not reason.startswith(FAILED))
    return reason


def make_engine(arguments: EngineArguments) -> Engine:
    """The engine, not started; its own library is imported when it starts."""
    if arguments.engine == "simulated":
        from actors.engines.simulated import SimulatedEngine, SimulatedSettings  # noqa: PLC0415 - only if asked for

        given = {"model_path": arguments.model_path} | arguments.engine_args
        return SimulatedEngine(arguments.model, SimulatedSettings.parse(given))
    from actors.engines.vllm import VllmEngine  # noqa: PLC0415 - only if asked for

    return VllmEngine(arguments.model, arguments.model_path, arguments.engine_args)


def _ready(it: Worker) -> Readiness:
    if it.ready:
        return Readiness(ready=True, waiting_for={}, degraded=it.degraded())
    if it.presence is None:
        return Readiness(ready=False, waiting_for={"engine": "is starting"})
    if it.port.draining:
        return Readiness(ready=False, waiting_for={"end": "draining"})
    return Readiness(ready=False, waiting_for={"log": "has not stored the worker's first message"})


def _watch(it: Worker, metrics: WorkerMetrics) -> None:
    """State is read when metrics are scraped."""
    watch_outbox(metrics.log, "kv", lambda: it.presence.kv if it.presence else None)
    watch_outbox(metrics.log, LOAD, lambda: it.presence.load if it.presence else None)
    metrics.watch_totals(lambda: it.totals)
    metrics.watch_load(
        lambda: it.engine.load().running,
        lambda: it.engine.load().waiting,
        lambda: it.engine.load().blocks_used,
        lambda: it.engine.load().blocks_total,
    )


def _object(text: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise CallerError(f"--engine-args is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CallerError("--engine-args must be a JSON object")
    return value


def _pairs(words: tuple[str, ...]) -> dict[str, Any]:
    """`--max-num-seqs 64 --enforce-eager` as the engine's arguments: JSON values where they are JSON, else text."""
    given: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise CallerError(f"{word!r}: what follows `--` must be the engine's own `--option value`")
        name, equals, value = word.removeprefix("--").partition("=")
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        try:
            given[name.replace("-", "_")] = orjson.loads(value)
        except orjson.JSONDecodeError:
            given[name.replace("-", "_")] = value
    return given
