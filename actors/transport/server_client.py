"""ServerClient: HTTP/1.1 to a server of others, one connection for each request. Closing it aborts the request.

The servers are inference servers that run already, and the API server of Kubernetes.

No HTTP library is needed for it: an answer is a body of known length, or chunks of server-sent events.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from core.errors import CallerError, PeerError, Unavailable

CONNECT_TIMEOUT_S = 5.0
"""Bound on a connection, its TLS handshake included."""
READ_BUFFER_BYTES = 64 * 1024
"""Bytes of an answer that wait for their reader, twice at most; then the server is not read any more. Bounds a line of
its head, too."""
HEAD_LINES_MAX = 100
BODY_BYTES_MAX = 16 * 2**20
"""Of an answer that is read whole. Metrics of one engine are 55 KiB."""
EVENT_BYTES_MAX = 16 * 2**20
"""Of one server-sent event. The first one of an answer repeats its prompt: 6 bytes a token."""
END_OF_EVENT = b"\n\n"
DONE = b"[DONE]"
"""Data of the last event."""
_SIZE = re.compile(rb"[0-9a-fA-F]{1,8}")
_PRINTABLE = re.compile(r"[\x20-\x7e]*")


class ServerGone(Unavailable):
    """The server cannot be reached, or broke its answer off."""


class AnswerTooLong(PeerError):
    """The server's answer is longer than is read here."""


class ServerAddress(NamedTuple):
    """The root of a server."""

    host: str
    port: int
    tls: bool

    @classmethod
    def parse(cls, url: str) -> ServerAddress:
        """The address in `http://host:8000`; CallerError if it is none."""
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"}:
            raise CallerError(f"{url!r} is no address of a server: write http://HOST:PORT, or https://HOST:PORT")
        if parts.username is not None or parts.password is not None:
            raise CallerError(
                "the server's address has a login in it: give the key in a file, and only the address here"
            )
        if not parts.hostname or parts.path not in {"", "/"} or parts.query or parts.fragment:
            raise CallerError(f"{url!r} is not the root of a server: write http://HOST:PORT without a path")
        tls = parts.scheme == "https"
        try:
            port = parts.port
        except ValueError as error:
            raise CallerError(f"{url!r} has no port from 1 to 65535") from error
        return cls(parts.hostname, port or (443 if tls else 80), tls)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


class ServerReply(NamedTuple):
    """An answer that was read whole."""

    status: int
    body: bytes


