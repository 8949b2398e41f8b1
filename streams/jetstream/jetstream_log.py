"""The log in NATS JetStream; see `streams.log.EventLog`."""

from __future__ import annotations

import base64
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

from core.errors import PeerError, Refused, Unavailable
from core.ids import Epoch, StreamName, StreamSeq
from core.subjects import broker_stream, check_namespace, short_stream
from streams.jetstream.broker_errors import NAME_IN_USE, NO_MESSAGE, NO_ROOM, NO_STREAM, err_code
from streams.jetstream.jetstream_queue import JetStreamQueue, QueueConsumer
from streams.jetstream.nats_client import NatsClient, decoded
from streams.jetstream.nats_credentials import NatsCredentials
from streams.jetstream.pull_consumer import PullConsumer
from streams.jetstream.stream_reader import StreamReader
from streams.jetstream.stream_tail import StreamTail
from streams.log import NO_FINGERPRINTS, QUEUE_LIMITS, Fingerprints, QueueLimits, Record, StreamState
from streams.topology import Topology

logger = logging.getLogger(__name__)

METADATA_PREFIX = "contrail-key-"
"""Of the names of fingerprints in a stream's metadata; the generation follows."""

_MS = timedelta(milliseconds=1)
_APPEND_HEADERS = b"NATS/1.0\r\nNats-Msg-Id: %b\r\nNats-Expected-Last-Subject-Sequence: %d\r\n\r\n"
_1970 = datetime(1970, 1, 1, tzinfo=UTC)


