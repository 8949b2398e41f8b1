"""PullConsumer: the deliveries of one ephemeral consumer, in order and without gaps, or none at all.

1. The consumer acknowledges nothing and lives in memory; losing it costs a new one.
2. Messages come to a callback, some requests ahead of need: five times faster than asking for each batch.
3. `outstanding` counts requested messages that have not come. A request that ends early reports the rest.
4. Anything unexpected, a lost connection too, sets `broken`, and nothing more is delivered: its owner opens
   a new one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import orjson

from core.errors import PeerError, Unavailable
from core.ids import StreamName, StreamSeq
from streams.jetstream.nats_client import NatsClient
from streams.jetstream.nats_protocol import headers_of, status_of
from streams.log import Record

BATCH = 500
"""Messages in one request."""
BATCH_BYTES_MAX = 32 * 1024 * 1024
"""One request ends before it would deliver more."""
REQUESTS_OPEN_MAX = 2
HEARTBEAT_S = 1.0
SILENCE_MAX_S = 2.5 * HEARTBEAT_S
"""After so long without a message or a heartbeat the consumer is taken for lost."""
REQUEST_EXPIRES_S = 30
INACTIVE_S = 30
"""The broker forgets a consumer without a request for so long."""

_NS_PER_S = 1_000_000_000
_NS_PER_MS = 1_000_000
_TIMED_OUT = "408"
_SATISFIED = {"Batch Completed", "Message Size Exceeds MaxBytes"}
"""Texts of a 409 that only means the end of a request."""
_HEARTBEAT = "100"

OnRecord = Callable[[Record, int], None]
"""Called with the record and how many the stream holds after it."""


class PullConsumer:
    """See the module's text. `open` may be called once."""

    def __init__(
        self,
        connection: NatsClient,
        stream: StreamName,
        broker_stream: str,
        on_record: OnRecord,
        held: Callable[[], int] = lambda: 0,
    ) -> None:
        self.broken = asyncio.Event()
        self.stirred = asyncio.Event()
        """Set when a record came, or none will any more; the waiting caller clears it."""
        self.outstanding = 0
        self.received_s = time.monotonic()
        self._connection = connection
        self._stream = stream
        self._broker_stream = broker_stream
        self._on_record = on_record
        self._held = held
        self._inbox = connection.new_inbox()
        self._consumer = ""
        self._next_subject = ""
        self._subscription: int | None = None
        self._delivered = 0
        self._start = 0

    @property
    def silent(self) -> bool:
        """True if nothing, not even a heartbeat, came for too long."""
        return time.monotonic() - self.received_s > SILENCE_MAX_S

    async def open(self, start: int) -> int:
        """Deliveries begin at `start`; returns how many messages the stream holds from there on."""
        self._start = start
        config = {
            "ack_policy": "none",
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": max(start, 1),
            "inactive_threshold": INACTIVE_S * _NS_PER_S,
            "mem_storage": True,
            "num_replicas": 1,
        }
        create = f"{self._connection.api}.CONSUMER.CREATE.{self._broker_stream}"
        body = {"stream_name": self._broker_stream, "config": config}
        answer = await self._connection.call(create, body, f"reading {self._stream}")
        self._consumer = f"{self._broker_stream}.{answer['name']}"
        self._next_subject = f"{self._connection.api}.CONSUMER.MSG.NEXT.{self._consumer}"
        self._connection.on_lost.add(self._break_off)
        self._subscription = self._connection.subscribe(self._inbox, self._on_message)
        self.received_s = time.monotonic()
        self.top_up()
        return int(answer["num_pending"])

    def close(self) -> None:
        """Nothing is delivered any more; the broker forgets the consumer, at the latest after `INACTIVE_S`."""
        self._break_off()
        self._connection.on_lost.discard(self._break_off)
        if self._subscription is not None:
            self._connection.unsubscribe(self._subscription)
        if self._consumer and self._connection.connected:
            with suppress(Unavailable):  # the library hears later than we that a connection is closing
                self._connection.publish(f"{self._connection.api}.CONSUMER.DELETE.{self._consumer}", b"", self._inbox)

    def top_up(self) -> None:
        """Enough is asked for, less what is `held` and not yet used."""
        if self.outstanding + self._held() > BATCH * (REQUESTS_OPEN_MAX - 1):
            return
        expires, heartbeat = REQUEST_EXPIRES_S * _NS_PER_S, int(HEARTBEAT_S * _NS_PER_S)
        bytes_max = max(BATCH_BYTES_MAX, 2 * self._connection.max_payload)  # a larger message would never come
        request = orjson.dumps(
            {"batch": BATCH, "max_bytes": bytes_max, "expires": expires, "idle_heartbeat": heartbeat}
        )
        while self.outstanding + self._held() <= BATCH * (REQUESTS_OPEN_MAX - 1) and not self.broken.is_set():
            self.outstanding += BATCH
            self._connection.publish(self._next_subject, request, self._inbox)

    def _on_message(self, subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
        if self.broken.is_set():
            return
        self.received_s = time.monotonic()
        if reply.startswith(b"$JS.ACK."):
            self._take(subject, reply, payload)
        else:
            self._take_status(headers)
        if self.outstanding <= BATCH * (REQUESTS_OPEN_MAX - 1):
            try:
                self.top_up()
            except PeerError:  # the connection is gone; the owner will see why
                self._break_off()

    def _take(self, subject: bytes, reply: bytes, payload: bytes) -> None:
        # $JS.ACK.[domain.account.]stream.consumer.deliveries.stream_seq.consumer_seq.time_ns.pending[.random]
        tokens = reply.split(b".")
        first = 5 if len(tokens) == 9 else 7
        seq = int(tokens[first])
        if int(tokens[first + 1]) != self._delivered + 1:
            self._break_off()
            return
        self._delivered += 1
        self.outstanding -= 1
        if seq < self._start:  # the server that reads for us had not caught up, and began at its own end
            return
        time_ms = int(tokens[first + 2]) // _NS_PER_MS
        record = Record(self._stream, StreamSeq(seq), time_ms, subject.decode(), payload)
        self._on_record(record, int(tokens[first + 3]))
        self.stirred.set()

    def _take_status(self, headers: bytes) -> None:
        status, found = status_of(headers), headers_of(headers)
        if status == _TIMED_OUT or found.get("Description") in _SATISFIED:
            self.outstanding -= int(found.get("Nats-Pending-Messages", "0"))
        elif status != _HEARTBEAT:
            self._break_off()

    def _break_off(self) -> None:
        self.broken.set()
        self.stirred.set()
