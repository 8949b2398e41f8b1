"""One HTTP/1.1 connection of a client that knows what went wrong: its connection, the answer, or time."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 60.0
"""How long a whole answer may take; a request that takes longer failed."""
LINE_BYTES_MAX = 1 << 20


class ConnectionBroke(Exception):
    """The connection broke before the answer was whole: what a front end does to its clients when it is killed."""


class Answer(NamedTuple):
    """What came, to its end."""

    status: int
    body: bytes


class HttpConnection:
    """Kept alive from one request to the next, made when it is needed. One request at a time."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: dict[str, Any], request_id: str, *, hang_up: bool = False) -> Answer:
        """The whole answer; with `hang_up` only its first bytes, then the connection is closed.

        ConnectionBroke if it broke, TimeoutError if the answer took too long; it is closed then.
        """
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await self._post(path, body, request_id, hang_up)
        except (OSError, EOFError, ValueError) as error:
            if isinstance(error, TimeoutError):
                await self.close()
                raise
            await self.close()
            raise ConnectionBroke(repr(error)) from error

    async def _post(self, path: str, body: dict[str, Any], request_id: str, hang_up: bool) -> Answer:
        reader, writer = await self._connected()
        content = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
            f"x-request-id: {request_id}\r\ncontent-length: {len(content)}\r\n\r\n"
        )
        writer.write(head.encode() + content)
        await writer.drain()
        status, headers = await _head(reader)
        if hang_up:
            await self.close()
            return Answer(status, b"")
        if "content-length" in headers:
            answer = await reader.readexactly(int(headers["content-length"]))
        else:
            answer = await _chunks(reader)
        if headers.get("connection") == "close":
            await self.close()
        return Answer(status, answer)

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is not None and _is_over(self._streams[0]):
            await self.close()
        if self._streams is None:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                self._streams = await asyncio.open_connection(self._host, self._port, limit=LINE_BYTES_MAX)
        return self._streams

    async def close(self) -> None:
        """Nothing is open; the next request makes another connection."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


def _is_over(reader: asyncio.StreamReader) -> bool:
    """Whether the other end has closed the connection while it was idle: nothing may be sent over it then."""
    return reader.at_eof() or reader.exception() is not None


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Status and headers; EOFError if the connection ended instead."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
    return int(lines[0].split(" ")[1]), headers


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    """A body in chunks, to its last one."""
    pieces = []
    while size := int(await reader.readline() or b"not a size", 16):
        pieces.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return b"".join(pieces)
