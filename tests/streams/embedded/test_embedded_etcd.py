from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from core.errors import CallerError, Refused
from streams.embedded.embedded_etcd import EmbeddedEtcd
from streams.etcd.etcd_credentials import EtcdCredentials
from streams.etcd.etcd_registry import EtcdRegistry
from tests.fixtures.listeners import listeners


async def test_only_credentials_let_in(etcd_server: EmbeddedEtcd) -> None:
    """Who shows no password, or a wrong one, is refused."""
    for credentials in (None, EtcdCredentials(user="root", password="guess")):
        with pytest.raises(Refused):
            await EtcdRegistry.connect(etcd_server.endpoint, "test", credentials)


async def test_loopback_only(etcd_server: EmbeddedEtcd) -> None:
    """The port of clients is the only one, and is not open to the network."""
    host, _, port = etcd_server.endpoint.rpartition(":")
    assert listeners(etcd_server.pid) == [(host, int(port))]


async def test_restart(tmp_path: Path) -> None:
    """Data, password and port stay over a stop and a crash; the password is for its owner's eyes."""
    server = EmbeddedEtcd(tmp_path / "data")
    await server.start()
    endpoint, credentials = server.endpoint, server.credentials
    try:
        registry = await EtcdRegistry.connect(endpoint, "test", credentials)
        await registry.put("settings/a", b"1")
        await registry.close()
        await server.stop()
        assert not server.running
        await server.start()
        server.kill()
        assert not server.running
        await server.start()
        assert (server.endpoint, server.credentials) == (endpoint, credentials)
        registry = await EtcdRegistry.connect(endpoint, "test", credentials)
        assert [change.value for change in await registry.get("settings/")] == [b"1"]
        await registry.close()
    finally:
        await server.stop()
    assert stat.S_IMODE((tmp_path / "data" / "etcd.json").stat().st_mode) == 0o600
    assert str(credentials.password) not in repr(credentials)
    again = EmbeddedEtcd(tmp_path / "data")
    await again.start()
    assert again.credentials == credentials
    await again.stop()


async def test_data_folder_in_use(etcd_server: EmbeddedEtcd) -> None:
    """A second etcd on the same folder is refused, naming the first; that one takes no harm."""
    with pytest.raises(CallerError, match=rf"in use by another etcd \(pid {etcd_server.pid}\)"):
        await EmbeddedEtcd(etcd_server._data).start()
    assert etcd_server.running


async def test_port_in_use(tmp_path: Path) -> None:
    """A port that is taken is named, and nothing is left behind: the folder is free for another try."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = EmbeddedEtcd(tmp_path / "data", port=port)
        with pytest.raises(CallerError, match=f"port {port} is in use"):
            await server.start()
        assert not server.running
    await server.start()
    await server.stop()


async def test_password_lost(tmp_path: Path) -> None:
    """Data without its password is not opened with another one."""
    server = EmbeddedEtcd(tmp_path)
    await server.start()
    await server.stop()
    (tmp_path / "etcd.json").unlink()
    with pytest.raises(CallerError, match=r"etcd\.json is missing"):
        await EmbeddedEtcd(tmp_path).start()
