"""One HTTP exchange below the framework: the body within a bound, the answer, the deadline, and a client that hangs up.

A client that does not read costs no more than its own answer: what it was sent waits in the server up to its
high-water mark, what comes after that is merged where it comes from, and after SLOW_READER_S the exchange is over.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from starlette.types import Message, Receive, Scope, Send

from api.server.errors import ApiError, stopping, too_large
from api.server.limits import SLOW_READER_S
from api.server.response_writer import STATE_KEY, ResponseWriter
from core.clock import Clock
from core.models import DeadlineExceeded

LOOKS = 4
"""In that time it is looked so often whether a write waits: it may take a part of it longer."""
TOO_LATE = "the request was not answered within its x-contrail-deadline-ms"


class ClientDisconnected(Exception):
    """The client hung up: there is nobody to answer."""


class DisconnectWatcher:
    """Ends the task that answers a request when there is nobody to answer any more, and knows why."""

    def __init__(self, writes: Callable[[], int], deadline_s: float, loop: asyncio.AbstractEventLoop) -> None:
        """`writes` counts writes to the client, begun and ended together: odd while one waits. `deadline_s` is when the
        client waits no longer, by the clock of the loop, which runs; infinite if it did not say."""
        self._writes = writes
        self._loop = loop
        self._task = asyncio.current_task(loop)
        self._why: Exception | None = None
        self._seen = self._waits = 0
        self._deadline = None if deadline_s == math.inf else loop.call_at(deadline_s, self._late)
        self._look_due: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<DisconnectWatcher, {self._why or 'nothing yet'}>"

    def close(self) -> None:
        """Nothing is ended any more."""
        if self._look_due is not None:
            self._look_due.cancel()
        if self._deadline is not None:
            self._deadline.cancel()

    def look_on(self) -> None:
        """A write began that may wait for its client: that is looked at from now on."""
        if self._look_due is None:
            self._seen = self._writes()
            self._look_due = self._loop.call_later(SLOW_READER_S / LOOKS, self._look)

    def gone(self) -> None:
        """The client hung up."""
        self._end(ClientDisconnected())

    def verdict(self) -> Exception | None:
        """Why the task was ended here; None if it was not. Its cancellation counts as dealt with."""
        if self._why is not None and self._task is not None:
            self._task.uncancel()
        return self._why

    def _late(self) -> None:
        self._end(DeadlineExceeded(TOO_LATE))

    def _look(self) -> None:
        """A write that waits for its client is counted, and ended when that took SLOW_READER_S."""
        writes = self._writes()
        self._waits = self._waits + 1 if self._seen % 2 and self._seen == writes else 0
        self._seen = writes
        if self._waits >= LOOKS:
            self._end(ClientDisconnected())
        else:
            self._look_due = self._loop.call_later(SLOW_READER_S / LOOKS, self._look)

    def _end(self, why: Exception) -> None:
        if self._why is None and self._task is not None:
            self._why = why
            self._task.cancel(why)  # who waited for a worker says in the log why it waits no longer


Result = TypeVar("Result")

DEADLINE_HEADER = b"x-contrail-deadline-ms"
DEADLINE_DIGITS = 10
"""More of them than the largest deadline has; what is no deadline is refused by whoever reads the request."""
MODEL_KEY = "model"
"""Where an exchange keeps the model that its request asks for, in the scope's state; empty until that is known."""
JSON_TYPE = (b"content-type", b"application/json")
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


TRACE_KEY = "trace"
"""Where the scope's state has the request's `RoutingTrace`; None if answers do not name their worker."""


