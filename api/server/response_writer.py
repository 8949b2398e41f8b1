"""Bytes of answers, written to a client's transport without ASGI.

`ResponseWriter` writes what `RequestResponseCycle.send` would, and leaves the cycle as that would. Other answers go by
ASGI: to clients that are slower than we are or speak HTTP/1.0, and through middleware that must see the answer.
"""

from __future__ import annotations

import asyncio
import http
from collections.abc import Callable, Iterable

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from api.server.errors import ApiError

ENDLESS = 1 << 62
"""A length that no body reaches."""


def head_and_body(error: ApiError, default_headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A whole answer after which the connection closes."""
    body = error.body()
    named = {"content-type": "application/json", "content-length": len(body), "connection": "close", **error.headers}
    lines = [f"HTTP/1.1 {error.status} {http.HTTPStatus(error.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in named.items()]
    head = "\r\n".join(lines).encode() + b"\r\n"
    return head + b"".join(b"%b: %b\r\n" % pair for pair in default_headers) + b"\r\n" + body


def close_delimited(cycle: RequestResponseCycle) -> None:
    """Answers of no known length end with the connection: HTTP/1.0 knows no chunks. Before anything was sent."""
    send = cycle.send

    async def send_whole(message: ASGISendEvent) -> None:
        if message["type"] == "http.response.start":
            if all(name.lower() != b"content-length" for name, _ in message.get("headers", ())):
                cycle.chunked_encoding = False
                cycle.expected_content_length = ENDLESS
        elif message["type"] == "http.response.body":
            endless = cycle.expected_content_length > ENDLESS >> 1
            if endless and not message.get("more_body", False):
                cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = send_whole  # type: ignore[method-assign]


STATE_KEY = "contrail.wire"
"""Where a scope's state has it; whoever must see all that is sent takes it out."""
HEAD = b"HTTP/1.1 200 OK\r\n"
HEADER = b"%b: %b\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"
JSON = b"content-type: application/json\r\ncontent-length: %d\r\n"
CLOSE = b"connection: close\r\n"

Headers = Iterable[tuple[bytes, bytes]]


def nothing() -> Headers:
    """No headers."""
    return ()


class ResponseWriter:
    """One request's. `gone` is told to one listener, once."""

    __slots__ = ("_cycle", "_flow", "_listener", "_push", "gone", "loop", "named")

    def __init__(self, cycle: RequestResponseCycle, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        """The connection's; kept, because who asks for the running one makes a system call."""
        self._cycle = cycle
        self._flow = cycle.flow
        self._push: Callable[[bytes], object] | None = None
        """Writes to the client; there once a chunked answer has begun. What every chunk asks for is kept here: the
        cycle has it scattered, and to fetch it is what that costs."""
        self._listener: Callable[[], None] | None = None
        self.gone = False
        """Whether the client hung up."""
        self.named: Callable[[], Headers] = nothing
        """What every answer has in its head, when it begins."""

    def __repr__(self) -> str:
        return f"<ResponseWriter {'gone' if self.gone else 'there'}>"

    @property
    def began(self) -> bool:
        """Whether something of the answer has left."""
        return self._cycle.response_started

    @property
    def waits(self) -> bool:
        """Whether the client is slower than we are."""
        return self._flow.write_paused

    def listen(self, listener: Callable[[], None] | None) -> None:
        """The listener is called when the client hangs up, at once if it has; None listens no more."""
        self._listener = listener
        if listener is not None and self._flow.read_paused:
            self._flow.resume_reading()  # as the end of a long body left it: an end of what is not read is not seen
        if self.gone and listener is not None:
            listener()

    def hung_up(self) -> None:
        """The connection is gone."""
        self.gone = True
        if self._listener is not None:
            self._listener()

    def body(self) -> bytes | None:
        """The request's body, if all of it is here; None if it must come ASGI's way. To be asked for once."""
        cycle = self._cycle
        if cycle.more_body or cycle.waiting_for_100_continue or cycle.disconnected or cycle.response_complete:
            return None
        if cycle.flow.read_paused:
            cycle.flow.resume_reading()
        cycle.message_event.clear()
        body, cycle.body = bytes(cycle.body), bytearray()
        return body

    def whole(self, body: bytes) -> bool:
        """The body is on its way as the whole answer: 200, JSON. False if it must go ASGI's way."""
        cycle = self._cycle
        if cycle.response_started or cycle.flow.write_paused or cycle.scope["http_version"] != "1.1":
            return False
        head = self._begin(())
        if not cycle.disconnected:
            cycle.transport.write(b"".join((head, JSON % len(body), b"\r\n", body)))
            self._complete()
        return True

    def first_chunk(self, headers: Headers, piece: bytes) -> bool:
        """The piece is on its way as the first chunk of an answer: 200, with these headers. False if it must go ASGI's
        way, of which nothing is done then."""
        cycle = self._cycle
        if cycle.response_started or cycle.flow.write_paused or cycle.scope["http_version"] != "1.1":
            return False
        head = self._begin(headers)
        cycle.chunked_encoding = True
        if not cycle.disconnected:
            cycle.transport.write(b"".join((head, CHUNKED, b"\r\n%x\r\n" % len(piece), piece, b"\r\n")))
        self._push = cycle.transport.write
        return True

    def _begin(self, headers: Headers) -> bytes:
        """The answer's head, but for what its body needs there and its end."""
        cycle = self._cycle
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        lines = map(HEADER.__mod__, (*cycle.default_headers, *headers, *self.named()))
        return b"".join((HEAD, *lines, b"" if cycle.keep_alive else CLOSE))

    def chunk(self, piece: bytes) -> bool:
        """The piece is on its way as a chunk of the answer that has begun, which one of no bytes would end. False if it
        must go ASGI's way."""
        push = self._push or self._chunked()
        if push is None or self._flow.write_paused or self._cycle.response_complete:
            return False
        if piece and not self.gone:
            push(b"%x\r\n%b\r\n" % (len(piece), piece))
        return True

    def _chunked(self) -> Callable[[bytes], object] | None:
        """What writes to the client if a chunked answer is under way, whoever began it."""
        if self._cycle.chunked_encoding:
            self._push = self._cycle.transport.write
        return self._push

    def last_chunk(self, piece: bytes) -> bool:
        """The same, and the answer is over."""
        cycle = self._cycle
        if not cycle.chunked_encoding or cycle.flow.write_paused or cycle.response_complete:
            return False
        if not cycle.disconnected:
            chunk = b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
            cycle.transport.write(chunk + b"0\r\n\r\n")
            self._complete()
        return True

    def _complete(self) -> None:
        cycle = self._cycle
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()


def notify_disconnect(cycle: RequestResponseCycle) -> None:
    """Whoever answers the cycle's request hears that nobody waits for it."""
    wire: ResponseWriter | None = cycle.scope["state"].get(STATE_KEY)
    if wire is not None:
        wire.hung_up()
