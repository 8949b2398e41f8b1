"""HTTP/1.1, strictly and with bounds, on uvicorn's httptools protocol.

The parser refuses ambiguous requests (two lengths, a length beside chunks, bare line feeds, folded headers);
`header_fault` refuses the rest of what RFC 9112 forbids. A refused client gets an error in OpenAI's shape, and its
connection is closed, because the beginning of the next request is unknown.

One check of all connections per second (`check_deadlines`) keeps the time limits, not a timer per connection.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

import httptools
import msgspec
from uvicorn._types import ASGI3Application, HTTPScope
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from api.server.errors import RETRY_AFTER_S, ApiError
from api.server.eviction import choose_evicted, client_network
from api.server.exchange import EXCHANGE_KEY, HttpExchange, head_and_body
from api.server.limits import HEAD_BYTES_MAX, HEADERS_MAX, PIPELINE_MAX, SLOW_READER_S, TURNED_AWAY_MAX, ListenerState
from api.server.tcp_probe import TcpProbe

VERSIONS = ("1.1", "1.0")


def header_fault(version: str, headers: Iterable[tuple[bytes, bytes]], *, asks_upgrade: bool) -> str | None:
    """Why this request is refused, in words; None if it is not. Names of headers are in lower case."""
    hosts, codings = 0, []
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding":
            codings.append(value.strip().lower())
    if version not in VERSIONS:
        return f"HTTP/{version} is not spoken here: use HTTP/1.1"
    if hosts > 1 or (not hosts and version == "1.1"):
        return f"there must be one Host header, not {hosts}"
    if codings and (codings != [b"chunked"] or version == "1.0"):
        return "Transfer-Encoding: the only one is chunked, in HTTP/1.1"
    if asks_upgrade:
        return "no other protocol is spoken here, and nothing is tunnelled"
    return None


DISCARD_BYTES_MAX = 64 * 1024 * 1024
"""Rest of a body that was refused: read and dropped up to this, so that the client gets to see the answer."""
FRAMING_BYTES_MAX = 2 * HEAD_BYTES_MAX
"""Bytes received with a body that are not part of it: perhaps its head, frames of chunks, trailers …"""
FRAMING_PER_BYTE_MAX = 8
"""… and this for each byte of the body: a chunk of one byte has five around it."""
LINGER_S = 5.0
"""A refused connection is cut so long after the last bytes on it: the client has time to read the refusal …"""
LINGER_MAX_S = 30.0
"""… and so long after the refusal at the latest: a client may send a large body slowly before it reads anything."""

CRLF = b"\r\n"
UPGRADE = CRLF + b"upgrade:"
_UPGRADE = re.compile(rb"\r\n(?i:upgrade):")
_PLAIN_TARGET = re.compile(rb"/[A-Za-z0-9/_.-]*")
NO_HTTP = "this is not a valid HTTP/1.1 request"


class HttpProtocol(HttpToolsProtocol):
    """One connection: requests are parsed strictly, nothing of them is without a bound, and the end is orderly."""

    server_state: ListenerState

    def __init__(
        self,
        config: Config,
        server_state: ListenerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = server_state.limits
        self.probe: TcpProbe
        """Of the connection, once it is made."""
        self.since_s = self.loop.time()
        """When the present head or body began, or when the connection fell idle."""
        self.network = b""
        """Of the client."""
        self._unsent = 0
        self._taken_s = self.since_s
        """When the client last took some of what waits for it, or nothing waited."""
        self._in_head = False
        self._in_body = False
        self._head_bytes = 0
        self._held = b""
        """The last few bytes that came of a head, if they may begin an Upgrade header: the parser has not had them."""
        self._body_bytes = 0
        self._body_bytes_paid = 0
        """Those for which the client was given time."""
        self._body_until_s = 0.0
        """The present body must be whole by then, or more of it be here."""
        self._body_bytes_ever = 0
        self._framing_bytes = 0
        self._refused = False
        self._fault: ApiError | None = None
        self._discarded_bytes = 0
        self._received_s = 0.0
        """When the last bytes came that were dropped."""
        self._active: HttpExchange | None = None
        """The request that is being answered; `cycle` is the one that came last."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        self.probe = TcpProbe(transport)
        self.network = client_network(self.client[0]) if self.client else b""
        too_many = len(self.connections) - self._limits.connections_max
        if too_many > 0:
            too_many -= self._make_room()
        if too_many > TURNED_AWAY_MAX:
            transport.abort()
        elif too_many > 0:
            headers = {"retry-after": str(RETRY_AFTER_S)}
            text = "this server has as many connections as it takes: try again"
            self._refuse(ApiError(503, text, type="server_error", code="overloaded", headers=headers))

    def _make_room(self) -> int:
        """Connections without a request are closed, so that this one is served; returns their number."""
        others = (each for each in self.connections if isinstance(each, HttpProtocol) and each is not self)
        found = choose_evicted(each for each in others if each.evictable)
        for each in found:
            self.connections.discard(each)
            each.transport.abort()
        return len(found)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.probe.close()
        self.pipeline.clear()
        if self._active is not None and not self._active.response_complete:
            self._active.on_disconnect()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._discard(len(data))
            return
        body_before = self._body_bytes_ever
        try:
            self._parse(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(self._fault or ApiError(400, NO_HTTP))
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse(ApiError(431, f"the request line and headers are longer than {HEAD_BYTES_MAX} bytes"))
        elif self._in_body:
            self._framing_bytes += len(data) - (self._body_bytes_ever - body_before)
            if self._framing_bytes > FRAMING_BYTES_MAX + FRAMING_PER_BYTE_MAX * self._body_bytes:
                self._refuse(ApiError(400, "the body's chunks are more frame than body"))

    def _parse(self, data: bytes) -> None:
        """The parser gets the bytes with each Upgrade header renamed: a server may ignore it, but the parser then drops
        the body. The parser itself tells heads from bodies, which stay as they are.

        Java's own client asks for HTTP/2 in this way with every POST.
        """
        data, self._held, parsed = self._held + data, b"", 0
        # up to the last line's end: JSON has none, so a body is not searched
        for found in _UPGRADE.finditer(data, 0, data.rfind(b"\r") + len(UPGRADE)):
            self.parser.feed_data(data[parsed : found.start()])
            parsed = found.start()
            if self._in_head and not data.endswith(CRLF, 0, parsed):  # behind an empty line the body begins
                self.parser.feed_data(b"\r\nx-upgrade:")
                parsed = found.end()
        start = data.rfind(b"\r", max(parsed, len(data) - len(UPGRADE) + 1))
        if start >= 0 and UPGRADE.startswith(data[start:].lower()) and not data.endswith(CRLF, 0, start):
            self.parser.feed_data(data[parsed:start])
            parsed = start
            if self._in_head:
                self._held = data[start:]
                return
        self.parser.feed_data(data[parsed:] if parsed else data)

    # what follows does all that uvicorn's own would, in one call each: every request passes it

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes, self._discarded_bytes = True, 0, 0
        self.since_s = self.loop.time()
        self.url, self.headers, self.expect_100_continue = b"", [], False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer: it is not used, and checked headers must not change
        headers, name = self.headers, name.lower()
        if len(headers) == HEADERS_MAX:
            self._fail(ApiError(431, f"there are more than {HEADERS_MAX} headers"))
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        headers.append((name, value))

    def on_headers_complete(self) -> None:
        parser, before, server_state = self.parser, self.cycle, self.server_state
        version = parser.get_http_version()
        if fault := header_fault(version, self.headers, asks_upgrade=parser.should_upgrade()):
            self._fail(ApiError(400, fault))
        if len(self.pipeline) == PIPELINE_MAX:
            self._fail(ApiError(400, "too many requests wait on this connection"))
        self._in_head, self._in_body, self._body_bytes, self._framing_bytes = False, True, 0, 0
        self.since_s = self.loop.time()
        self._body_bytes_paid, self._body_until_s = 0, self.since_s + self._limits.body_timeout_s
        self.scope = self._scope(version)
        # a client that waits for 100 Continue and is refused may or may not send its body then
        ends = server_state.stopping or self.expect_100_continue or version == "1.0"
        cycle = HttpExchange(
            self.loop,
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=not ends and parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        cycle.on_unread = self._linger
        cycle.intake.on_head(self.probe)
        cycle.probe = self.probe
        self.cycle = self.scope["state"][EXCHANGE_KEY] = cycle
        if before is None or before.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def _scope(self, version: str) -> HTTPScope:
        target = target_of(self.url)
        return {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme or "http",
            "method": self.parser.get_method().decode("ascii"),
            "root_path": "",
            "path": target.path,
            "raw_path": target.raw_path,
            "query_string": target.query,
            "headers": self.headers,
            "state": self.app_state.copy(),
        }

    def _fail(self, error: ApiError) -> None:
        """The parser stops here."""
        self._fault = error
        raise ValueError(error.message)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        assert isinstance(cycle, HttpExchange)
        self._active = cycle
        task = self.loop.create_task(cycle.run_asgi(app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def on_message_complete(self) -> None:
        self._in_body = False
        cycle = self.cycle
        if isinstance(cycle, HttpExchange):
            cycle.intake.on_whole()
        if cycle.response_complete:
            self.since_s = self.loop.time()
        else:
            cycle.more_body = False
            cycle.message_event.set()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._body_bytes_ever += len(body)
        cycle = self.cycle
        if cycle.response_complete:
            self._discard(len(body))
            return
        if cycle.body and not isinstance(cycle.body, bytearray):
            cycle.body = bytearray(cycle.body)  # to add a byte to bytes copies all of them
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_response_complete(self) -> None:
        """The next request that waits is served; idle time begins if there is none."""
        self.server_state.total_requests += 1
        if self._active is not None:
            self._active.scope["state"].pop(EXCHANGE_KEY, None)  # else the two hold each other
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self._refused:
            return
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif not self._in_body:
            self.since_s = self.loop.time()

    @property
    def idle(self) -> bool:
        """True if no request is in progress, not even the first byte of one."""
        answered = self.cycle is None or self.cycle.response_complete
        return answered and not self._in_head and not self._in_body

    @property
    def evictable(self) -> bool:
        """True if there is no request, or only a part of a head, and no refusal that the client has yet to read."""
        return (self.cycle is None or self.cycle.response_complete) and not self._in_body and not self._refused

    def check_deadlines(self, now_s: float) -> None:
        """A request that took too long is refused, a connection idle for too long closed; called once a second."""
        if self._is_stuck(now_s):
            self.transport.abort()
        elif self._refused:
            return
        elif self._in_head or self._in_body:
            if not self.transport.is_closing():
                self._check_arrival(now_s)
        elif now_s - self.since_s > self._limits.keep_alive_s and self.idle:
            self.transport.close()

    def _check_arrival(self, now_s: float) -> None:
        """The request is refused if its head or its body took too long."""
        limits = self._limits
        if self._in_head:
            if now_s - self.since_s > limits.head_timeout_s:
                self._refuse(ApiError(408, f"the headers were not complete within {limits.head_timeout_s:g} s"))
            return
        latest_s = now_s + limits.body_timeout_s
        earned_s = (self._body_bytes - self._body_bytes_paid) / limits.body_bytes_per_s_min
        self._body_bytes_paid = self._body_bytes
        # while reading is paused, we are slow and not the client
        self._body_until_s = latest_s if self.flow.read_paused else min(self._body_until_s + earned_s, latest_s)
        if now_s > self._body_until_s:
            self._refuse(ApiError(408, "the request's body came too slowly"))

    def _is_stuck(self, now_s: float) -> bool:
        """True if the client has read nothing for too long although bytes wait for it."""
        unsent, before = self.transport.get_write_buffer_size(), self._unsent
        self._unsent = unsent
        if not unsent or unsent < before or not (self.flow.write_paused or self.idle or self.transport.is_closing()):
            self._taken_s = now_s
            return False
        return now_s - self._taken_s > SLOW_READER_S

    def shutdown(self) -> None:
        """The connection closes with the last answer that is due; one that is idle is left to `close_idle`."""
        if not self.idle and self.cycle is not None:
            self.cycle.keep_alive = False

    def close_idle(self) -> None:
        """Closed, unless a request is under way."""
        if self.idle:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - ours says it better
        """The answer to bytes that are no HTTP."""
        self._refuse(ApiError(400, NO_HTTP))

    def _discard(self, size: int) -> None:
        self._discarded_bytes += size
        self._received_s = self.loop.time()
        if self._discarded_bytes > DISCARD_BYTES_MAX:
            self.transport.close()

    def _refuse(self, error: ApiError) -> None:
        """The last word here; in the middle of another answer there is only hanging up."""
        self._refused = True
        if self._answering():
            self.transport.close()
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # its request never came whole: the application is to forget it
            self.cycle.message_event.set()
        self.transport.write(head_and_body(error, self.server_state.default_headers))
        self._linger()

    def _linger(self) -> None:
        """The connection closes when the client has had time to read the answer; more that it sends is dropped.

        Closing with bytes unread would reset the connection, and the client would never read the answer.
        """
        self._refused = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._received_s = self.loop.time()
        self._cut(self._received_s + LINGER_MAX_S)

    def _cut(self, latest_s: float) -> None:
        """The connection closes, LINGER_S after the last bytes and at the latest at that time."""
        if self.transport.is_closing():
            return
        left_s = min(self._received_s + LINGER_S, latest_s) - self.loop.time()
        if left_s > 0:
            self.loop.call_later(left_s, self._cut, latest_s)
        else:
            self.transport.close()

    def _answering(self) -> bool:
        """True if an answer has begun, or is due to a request that arrived whole."""
        active = self._active
        if active is None or active.response_complete:
            return False
        return active.response_started or active is not self.cycle or not self._in_body


class RequestTarget(msgspec.Struct, frozen=True):
    """Of a request line: as ASGI has them."""

    path: str
    raw_path: bytes
    query: bytes


def target_of(url: bytes) -> RequestTarget:
    """The target of a request line; HttpParserInvalidURLError if it is not valid."""
    if _PLAIN_TARGET.fullmatch(url):
        return RequestTarget(url.decode("ascii"), url, b"")
    parsed = httptools.parse_url(url)
    return RequestTarget(unquote(parsed.path.decode("ascii")), parsed.path, parsed.query or b"")
