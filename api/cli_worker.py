"""`contrail worker`: one worker, an engine with its cache told to the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import uvloop

from actors.metrics.worker_metrics import WorkerMetrics
from actors.worker.engine_watchdog import ENGINE_STALL_CPU_S, ENGINE_STALL_S
from actors.worker.graceful_drain import DRAIN_TIMEOUT_S
from actors.worker.model_files import ChatFormat
from actors.worker.worker import Worker, WorkerOptions
from api.addresses import reachable, split_address
from api.config import DRAIN_TIMEOUT_MAX_S, ENGINES, PREFILL_SLOTS
from api.connection import Connection, connection_options
from api.engine_arguments import EngineArguments, block_host, engine_object, engine_pairs, make_engine
from api.garbage import collect_rarely
from api.logs import configure_engine_logging, configure_logging, log_as
from api.part import (
    OPERATIONS_GRACE_S,
    OPS_OPTION,
    hear_no_more,
    name_option,
    on_stop,
    operations,
    planes,
    tell,
    watch_outbox,
)
from api.parts import SUPERVISED
from api.server import Server
from core.clock import SystemClock
from core.errors import CallerError
from core.events.kv import DECODE
from core.ids import WorkerId
from core.readiness import Readiness
from core.served_names import check_names
from core.subjects import LOAD

FAILED = ("engine dead", "defect")
"""Ends that are no wish of anybody: the exit status says so."""

_logger = logging.getLogger(__name__)


OPTIONS = (
    click.option("--model", required=True, help="What clients call the model."),
    click.option("--model-path", default="", help="Folder or hub name of the model; --model if not given."),
    click.option("--engine", default="vllm", show_default=True, type=click.Choice(ENGINES)),
    click.option("--engine-args", "engine_json", default="{}", help="Arguments for the engine, as a JSON object."),
    click.option(
        "--listen",
        default="127.0.0.1:0",
        show_default=True,
        help="HOST:PORT for requests; port 0 is a free one. Metrics and state are on another port, and need no key.",
    ),
    OPS_OPTION,
    click.option("--advertise", default="", help="HOST or HOST:PORT under which others reach it."),
    click.option(
        "--drain-timeout",
        type=click.FloatRange(0, DRAIN_TIMEOUT_MAX_S),
        default=DRAIN_TIMEOUT_S,
        show_default=True,
        metavar="S",
        help="Told to end, wait for requests for so long; then other workers go on with them.",
    ),
    click.option(
        "--engine-stall",
        type=click.FloatRange(min=1),
        metavar="S",
        help="Longer than any step of the engine: one that ends none for so long, though requests wait, hangs, and the "
        f"worker ends.  [default: {ENGINE_STALL_S:g}, on a CPU {ENGINE_STALL_CPU_S:g}]",
    ),
    click.option(SUPERVISED, is_flag=True, hidden=True),
    click.argument("more", nargs=-1, type=click.UNPROCESSED),
)


def worker_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command has the options of any worker; it gives them to `run_worker` as they come."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


@click.command(context_settings={"ignore_unknown_options": True})
@connection_options
@name_option("decode-0")
@click.option("--role", default=DECODE, show_default=True, type=click.Choice([DECODE]))
@click.option(
    "--remote-prefill", is_flag=True, help="Long prompts may be computed by prefill workers, and their blocks fetched."
)
@click.option(
    "--tool-call-parser", default="", metavar="NAME", help="How the model writes calls of tools, by vLLM's names."
)
@click.option("--reasoning-parser", default="", metavar="NAME", help="How it writes its reasoning, likewise.")
@click.option("--chat-template", default="", metavar="FILE", help="A jinja template instead of the model's own.")
@click.option("--alias", "aliases", multiple=True, metavar="NAME", help="Another name for the model; may end in *.")
@worker_options
def worker(
    connection: Connection,
    role: str,
    remote_prefill: bool,
    aliases: tuple[str, ...],
    tool_call_parser: str,
    reasoning_parser: str,
    chat_template: str,
    **rest: Any,
) -> None:
    """Start one worker: an engine and its cache. What follows `--` goes to the engine as it stands.

    \b
    contrail worker --data data --name decode-2 --model tiny --model-path data/models/tiny
    contrail worker --data data --name decode-3 --model tiny --engine simulated
    contrail worker --data data --name decode-4 --model tiny --model-path data/models/tiny --remote-prefill
    contrail worker --nats nats://10.0.0.1:4222 --etcd 10.0.0.1:2379 --namespace prod --key-file key \\
        --name gpu-7 --model Qwen/Qwen3-0.6B --listen 10.0.0.7:9100 -- --max-num-seqs 64

    With --remote-prefill it asks the deployment's prefill workers, if any are there, for prompts of which its own
    cache lacks much; how much is a live setting: contrail settings. `contrail prefill-worker` starts one of those.
    """
    try:
        check_names((rest["model"], *aliases))
    except ValueError as error:
        raise CallerError(f"--alias: {error}") from error
    manner = ChatFormat(tool_call_parser, reasoning_parser, chat_template)
    run_worker(connection, role, moves_blocks=DECODE if remote_prefill else "", manner=manner, aliases=aliases, **rest)


def run_worker(
    connection: Connection,
    role: str,
    *,
    name: str,
    moves_blocks: str,
    slots: int | None = None,
    manner: ChatFormat | None = None,
    aliases: tuple[str, ...] = (),
    **given: Any,
) -> None:
    """The worker lived and ended as it should; `given` is what `worker_options` gave. Exit status 1 if it failed."""
    configure_logging()
    configure_engine_logging()
    try:
        host, port = split_address(given["listen"])
    except ValueError as error:
        raise CallerError(f"--listen: {error}") from error
    manner = manner or ChatFormat()
    options = WorkerOptions(
        namespace=connection.namespace,
        name=name,
        role=role,
        listen_host=host,
        listen_port=port,
        advertise=given["advertise"],
        partitions=connection.topology.kv_partitions,
        restate_every_s=connection.restate_every_s,
        routing=connection.deployment.routing_settings,
        drain_timeout_s=given["drain_timeout"],
        engine_stall_s=given["engine_stall"],
        prefill_slots=slots or PREFILL_SLOTS,
        manner=manner,
        aliases=aliases,
    )
    arguments = EngineArguments(
        engine=given["engine"],
        model=given["model"],
        model_path=given["model_path"] or given["model"],
        engine_args={**engine_object(given["engine_json"]), **engine_pairs(given["more"])},
        moves_blocks=moves_blocks,
        block_host=block_host(host, given["advertise"]),
        home=connection.data if given["supervised"] else None,
        reasoning_parser=manner.reasoning_parser,
    )
    reason = uvloop.run(serve(connection, options, arguments, given["ops"]))
    if reason.startswith(FAILED):
        click.echo(f"contrail: {reason}", err=True)  # the last words, which the supervisor repeats
        raise SystemExit(1)  # whoever supervises starts another


async def serve(
    connection: Connection, options: WorkerOptions, arguments: EngineArguments, ops_address: str = ""
) -> str:
    """Serves until told to end or the engine dies; then requests in flight finish and the engine is gone."""
    async with planes(connection) as both:
        it = Worker(options, make_engine(arguments), both.log, both.registry, SystemClock(), connection.key)
        metrics = WorkerMetrics(arguments.model, options.name)
        _watch(it, metrics)
        ops = operations(options.listen_host, ops_address, lambda: _ready(it), metrics.registry, it.describe)
        await ops.start()
        tell(arguments.home, options.name, ops)
        watching = on_stop(arguments.home, it.leave)
        try:
            return await _live(it, arguments.home, ops)
        finally:
            for task in watching:
                task.cancel()
            await ops.stop(OPERATIONS_GRACE_S)
            hear_no_more()


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
    collect_rarely()
    _logger.info("serves %s on %s, operations on %s", it.engine.info.model, it.address, ops.address)
    reason = await ending
    _logger.info("ending: %s", reason)
    await it.stop(reason, drain=not reason.startswith(FAILED))
    return reason


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
