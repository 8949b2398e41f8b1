"""The planes of a deployment: its event log and its registry.

`open_planes` is for front ends and workers, and makes the streams that are missing. `open_log` and `open_registry` are
for commands, and make nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

from api.config.deployment_ref import DeploymentRef
from core.errors import CallerError, Refused, Unavailable
from streams.etcd.etcd_registry import EtcdRegistry
from streams.jetstream.broker_accounts import READER, needed_rights
from streams.jetstream.jetstream_log import JetStreamLog
from streams.key_check import ensure_own, register_own
from streams.topology import PAYLOAD_MIN

LOG_IN = "set CONTRAIL_ETCD_USER and CONTRAIL_ETCD_PASSWORD, give -f FILE that has them, or use --data"


@asynccontextmanager
async def open_log(connection: DeploymentRef, role: str = READER) -> AsyncIterator[JetStreamLog]:
    """The deployment's log. Unavailable or Refused if the broker does not answer or does not let us in."""
    log = await JetStreamLog.connect(
        connection.nats, connection.namespace, connection.topology, connection.nats_credentials(role)
    )
    try:
        yield log
    finally:
        await log.close()


@asynccontextmanager
async def open_registry(connection: DeploymentRef) -> AsyncIterator[EtcdRegistry]:
    """The deployment's registry. Unavailable or Refused if etcd does not answer or does not let us in."""
    with named_remedy(connection):
        registry = await EtcdRegistry.connect(connection.etcd, connection.namespace, connection.etcd_credentials)
    try:
        yield registry
    finally:
        await registry.close()


@contextmanager
def named_remedy(connection: DeploymentRef) -> Iterator[None]:
    """A refusal of etcd for missing credentials also names the ways to give them."""
    try:
        yield
    except Refused as error:
        if connection.etcd_credentials is not None:
            raise
        raise Refused(f"{error}; {LOG_IN}") from error


LEASE_S = 10
"""The registry forgets a process that is silent for so long."""


ENSURE_WAIT_S = 20.0
"""Maximum wait for a cluster to elect a leader; then the process ends and is started again."""


ENSURE_RETRY_S = 0.5


_logger = logging.getLogger(__name__)


class Planes(NamedTuple):
    """The event plane and the control plane."""

    log: JetStreamLog
    registry: EtcdRegistry


@asynccontextmanager
async def open_planes(connection: DeploymentRef, role: str) -> AsyncIterator[Planes]:
    """Both, connected; the streams exist. CallerError if either of them belongs to another key's deployment."""
    async with open_log(connection, role) as log:
        _check_payload(log.max_payload)
        await ensure_streams(log, connection, role)
        registry = await EtcdRegistry.connect(
            connection.etcd, connection.namespace, connection.etcd_credentials, LEASE_S
        )
        try:
            await register_own(registry, connection.checked_key)
            yield Planes(log, registry)
        finally:
            await registry.close()


async def ensure_streams(log: JetStreamLog, connection: DeploymentRef, role: str) -> None:
    """The streams exist, and are of this deployment's key, else CallerError.

    A cluster may just be without a leader, or a server short.
    """
    names = connection.topology.names()
    rights = needed_rights(role, names)
    readable = [name for name in names if f"read {name}" in rights]
    try:
        async with asyncio.timeout(ENSURE_WAIT_S):
            while True:
                try:
                    await ensure_own(log, names, readable, connection.checked_key)
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
