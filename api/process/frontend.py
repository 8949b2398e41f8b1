"""The front end process: the API and its router, from start to drain.

A process of its own takes snapshots, so that their memory and CPU time do not slow requests.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from starlette.types import ASGIApp

from actors.metrics.frontend_metrics import FrontendMetrics
from actors.prompt_cache.digest_store import DigestStore
from actors.router.reservations import ReservationBounds
from actors.router.router import Router, RouterOptions
from api.app import create_app
from api.auth.access_policy import AccessPolicy, policy_of
from api.config.addresses import join_address, reachable, split_address
from api.config.data_folder import DataFolder
from api.config.deployment_ref import DeploymentRef, operator_token, route_token
from api.config.run_file import announce_if_supervised
from api.config.running_deployments import DEFAULT_DATA
from api.config.schema import FrontendSection, OperationsSection
from api.openai.adapter_routes import OperatorAccess
from api.process.lifecycle import stop_requested, tune_garbage_collection
from api.process.logging_setup import log_as
from api.process.operations import OPERATIONS_GRACE_S, operations_server, watch_outbox
from api.process.planes import LEASE_S, Planes, open_planes
from api.responses.reasoning_seal import ReasoningSeal
from api.route.proxy_routes import ProxyAccess
from api.server.http_server import HttpServer
from api.server.limits import ApiSettings, HttpLimits, connections_for
from api.server.sockets import bind, inherited_socket, socket_activation_fd, tls_context
from core.clock import SystemClock
from core.errors import Unavailable
from core.ids import StreamName
from core.readiness import Readiness
from core.subjects import ROUTING
from streams.jetstream.broker_accounts import REPLICA

STDERR_CHARS_MAX = 500
"""Number of its last characters that the error of a failure has."""


async def run_snapshot_process(connection_words: Sequence[str], by: str, fence: int) -> None:
    """A snapshot of the log as it is now stands in the log. Unavailable, in the process's own words, if not.

    Cancelled, it ends the process.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "api.cli", "snapshots", "take"),
        *("--fence", str(fence), "--by", by, *connection_words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, output = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        text = output.decode(errors="replace").strip()[-STDERR_CHARS_MAX:]
        raise Unavailable(f"the snapshot was not taken (status {process.returncode}): {text}")


SWITCH_S = 0.0005
"""A thread that computes lets the event loop go on after so long: by default after 5 ms, each time the loop has read or
written something."""


READY_WAIT_S = 20.0
"""Maximum wait for readiness before a front end listens: workers may start slowly."""


READY_POLL_S = 0.02


_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendArguments:
    """Name, addresses and sockets of one front end."""

    name: str
    ops: str
    """Address of the operations listener; empty for a free port."""
    operations: OperationsSection
    """The operations section of the deployment, with the options of the command line applied."""
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
    """The front end section of the deployment, with the options of the command line applied."""


class FrontendPage(Protocol):
    """The debugging page of a front end; it answers below /debug."""

    def app(self, *, with_token: bool) -> ASGIApp:
        """The page of a front end; `with_token` it asks for the deployment's."""

    async def close(self) -> None:
        """Its process has ended, if it has one."""


async def serve_frontend(connection: DeploymentRef, arguments: FrontendArguments, page: FrontendPage) -> None:
    """Serves until told to end; then answers in flight finish, and the log and the registry know."""
    section = arguments.section
    tls = tls_context(section.tls.cert, section.tls.key) if section.tls else None
    listener = _listener(arguments)
    host = str(listener.getsockname()[0])  # of the socket, not of --listen: it may be open to more than loopback
    policy = policy_of(section, host, SystemClock())
    neighbours = [inherited_socket(each) for each in arguments.neighbour_fd]
    with stop_requested(arguments.home) as ending:
        async with open_planes(connection, REPLICA) as both:
            metrics = FrontendMetrics()
            address = join_address(section.advertise or host, listener.getsockname()[1])
            texts = DigestStore(section.text_cache_bytes)
            router = _router(connection, arguments, address, texts, both, metrics)
            settings = ApiSettings(body_bytes_max=section.body_bytes_max)
            seal = ReasoningSeal(connection.key.reasoning_key, connection.key.older_reasoning_keys)
            page_app = page.app(with_token=not policy.local)
            proxies = None if section.route is None else ProxyAccess(router, route_token(section.route))
            token_file = section.operator_token_file
            operators = None if token_file is None else OperatorAccess(router, operator_token(token_file))
            app = create_app(
                router, metrics, settings, page=page_app, policy=policy, seal=seal, texts=texts, proxies=proxies,
                operators=operators,
            )  # fmt: skip
            limits = HttpLimits(connections_max=connections_for(raise_file_limit()))
            api = HttpServer(app, listener, tls, neighbours=neighbours, limits=limits)
            ready = partial(_ready, router, policy)
            ops = operations_server(arguments.operations, arguments.ops, ready, metrics.registry, router.describe)
            await ops.start()
            ops_reachable = reachable(ops.address, section.advertise or "")
            await router.start({"ops": ops_reachable, "page_token": not policy.local})
            _announce_replica(router, arguments, ops, join_address(host, api.address.port))
            await _wait_until_ready(router, ending)
            tune_garbage_collection()
            sys.setswitchinterval(SWITCH_S)
            await api.start()
            _logger.info("listens on %s, operations on %s", api.address, ops.address)
            reason = await ending
            _logger.info("ending: %s", reason)
            router.stopping = True
            await asyncio.sleep(section.stop_delay_s)
            await page.close()
            await api.stop(section.drain_timeout_s)
            await router.stop(reason)
            await ops.stop(OPERATIONS_GRACE_S)


def _ready(router: Router, policy: AccessPolicy) -> Readiness:
    return policy.ready(router.ready())


def raise_file_limit() -> int:
    """The process may open as many files as the system allows; returns that number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _listener(arguments: FrontendArguments) -> socket.socket:
    """Given open, or bound here."""
    number = socket_activation_fd(os.environ) if arguments.fd is None else arguments.fd
    if number is not None:
        return inherited_socket(number)
    return bind(*split_address(arguments.section.listen), reuse_port=arguments.shared_port)


def _announce_replica(router: Router, arguments: FrontendArguments, ops: HttpServer, address: str) -> None:
    """The announcement and the log lines have the replica id, also after it changes."""

    def known_as(id: str) -> None:
        log_as(replica=id)
        announce_if_supervised(arguments.home, arguments.name, ops.address, id=id, address=address)

    router.membership.on_new_id = known_as
    known_as(router.publisher.id)


def _journal(connection: DeploymentRef, arguments: FrontendArguments) -> Path:
    """Given, or in the deployment's data folder if that is on this machine, or here."""
    return arguments.journal or DataFolder(connection.data or DEFAULT_DATA.absolute()).journal


async def _wait_until_ready(router: Router, ending: asyncio.Future[str]) -> None:
    """It is ready, or waited long enough, or is to end: others on this port must not lose requests to one that knows
    no worker."""
    try:
        async with asyncio.timeout(READY_WAIT_S):
            while not router.ready().ready and not ending.done():  # noqa: ASYNC110 - readiness has many sources
                await asyncio.sleep(READY_POLL_S)
    except TimeoutError:
        _logger.warning("takes requests though not ready: %s", router.ready().waiting_for)


def _router(
    connection: DeploymentRef,
    arguments: FrontendArguments,
    address: str,
    texts: DigestStore,
    both: Planes,
    metrics: FrontendMetrics,
) -> Router:
    options = RouterOptions(
        namespace=connection.namespace,
        name=arguments.name,
        address=address,
        restate_every_s=connection.restate_every_s,
        lease_ms=LEASE_S * 1000,
        journal=_journal(connection, arguments),
        journal_bytes=connection.deployment.frontend.journal_bytes,
        snapshot_every_s=connection.snapshot_every_s or 0,
        take_snapshot=partial(run_snapshot_process, connection.words) if connection.snapshot_every_s else None,
        link=connection.link(SystemClock()),
        texts=texts,
        reservations=_reservation_bounds(arguments.section),
        from_zero=connection.deployment.models_from_zero,
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


def _reservation_bounds(section: FrontendSection) -> ReservationBounds:
    """Those of the section; the defaults where nothing is reserved."""
    if section.route is None:
        return ReservationBounds()
    return ReservationBounds(open_max=section.route.reservations_max, expires_after_s=section.route.expires_after_s)


def _lag(router: Router, stream: StreamName) -> int:
    return router.runner.lag.get(stream, 0)


def _workers(router: Router, model: str) -> int:
    return sum(card.workers for card in router.models() if card.name == model)