class RoutingTrace:
    """From the arrival to the first byte of the answer: of a stream that is its first token."""

    __slots__ = ("_arrived_us", "_clock", "_routed_us", "_worker")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._arrived_us = clock.monotonic_us()
        self._routed_us = 0
        self._worker = ""

    def on_routed(self, worker: str) -> None:
        """The request was sent to the worker of this name now; the last one counts."""
        self._routed_us = self._clock.monotonic_us()
        self._worker = worker

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The worker, what came before it (reading, encoding, waiting), and all until now; empty if none was asked."""
        if not self._worker:
            return []
        arrived_us = self._arrived_us
        return [
            (b"x-contrail-worker", self._worker.encode()),
            (b"x-contrail-queue-ms", b"%.3f" % ((self._routed_us - arrived_us) / 1000)),
            (b"x-contrail-answer-ms", b"%.3f" % ((self._clock.monotonic_us() - arrived_us) / 1000)),
        ]


class HttpExchange:
    """The hot routes speak ASGI themselves: per chunk, that is half of what the framework's responses cost."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])
        self.request_id: str = scope["state"]["request_id"]
        self._state = scope["state"]
        self._state[MODEL_KEY] = ""
        self.started = False
        """Whether the status has left; after that an error can only end the stream."""
        self.extra_headers: list[tuple[bytes, bytes]] = []
        """Of this answer alone, if its status is 200."""
        self._receive = receive
        self._send = send
        self._deadline_s = _deadline_s(self.headers[DEADLINE_HEADER]) if DEADLINE_HEADER in self.headers else math.inf
        """By the loop's clock; infinite if the client named none."""
        self._writes = 0
        """Begun and ended, together."""
        self._wire: ResponseWriter | None = scope["state"].get(STATE_KEY)
        self._vigil: DisconnectWatcher | None = None

    def __repr__(self) -> str:
        return f"<HttpExchange {self.request_id}, {'answering' if self.started else 'not answered yet'}>"

    def rename(self, request_id: str) -> None:
        """The request has this id, also in what the layers around say of it."""
        self.request_id = self._state["request_id"] = request_id

    def asks_for(self, model: str) -> None:
        """A failure inside is told of a request for this model."""
        self._state[MODEL_KEY] = model

    def on_routed(self, worker_name: str) -> None:
        """The request was sent to the worker of this name."""
        trace: RoutingTrace | None = self._state[TRACE_KEY]
        if trace is not None:
            trace.on_routed(worker_name)

    async def body(self, bytes_max: int) -> bytes:
        """The whole body. ApiError 413 as soon as it is known to be longer, ClientDisconnected if its end never
        comes."""
        if int(self.headers.get(b"content-length", b"0")) > bytes_max:
            raise too_large(bytes_max)
        whole = None if self._wire is None else self._wire.body()
        if whole is not None:
            if len(whole) > bytes_max:
                raise too_large(bytes_max)
            return whole
        pieces: list[bytes] = []
        size, more = 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            piece = message.get("body", b"")
            pieces.append(piece)
            size += len(piece)
            if size > bytes_max:
                raise too_large(bytes_max)
            more = message.get("more_body", False)
        return b"".join(pieces)

    async def answer(self, body: bytes) -> None:
        """The whole answer has been handed to the server: 200, JSON."""
        self.started = True
        if self._wire is not None and not self.extra_headers and self._wire.whole(body):
            return
        await self._respond(200, self.extra_headers, body)

    async def refuse(self, error: ApiError) -> None:
        """The error has been handed to the server as the whole answer."""
        extra = [(name.encode(), value.encode()) for name, value in error.headers.items()]
        await self._respond(error.status, extra, error.body())

    async def _respond(self, status: int, extra: list[tuple[bytes, bytes]], body: bytes) -> None:
        length = (b"content-length", str(len(body)).encode())
        await self._start(status, [JSON_TYPE, length, *extra])
        await self._last({"type": "http.response.body", "body": body})

    async def open_stream(self) -> None:
        """A stream of events has begun: 200."""
        await self._start(200, [*STREAM_HEADERS, *self.extra_headers])

    async def write(self, piece: bytes) -> None:
        """The piece has been handed on, and the stream has begun; waits while the client is slower than we are."""
        if not self.started:
            await self.open_stream()
        if self._wire is not None and self._wire.chunk(piece):
            return
        self._writes += 1
        if self._vigil is not None:
            self._vigil.look_on()
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        self._writes += 1

    def write_now(self, piece: bytes) -> bool:
        """The piece has been handed on, and the stream has begun; False, and nothing is done, if only `write` can."""
        if self._wire is None:
            return False
        if self.started:
            return self._wire.chunk(piece)
        headers = [*STREAM_HEADERS, *self.extra_headers] if self.extra_headers else STREAM_HEADERS
        self.started = self._wire.first_chunk(headers, piece)
        return self.started

    def close_now(self, piece: bytes) -> bool:
        """The stream has ended with this piece; False, and nothing is done, if only `close_stream` can."""
        return self.started and self._wire is not None and self._wire.last_chunk(piece)

    async def close_stream(self, piece: bytes) -> None:
        """The stream has ended with this piece, as far as the client takes it."""
        if not self.started:
            await self.open_stream()
        if self._wire is not None and self._wire.last_chunk(piece):
            return
        await self._last({"type": "http.response.body", "body": piece})

    async def _last(self, message: Message) -> None:
        with suppress(TimeoutError):  # then the server cuts the connection: the answer is not whole
            async with asyncio.timeout(SLOW_READER_S):
                await self._send(message)

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def while_there(self, work: Coroutine[Any, Any, Result]) -> Result:
        """What the work returns. If the client hangs up first, or does not read, the work has been cancelled and
        ClientDisconnected is raised; DeadlineExceeded if the client waits no longer."""
        loop = asyncio.get_running_loop() if self._wire is None else self._wire.loop
        vigil = self._vigil = DisconnectWatcher(lambda: self._writes, self._deadline_s, loop)
        watching = None
        if self._wire is not None:
            self._wire.listen(vigil.gone)
        else:
            watching = asyncio.create_task(self._hangup(vigil))
        try:
            return await work
        except asyncio.CancelledError as error:
            # nobody but us ended it: or the grace time is over, and there is still time to say so
            raise vigil.verdict() or stopping() from error
        finally:
            vigil.close()
            self._vigil = None  # else the two hold each other
            if self._wire is not None:
                self._wire.listen(None)
            if watching is not None:
                watching.cancel()

    async def _hangup(self, vigil: DisconnectWatcher) -> None:
        """The vigil hears of the client's end where our own server does not tell it."""
        while (await self._receive())["type"] != "http.disconnect":
            pass  # nothing else comes after the body
        vigil.gone()


def _deadline_s(raw: bytes) -> float:
    """When the client waits no longer, counted from now."""
    if not raw.isdigit() or len(raw) > DEADLINE_DIGITS:
        return math.inf
    return asyncio.get_running_loop().time() + int(raw) / 1000
