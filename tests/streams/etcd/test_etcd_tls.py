from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from core.errors import CallerError, Refused, Unavailable
from streams.embedded.etcd_binary import choose_binary
from streams.embedded.loopback_ports import HOST, free_port
from streams.etcd.etcd_client import EtcdConnection
from streams.etcd.etcd_credentials import EtcdCredentials
from streams.etcd.etcd_registry import EtcdRegistry
from tests.contracts.registry import PATIENCE_S, Heard


@pytest.fixture
async def endpoint(tmp_path: Path) -> AsyncIterator[str]:
    """A foreign etcd with TLS, whose certificate is its own authority."""
    url, peer = f"https://{HOST}:{free_port()}", f"http://{HOST}:0"
    server = await asyncio.create_subprocess_exec(
        choose_binary(tmp_path, None).path,
        *(f"--data-dir={tmp_path}", "--auto-tls", "--bcrypt-cost=4", "--log-level=error"),
        *(f"--listen-client-urls={url}", f"--advertise-client-urls={url}"),
        *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}"),
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    yield url
    server.kill()
    await server.wait()


async def test_tls(endpoint: str, tmp_path: Path) -> None:
    """Over TLS a registry works with user and password; without TLS, or without user, it is turned away."""
    ca = tmp_path / "fixtures" / "client" / "cert.pem"
    await _until_secured(endpoint, ca)
    registry, heard = await EtcdRegistry.connect(endpoint, "test", _credentials(ca)), Heard()
    await registry.watch("workers/", heard.on_change)
    await registry.register("workers/a", b"1")
    await heard.until(lambda heard: heard.keys == {"workers/a": b"1"})
    await registry.close()
    with pytest.raises(Refused):
        await EtcdRegistry.connect(endpoint, "test", EtcdCredentials(ca=ca))
    with pytest.raises(Unavailable):
        await EtcdRegistry.connect(endpoint.removeprefix("https://"), "test", _credentials(None))


@pytest.mark.parametrize("endpoint", ["nowhere", "127.0.0.1", "host:port", "https://127.0.0.1:2379"])
async def test_endpoint_that_cannot_be(endpoint: str) -> None:
    """An endpoint without a port, or with TLS and nothing to check it against, is the caller's error."""
    with pytest.raises(CallerError, match="etcd endpoint"):
        await EtcdRegistry.connect(endpoint, "test")


def test_credentials_that_cannot_be(tmp_path: Path) -> None:
    """Half a pair, or a file that is not there, is the caller's error."""
    for wrong in ({"user": "a"}, {"password": "b"}, {"cert": tmp_path}, {"ca": tmp_path / "none"}):
        with pytest.raises(CallerError):
            EtcdCredentials(**wrong)


def _credentials(ca: Path | None) -> EtcdCredentials:
    return EtcdCredentials(user="root", password="secret", ca=ca)


async def _until_secured(endpoint: str, ca: Path) -> None:
    """etcd has written its certificate, answers, and knows our user."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await asyncio.to_thread(_secure, endpoint, ca)
            except (CallerError, Unavailable):
                await asyncio.sleep(0.1)


def _secure(endpoint: str, ca: Path) -> None:
    connection = EtcdConnection(endpoint, EtcdCredentials(ca=ca))
    try:
        connection.enable_auth("root", "secret")
    finally:
        connection.close()