class JetStreamLog:
    """A namespace's streams at a broker. It connects again by itself; without a connection calls fail at once."""

    def __init__(self, connection: NatsClient, namespace: str, topology: Topology) -> None:
        self.namespace = check_namespace(namespace)
        self._connection = connection
        self._topology = topology
        self._ensured: set[StreamName] = set()
        self._fingerprints = NO_FINGERPRINTS
        """Those of streams that are made."""
        self._tails: list[StreamTail] = []
        self._queues: list[JetStreamQueue] = []

    @staticmethod
    async def connect(
        servers: list[str], namespace: str, topology: Topology, credentials: NatsCredentials | None = None
    ) -> JetStreamLog:
        """A connected log. Raises Unavailable if no server answers, Refused if none lets us in."""
        check_namespace(namespace)
        connection = NatsClient(servers, credentials, f"contrail {namespace}")
        await connection.open()
        return JetStreamLog(connection, namespace, topology)

    def __repr__(self) -> str:
        return f"<JetStreamLog {self.namespace}, {self._connection!r}>"

    @property
    def connected(self) -> bool:
        """True while the broker is connected."""
        return self._connection.connected

    @property
    def max_payload(self) -> int:
        """The most bytes that the broker takes in one message, headers included."""
        return self._connection.max_payload

    async def ensure(self, streams: list[StreamName], fingerprints: Fingerprints = NO_FINGERPRINTS) -> None:
        self._fingerprints = fingerprints or self._fingerprints
        for name in streams:
            await self._create(name, first=True)
            self._ensured.add(name)

    async def fingerprints(self, stream: StreamName) -> Fingerprints:
        return fingerprints_in((await self._info(stream))["config"])

    async def append(
        self, stream: StreamName, subject: str, payload: bytes, message_id: str, expected_seq: StreamSeq
    ) -> StreamSeq:
        headers = _APPEND_HEADERS % (message_id.encode(), expected_seq)
        found = await self._connection.exchange(subject, payload, headers)
        try:
            answer = decoded(found, subject)
        except Unavailable:
            await self._make_again(stream)
            raise
        self._connection.check(answer, subject)
        # a duplicate's sequence is ours too: the payload under a message id never changes
        return StreamSeq(int(answer["seq"]))

    async def last(self, stream: StreamName, subject: str) -> Record | None:
        return await self._get(stream, {"last_by_subj": subject}, f"end of {subject}")

    async def at(self, stream: StreamName, seq: StreamSeq) -> Record | None:
        if seq < 1:  # before the first; the broker calls that a bad request
            return None
        return await self._get(stream, {"seq": seq}, f"{stream}:{seq}")

    async def _get(self, stream: StreamName, which: dict[str, object], what: str) -> Record | None:
        request = f"{self._connection.api}.STREAM.MSG.GET.{self._broker_name(stream)}"
        answer = await self._connection.request(request, which, what)
        if err_code(answer) == NO_MESSAGE:
            return None
        self._connection.check(answer, what)
        found = answer["message"]
        payload = base64.b64decode(found.get("data", ""))
        return Record(stream, StreamSeq(int(found["seq"])), _ms(found["time"]), found["subject"], payload)

    async def state(self, stream: StreamName) -> StreamState:
        info = await self._info(stream)
        held = info["state"]
        last_seq = int(held["last_seq"])
        first_seq = int(held["first_seq"]) if held["messages"] else last_seq + 1
        return StreamState(
            Epoch(_ms(info["created"])),
            StreamSeq(first_seq),
            StreamSeq(last_seq),
            int(held["messages"]),
            int(held["bytes"]),
            int(held.get("num_deleted", 0)),
            max(int(info["config"]["max_bytes"]), 0),
            int(info["config"]["max_age"]) / 1e9,
            _us(info["ts"]) if "ts" in info else 0,
        )

    async def seek(self, stream: StreamName, time_ms: int) -> StreamSeq:
        name = self._broker_name(stream)
        config = {
            "ack_policy": "none",
            "deliver_policy": "by_start_time",
            "opt_start_time": (_1970 + time_ms * _MS).isoformat(),
            "inactive_threshold": 1_000_000_000,
            "mem_storage": True,
            "num_replicas": 1,
        }
        body = {"stream_name": name, "config": config}
        made = await self._connection.call(
            f"{self._connection.api}.CONSUMER.CREATE.{name}", body, f"seeking in {stream}"
        )
        await self._connection.request(f"{self._connection.api}.CONSUMER.DELETE.{name}.{made['name']}")
        return await self._first_from(stream, StreamSeq(int(made["delivered"]["stream_seq"]) + 1), time_ms)

    async def _first_from(self, stream: StreamName, start: StreamSeq, time_ms: int) -> StreamSeq:
        """The first sequence from `start` on stored at or after that time, by the leader's messages.

        In a cluster a consumer may stand on a follower that lacks the newest messages, and begin at the end of those.
        Takes one call if `start` is right, else some log2 of the messages that the follower lacked.
        """
        record = await self._following(stream, start)
        if record is None:
            return start
        if record.time_ms >= time_ms:
            return record.seq
        low, high = record.seq + 1, (await self.state(stream)).last_seq + 1
        found = StreamSeq(high)
        while low < high:
            middle = StreamSeq((low + high) // 2)
            record = await self._following(stream, middle)
            if record is not None and record.time_ms < time_ms:
                low = record.seq + 1
            else:
                high, found = middle, middle if record is None else record.seq
        return found

    async def _following(self, stream: StreamName, seq: StreamSeq) -> Record | None:
        """The leader's first message from that sequence on."""
        return await self._get(stream, {"seq": seq, "next_by_subj": ">"}, f"{stream} from {seq} on")

    async def read(self, stream: StreamName, start: StreamSeq) -> AsyncIterator[Record]:
        def make_pull(on_record: Callable[[Record, int], None], held: Callable[[], int]) -> PullConsumer:
            return PullConsumer(self._connection, stream, self._broker_name(stream), on_record, held)

        def following(seq: StreamSeq) -> Awaitable[Record | None]:
            return self._following(stream, seq)

        one = StreamReader(make_pull, lambda: self.state(stream), following, start)
        async with aclosing(one.records()) as records:
            async for record in records:
                yield record

    async def tail(
        self,
        stream: StreamName,
        start: StreamSeq,
        on_record: Callable[[Record], None],
        *,
        on_reset: Callable[[StreamState], None] | None = None,
        after: Record | None = None,
    ) -> StreamTail:
        def make_pull(deliver: Callable[[Record, int], None]) -> PullConsumer:
            return PullConsumer(self._connection, stream, self._broker_name(stream), deliver)

        def at(seq: StreamSeq) -> Awaitable[Record | None]:
            return self.at(stream, seq)

        tail = StreamTail(make_pull, lambda: self.state(stream), at, start, on_record, on_reset, after)
        await tail.start()
        self._tails = [*(other for other in self._tails if not other.stopped), tail]
        return tail

    async def queue(
        self, stream: StreamName, name: str, subjects: str, limits: QueueLimits = QUEUE_LIMITS
    ) -> JetStreamQueue:
        def state() -> Awaitable[StreamState]:
            return self.state(stream)

        consumer = QueueConsumer(self._connection, self._broker_name(stream), name, subjects, limits, state)
        queue = JetStreamQueue(self._connection, stream, consumer)
        await queue.open()
        self._queues = [*(other for other in self._queues if not other.closed), queue]
        return queue

    async def streams(self) -> list[StreamName]:
        names: list[str] = []
        while True:
            body = {"offset": len(names)}
            answer = await self._connection.call(f"{self._connection.api}.STREAM.NAMES", body, "list of streams")
            page = answer.get("streams") or []
            names += page
            if not page or len(names) >= int(answer["total"]):
                break
        ours = (short_stream(self.namespace, name) for name in names)
        return sorted(name for name in ours if name is not None)

    async def close(self) -> None:
        for tail in self._tails:
            await tail.stop()
        for queue in self._queues:
            await queue.close()
        await self._connection.close()

    async def _info(self, stream: StreamName) -> dict[str, Any]:
        """Of the leader: in a cluster no other server answers."""
        request = f"{self._connection.api}.STREAM.INFO.{self._broker_name(stream)}"
        return await self._connection.call(request, None, f"stream {stream}")

    def _broker_name(self, stream: StreamName) -> str:
        return broker_stream(self.namespace, stream)

    async def _create(self, name: StreamName, *, first: bool) -> None:
        """The stream exists. One that exists with other limits keeps them: narrower ones would delete history.

        At the start a stream that does not fit is Refused: what is configured is wrong. Later it may fit again.
        """
        config = self._topology.config(name).as_json(self.namespace) | {"metadata": _metadata(self._fingerprints)}
        try:
            answer = await self._connection.request(f"{self._connection.api}.STREAM.CREATE.{config['name']}", config)
        except PeerError as error:
            if await self._exists(name):
                return  # these credentials have no right to make it
            raise Unavailable(
                f"stream {name} is missing, and it cannot be made by these credentials: {error}"
            ) from error
        if err_code(answer) == NAME_IN_USE:
            await self._compare(name, config)
            return
        if err_code(answer) in NO_ROOM and await self._exists(name):
            return  # the broker counts what it has reserved for it already a second time
        if first and err_code(answer) in NO_ROOM:
            raise Refused(
                f"the broker cannot reserve {config['max_bytes']} bytes for stream {name}: lower log.max_bytes "
                f"({self._topology.max_bytes} bytes for all streams), or raise the broker's max_file_store"
            )
        self._connection.check(answer, f"making stream {name}")

    async def _compare(self, name: StreamName, config: dict[str, Any]) -> None:
        """The stream that exists keeps its limits, and has our fingerprints if our credentials may change it."""
        there = (await self._info(name))["config"]
        metadata = there.get("metadata") or {}
        if any(there.get(field) != value for field, value in config.items() if field != "metadata"):
            logger.warning("stream %s exists with other limits than configured; it keeps them", name)
        if config["metadata"].keys() <= metadata.keys():
            return
        changed = {**there, "metadata": {**config["metadata"], **metadata}}
        update = f"{self._connection.api}.STREAM.UPDATE.{config['name']}"
        try:
            self._connection.check(await self._connection.request(update, changed), f"fingerprints of stream {name}")
        except PeerError as error:
            logger.info("stream %s gets the key's fingerprints when the admin starts: %s", name, error)

    async def _make_again(self, stream: StreamName) -> None:
        """A stream that we ensured and that is gone from the broker is there again, empty, in a new epoch."""
        if stream not in self._ensured:
            return
        if not await self._exists(stream):
            logger.error("stream %s is gone from the broker: making it again", stream)
            await self._create(stream, first=False)

    async def _exists(self, stream: StreamName) -> bool:
        """False only if the broker says that it has no such stream."""
        answer = await self._connection.request(f"{self._connection.api}.STREAM.INFO.{self._broker_name(stream)}")
        if err_code(answer) == NO_STREAM:
            return False
        self._connection.check(answer, f"stream {stream}")
        return True


def fingerprints_in(config: Mapping[str, Any]) -> Fingerprints:
    """The fingerprints of the key in a stream's configuration."""
    metadata: dict[str, str] = config.get("metadata") or {}
    size = len(METADATA_PREFIX)
    return {name[size:]: value for name, value in metadata.items() if name.startswith(METADATA_PREFIX)}


def _metadata(fingerprints: Fingerprints) -> dict[str, str]:
    return {METADATA_PREFIX + name: value for name, value in fingerprints.items()}


def _ms(text: str) -> int:
    """The broker's time (RFC 3339, nanoseconds) in whole milliseconds since 1970, cut off."""
    return (datetime.fromisoformat(text) - _1970) // _MS


def _us(text: str) -> int:
    """The same in microseconds."""
    return (datetime.fromisoformat(text) - _1970) // timedelta(microseconds=1)
