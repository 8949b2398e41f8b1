"""HttpExchange: one request of a connection and its answer.

Routes of the API write their answers here and not by ASGI: per chunk, that is half of the cost of the framework's
responses. A client that does not read costs no more than its own answer: pieces beyond the server's high-water mark
wait where they come from, and `HttpProtocol` cuts a connection that takes nothing for SLOW_READER_S.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.types import Scope
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from api.server.body_budget import FREE_BYTES_MAX, BodyLease
from api.server.errors import ApiError, stopping, too_large
from api.server.tcp_probe import TcpProbe
from core.clock import Clock, SystemClock
from core.generation import IntakeTimes
from core.models import DeadlineExceeded

_now_ns = SystemClock.monotonic_ns

Result = TypeVar("Result")
Headers = Iterable[tuple[bytes, bytes]]

EXCHANGE_KEY = "exchange"
"""Key of the exchange in a scope's state."""
DEADLINE_HEADER = b"x-contrail-deadline-ms"
DEADLINE_DIGITS = 10
"""More of them than the largest deadline has; the preprocessor refuses what is no deadline."""
TOO_LATE = "the request was not answered within its x-contrail-deadline-ms"
NS_PER_US = 1000
NS_PER_MS = 1_000_000
ENDLESS = 1 << 62
"""A length that no body reaches."""
HEADER = b"%b: %b\r\n"
CHUNK = b"%x\r\n%b\r\n"
LAST_CHUNK = b"0\r\n\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"
CLOSE = b"connection: close\r\n"
JSON_TYPE = (b"content-type", b"application/json")
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class ClientDisconnected(Exception):
    """The client hung up: no answer can be sent."""


class RequestIntake(msgspec.Struct):
    """The moments of one request before the router has it, by the monotonic clock. Some 2 us in all, most of it for the
    kernel's word on when the head came."""

    _arrived_ns: int = 0
    _begun_ns: int = 0
    _whole_ns: int = 0

    def __repr__(self) -> str:
        return f"<RequestIntake {self.times()}>"

    def on_head(self, probe: TcpProbe) -> None:
        """The head was read now; the kernel may have had it for a while."""
        self._arrived_ns = _now_ns() - probe.ms_since_data() * NS_PER_MS

    def on_whole(self) -> None:
        """The last byte of the body was read now."""
        self._whole_ns = _now_ns()

    def begin(self) -> None:
        """The request's route begins now."""
        self._begun_ns = _now_ns()

    def times(self) -> IntakeTimes | None:
        """The stages until now; None if its bytes came another way than over a connection."""
        arrived_ns, begun_ns, now_ns = self._arrived_ns, self._begun_ns, _now_ns()
        if not arrived_ns or not begun_ns:
            return None
        whole_ns = max(begun_ns, self._whole_ns)
        return IntakeTimes(
            (begun_ns - arrived_ns) // NS_PER_US,
            (whole_ns - begun_ns) // NS_PER_US,
            (now_ns - whole_ns) // NS_PER_US,
        )


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


