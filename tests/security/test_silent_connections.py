"""Connections that say nothing: they hold up no client, and take no place that a client needs."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.api.server.front import GET, Answer, Client
from tests.fixtures.certificate import Certificate
from tests.security.bounded_server import server_process

FILES = 8192
FILES_FEW = 1024
PLACES_FEW = 640
"""Of a front end with FILES_FEW."""
SILENT = 1500
HANDSHAKE_MAX_S = 3.0
"""Beside the silent ones; on an idle machine it takes 3 ms, and behind them it took 20 s."""


@asynccontextmanager
async def connections(port: int, count: int, begin: bytes = b"") -> AsyncIterator[list[socket.socket]]:
    """So many connections that have sent these bytes, and say nothing more."""
    loop = asyncio.get_running_loop()
    opened = [socket.socket() for _ in range(count)]
    try:
        for each in opened:
            each.setblocking(False)
            await loop.sock_connect(each, ("127.0.0.1", port))
            if begin:
                await loop.sock_sendall(each, begin)
        await asyncio.sleep(0.3)
        yield opened
    finally:
        for each in opened:
            each.close()


async def ask(port: int, tls: ssl.SSLContext | None = None) -> tuple[Answer, float]:
    """The answer that a new client gets, and how long its connection took to be made, with its handshake."""
    began_s = time.monotonic()
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        took_s = time.monotonic() - began_s
        writer.write(GET)
        answer = await Client(reader, writer).answer()
    writer.transport.abort()
    return answer, took_s


@pytest.mark.parametrize("begin", [b"", b"\x16"], ids=["silent", "one byte"])
async def test_handshakes_do_not_wait_for_silent_connections(certificate: Certificate, begin: bytes) -> None:
    """TLS of a new client is spoken at once beside connections that never speak it, or stop after their first byte."""
    trusting = ssl.create_default_context(cafile=str(certificate.cert))
    async with server_process(FILES, certificate) as port, connections(port, SILENT, begin):
        for _ in range(3):
            answer, took_s = await ask(port, trusting)
            assert answer.status == 200
            assert took_s < HANDSHAKE_MAX_S


@pytest.mark.parametrize("begin", [b"", b"GET ", GET], ids=["silent", "half a head", "answered once"])
async def test_no_client_is_refused_for_connections_without_a_request(begin: bytes) -> None:
    """Where files are few, all places are taken by connections that ask for nothing: the oldest ones make room."""
    async with server_process(FILES_FEW) as port, connections(port, PLACES_FEW + 60, begin):
        for _ in range(3):
            answer, took_s = await ask(port)
            assert answer.status == 200
            assert took_s < HANDSHAKE_MAX_S
