"""The broker's own account of itself and of a namespace's streams, for checks of a deployment.

Nothing is changed there: rights are tried with requests that the broker must refuse for a reason of their own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Self

from core.errors import PeerError
from core.ids import Epoch, StreamName
from core.subjects import broker_stream, check_namespace, short_stream, subject
from streams.jetstream.broker_accounts import CHANGE, DELETE, MAKE, PURGE
from streams.jetstream.jetstream_log import fingerprints_in
from streams.jetstream.nats_client import NatsClient, decoded
from streams.jetstream.nats_credentials import NatsCredentials
from streams.jetstream.nats_protocol import header_block
from streams.log import NO_FINGERPRINTS, Fingerprints

CLOCK_SAMPLES = 5
"""The clock's difference is taken from the quickest of so many answers."""
STREAMS_MAX = 1024
"""More streams of one namespace are not listed."""
CONSUMERS_MAX = 4096
"""More consumers of one stream are not listed."""

_NO_STREAM = StreamName("doctor")
_1970 = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


class BrokerServer(NamedTuple):
    """The server that we are connected to."""

    version: str
    cluster: str | None
    """Its cluster's name; None if it stands alone."""
    max_payload: int
    storage_bytes_max: int
    """Bytes that JetStream may store for us; -1 if only the disk limits it."""
    storage_bytes: int
    reserved_bytes: int
    clock_ahead_ms: float
    """Lead of the broker's clock over ours, give or take half of the round trip."""
    round_trip_ms: float


class BrokerStream(NamedTuple):
    """One stream: what it may keep, and what it holds."""

    name: StreamName
    epoch: Epoch
    max_bytes: int
    max_age_s: float
    replicas: int
    storage: str
    persist_mode: str
    """`default`, or `async`: messages are acknowledged and delivered before they are written, and a kill of the server
    loses some."""
    retention: str
    discard: str
    first_seq: int
    last_seq: int
    messages: int
    bytes: int
    first_ms: int | None
    """When its oldest message was stored; None if it is empty."""
    last_ms: int | None
    deleted: int
    """Messages missing between the oldest and the newest."""
    offline: tuple[str, ...]
    """Servers with a copy that are away or behind."""
    leader: str | None
    fingerprints: Fingerprints = NO_FINGERPRINTS
    """Of the deployment's key."""


class BrokerConsumer(NamedTuple):
    """One reader as the broker knows it."""

    stream: StreamName
    name: str
    durable: bool
    age_s: float
    waiting: int
    """Requests for messages that it holds; a reader that lives has some."""