class HttpExchange(RequestResponseCycle):
    """The server's cycle of request and answer, which ASGI applications use by `receive` and `send`, and routes of the
    API by the methods below. One of the two begins an answer, and the same one ends it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, **cycle: Any) -> None:
        super().__init__(**cycle)
        self.loop = loop
        """The connection's; kept, because asking for the running one makes a system call."""
        self.headers: Mapping[bytes, bytes] = dict(self.scope["headers"])
        self.request_id = ""
        self.model: str | None = None
        """The model that the request asks for, empty until that is known; None if the request is not the API's."""
        self.intake = RequestIntake()
        self.probe: TcpProbe | None = None
        """Of its connection."""
        self.trace: RoutingTrace | None = None
        """None if answers do not name their worker."""
        self.extra_headers: list[tuple[bytes, bytes]] = []
        """Of this answer alone, if its status is 200."""
        self.shared_headers: Headers = ()
        """Of every answer to a page of another site (CORS)."""
        self.on_unread: Callable[[], None] | None = None
        """Ends the connection in place of `close` while the rest of the body may still come."""
        self._task: asyncio.Task[Any] | None = None
        """Works for the client, and ends with it."""
        self._why: Exception | None = None
        """Why that task was ended."""

    def __repr__(self) -> str:
        progress = "answered" if self.response_complete else "answering" if self.started else "not answered yet"
        return f"<HttpExchange {self.request_id}, {progress}{', gone' * self.disconnected}>"

    @classmethod
    def of(cls, scope: Scope) -> HttpExchange:
        """The exchange of a request for a route of the API."""
        exchange: HttpExchange | None = scope["state"].get(EXCHANGE_KEY)
        if exchange is None:
            raise RuntimeError("routes of the API answer requests of api.server.http_server alone")
        exchange.model = ""
        return exchange

    @property
    def started(self) -> bool:
        """True once the status was sent; after that an error can only end the stream."""
        return self.response_started

    def rename(self, request_id: str) -> None:
        """The request has this id, also in what the layers around say of it."""
        self.request_id = self.scope["state"]["request_id"] = request_id

    def asks_for(self, model: str) -> None:
        """A failure inside is told of a request for this model."""
        self.model = model

    def on_routed(self, worker_name: str) -> None:
        """The request was sent to the worker of this name."""
        if self.trace is not None:
            self.trace.on_routed(worker_name)

    def naming_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that every answer has: the request's id, and its worker if that may be named."""
        traced = () if self.trace is None else self.trace.headers()
        return [(b"x-request-id", self.request_id.encode()), *traced]

    async def read_body(self, bytes_max: int, lease: BodyLease) -> bytes | bytearray:
        """The whole body, which the lease has memory for. ApiError 413 as soon as it is known to be longer,
        ClientDisconnected if its end never comes."""
        size = int(self.headers.get(b"content-length", b"0"))
        if size > bytes_max:
            raise too_large(bytes_max)
        if size > FREE_BYTES_MAX:
            await lease.grow(size)
        body = bytearray()
        more = True
        while more:
            message = await self.receive()
            if message["type"] != "http.request":
                raise ClientDisconnected
            more = message["more_body"]
            if not (more or body) and len(message["body"]) <= bytes_max:
                return message["body"]  # whole in one piece, as most are
            body += message["body"]
            if len(body) > bytes_max:
                raise too_large(bytes_max)
            if more and len(body) > max(size, FREE_BYTES_MAX):
                await lease.grow(bytes_max)  # it comes in chunks: its end is unknown
        lease.shrink(len(body))
        return body

    async def run_until_disconnect(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of the work. If the client hangs up first the work has been cancelled, and ClientDisconnected is
        raised; DeadlineExceeded if the client waits no longer."""
        self._task, self._why = asyncio.current_task(self.loop), None
        deadline = self._deadline()
        if self.flow.read_paused:
            self.flow.resume_reading()  # as the end of a long body left it: an end of what is not read is not seen
        if self.disconnected:
            self._end_work(ClientDisconnected())
        try:
            return await work
        except asyncio.CancelledError as error:
            if self._why is not None and self._task is not None:
                self._task.uncancel()
            # the exchange did not end it: or the grace time is over, and there is still time to say so
            raise self._why or stopping() from error
        finally:
            if deadline is not None:
                deadline.cancel()
            self._task = self._why = None

    def on_disconnect(self) -> None:
        """The connection is gone, or the rest of the request will not come."""
        self.disconnected = True
        self.message_event.set()
        self._end_work(ClientDisconnected())

    def _deadline(self) -> asyncio.TimerHandle | None:
        raw = self.headers.get(DEADLINE_HEADER, b"")
        if not raw.isdigit() or len(raw) > DEADLINE_DIGITS:
            return None
        return self.loop.call_later(int(raw) / 1000, self._end_work, DeadlineExceeded(TOO_LATE))

    def _end_work(self, why: Exception) -> None:
        if self._why is None and self._task is not None:
            self._why = why
            self._task.cancel(why)  # a request that waited for a worker says in the log why it waits no longer

    async def answer(self, body: bytes) -> None:
        """The whole answer has been handed to the server: 200, JSON."""
        await self._until_writable()
        length = (b"content-length", b"%d" % len(body))
        self._respond(200, (*self.shared_headers, *self.naming_headers(), JSON_TYPE, length, *self.extra_headers), body)

    async def refuse(self, error: ApiError) -> None:
        """The error has been handed to the server as the whole answer."""
        await self._until_writable()
        body = error.body()
        extra = [(name.encode(), value.encode()) for name, value in error.headers.items()]
        length = (b"content-length", b"%d" % len(body))
        self._respond(error.status, (JSON_TYPE, length, *extra, *self.shared_headers, *self.naming_headers()), body)

    def write_now(self, piece: bytes) -> bool:
        """The piece of a stream is on its way, and the stream has begun with 200; False, and nothing is done, while the
        client is slower than its workers."""
        if self.flow.write_paused or self.response_complete:
            return False
        data = self._stream_data(piece)
        if data and not self.disconnected:
            self.transport.write(data)
        return True

    def close_now(self, piece: bytes) -> bool:
        """The same, and the stream has ended with this piece."""
        if self.flow.write_paused or self.response_complete:
            return False
        data = self._stream_data(piece)
        if not self.disconnected:
            self.transport.write(data + LAST_CHUNK if self.chunked_encoding else data)
            self._complete()
        return True

    async def write(self, piece: bytes) -> None:
        """The piece is on its way, and the stream has begun; waits while the client is slower than its workers."""
        await self._until_writable()
        self.write_now(piece)

    async def close_stream(self, piece: bytes) -> None:
        """The stream has ended with this piece, as far as the client takes it."""
        await self._until_writable()
        self.close_now(piece)

    async def _until_writable(self) -> None:
        while self.flow.write_paused and not self.disconnected:
            await self.flow.drain()

    def _respond(self, status: int, headers: Headers, body: bytes) -> None:
        head = self._head(status, headers)
        self.chunked_encoding = False
        if not self.disconnected:
            self.transport.write(b"".join((head, b"\r\n", body)))
            self._complete()

    def _stream_data(self, piece: bytes) -> bytes:
        """The piece as it is sent, the first one behind the answer's head; an empty chunk would be the last."""
        head = b"" if self.response_started else self._stream_head()
        return head + CHUNK % (len(piece), piece) if piece and self.chunked_encoding else head + piece

    def _stream_head(self) -> bytes:
        own = (*STREAM_HEADERS, *self.extra_headers, *self.shared_headers, *self.naming_headers())
        head = self._head(200, own)
        # HTTP/1.0 knows no chunks: there the answer ends with the connection
        self.chunked_encoding = self.scope["http_version"] != "1.0"
        return head + (CHUNKED if self.chunked_encoding else b"") + b"\r\n"

    def _head(self, status: int, headers: Headers) -> bytes:
        """The answer's head, but for its last line."""
        self.response_started = True
        self.waiting_for_100_continue = False
        lines = map(HEADER.__mod__, (*self.default_headers, *headers))
        return b"".join((STATUS_LINE[status], *lines, b"" if self.keep_alive else CLOSE))

    def _complete(self) -> None:
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self._close()
        self.on_response()

    def _close(self) -> None:
        """The connection ends. With bytes unread that would reset it, and the client would not get the answer."""
        if self.more_body and self.on_unread is not None:
            self.on_unread()
        else:
            self.transport.close()

    async def send(self, message: ASGISendEvent) -> None:
        """ASGI's; an answer of no known length ends with an HTTP/1.0 connection."""
        if self.scope["http_version"] == "1.0":
            if message["type"] == "http.response.start":
                if all(name.lower() != b"content-length" for name, _ in message.get("headers", ())):
                    self.chunked_encoding = False
                    self.expected_content_length = ENDLESS
            elif message["type"] == "http.response.body":
                endless = self.expected_content_length > ENDLESS >> 1
                if endless and not message.get("more_body", False):
                    self.expected_content_length = len(message.get("body", b""))
        unread = self.more_body and not self.keep_alive and message["type"] == "http.response.body"
        if unread:
            self.keep_alive = True  # else the connection is closed there
        await super().send(message)
        if unread:
            self.keep_alive = False
            if self.response_complete:
                self._close()


def head_and_body(error: ApiError, default_headers: Headers) -> bytes:
    """A whole answer after which the connection closes."""
    body = error.body()
    named = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    headers = [(name.encode(), value.encode()) for name, value in (named | error.headers).items()]
    lines = map(HEADER.__mod__, (*headers, *default_headers))
    return b"".join((STATUS_LINE[error.status], *lines, b"\r\n", body))
