"""A work queue over a stream in JetStream, and the durable consumer behind it; see `streams.log`.

1. A request asks for one message, for a short while, and is then repeated. So a worker takes what it can do now, and a
   request that the broker lost costs little.
2. A request outlives a `next` that was cancelled. The next one takes it over; a message that comes in between is
   handed back at once.
3. A broker that comes back from a crash may have forgotten which messages it handed out last, and which were
   acknowledged: such a message comes again as if for the first time, and is not acknowledged before that. The worker
   must know by itself whether its work is done; if `done` was not confirmed, repeating it is of no use.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import Any

import orjson

from core.errors import PeerError, Unavailable
from core.ids import Epoch, StreamName, StreamSeq
from streams.jetstream.broker_errors import err_code
from streams.jetstream.nats_client import NatsClient
from streams.jetstream.nats_protocol import headers_of, status_of
from streams.log import QueueLimits, Record, StreamState

logger = logging.getLogger(__name__)

WAITING_MAX = 1024
"""Requests for messages that the broker holds at once, of all workers together."""

INACTIVE_S = 24 * 3600
"""The broker forgets a queue without a request for so long: no orphan is left of a model that is served no more."""

_EXISTS = {10013, 10148}
"""Error codes for a new consumer if there is one of that name with another configuration."""
_NS_PER_S = 1_000_000_000
_SETTLED = ("ack_wait", "max_deliver", "max_ack_pending", "filter_subject")
"""Settings that the first process to open the queue fixes for all."""


class QueueConsumer:
    """See the module's text. `make` may be called as often as one likes."""

    def __init__(
        self,
        connection: NatsClient,
        broker_stream: str,
        name: str,
        subjects: str,
        limits: QueueLimits,
        state: Callable[[], Awaitable[StreamState]],
    ) -> None:
        self.ack_wait_s = limits.ack_wait_s
        """As it is settled, once the consumer was made."""
        self.next_subject = f"{connection.api}.CONSUMER.MSG.NEXT.{broker_stream}.{name}"
        self._connection = connection
        self._stream = broker_stream
        self._name = name
        self._state = state
        self._epoch: Epoch | None = None
        self._next = 1
        """Messages before this one were handed out, as far as we know."""
        self._reported = False
        self._config: dict[str, Any] = {
            "durable_name": name,
            "name": name,
            "filter_subject": subjects,
            "ack_policy": "explicit",
            "ack_wait": int(limits.ack_wait_s * _NS_PER_S),
            "max_deliver": limits.deliveries_max + 1,
            "max_ack_pending": limits.pending_max,
            "max_waiting": WAITING_MAX,
            "inactive_threshold": INACTIVE_S * _NS_PER_S,
            "replay_policy": "instant",
            "mem_storage": False,
        }

    def __repr__(self) -> str:
        return f"<QueueConsumer {self._name} of {self._stream}, next {self._next}>"

    async def make(self) -> None:
        """It is there. One that was deleted begins behind the last message that we know of: what others were handed
        since comes again, and what they had not done comes no more. Raises Unavailable or Refused."""
        state = await self._state()
        if self._epoch not in {None, state.epoch} or state.last_seq < self._next - 1:
            logger.warning("history of %s was replaced under the queue %s", self._stream, self._name)
            self._next = state.first_seq
        begin: dict[str, Any] = {"deliver_policy": "new"}
        if self._epoch is not None:
            begin = {"deliver_policy": "by_start_sequence", "opt_start_seq": max(self._next, 1)}
        found = await self._found_or_made(self._config | begin)
        if self._epoch is None:
            self._next = int(found["delivered"]["stream_seq"]) + 1
        self._epoch = state.epoch
        self._settle(found["config"])

    def handed_out(self, seq: StreamSeq) -> None:
        """The broker is at that message, or past it."""
        self._next = max(self._next, seq + 1)

    async def _found_or_made(self, config: dict[str, Any]) -> dict[str, Any]:
        what = f"queue {self._name}"
        body = {"stream_name": self._stream, "config": config, "action": "create"}
        create = f"{self._connection.api}.CONSUMER.CREATE.{self._stream}.{self._name}"
        answer = await self._connection.request(create, body, what)
        if err_code(answer) in _EXISTS:
            answer = await self._connection.request(
                f"{self._connection.api}.CONSUMER.INFO.{self._stream}.{self._name}", None, what
            )
        self._connection.check(answer, what)
        return answer

    def _settle(self, config: dict[str, Any]) -> None:
        self.ack_wait_s = config["ack_wait"] / _NS_PER_S
        other = [key for key in _SETTLED if config.get(key) != self._config[key]]
        if other and not self._reported:
            self._reported = True
            logger.info("queue %s exists with another %s than asked for; it keeps it", self._name, ", ".join(other))


