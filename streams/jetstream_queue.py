"""A work queue over a stream in JetStream; see `streams.queue`.

1. A request asks for one message, for a short while; whoever waits longer asks again. So a worker takes what it can do
   now, and a request that the broker lost costs little.
2. A request outlives a `next` that was cancelled. The next one takes it over; what comes while nobody waits is
   handed back at once.
3. A broker that comes back from a crash may have forgotten what it handed out last, and what was acknowledged: such
   a message comes again as if for the first time, and is not answered for before that. Whoever takes it must know by
   itself whether it is done; and if `done` was not heard, to say it again is of no use.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from itertools import count

import orjson

from core.errors import PeerError, Unavailable
from core.ids import StreamName, StreamSeq
from streams.jetstream_connection import Connection
from streams.jetstream_consumer import Consumer
from streams.jetstream_wire import headers_of, status_of
from streams.log import Record

logger = logging.getLogger(__name__)

REQUEST_S = 2.0
"""How long one request waits at the broker, at most."""
REQUEST_S_MIN = 0.01
"""And at least: what was just stored is a little later with the consumer."""
ANSWER_S = 0.5
"""How much later than that the broker's word may come."""
OVER_S = 0.9
"""How much longer than it was told `next` may take: for a consumer that must be made again."""
PASSING_S = 0.1
"""Pause before a request that the broker ended early, as when a leader goes, is made again."""

_NS_PER_S = 1_000_000_000
_NS_PER_MS = 1_000_000
_OVER = "408"
"""Nothing came while the request waited."""
_NOBODY = "503"
_DELETED = "Consumer Deleted"


class JetStreamDelivery:
    """See `streams.queue.Delivery`. Each word is confirmed by the broker."""

    def __init__(self, queue: JetStreamQueue, record: Record, number: int, reply: str) -> None:
        self.record = record
        self.number = number
        self.reply = reply
        """Where the broker hears of it."""
        self._queue = queue

    def __repr__(self) -> str:
        return f"<JetStreamDelivery {self.record.stream}:{self.record.seq}, number {self.number}>"

    async def done(self) -> None:
        await self._queue.say(self, b"+ACK")
        self._queue.let_go(self)

    async def working(self) -> None:
        await self._queue.say(self, b"+WPI")
        self._queue.hold(self)

    async def again(self, delay_s: float = 0.0) -> None:
        delay = b' {"delay": %d}' % int(delay_s * _NS_PER_S) if delay_s > 0 else b""
        await self._queue.say(self, b"-NAK" + delay)
        self._queue.let_go(self)


_Heard = JetStreamDelivery | tuple[str, str]
"""What came for a request: a message, or the broker's status and its text."""


