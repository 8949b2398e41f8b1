"""A small application behind the real server, and clients that write their own bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from starlette.types import Receive, Scope, Send

from api.server.http_server import HttpServer
from api.server.limits import HttpLimits
from api.server.sockets import bind

BOUND_S = 10.0
GET = b"GET /whole HTTP/1.1\r\nhost: a\r\n\r\n"


class Answer(NamedTuple):
    """One answer, read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes


class App:
    """`/whole` answers at once with what it was asked, `/held` when `go` is set, `/stream` in between its pieces."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.asked = 0
        self.hung_up = 0
        self.answered = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked += 1
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.hung_up += 1
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if scope["path"] == "/stream":
            await self._stream(send)
        elif scope["path"] != "/held" or await self._held(receive):
            await self._answer(scope, send, body)

    async def _held(self, receive: Receive) -> bool:
        """Whether the client is still there when `go` is set."""
        gone, going = asyncio.ensure_future(receive()), asyncio.ensure_future(self.go.wait())
        await asyncio.wait((gone, going), return_when=asyncio.FIRST_COMPLETED)
        self.hung_up += gone.done()
        there = not gone.done()
        gone.cancel()
        going.cancel()
        return there

    async def _answer(self, scope: Scope, send: Send, body: bytes) -> None:
        names = sorted(name.decode() for name, _ in scope["headers"])
        said = json.dumps({"body": len(body), "headers": names}).encode()
        length = (b"content-length", str(len(said)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": said})
        self.answered += 1

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one ", "more_body": True})
        await self.go.wait()
        await send({"type": "http.response.body", "body": b"two"})
        self.answered += 1


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def answer(self) -> Answer:
        """The next answer, of any framing."""
        async with asyncio.timeout(BOUND_S):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
            return Answer(int(lines[0].split()[1]), headers, await self._body(headers))

    async def _body(self, headers: dict[str, str]) -> bytes:
        if "content-length" in headers:
            return await self.reader.readexactly(int(headers["content-length"]))
        if "transfer-encoding" not in headers:
            return await self.reader.read()
        body = b""
        while size := int(await self.reader.readline(), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readexactly(2)
        return body

    async def closed(self) -> bool:
        """True once the server has closed in order; what came before that is dropped. False if it was reset."""
        async with asyncio.timeout(BOUND_S):
            try:
                while await self.reader.read(1 << 16):
                    pass
            except ConnectionError:
                return False
        return True


class Site:
    """The application, served."""

    def __init__(self, server: HttpServer, app: App) -> None:
        self.server, self.app = server, app
        self.clients: list[Client] = []

    async def client(self, raw: bytes = b"") -> Client:
        """A new connection on which these bytes were written."""
        client = Client(*await asyncio.open_connection(*self.server.address))
        self.clients.append(client)
        client.writer.write(raw)
        return client

    async def ask(self, raw: bytes) -> Answer:
        """What comes back first for these bytes on a connection of their own."""
        return await (await self.client(raw)).answer()


@asynccontextmanager
async def served(limits: HttpLimits | None = None) -> AsyncIterator[Site]:
    """Until the end of the block; nothing of it is left."""
    app = App()
    server = HttpServer(app, bind("127.0.0.1", 0), limits=limits)
    await server.start()
    site = Site(server, app)
    try:
        yield site
    finally:
        for client in site.clients:
            client.writer.transport.abort()
        app.go.set()
        await server.stop(1.0)
