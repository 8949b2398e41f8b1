"""The broker's own view of a deployment's streams: sizes, consumers, leaders; and what an administrator can do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from core.ids import StreamName
from core.subjects import broker_stream
from streams.jetstream.broker_accounts import ADMIN
from streams.jetstream.nats_client import NatsClient
from tests.e2e.deployment import Running


class StreamSize(NamedTuple):
    """One stream against its limit."""

    messages: int
    bytes: int
    bytes_max: int


class Broker:
    """Asks the broker's API, past our own log."""

    def __init__(self, connection: NatsClient, namespace: str) -> None:
        self._connection = connection
        self._namespace = namespace

    async def call(self, what: str, stream: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The answer of `$JS.API.{what}.{stream}`."""
        name = broker_stream(self._namespace, StreamName(stream))
        return await self._connection.call(f"$JS.API.{what}.{name}", body, f"{what} {stream}")

    async def streams(self) -> dict[str, StreamSize]:
        """Every stream of the namespace."""
        answer = await self._connection.call("$JS.API.STREAM.LIST", {}, "streams")
        prefix = broker_stream(self._namespace, StreamName(""))
        return {
            one["config"]["name"].removeprefix(prefix): StreamSize(
                one["state"]["messages"], one["state"]["bytes"], one["config"]["max_bytes"]
            )
            for one in answer["streams"] or []
            if one["config"]["name"].startswith(prefix)
        }

    async def consumers(self) -> dict[str, list[dict[str, Any]]]:
        """Who reads each stream, as the broker knows it."""
        return {name: (await self.call("CONSUMER.LIST", name))["consumers"] or [] for name in await self.streams()}

    async def leader(self, stream: str) -> str:
        """The server that leads the stream; empty while there is none."""
        cluster = (await self.call("STREAM.INFO", stream)).get("cluster") or {}
        return str(cluster.get("leader", ""))

    async def replicas_current(self) -> bool:
        """Whether every copy of every stream is up to date and every stream has a leader."""
        for name in await self.streams():
            cluster = (await self.call("STREAM.INFO", name)).get("cluster") or {}
            followers = cluster.get("replicas", [])
            if not cluster.get("leader") or any(not one["current"] or one.get("offline") for one in followers):
                return False
        return True


@asynccontextmanager
async def broker_of(running: Running) -> AsyncIterator[Broker]:
    """The deployment's broker."""
    it = running.connection
    connection = NatsClient(it.nats, it.nats_credentials(ADMIN), "contrail tests")
    await connection.open()
    try:
        yield Broker(connection, it.namespace)
    finally:
        await connection.close()
