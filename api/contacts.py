"""Contacts: the planes of a deployment as a command that only asks sees them; nothing is made there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from api.connection import Connection
from streams.etcd import EtcdRegistry
from streams.jetstream import JetStreamLog


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
    registry = await EtcdRegistry.connect(connection.etcd, connection.namespace, connection.etcd_credentials)
    try:
        yield registry
    finally:
        await registry.close()
