"""What front ends and workers share as processes: the log, the registry, the operations listener, the end."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click
from prometheus_client import CollectorRegistry

from actors.metrics.log_metrics import LogMetrics
from api.addresses import split_address
from api.connection import Connection
from api.operations import create_operations_app
from api.parts import Announcement, announce, until_orphaned
from api.server import Server, bind
from core.errors import CallerError, Unavailable
from core.ids import NAME
from core.readiness import Readiness
from streams.etcd.etcd_registry import EtcdRegistry
from streams.jetstream.jetstream_log import JetStreamLog
from streams.outbox.outbox import Outbox
from streams.topology import PAYLOAD_MIN

LEASE_S = 10
"""The registry forgets a process that is silent for so long."""
OPERATIONS_GRACE_S = 1.0
ENSURE_WAIT_S = 20.0
"""How long a cluster may take to elect a leader before a part gives up and is started again."""
ENSURE_RETRY_S = 0.5


def _checked_name(_context: click.Context, _option: click.Parameter, name: str) -> str:
    if not NAME.fullmatch(name):
        raise CallerError(f"--name {name!r}: use 1 to 63 of a-z, 0-9 and '-'")
    return name


def name_option(default: str) -> Callable[..., Any]:
    """The option that gives a part its stable name: it stands in the log, in metrics, and in file names."""
    return click.option(
        "--name", default=default, show_default=True, callback=_checked_name, help="For people; stable."
    )


_logger = logging.getLogger(__name__)


class Planes(NamedTuple):
    """The event plane and the control plane."""

    log: JetStreamLog
    registry: EtcdRegistry


@asynccontextmanager
async def planes(connection: Connection) -> AsyncIterator[Planes]:
    """Both, connected; the streams exist."""
    log = await JetStreamLog.connect(
        connection.nats, connection.namespace, connection.topology, connection.nats_credentials
    )
    try:
        _check_payload(log.max_payload)
        await _ensure(log, connection)
        registry = await EtcdRegistry.connect(
            connection.etcd, connection.namespace, connection.etcd_credentials, LEASE_S
        )
        try:
            yield Planes(log, registry)
        finally:
            await registry.close()
    finally:
        await log.close()


async def _ensure(log: JetStreamLog, connection: Connection) -> None:
    """The streams exist; a cluster may just be without a leader, or a server short."""
    try:
        async with asyncio.timeout(ENSURE_WAIT_S):
            while True:
                try:
                    await log.ensure(connection.topology.names())
                except Unavailable as error:
                    _logger.warning("the streams cannot be made now, trying again: %s", error)
                    await asyncio.sleep(ENSURE_RETRY_S)
                else:
                    return
    except TimeoutError as error:
        raise Unavailable(f"the streams could not be made within {ENSURE_WAIT_S:g} s") from error


def _check_payload(bytes_max: int) -> None:
    if bytes_max < PAYLOAD_MIN:
        raise CallerError(
            f"NATS takes messages of {bytes_max} bytes at most, Contrail's have up to {PAYLOAD_MIN}: "
            "raise max_payload in its configuration"
        )


OPS_OPTION = click.option(
    "--ops",
    default="",
    metavar="HOST:PORT",
    help="Metrics, state and probes.  [default: a free port of --listen's host]",
)


def operations(
    host: str,
    wanted: str,
    ready: Callable[[], Readiness],
    registry: CollectorRegistry,
    state: Callable[[], dict[str, Any]],
) -> Server:
    """The operations listener, where it is `wanted`, else on a free port; it is live for as long as the loop turns and
    answers. CallerError if that is no address."""
    try:
        host, port = split_address(wanted) if wanted else (host, 0)
    except ValueError as error:
        raise CallerError(f"--ops: {error}") from error
    return Server(create_operations_app(lambda: True, ready, registry, state), bind(host, port))


def tell(home: Path | None, name: str, ops: Server, *, id: str | None = None, address: str | None = None) -> None:
    """Who supervises the part can find it. `home` is the data folder of that `contrail up`, None by hand."""
    if home is not None:
        announce(home, name, Announcement(pid=os.getpid(), ops=str(ops.address), id=id, address=address))


def hear_no_more() -> None:
    """SIGTERM and SIGINT change nothing any more: for the last moment of a process that has done what it had to do,
    when the loop that handled them is about to go."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


def on_stop(home: Path | None, stop: Callable[[str], None]) -> list[asyncio.Task[None]]:
    """SIGTERM and SIGINT, or the end of who supervises us, call `stop` with the reason. Keep what is returned."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, f"asked to end ({number.name})")

    async def orphaned() -> None:
        await until_orphaned()
        stop("contrail up is gone")

    return [asyncio.create_task(orphaned())] if home is not None else []


@contextmanager
def told_to_end(home: Path | None) -> Iterator[asyncio.Future[str]]:
    """The future has the reason as soon as we are told to end; from here on no signal kills us."""
    ending: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def stop(reason: str) -> None:
        if not ending.done():
            ending.set_result(reason)

    watching = on_stop(home, stop)
    try:
        yield ending
    finally:
        for task in watching:
            task.cancel()


def watch_outbox(metrics: LogMetrics, stream: str, outbox: Callable[[], Outbox | None]) -> None:
    """The metrics show this outbox, whichever it is by then."""

    def read(what: Callable[[Outbox], int]) -> Callable[[], float]:
        return lambda: what(box) if (box := outbox()) else 0

    def counts() -> dict[str, int]:
        box = outbox()
        return dataclasses.asdict(box.counts) if box else {}

    metrics.watch_outbox(stream, read(lambda box: box.depth), read(lambda box: box.bytes), counts)
