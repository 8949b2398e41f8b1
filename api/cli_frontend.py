"""`contrail frontend`: one front end, the API and its router in one process."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
import uvloop

from actors.metrics.frontend_metrics import FrontendMetrics
from actors.router.router import Router, RouterOptions
from api.addresses import join_address, reachable, split_address
from api.app import create_app
from api.config import DRAIN_TIMEOUT_MAX_S, STOP_DELAY_MAX_S, FrontendSection, FrontendTls
from api.connection import DEFAULT_DATA, Connection, connection_options
from api.data_folder import DataFolder
from api.debug.access import is_loopback, token_of
from api.debug.passage import Passage
from api.debug.site import create_site
from api.files import raise_file_limit
from api.garbage import collect_rarely
from api.heap import one_heap
from api.http_limits import HttpLimits, connections_for
from api.inherited import handed_over, inherited
from api.logs import configure_logging, log_as
from api.openai.responses.reasoning_seal import ReasoningSeal
from api.openai.settings import ApiSettings
from api.part import (
    LEASE_S,
    OPERATIONS_GRACE_S,
    OPS_OPTION,
    Planes,
    name_option,
    operations,
    planes,
    tell,
    told_to_end,
    watch_outbox,
)
from api.parts import SUPERVISED
from api.security.policy import policy_of
from api.security.tls import tls_context
from api.server import Server, bind
from api.snapshot_process import take_snapshot_apart
from core.clock import SystemClock
from core.errors import CallerError
from core.ids import ReplicaId, StreamName
from core.subjects import ROUTING

SWITCH_S = 0.0005
"""A thread that computes lets the event loop go on after so long: by default after 5 ms, each time the loop has read or
written something."""
READY_WAIT_S = 20.0
"""How long a front end waits to be ready before it listens: workers may be slow to come."""
READY_LOOK_S = 0.02

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendArguments:
    """How this front end is known and reached."""

    name: str
    ops: str
    """Where metrics and state are; empty for a free port."""
    shared_port: bool
    fd: int | None
    """Number of the open socket to accept on, instead of `listen`."""
    neighbour_fd: tuple[int, ...]
    """Those of other front ends on the same port: what waits there for too long is ours."""
    home: Path | None
    """Data folder of the `contrail up` that supervises us."""
    journal: Path | None
    """Folder of journals; None for the one of the data folder."""
    section: FrontendSection
    """What the deployment says of front ends, and over it what the command line does."""


@click.command()
@connection_options
@name_option("frontend-0")
@click.option(
    "--listen",
    help="HOST:PORT of the API. Metrics and state are on another port, and need no key: other machines' "
    "`contrail replicas` asks there.  [default: the deployment's, 127.0.0.1:8000]",
)
@OPS_OPTION
@click.option("--advertise", help="Host under which others reach it.  [default: the deployment's, else --listen's]")
@click.option("--shared-port", is_flag=True, help="Other front ends listen on the same port (SO_REUSEPORT).")
@click.option("--fd", type=int, metavar="N", help="Accept on the open socket of this number.  [default: LISTEN_FDS]")
@click.option("--neighbour-fd", type=int, multiple=True, hidden=True)
@click.option(
    "--stop-delay",
    type=click.IntRange(0, STOP_DELAY_MAX_S),
    metavar="S",
    help="Told to end, be not ready for so long before taking no more requests.  [default: the deployment's, 0]",
)
@click.option(
    "--drain-timeout",
    type=click.IntRange(0, DRAIN_TIMEOUT_MAX_S),
    metavar="S",
    help="Then let answers that have begun go on for so long.  [default: the deployment's, 30]",
)
@click.option(
    "--journal",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="CONTRAIL_JOURNAL",
    help="Folder for decisions that the log does not have yet.  [default: journal/ in the data folder]",
)
@click.option("--keys", metavar="FILE", help="API keys (`contrail keys`).  [default: the deployment's, else none]")
@click.option("--tls-cert", metavar="FILE", help="Speak HTTPS with this certificate (PEM).")
@click.option("--tls-key", metavar="FILE", help="Its key, if that is in another file.")
@click.option(SUPERVISED, is_flag=True, hidden=True)
def frontend(
    connection: Connection,
    supervised: bool,
    tls_cert: str | None,
    tls_key: str | None,
    name: str,
    ops: str,
    shared_port: bool,
    fd: int | None,
    neighbour_fd: tuple[int, ...],
    journal: Path | None,
    **told: Any,
) -> None:
    """Start one front end: the OpenAI API with a router of its own, rebuilt from the log.

    \b
    contrail frontend --data data --name frontend-1 --listen 127.0.0.1:8001
    contrail frontend -f prod.yaml --key-file key --name edge-0 --listen 10.0.0.2:8000 --ops 10.0.0.2:9090

    Addresses alone (--nats, --etcd, --namespace) find the log and not the deployment's file: then nobody is asked for
    an API key unless --keys says so, and decisions go by live settings and the defaults.

    With --fd, or started by systemd's socket activation, the socket outlives the front end: while one follows the
    other, clients wait for a moment, and none is refused.
    """
    configure_logging()
    one_heap()
    if tls_key and not tls_cert:
        raise CallerError("--tls-key: give --tls-cert with it, the certificate whose key it is")
    told["tls"] = FrontendTls(cert=tls_cert, key=tls_key) if tls_cert else None
    arguments = FrontendArguments(
        name=name,
        ops=ops,
        shared_port=shared_port,
        fd=fd,
        neighbour_fd=neighbour_fd,
        home=connection.data if supervised else None,
        journal=journal,
        section=_section(connection.deployment.frontend, told),
    )
    uvloop.run(serve(connection, arguments))


def _section(given: FrontendSection, told: dict[str, Any]) -> FrontendSection:
    """What the deployment says of front ends, but for what the command line does."""
    delays = {name: f"{told[name]}s" for name in ("stop_delay", "drain_timeout") if told[name] is not None}
    more = {name: told[name] for name in ("listen", "advertise", "keys", "tls") if told[name]}
    try:
        split_address(more.get("listen", given.listen))
    except ValueError as error:
        raise CallerError(f"--listen: {error}") from error
    return msgspec.structs.replace(given, **more, **delays)


async def serve(connection: Connection, arguments: FrontendArguments) -> None:
    """Serves until told to end; then answers in flight finish, and the log and the registry know."""
    section = arguments.section
    tls = tls_context(section.tls.cert, section.tls.key) if section.tls else None
    listener = _listener(arguments)
    host = str(listener.getsockname()[0])  # of the socket, not of --listen: it may be open to more than loopback
    policy = policy_of(section, host, SystemClock())
    neighbours = [inherited(each) for each in arguments.neighbour_fd]
    with told_to_end(arguments.home) as ending:
        async with planes(connection) as both:
            metrics = FrontendMetrics()
            address = join_address(section.advertise or host, listener.getsockname()[1])
            router = _router(connection, arguments.name, address, _journal(connection, arguments), both, metrics)
            settings = ApiSettings(body_bytes_max=section.body_bytes_max)
            passage = Passage(connection.words, connection.data)
            page = create_site(passage, None if is_loopback(host) else token_of(connection.key))
            seal = ReasoningSeal(connection.key.reasoning_key)
            app = create_app(router, metrics, settings, page=page, policy=policy, seal=seal)
            limits = HttpLimits(connections_max=connections_for(raise_file_limit()))
            api = Server(app, listener, tls, neighbours=neighbours, limits=limits)
            ops = operations(host, arguments.ops, router.ready, metrics.registry, router.describe)
            await ops.start()
            await router.start({"ops": reachable(ops.address, section.advertise or "")})
            _be_known(router, arguments, ops, join_address(host, api.address.port))
            await _until_ready(router, ending)
            collect_rarely()
            sys.setswitchinterval(SWITCH_S)
            await api.start()
            _logger.info("listens on %s, operations on %s", api.address, ops.address)
            reason = await ending
            _logger.info("ending: %s", reason)
            router.stopping = True
            await asyncio.sleep(section.stop_delay_s)
            await passage.close()
            await api.stop(section.drain_timeout_s)
            await router.stop(reason)
            await ops.stop(OPERATIONS_GRACE_S)


def _listener(arguments: FrontendArguments) -> socket.socket:
    """Given open, or bound here."""
    number = handed_over(os.environ) if arguments.fd is None else arguments.fd
    if number is not None:
        return inherited(number)
    return bind(*split_address(arguments.section.listen), reuse_port=arguments.shared_port)


def _be_known(router: Router, arguments: FrontendArguments, ops: Server, address: str) -> None:
    """Who supervises us knows us by our id, whichever it is by then."""

    def known_as(id: ReplicaId) -> None:
        log_as(replica=id)
        tell(arguments.home, arguments.name, ops, id=id, address=address)

    router.membership.on_new_id = known_as
    known_as(router.publisher.id)


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
    watch_outbox(metrics.log, ROUTING, lambda: router.publisher.outbox)
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