class JetStreamQueue:
    """One worker's end; see the module's text. Begun by `open`."""

    def __init__(self, connection: Connection, stream: StreamName, consumer: Consumer) -> None:
        self._connection = connection
        self._stream = stream
        self._consumer = consumer
        self._inbox = connection.new_inbox()
        self._subscription: int | None = None
        self._numbers = count()
        self._asked: dict[int, float] = {}
        """Requests at the broker, oldest first, and when each ends, by the loop's clock."""
        self._waiter: asyncio.Future[_Heard] | None = None
        self._held: dict[JetStreamDelivery, float] = {}
        """Handed to us, and until when it is ours, by the loop's clock."""
        self.closed = False

    def __repr__(self) -> str:
        return f"<JetStreamQueue on {self._consumer!r}{', closed' if self.closed else ''}>"

    async def open(self) -> None:
        """The consumer is there. Raises Unavailable or Refused."""
        await self._consumer.make()
        self._connection.on_lost.add(self._lost)

    async def next(self, wait_s: float) -> JetStreamDelivery | None:
        assert self._waiter is None, "one next at a time"
        until_s = asyncio.get_running_loop().time() + wait_s
        try:
            async with asyncio.timeout(wait_s + OVER_S):
                return await self._next(until_s)
        except TimeoutError as error:
            raise Unavailable("the broker does not say what waits in the queue") from error

    async def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._connection.on_lost.discard(self._lost)
        self._fail("the queue is closed")
        if self._subscription is not None:  # first, or a request of ours gets what we hand back
            self._connection.unsubscribe(self._subscription)
        self._forget_old()
        for delivery in self._held:
            self._hand_back(delivery)

    async def say(self, delivery: JetStreamDelivery, word: bytes) -> None:
        """The broker has heard what became of the message. Unavailable if it is not known whether it has."""
        answer = await self._connection.exchange(delivery.reply, word)
        if answer.headers and status_of(answer.headers) == _NOBODY:
            raise Unavailable(f"{delivery!r}: the queue is gone from the broker, or has no leader now")

    def hold(self, delivery: JetStreamDelivery) -> None:
        """It is ours for another while."""
        self._forget_old()
        self._held[delivery] = asyncio.get_running_loop().time() + self._consumer.ack_wait_s

    def let_go(self, delivery: JetStreamDelivery) -> None:
        """It is ours no more."""
        self._held.pop(delivery, None)

    # --- asking ------------------------------------------------------------------------------------------------

    async def _next(self, until_s: float) -> JetStreamDelivery | None:
        made = False
        loop = asyncio.get_running_loop()
        while True:
            heard = await self._heard(until_s)
            if isinstance(heard, JetStreamDelivery):
                self.hold(heard)
                return heard
            if heard is not None and (heard[0] == _NOBODY or heard[1] == _DELETED):
                if made:
                    raise Unavailable(f"{self!r}: nobody answers at the broker (no stream, or no leader now)")
                made = True
                await self._consumer.make()
            elif heard is not None and heard[0] != _OVER:
                logger.debug("%r: %s", self, heard)
                await asyncio.sleep(PASSING_S)
            if loop.time() >= until_s:
                return None

    async def _heard(self, until_s: float) -> _Heard | None:
        """What comes for the request at the broker; one is made if there is none. None if our own time is over."""
        if self.closed:
            raise Unavailable("the queue is closed")
        loop = asyncio.get_running_loop()
        ends_s = self._ask(until_s)
        waiter: asyncio.Future[_Heard] = loop.create_future()
        self._waiter = waiter
        outlives_us = ends_s > max(until_s, loop.time()) + REQUEST_S_MIN
        limit_s = until_s if outlives_us else ends_s + ANSWER_S
        try:
            async with asyncio.timeout_at(limit_s):
                return await waiter
        except TimeoutError:
            if waiter.done() and not waiter.cancelled():
                return waiter.result()
            if outlives_us:
                return None
            raise Unavailable(f"{self!r}: the broker is silent") from None
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._hand_back(waiter.result())
            raise
        finally:
            self._waiter = None

    def _ask(self, until_s: float) -> float:
        """When the request at the broker ends, by the loop's clock."""
        now_s = asyncio.get_running_loop().time()
        self._asked = {number: ends_s for number, ends_s in self._asked.items() if ends_s > now_s}
        if self._asked:
            return max(self._asked.values())
        if self._subscription is None:
            self._subscription = self._connection.subscribe(f"{self._inbox}.*", self._on_message)
        expires_s = max(REQUEST_S_MIN, min(until_s - now_s, REQUEST_S))
        number = next(self._numbers)
        body = orjson.dumps({"batch": 1, "expires": int(expires_s * _NS_PER_S)})
        self._connection.publish(self._consumer.next_subject, body, f"{self._inbox}.{number}")
        self._asked[number] = now_s + expires_s
        return self._asked[number]

    # --- what comes --------------------------------------------------------------------------------------------

    def _on_message(self, subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
        if not reply.startswith(b"$JS.ACK."):
            number = int(subject.rpartition(b".")[2])
            if self._asked.pop(number, None) is not None:
                self._hear((status_of(headers), headers_of(headers).get("Description", "")))
            return
        if self._asked:  # which of them it was is not said
            del self._asked[next(iter(self._asked))]
        # $JS.ACK.[domain.account.]stream.consumer.deliveries.stream_seq.consumer_seq.time_ns.pending[.random]
        tokens = reply.split(b".")
        first = 4 if len(tokens) == 9 else 6
        seq, time_ms = StreamSeq(int(tokens[first + 1])), int(tokens[first + 3]) // _NS_PER_MS
        record = Record(self._stream, seq, time_ms, subject.decode(), payload)
        self._consumer.handed_out(seq)
        self._hear(JetStreamDelivery(self, record, int(tokens[first]), reply.decode()))

    def _hear(self, heard: _Heard) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(heard)
        else:
            self._hand_back(heard)

    def _hand_back(self, heard: _Heard) -> None:
        if isinstance(heard, JetStreamDelivery):
            with suppress(PeerError):  # then it goes to others when its time is over
                self._connection.publish(heard.reply, b"-NAK", "")

    def _lost(self) -> None:
        self._subscription = None
        self._asked.clear()
        self._fail("connection to NATS lost")

    def _fail(self, why: str) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(Unavailable(why))

    def _forget_old(self) -> None:
        """What we did not speak for in time may be somebody else's by now."""
        now_s = asyncio.get_running_loop().time()
        self._held = {delivery: until_s for delivery, until_s in self._held.items() if until_s > now_s}
