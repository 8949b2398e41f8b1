"""An answer before the end of its request's body reaches the client, also where the connection ends with it."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from api.server import protocol
from api.server.errors import ApiError
from api.server.exchange import HttpExchange
from api.server.http_server import HttpServer
from api.server.middleware import send_error
from api.server.sockets import bind
from tests.fixtures.eventually import eventually

PIECE = b"x" * 100_000
PIECES = 20


async def refuses(scope: Scope, _receive: Receive, send: Send) -> None:
    """Reads nothing: by ASGI, as the layers around the API do, or as its routes do."""
    error = ApiError(401, "no")
    if scope["path"] == "/asgi":
        await send_error(send, error)
    else:
        await HttpExchange.of(scope).refuse(error)


@pytest.mark.parametrize("header", ["connection: close", "expect: 100-continue", "accept: */*"])
@pytest.mark.parametrize("path", ["/asgi", "/route"])
async def test_a_client_that_is_still_sending_reads_the_refusal(path: str, header: str) -> None:
    """Before: the connection was reset, and the client had a broken pipe instead of the answer."""
    server = HttpServer(refuses, bind("127.0.0.1", 0))
    reader, writer = await asyncio.open_connection(*await server.start())
    try:
        size = len(PIECE) * PIECES
        writer.write(b"POST %b HTTP/1.1\r\nhost: a\r\n%b\r\n" % (path.encode(), header.encode()))
        writer.write(b"content-length: %d\r\n\r\n" % size)
        for _ in range(PIECES):
            writer.write(PIECE)
            await writer.drain()
            await asyncio.sleep(0.005)
        assert await reader.readline() == b"HTTP/1.1 401 Unauthorized\r\n"
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"error" in await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
        if not header.startswith("accept"):
            assert await reader.read() == b""  # and no further request is read
    finally:
        writer.close()
        await server.stop(0)


@pytest.mark.parametrize(("pauses", "is_whole"), [(0, True), (6, True), (40, False)])
async def test_a_refused_connection_lasts_as_long_as_its_client_sends(
    monkeypatch: pytest.MonkeyPatch, pauses: int, is_whole: bool
) -> None:
    """Before: it was cut a fixed time after the refusal, so a slow sender of a large body never read that. It ends some
    time after the last bytes; and in any case, for one that never stops."""
    monkeypatch.setattr(protocol, "LINGER_S", 0.4)
    monkeypatch.setattr(protocol, "LINGER_MAX_S", 2.0)
    server = HttpServer(refuses, bind("127.0.0.1", 0))
    reader, writer = await asyncio.open_connection(*await server.start())
    try:
        writer.write(b"POST /route HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 1000\r\n\r\n")
        for _ in range(pauses):
            await asyncio.sleep(0.1)
            writer.write(b"x")
        if is_whole:
            assert (await reader.readline()).startswith(b"HTTP/1.1 401")
            await reader.read()
        await eventually(lambda: not server.connections, "the end of the connection", timeout_s=2)
        assert writer.is_closing() is not is_whole
    finally:
        writer.close()
        await server.stop(0)


async def test_a_request_behind_the_refused_body_is_not_served() -> None:
    """The connection was to end with the refusal."""
    server = HttpServer(refuses, bind("127.0.0.1", 0))
    reader, writer = await asyncio.open_connection(*await server.start())
    try:
        writer.write(b"POST /route HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 5\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"xxxxxPOST /route HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n")
        assert (await reader.read()).count(b"HTTP/1.1") == 0
    finally:
        writer.close()
        await server.stop(0)
