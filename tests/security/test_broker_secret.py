"""A program that takes the port of a dead NATS server."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from streams.embedded.embedded_nats import EmbeddedNats
from streams.jetstream.broker_accounts import ROLES, WORKER
from streams.jetstream.nats_client import NatsClient
from tests.fixtures.eventually import eventually


class FalseServer:
    """Speaks as much of NATS as it takes to be told the credentials of clients, and keeps all that they send."""

    def __init__(self) -> None:
        self.heard = b""
        self.nonce = secrets.token_urlsafe(11)
        self._server: asyncio.Server | None = None

    @property
    def connects(self) -> list[dict[str, Any]]:
        """What each client said of itself."""
        return [json.loads(line[8:]) for line in self.heard.splitlines() if line.startswith(b"CONNECT ")]

    async def start(self, port: int) -> None:
        """It has the port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)

    async def stop(self) -> None:
        """The port is free."""
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = {"server_id": "x", "version": "2.15.1", "proto": 1, "headers": True, "max_payload": 1048576}
        writer.write(b"INFO " + json.dumps(info | {"auth_required": True, "nonce": self.nonce}).encode() + b"\r\n")
        while data := await reader.read(65536):
            self.heard += data
            if b"PING" in data:
                writer.write(b"PONG\r\n")
        writer.close()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedNats]:
    """A private NATS, as `contrail up` starts it."""
    it = EmbeddedNats(tmp_path / "nats")
    await it.start()
    yield it
    await it.stop()


def port_of(server: EmbeddedNats) -> int:
    """The port of its clients."""
    return int(server.endpoint.rpartition(":")[2])


async def test_nothing_that_opens_the_log_is_sent(server: EmbeddedNats, tmp_path: Path) -> None:
    """Clients sign the nonce that they are given: the false server learns no secret, and cannot use the signature."""
    clients = [NatsClient([server.url], server.credentials_of(role), role) for role in ROLES]
    for client in clients:
        await client.open()
    server.kill()
    false = FalseServer()
    await false.start(port_of(server))
    await eventually(lambda: len(false.connects) >= len(ROLES), "the clients")
    await false.stop()
    for client in clients:
        await client.close()
    await server.start()

    for sent in false.connects:
        assert not sent.keys() & {"pass", "user", "auth_token"}
        assert await _is_refused(port_of(server), _saying(sent))
    for path in (tmp_path / "nats").glob("*.nk"):
        assert path.read_bytes() not in false.heard
        assert base64.b32decode(path.read_bytes() + b"=" * 6)[2:34] not in false.heard
    right = server.credentials_of(WORKER).key()
    assert right is not None
    assert not await _is_refused(
        port_of(server), lambda nonce: {"nkey": right.public, "sig": right.sign(nonce).decode()}
    )


def _saying(sent: dict[str, Any]) -> Callable[[str], dict[str, Any]]:
    return lambda _nonce: sent


async def _is_refused(port: int, connect: Callable[[str], dict[str, Any]]) -> bool:
    """True if the server does not let in what says this of itself."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        info = json.loads((await reader.readline()).removeprefix(b"INFO "))
        said = {"verbose": False, "pedantic": False, **connect(info["nonce"])}
        writer.write(b"CONNECT " + json.dumps(said).encode() + b"\r\nPING\r\n")
        answer = await reader.readline()
    finally:
        writer.close()
    assert answer.startswith((b"PONG", b"-ERR 'Authorization Violation'")), answer
    return not answer.startswith(b"PONG")
