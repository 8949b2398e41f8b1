"""A small application behind the real server, and clients that speak to it byte for byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from starlette.types import Receive, Scope, Send

from api.http_limits import HttpLimits
from api.server import Server, bind

GET = b"GET /whole HTTP/1.1\r\nhost: a\r\n\r\n"
WAIT_S = 5.0


class App:
    """`/whole` answers at once with what it got, `/held` once `go` is set, `/stream` in two pieces around that."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.asked = 0
        self.answered = 0
        self.hung_up = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked += 1
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.hung_up += 1
                return
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
        if scope["path"] == "/stream":
            await self._stream(send)
        elif scope["path"] != "/held" or await self._gone_on(receive):
            await self._whole(scope, send, size)

    async def _gone_on(self, receive: Receive) -> bool:
        """True once `go` is set, False if the client hangs up before."""
        go, gone = asyncio.ensure_future(self.go.wait()), asyncio.ensure_future(receive())
        try:
            await asyncio.wait((go, gone), return_when=asyncio.FIRST_COMPLETED)
            self.hung_up += not go.done()
            return go.done()
        finally:
            go.cancel()
            gone.cancel()
            await asyncio.gather(go, gone, return_exceptions=True)

    async def _whole(self, scope: Scope, send: Send, size: int) -> None:
        body = json.dumps({"body": size, "headers": [name.decode() for name, _ in scope["headers"]]}).encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        self.answered += 1

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one ", "more_body": True})
        await self.go.wait()
        await send({"type": "http.response.body", "body": b"two"})
        self.answered += 1


class Answer(NamedTuple):
    """One answer; names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Client:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def answer(self) -> Answer:
        """The next answer, whole."""
        async with asyncio.timeout(WAIT_S):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:-2])}
            return Answer(int(lines[0].split()[1]), headers, await self._body(headers))

    async def _body(self, headers: dict[str, str]) -> bytes:
        if "content-length" in headers:
            return await self.reader.readexactly(int(headers["content-length"]))
        if headers.get("transfer-encoding") != "chunked":
            return await self.reader.read()
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readuntil(b"\r\n")
        return body

    async def closed(self) -> bool:
        """True once the server has closed the connection; what came before that is dropped."""
        async with asyncio.timeout(WAIT_S):
            try:
                while await self.reader.read(65536):
                    pass
            except ConnectionError:
                pass
        return True


@dataclass(slots=True)
class Site:
    """The application and its server."""

    app: App
    server: Server
    clients: list[Client] = field(default_factory=list)

    async def client(self, raw: bytes = b"") -> Client:
        """A fresh connection on which this was said."""
        client = Client(*await asyncio.open_connection(*self.server.address))
        self.clients.append(client)
        client.writer.write(raw)
        return client

    async def ask(self, raw: bytes) -> Answer:
        """The answer to this on a fresh connection."""
        client = await self.client(raw)
        try:
            return await client.answer()
        finally:
            client.writer.close()


@asynccontextmanager
async def served(limits: HttpLimits | None = None) -> AsyncIterator[Site]:
    """A site that listens; no connection is left of it."""
    app = App()
    server = Server(app, bind("127.0.0.1", 0), limits=limits)
    await server.start()
    site = Site(app, server)
    try:
        yield site
    finally:
        for client in site.clients:
            client.writer.close()
        await server.stop(1.0)
