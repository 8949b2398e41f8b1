"""`contrail frontend`: one front end, the API and its router in one process."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import uvloop

from actors.metrics import FrontendMetrics
from actors.router import Router, RouterOptions
from api.addresses import join_address, reachable, split_address
from api.app import create_app
from api.connection import DEFAULT_DATA, Connection, connection_options
from api.data_folder import DataFolder
from api.debug.access import is_loopback, token_of
from api.debug.passage import Passage
from api.debug.site import create_site
from api.logs import configure_logging, log_as
from api.openai.settings import ApiSettings
from api.part import (
    LEASE_S,
    OPERATIONS_GRACE_S,
    Planes,
    name_option,
    operations,
    planes,
    tell,
    told_to_end,
    watch_outbox,
)
from api.parts import SUPERVISED
from api.server import Server, bind
from api.snapshot_process import take_snapshot_apart
from core.clock import SystemClock
from core.errors import CallerError
from core.ids import ReplicaId, StreamName
from core.subjects import ROUTING

DRAIN_TIMEOUT_S = 30.0
"""How long answers in flight may take when the front end ends."""
READY_WAIT_S = 20.0
"""How long a front end waits to be ready before it listens: workers may be slow to come."""
READY_LOOK_S = 0.02

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendArguments:
    """How this front end is known and reached."""

    name: str
    listen: str
    advertise: str
    shared_port: bool
    home: Path | None
    """Data folder of the `contrail up` that supervises us."""
    journal: Path | None
    """Folder of journals; None for the one of the data folder."""


@click.command()
@connection_options
@name_option("frontend-0")
@click.option("--listen", default="127.0.0.1:8000", show_default=True, help="HOST:PORT of the API.")
@click.option("--advertise", default="", help="Host under which others reach it.")
@click.option("--shared-port", is_flag=True, help="Other front ends listen on the same port (SO_REUSEPORT).")
@click.option(
    "--journal",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="CONTRAIL_JOURNAL",
    help="Folder for decisions that the log does not have yet.  [default: journal/ in the data folder]",
)
@click.option(SUPERVISED, is_flag=True, hidden=True)
def frontend(connection: Connection, listen: str, supervised: bool, **rest: Any) -> None:
    """Start one front end: the OpenAI API with a router of its own, rebuilt from the log.

    \b
    contrail frontend --data data --name frontend-1 --listen 127.0.0.1:8001
    contrail frontend --nats nats://10.0.0.1:4222 --etcd 10.0.0.1:2379 --namespace prod --key-file key \\
        --name edge-0 --listen 10.0.0.2:8000
    """
    configure_logging()
    try:
        split_address(listen)
    except ValueError as error:
        raise CallerError(f"--listen: {error}") from error
    home = connection.data if supervised else None
    arguments = FrontendArguments(listen=listen, home=home, **rest)
    uvloop.run(serve(connection, arguments))


async def serve(connection: Connection, arguments: FrontendArguments) -> None:
    """Serves until told to end; then answers in flight finish, and the log and the registry know."""
    host, port = split_address(arguments.listen)
    listener = bind(host, port, reuse_port=arguments.shared_port)
    with told_to_end(arguments.home) as ending:
        async with planes(connection) as both:
            metrics = FrontendMetrics()
            address = join_address(arguments.advertise or host, listener.getsockname()[1])
            router = _router(connection, arguments.name, address, _journal(connection, arguments), both, metrics)
            settings = ApiSettings(body_bytes_max=connection.deployment.frontend.body_bytes_max)
            passage = Passage(connection.words, connection.data)
            page = create_site(passage, None if is_loopback(host) else token_of(connection.key))
            api = Server(create_app(router, metrics, settings, page=page), listener)
            ops = operations(host, router.ready, metrics.registry, router.describe)
            await ops.start()
            await router.start({"ops": reachable(ops.address, arguments.advertise)})
            _be_known(router, arguments, ops, join_address(host, api.address.port))
            await _until_ready(router, ending)
            await api.start()
            _logger.info("listens on %s, operations on %s", api.address, ops.address)
            reason = await ending
            _logger.info("ending: %s", reason)
            await passage.close()
            await api.stop(DRAIN_TIMEOUT_S)
            await router.stop(reason)
            await ops.stop(OPERATIONS_GRACE_S)


def _be_known(router: Router, arguments: FrontendArguments, ops: Server, address: str) -> None:
    """Who supervises us knows us by our id, whichever it is by then."""

    def known_as(id: ReplicaId) -> None:
        log_as(replica=id)
        tell(arguments.home, arguments.name, ops, id=id, address=address)

    router.life.on_new_id = known_as
    known_as(router.voice.id)


def _journal(connection: Connection, arguments: FrontendArguments) -> Path:
    """Given, or in the deployment's data folder if that is on this machine, or here."""
    return arguments.journal or DataFolder(connection.data or DEFAULT_DATA.absolute()).journal


async def _until_ready(router: Router, ending: asyncio.Future[str]) -> None:
    """It is ready, or waited long enough, or is to end: others on this port must not lose requests to one that knows
    no worker."""
    try:
        async with asyncio.timeout(READY_WAIT_S):
            while not router.ready().ready and not ending.done():  # noqa: ASYNC110 - readiness has many sources
                await asyncio.sleep(READY_LOOK_S)
    except TimeoutError:
        _logger.warning("takes requests though not ready: %s", router.ready().waiting_for)


def _router(
    connection: Connection, name: str, address: str, journal: Path, both: Planes, metrics: FrontendMetrics
) -> Router:
    options = RouterOptions(
        namespace=connection.namespace,
        name=name,
        address=address,
        restate_every_s=connection.restate_every_s,
        lease_ms=LEASE_S * 1000,
        journal=journal,
        journal_bytes=connection.deployment.frontend.journal_bytes,
        snapshot_every_s=connection.snapshot_every_s or 0,
        take_snapshot=partial(take_snapshot_apart, connection.words) if connection.snapshot_every_s else None,
    )
    settings = connection.deployment.routing_settings
    router = Router(options, both.log, both.registry, SystemClock(), connection.key, settings, metrics.decided)
    watch_outbox(metrics.log, ROUTING, lambda: router.voice.outbox)
    metrics.watch_replica(router.describe)
    for stream in connection.topology.names():
        metrics.log.watch_lag(stream, partial(_lag, router, stream))
    for model in {group.client_name for group in connection.deployment.workers}:
        metrics.watch_workers(model, partial(_workers, router, model))
    return router


def _lag(router: Router, stream: StreamName) -> int:
    return router.runner.lag.get(stream, 0)


def _workers(router: Router, model: str) -> int:
    return sum(card.workers for card in router.models() if card.name == model)