REQUEST_S = 2.0
"""Longest wait of one request at the broker."""
REQUEST_S_MIN = 0.01
"""And at least: what was just stored is a little later with the consumer."""
ANSWER_S = 0.5
"""Time beyond that for the broker's answer to arrive."""
OVER_S = 0.9
"""Time that `next` may take beyond its limit: for a consumer that must be made again."""
PASSING_S = 0.1
"""Pause before a request that the broker ended early, as when a leader goes, is made again."""


_NS_PER_MS = 1_000_000
_OVER = "408"
"""Nothing came while the request waited."""
_NO_RESPONDERS = "503"
_DELETED = "Consumer Deleted"


class JetStreamDelivery:
    """See `streams.log.Delivery`. Each word is confirmed by the broker."""

    def __init__(self, queue: JetStreamQueue, record: Record, number: int, reply: str) -> None:
        self.record = record
        self.number = number
        self.reply = reply
        """Subject on which the broker takes acknowledgements of the message."""
        self._queue = queue

    def __repr__(self) -> str:
        return f"<JetStreamDelivery {self.record.stream}:{self.record.seq}, number {self.number}>"

    async def done(self) -> None:
        await self._queue.acknowledge(self, b"+ACK")
        self._queue.let_go(self)

    async def working(self) -> None:
        await self._queue.acknowledge(self, b"+WPI")
        self._queue.hold(self)

    async def again(self, delay_s: float = 0.0) -> None:
        delay = b' {"delay": %d}' % int(delay_s * _NS_PER_S) if delay_s > 0 else b""
        await self._queue.acknowledge(self, b"-NAK" + delay)
        self._queue.let_go(self)


_QueueReply = JetStreamDelivery | tuple[str, str]
"""Answer to a request: a message, or the broker's status and its text."""


class JetStreamQueue:
    """One worker's end; see the module's text. Begun by `open`."""

    def __init__(self, connection: NatsClient, stream: StreamName, consumer: QueueConsumer) -> None:
        self._connection = connection
        self._stream = stream
        self._consumer = consumer
        self._inbox = connection.new_inbox()
        self._subscription: int | None = None
        self._numbers = count()
        self._asked: dict[int, float] = {}
        """Requests at the broker, oldest first, and when each ends, by the loop's clock."""
        self._waiter: asyncio.Future[_QueueReply] | None = None
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

    async def acknowledge(self, delivery: JetStreamDelivery, word: bytes) -> None:
        """The broker has the fate of the message. Unavailable if it is not known whether it has."""
        answer = await self._connection.exchange(delivery.reply, word)
        if answer.headers and status_of(answer.headers) == _NO_RESPONDERS:
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
            reply = await self._next_reply(until_s)
            if isinstance(reply, JetStreamDelivery):
                self.hold(reply)
                return reply
            if reply is not None and (reply[0] == _NO_RESPONDERS or reply[1] == _DELETED):
                if made:
                    raise Unavailable(f"{self!r}: nobody answers at the broker (no stream, or no leader now)")
                made = True
                await self._consumer.make()
            elif reply is not None and reply[0] != _OVER:
                logger.debug("%r: %s", self, reply)
                await asyncio.sleep(PASSING_S)
            if loop.time() >= until_s:
                return None

    async def _next_reply(self, until_s: float) -> _QueueReply | None:
        """The answer to the request at the broker; one is made if there is none. None if our own time is over."""
        if self.closed:
            raise Unavailable("the queue is closed")
        loop = asyncio.get_running_loop()
        ends_s = self._ask(until_s)
        waiter: asyncio.Future[_QueueReply] = loop.create_future()
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
                self._on_reply((status_of(headers), headers_of(headers).get("Description", "")))
            return
        if self._asked:  # which of them it was is not said
            del self._asked[next(iter(self._asked))]
        # $JS.ACK.[domain.account.]stream.consumer.deliveries.stream_seq.consumer_seq.time_ns.pending[.random]
        tokens = reply.split(b".")
        first = 4 if len(tokens) == 9 else 6
        seq, time_ms = StreamSeq(int(tokens[first + 1])), int(tokens[first + 3]) // _NS_PER_MS
        record = Record(self._stream, seq, time_ms, subject.decode(), payload)
        self._consumer.handed_out(seq)
        self._on_reply(JetStreamDelivery(self, record, int(tokens[first]), reply.decode()))

    def _on_reply(self, reply: _QueueReply) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(reply)
        else:
            self._hand_back(reply)

    def _hand_back(self, reply: _QueueReply) -> None:
        if isinstance(reply, JetStreamDelivery):
            with suppress(PeerError):  # then it goes to others when its time is over
                self._connection.publish(reply.reply, b"-NAK", "")

    def _lost(self) -> None:
        self._subscription = None
        self._asked.clear()
        self._fail("connection to NATS lost")

    def _fail(self, why: str) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(Unavailable(why))

    def _forget_old(self) -> None:
        """Forgets deliveries past their acknowledgement time: another process may have them by now."""
        now_s = asyncio.get_running_loop().time()
        self._held = {delivery: until_s for delivery, until_s in self._held.items() if until_s > now_s}
