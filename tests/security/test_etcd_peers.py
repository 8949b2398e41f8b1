"""A local user posts a raft message to the peer port of the private etcd: etcd would switch authentication off."""

from __future__ import annotations

import json
import stat
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from core.errors import Refused
from streams.embedded.embedded_etcd import PEER_SOCKET, EmbeddedEtcd
from streams.etcd.etcd_client import EtcdConnection
from tests.fixtures.listeners import listeners
from tests.fixtures.local_user import LocalUser

KEY = "/contrail/test/workers/rogue"
KEYS = 50

POST = """
import base64, json, socket, sys, time, urllib.error, urllib.request
client_port, socket_path, *ports = sys.argv[1:]

def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out) + bytes([number])

def field(number, value):
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)

def ask(port, path, body=None, headers={}):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()
    except OSError as error:
        return 0, {}, str(error).encode()

status = json.loads(ask(client_port, "/v3/maintenance/status", b"{}")[2])
cluster, member = int(status["header"]["cluster_id"]), int(status["header"]["member_id"])
term, index = int(status["raftTerm"]), int(status["raftIndex"])
header = field(2, b"root") + field(3, 1 << 40)  # RequestHeader: user name, a revision of the users yet to come
disable = field(1, 7) + field(1011, b"") + field(100, field(1, 7) + header)  # InternalRaftRequest: AuthDisable
entry = field(2, term) + field(3, index + 1) + field(4, disable)
message = field(1, 3) + field(2, member) + field(3, 4242) + field(4, term + 1)  # MsgApp, to, from, term
message += field(5, term) + field(6, index) + field(7, entry) + field(8, index + 1)  # log term, index, entries, commit
headers = {"X-Etcd-Cluster-ID": format(cluster, "x"), "X-Server-Version": "3.5.1", "X-Min-Cluster-Version": "3.0.0"}
answers = {port: ask(port, "/raft", message, headers)[0] for port in ports}
with socket.socket(socket.AF_UNIX) as peer:
    try:
        peer.connect(socket_path)
        answers["socket"] = "connected"
    except OSError as error:
        answers["socket"] = type(error).__name__
time.sleep(1)  # raft elects its only member again
key, value = (base64.b64encode(word).decode() for word in (b"/contrail/test/workers/rogue", b"rogue"))
put = json.dumps({"key": key, "value": value}).encode()
answers["put"] = ask(client_port, "/v3/kv/put", put)[0]
print(json.dumps(answers))
"""
"""Asks the client port for the ids and the end of the raft log, and posts one more entry of it to every port."""


class WithPeerPort(EmbeddedEtcd):
    """etcd as it was started before: it listens for peers on a TCP port."""

    def _command(self) -> tuple[Sequence[str | Path], Mapping[str, str]]:
        command, environment = super()._command()
        return [str(word).replace(f"unix://{PEER_SOCKET}", "http://127.0.0.1:0") for word in command], environment


@asynccontextmanager
async def started(server: EmbeddedEtcd) -> AsyncIterator[EmbeddedEtcd]:
    """The server runs."""
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def client(server: EmbeddedEtcd, *, stranger: bool = False) -> AsyncIterator[EtcdConnection]:
    """A connection with our credentials, or with none."""
    connection = EtcdConnection(server.endpoint, None if stranger else server.credentials)
    if not stranger:
        connection.log_in()
    try:
        yield connection
    finally:
        connection.close()


def post(user: LocalUser, server: EmbeddedEtcd, folder: Path) -> dict[str, Any]:
    """The answers that the user gets at each TCP port of the server, at its socket, and to a put without a password."""
    port = server.endpoint.rpartition(":")[2]
    ports = [str(port) for _, port in listeners(server.pid)]
    return {"client": port, **json.loads(user.run(POST, port, str(folder / PEER_SOCKET), *ports))}


async def assert_closed(user: LocalUser, server: EmbeddedEtcd, folder: Path) -> None:
    """The attack reaches nothing, and etcd still asks for a password."""
    answers = post(user, server, folder)
    assert answers.pop(answers.pop("client")) == 404
    assert answers == {"socket": "PermissionError", "put": 400}
    async with client(server, stranger=True) as stranger:
        with pytest.raises(Refused):
            stranger.put(KEY, b"rogue")


async def test_a_raft_message_at_a_peer_port_switches_authentication_off(home: Path, local_user: LocalUser) -> None:
    """The attack is one: it succeeds where etcd listens for peers on a TCP port."""
    async with started(WithPeerPort(home / "etcd")) as server:
        answers = post(local_user, server, home / "etcd")
        assert answers["put"] == 200, answers
        async with client(server, stranger=True) as stranger:
            assert [change.value for change in stranger.get(KEY).keys] == [b"rogue"]


async def test_another_user_reaches_no_peer_listener(home: Path, local_user: LocalUser) -> None:
    async with started(EmbeddedEtcd(home / "etcd")) as server:
        assert [port for _, port in listeners(server.pid)] == [int(server.endpoint.rpartition(":")[2])]
        await assert_closed(local_user, server, home / "etcd")


async def test_a_folder_with_a_peer_port_in_its_member_record_opens_without_one(
    home: Path, local_user: LocalUser
) -> None:
    """A folder of an earlier release keeps its keys and its password; every user could enter it, and cannot now."""
    folder = home / "etcd"
    async with started(WithPeerPort(folder)) as before, client(before) as ours:
        assert len(listeners(before.pid)) == 2
        for number in range(KEYS):
            ours.put(f"/contrail/test/settings/{number}", b"%d" % number)
        before.kill()
    folder.chmod(0o755)
    for _ in range(2):
        async with started(EmbeddedEtcd(folder)) as server, client(server) as ours:
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert {change.value for change in ours.get("/contrail/test/").keys} == {b"%d" % at for at in range(KEYS)}
            await assert_closed(local_user, server, folder)
            server.kill()  # the socket's file stays, and the next start listens all the same
            assert (folder / PEER_SOCKET).is_socket()


async def test_a_path_longer_than_a_socket_may_have_is_no_obstacle(home: Path) -> None:
    deep = home.joinpath(*["a" * 200] * 3) / "etcd"
    async with started(EmbeddedEtcd(deep)) as one, started(EmbeddedEtcd(home / "etcd")) as other:
        for server in (one, other):
            async with client(server) as ours:
                ours.put(KEY, b"ours")
            assert len(listeners(server.pid)) == 1
        assert (deep / PEER_SOCKET).is_socket()
        assert (home / "etcd" / PEER_SOCKET).is_socket()


async def test_a_relative_folder_is_meant_as_it_was_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    async with started(EmbeddedEtcd(Path("data/etcd"))) as server:
        assert server.running
        assert (home / "data" / "etcd" / "etcd" / "member").is_dir()