class ServerStream:
    """An answer whose head was read; its body comes in parts."""

    def __init__(self, reader: asyncio.StreamReader, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        self._reader = reader
        self._headers = headers

    def __repr__(self) -> str:
        return f"<ServerStream {self.status}>"

    async def body(self) -> bytes:
        """All of it; AnswerTooLong if it is longer than BODY_BYTES_MAX."""
        parts, size = [], 0
        async with aclosing(self._parts()) as body:
            async for part in body:
                size += len(part)
                if size > BODY_BYTES_MAX:
                    raise AnswerTooLong(f"the server's answer is longer than {BODY_BYTES_MAX >> 20} MiB")
                parts.append(part)
        return b"".join(parts)

    async def events(self) -> AsyncGenerator[bytes]:
        """The data of each server-sent event up to `[DONE]`. ServerGone if the answer ends before it."""
        rest = bytearray()
        async with aclosing(self._parts()) as body:
            async for part in body:
                searched = max(len(rest) - 1, 0)
                rest += part
                if rest.find(END_OF_EVENT, searched) < 0:
                    if len(rest) > EVENT_BYTES_MAX:
                        raise PeerError(f"an event of the server is longer than {EVENT_BYTES_MAX >> 20} MiB")
                    continue
                *whole, rest = rest.split(END_OF_EVENT)
                for event in whole:
                    data = bytes(event).removeprefix(b"data: ")
                    if data == DONE:
                        return
                    yield data
        raise ServerGone("the server ended its answer in the middle")

    async def _parts(self) -> AsyncGenerator[bytes]:
        if self._headers.get("transfer-encoding", "").lower() == "chunked":
            while size := await self._chunk_size():
                while size:
                    part = await self._reader.read(min(size, READ_BUFFER_BYTES))
                    if not part:
                        raise ServerGone("the server hung up")
                    size -= len(part)
                    yield part
                await self._reader.readexactly(2)
            return
        length = self._headers.get("content-length", "")
        left = int(length) if length.isdecimal() else BODY_BYTES_MAX + 1
        while left and (part := await self._reader.read(min(left, READ_BUFFER_BYTES))):
            left -= len(part)
            yield part
        if left and length:
            raise ServerGone("the server hung up")

    async def _chunk_size(self) -> int:
        line = await self._reader.readuntil(b"\r\n")
        size = line.partition(b";")[0].strip()
        if not _SIZE.fullmatch(size):
            raise PeerError("the server's answer is not HTTP/1.1: it has a chunk without a size")
        return int(size, 16)


class ServerClient:
    """Sends requests to one server; `key` is sent as a bearer token if it is not empty."""

    def __init__(self, address: ServerAddress, key: str = "", authority: Path | None = None) -> None:
        """`authority` is a PEM file with the certificates that may vouch for a server behind TLS, instead of the
        system's. OSError if it cannot be read."""
        self.address = address
        self._key = key
        if not _PRINTABLE.fullmatch(key):
            raise CallerError("the server's key has characters that no HTTP header can have")
        self._tls = ssl.create_default_context(cafile=authority) if address.tls else None
        self._open: set[asyncio.StreamWriter] = set()
        self._hung_up = False

    def __repr__(self) -> str:
        return f"<ServerClient {self.address}>"

    async def get(self, path: str, timeout_s: float) -> ServerReply:
        """The whole answer. ServerGone if there is none in time, PeerError if it is not HTTP."""
        try:
            async with asyncio.timeout(timeout_s), self.request("GET", path) as answer:
                return ServerReply(answer.status, await answer.body())
        except TimeoutError as error:
            raise ServerGone(f"{self.address} does not answer GET {path} within {timeout_s:g} s") from error

    async def post(self, path: str, body: bytes, timeout_s: float) -> ServerReply:
        """The same of a POST."""
        try:
            async with asyncio.timeout(timeout_s), self.request("POST", path, body) as answer:
                return ServerReply(answer.status, await answer.body())
        except TimeoutError as error:
            raise ServerGone(f"{self.address} does not answer POST {path} within {timeout_s:g} s") from error

    @asynccontextmanager
    async def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = {}
    ) -> AsyncIterator[ServerStream]:
        """The answer, once its head is there; its connection is closed at once behind the block, which aborts the
        request. ServerGone if the server cannot be reached or hangs up, PeerError if it does not speak HTTP/1.1."""
        reader, writer = await self._connect()
        self._open.add(writer)
        try:
            if self._hung_up:  # while it connected
                raise ServerGone(f"{self.address} is asked no more")
            writer.write(self._head(method, path, body, headers) + (body or b""))
            yield await _read_head(reader)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise ServerGone(f"{self.address} hung up") from error
        except asyncio.LimitOverrunError as error:
            raise PeerError(f"{self.address} does not speak HTTP/1.1: it sent a line without an end") from error
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    def hang_up(self) -> None:
        """All requests under way are aborted, and end with ServerGone, as later ones do."""
        self._hung_up = True
        for writer in self._open:
            writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port, _ = self.address
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await asyncio.open_connection(host, port, ssl=self._tls, limit=READ_BUFFER_BYTES)
        except TimeoutError as error:
            raise ServerGone(f"{self.address} cannot be reached within {CONNECT_TIMEOUT_S:g} s") from error
        except OSError as error:
            raise ServerGone(f"{self.address} cannot be reached ({error.strerror or error})") from error

    def _head(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        host = str(self.address).partition("://")[2]
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close"]
        if self._key:
            lines.append(f"Authorization: Bearer {self._key}")
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
            headers = {"Content-Type": "application/json", **headers}
        lines += [f"{name}: {value}" for name, value in headers.items() if _PRINTABLE.fullmatch(value)]
        return "\r\n".join([*lines, "", ""]).encode()


async def _read_head(reader: asyncio.StreamReader) -> ServerStream:
    """The status line and the headers; interim answers (100) are passed over."""
    while True:
        version, _, status = (await reader.readuntil(b"\r\n")).partition(b" ")
        if not version.startswith(b"HTTP/1.") or not status[:3].isdigit():
            raise PeerError("the server's answer is not HTTP/1.1")
        headers: dict[str, str] = {}
        for _ in range(HEAD_LINES_MAX):
            line = (await reader.readuntil(b"\r\n")).decode("latin-1").strip()
            if not line:
                break
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        else:
            raise PeerError(f"the server's answer has more than {HEAD_LINES_MAX} headers")
        if not status.startswith(b"1"):
            return ServerStream(reader, int(status[:3]), headers)
