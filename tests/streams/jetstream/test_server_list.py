"""Which servers are asked for a connection, and under which name a certificate is read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from streams.embedded.loopback_ports import HOST, free_port
from streams.jetstream.nats_client import NatsClient
from streams.jetstream.nats_credentials import NatsCredentials
from tests.fixtures.eventually import eventually
from tests.fixtures.nats_cluster import Node

NAME = "localhost"
"""What the certificate bears; it bears no address."""
OTHER_PORT = 1
"""Nobody listens there."""


class Moving:
    """A server of a cluster whose other servers have new addresses at each connection."""

    def __init__(self) -> None:
        self.port = 0
        self.connections: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.drop()

    def drop(self) -> None:
        for connection in self.connections:
            connection.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        others = [f"127.0.{len(self.connections)}.{number}:{OTHER_PORT}" for number in (1, 2)]
        info = {"version": "2.15.1", "max_payload": 1024, "connect_urls": [f"{HOST}:{self.port}", *others]}
        writer.write(f"INFO {json.dumps(info)}\r\n".encode())
        async for line in reader:
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")


async def test_servers_that_moved_are_forgotten() -> None:
    """After every connection: those that were named, once, and those that this one told of."""
    moving = Moving()
    await moving.start()
    named = f"nats://{HOST}:{moving.port}"
    connection = NatsClient([named], None, "test")
    await connection.open()
    for number in (1, 2, 3):
        await eventually(lambda number=number: connection.connected and len(moving.connections) == number)  # type: ignore[misc]
        told = [f"nats://127.0.{number}.{other}:{OTHER_PORT}" for other in (1, 2)]
        assert repr(connection) == f"<NatsClient test to {', '.join([named, *told])}, up>"
        moving.drop()
    await connection.close()
    moving.stop()


class SecureNode(Node):
    """A server that speaks TLS, without streams."""

    files: dict[str, str]

    def _config(self) -> dict[str, Any]:
        config = super()._config() | {"tls": self.files}
        del config["jetstream"]
        return config


def certified(folder: Path) -> dict[str, str]:
    """A certificate for `NAME`, and its key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    built = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(built.public_bytes(pem))
    key_file.write_bytes(key.private_bytes(pem, pkcs8, serialization.NoEncryption()))
    return {"cert_file": str(cert_file), "key_file": str(key_file)}


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[SecureNode]]:
    """Two servers of one cluster, with one certificate."""
    credentials = NatsCredentials(user="contrail", password="secret", tls_ca=tmp_path / "cert.pem")
    files, routes = certified(tmp_path), [free_port(), free_port()]
    nodes = [SecureNode(tmp_path / f"n{own}", f"n{own}", routes, own, credentials) for own in routes]
    for node in nodes:
        node.files = files
        await node.start()
    yield nodes
    await asyncio.gather(*(node.stop() for node in nodes if node.running))


async def test_an_address_is_trusted_under_the_name_that_was_given(nodes: list[SecureNode]) -> None:
    """The server that was named goes: its neighbour, known by its address only, proves itself by the same name."""
    first, second = nodes
    connection, lost = await _told_of(second, first), asyncio.Event()
    connection.on_lost.add(lost.set)
    first.kill()
    await eventually(lost.is_set)
    await eventually(lambda: connection.connected)
    lost.clear()
    second.kill()
    await second.start()  # found by what it told of itself, to a client that had found it by its address
    await eventually(lost.is_set)
    await eventually(lambda: connection.connected)
    await connection.close()


async def _told_of(wanted: SecureNode, named: SecureNode) -> NatsClient:
    """A connection to the server that is named, which knows of the other one."""
    async with asyncio.timeout(20):
        while True:
            connection = NatsClient([f"tls://{NAME}:{named.endpoint.rpartition(':')[2]}"], named.credentials, "test")
            await connection.open()
            if wanted.endpoint in repr(connection):
                return connection
            await connection.close()
            await asyncio.sleep(0.05)
