"""Contacts: the planes of a deployment as a command that only asks sees them; nothing is made there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from api.connection import Connection
from core.errors import Refused
from streams.etcd.etcd_registry import EtcdRegistry
from streams.jetstream.jetstream_log import JetStreamLog

LOG_IN = "set CONTRAIL_ETCD_USER and CONTRAIL_ETCD_PASSWORD, give -f FILE that has them, or use --data"


@asynccontextmanager
async def open_log(connection: Connection) -> AsyncIterator[JetStreamLog]:
    """The deployment's log. Unavailable or Refused if the broker does not answer or does not let us in."""
    log = await JetStreamLog.connect(
        connection.nats, connection.namespace, connection.topology, connection.nats_credentials
    )
    try:
        yield log
    finally:
        await log.close()


@asynccontextmanager
async def open_registry(connection: Connection) -> AsyncIterator[EtcdRegistry]:
    """The deployment's registry. Unavailable or Refused if etcd does not answer or does not let us in."""
    with named_remedy(connection):
        registry = await EtcdRegistry.connect(connection.etcd, connection.namespace, connection.etcd_credentials)
    try:
        yield registry
    finally:
        await registry.close()


@contextmanager
def named_remedy(connection: Connection) -> Iterator[None]:
    """What etcd refuses because nobody said who asks, says how to say it."""
    try:
        yield
    except Refused as error:
        if connection.etcd_credentials is not None:
            raise
        raise Refused(f"{error}; {LOG_IN}") from error
