"""One HTTP exchange below the framework: the body within a bound, the answer, and a client that may hang up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from starlette.types import Receive, Scope, Send

from api.openai.errors import ApiError, stopping, too_large

JSON_TYPE = (b"content-type", b"application/json")
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class ClientGone(Exception):
    """The client hung up: there is nobody to answer."""


class Exchange:
    """The hot routes speak ASGI themselves: per chunk, that is half of what the framework's responses cost."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])
        self.request_id: str = scope["state"]["request_id"]
        self.started = False
        """Whether the status has left; after that an error can only end the stream."""
        self._receive = receive
        self._send = send

    def __repr__(self) -> str:
        return f"<Exchange {self.request_id}, {'answering' if self.started else 'not answered yet'}>"

    async def body(self, bytes_max: int) -> bytes:
        """The whole body. ApiError 413 as soon as it is known to be longer, ClientGone if its end never comes."""
        if int(self.headers.get(b"content-length", b"0")) > bytes_max:
            raise too_large(bytes_max)
        pieces: list[bytes] = []
        size, more = 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            piece = message.get("body", b"")
            pieces.append(piece)
            size += len(piece)
            if size > bytes_max:
                raise too_large(bytes_max)
            more = message.get("more_body", False)
        return b"".join(pieces)

    async def answer(self, body: bytes) -> None:
        """The whole answer has been handed to the server: 200, JSON."""
        await self._respond(200, [], body)

    async def refuse(self, error: ApiError) -> None:
        """The error has been handed to the server as the whole answer."""
        extra = [(name.encode(), value.encode()) for name, value in error.headers.items()]
        await self._respond(error.status, extra, error.body())

    async def _respond(self, status: int, extra: list[tuple[bytes, bytes]], body: bytes) -> None:
        length = (b"content-length", str(len(body)).encode())
        await self._start(status, [JSON_TYPE, length, *extra])
        await self._send({"type": "http.response.body", "body": body})

    async def open_stream(self) -> None:
        """A stream of events has begun: 200."""
        await self._start(200, STREAM_HEADERS)

    async def write(self, piece: bytes) -> None:
        """The piece has been handed on; waits while the client is slower than we are."""
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def close_stream(self, piece: bytes) -> None:
        """The stream has ended with this piece."""
        await self._send({"type": "http.response.body", "body": piece})

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def while_there(self, work: Coroutine[Any, Any, None]) -> None:
        """The work is done; if the client hangs up first, it has been cancelled and ClientGone is raised."""
        task = asyncio.ensure_future(work)
        hangup = asyncio.ensure_future(self._hangup())
        try:
            await asyncio.wait((task, hangup), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientGone
            task.result()
        except asyncio.CancelledError as error:
            raise stopping() from error  # the grace time is over: there is still time to say so
        finally:
            task.cancel()
            hangup.cancel()
            await asyncio.gather(task, hangup, return_exceptions=True)

    async def _hangup(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass  # nothing else comes after the body