class BrokerInspection(NatsClient):
    """A connection that asks about the broker itself. Each question raises Unavailable or Refused."""

    def __init__(self, servers: list[str], credentials: NatsCredentials | None, namespace: str) -> None:
        super().__init__(servers, credentials, f"contrail {check_namespace(namespace)} doctor")
        self.namespace = namespace

    async def __aenter__(self) -> Self:
        await self.open()  # which leaves nothing behind if it fails
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def server(self) -> BrokerServer:
        """The server that answers, with the offset of its clock."""
        info: dict[str, Any] = self._nc._server_info  # noqa: SLF001 - the library shows only parts of it
        account = await self.call(f"{self.api}.INFO", None, "JetStream")
        lead_ms, round_trip_ms = await self._clock()
        return BrokerServer(
            version=str(info.get("version", "")),
            cluster=info.get("cluster"),
            max_payload=self.max_payload,
            storage_bytes_max=int(account.get("limits", {}).get("max_storage", -1)),
            storage_bytes=int(account.get("storage", 0)),
            reserved_bytes=int(account.get("reserved_storage", 0)),
            clock_ahead_ms=lead_ms,
            round_trip_ms=round_trip_ms,
        )

    async def streams(self) -> list[BrokerStream]:
        """The namespace's streams, by name."""
        infos = await self._all(f"{self.api}.STREAM.LIST", "streams", STREAMS_MAX, {"subject": self._subjects})
        found = ((short_stream(self.namespace, info["config"]["name"]), info) for info in infos)
        named = [_stream(name, info) for name, info in found if name is not None]
        return sorted(named, key=lambda stream: stream.name)

    async def consumers(self, stream: StreamName) -> list[BrokerConsumer]:
        """All that read the stream, or left a consumer behind."""
        request = f"{self.api}.CONSUMER.LIST.{broker_stream(self.namespace, stream)}"
        return [_consumer(stream, info) for info in await self._all(request, "consumers", CONSUMERS_MAX, {})]

    async def rights(self, streams: list[StreamName]) -> frozenset[str]:
        """The rights of our credentials on these streams, which must exist; see `broker_accounts.needed_rights`."""
        tries = {right: trial for stream in streams for right, trial in self._tries(stream).items()}
        tries |= self._tries_of_owner(streams[0])
        answered = await asyncio.gather(*(self._answered(trial) for trial in tries.values()))
        return frozenset(right for right, is_allowed in zip(tries, answered, strict=True) if is_allowed)

    def _tries(self, stream: StreamName) -> dict[str, Awaitable[object]]:
        """Requests that the broker answers, by the right that each takes; they change nothing."""
        name, other = broker_stream(self.namespace, stream), broker_stream(self.namespace, _NO_STREAM)
        return {
            f"append to {stream}": self._append_elsewhere(stream),
            f"read {stream}": self.request(f"{self.api}.STREAM.MSG.GET.{name}", {"seq": 0}),
            f"follow {stream}": self.request(f"{self.api}.CONSUMER.CREATE.{name}", {"stream_name": other}),
        }

    def _tries_of_owner(self, stream: StreamName) -> dict[str, Awaitable[object]]:
        """The same for the rights on streams as such: each request contradicts itself, so the broker refuses it."""
        name, other = broker_stream(self.namespace, stream), broker_stream(self.namespace, _NO_STREAM)
        requests: dict[str, tuple[str, dict[str, Any]]] = {
            MAKE: (f"CREATE.{other}", {"name": name}),
            CHANGE: (f"UPDATE.{name}", {"name": other}),
            PURGE: (f"PURGE.{name}", {"seq": 1, "keep": 1}),
            DELETE: (f"DELETE.{name}", {"not": "empty"}),
        }
        return {right: self.request(f"{self.api}.STREAM.{verb}", body) for right, (verb, body) in requests.items()}

    @property
    def _subjects(self) -> str:
        return f"contrail.{self.namespace}.>"

    async def _clock(self) -> tuple[float, float]:
        """Lead of the broker's clock and the round trip of that answer, in ms; 0 if the broker does not report its
        time."""
        best = (0.0, float("inf"))
        for _ in range(CLOCK_SAMPLES):
            asked_ms = time.time() * 1000
            answer = await self.request(f"{self.api}.STREAM.LIST", {"subject": self._subjects})
            received_ms = time.time() * 1000
            server_time = [info["ts"] for info in answer.get("streams") or [] if "ts" in info]
            if server_time and received_ms - asked_ms < best[1]:
                best = (_ms(server_time[0]) - (asked_ms + received_ms) / 2, received_ms - asked_ms)
        return (best[0], best[1]) if best[1] != float("inf") else (0.0, 0.0)

    async def _all(self, request: str, what: str, at_most: int, more: dict[str, Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while len(found) < at_most:
            answer = await self.call(request, {"offset": len(found), **more}, f"list of {what}")
            page = answer.get(what) or []
            found += page
            if not page or len(found) >= int(answer["total"]):
                break
        return found

    async def _append_elsewhere(self, stream: StreamName) -> dict[str, Any]:
        to = subject(self.namespace, stream, "doctor")
        headers = header_block({"Nats-Expected-Stream": broker_stream(self.namespace, _NO_STREAM)})
        return decoded(await self.exchange(to, b"", headers), to)

    async def _answered(self, trial: Awaitable[object]) -> bool:
        try:
            await trial
        except PeerError:
            return not self.connected  # silence is how a right that is not there shows
        return True


def _stream(name: StreamName, info: dict[str, Any]) -> BrokerStream:
    config, held, cluster = info["config"], info["state"], info.get("cluster") or {}
    behind = [peer["name"] for peer in cluster.get("replicas") or [] if peer.get("offline") or not peer.get("current")]
    return BrokerStream(
        name=name,
        epoch=Epoch(_ms(info["created"])),
        max_bytes=int(config["max_bytes"]),
        max_age_s=int(config["max_age"]) / 1e9,
        replicas=int(config["num_replicas"]),
        storage=str(config["storage"]),
        persist_mode=str(config.get("persist_mode", "default")),
        retention=str(config["retention"]),
        discard=str(config["discard"]),
        first_seq=int(held["first_seq"]),
        last_seq=int(held["last_seq"]),
        messages=int(held["messages"]),
        bytes=int(held["bytes"]),
        first_ms=_ms(held["first_ts"]) if held["messages"] else None,
        last_ms=_ms(held["last_ts"]) if held["messages"] else None,
        deleted=int(held.get("num_deleted", 0)),
        offline=tuple(behind),
        leader=cluster.get("leader"),
        fingerprints=fingerprints_in(config),
    )


def _consumer(stream: StreamName, info: dict[str, Any]) -> BrokerConsumer:
    config = info["config"]
    return BrokerConsumer(
        stream=stream,
        name=str(info["name"]),
        durable=bool(config.get("durable_name")),
        age_s=(_ms(info["ts"]) - _ms(info["created"])) / 1000,
        waiting=int(info.get("num_waiting", 0)),
    )


def _ms(text: str) -> int:
    """The broker's time in whole milliseconds since 1970."""
    return (datetime.fromisoformat(text) - _1970) // _MS
