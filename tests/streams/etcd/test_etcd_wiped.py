"""An etcd that lost everything and started empty on the same port, while its clients go on."""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from core.errors import Refused, Unavailable
from streams.embedded.embedded_etcd import EmbeddedEtcd
from streams.etcd.etcd_client import EtcdConnection
from streams.etcd.etcd_registry import EtcdRegistry
from tests.contracts.registry import PATIENCE_S, Heard

CLIENTS = 4
HISTORY = 200
"""Changes before the wipe, so that revisions after it are lower for long."""


@pytest.fixture
async def mortal(tmp_path: Path) -> AsyncIterator[EmbeddedEtcd]:
    server = EmbeddedEtcd(tmp_path / "data")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def clients(mortal: EmbeddedEtcd) -> AsyncIterator[list[EtcdRegistry]]:
    """Several processes' registries, each with a registration of its own."""
    namespace = f"test-{uuid.uuid4().hex}"
    connected = [await EtcdRegistry.connect(mortal.endpoint, namespace, mortal.credentials) for _ in range(CLIENTS)]
    for number, client in enumerate(connected):
        await client.register(f"workers/{number}", b"%d" % number)
    yield connected
    await asyncio.gather(*(client.close() for client in connected))


async def _wipe(server: EmbeddedEtcd, data: Path) -> None:
    await server.stop()
    shutil.rmtree(data / "data" / "etcd")
    await server.start()


async def _persist(call: Callable[[], Awaitable[object]]) -> None:
    """As a process does that wants something done and knows that the registry may be away."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await call()
            except (Unavailable, Refused):
                await asyncio.sleep(0.05)
            else:
                return


async def test_all_go_on(mortal: EmbeddedEtcd, clients: list[EtcdRegistry], tmp_path: Path) -> None:
    """Registrations are there again, watches hear of them and of what comes later, claims are to be made anew."""
    heard = [Heard() for _ in clients]
    for client, ear in zip(clients, heard, strict=True):
        await client.watch("workers/", ear.on_change, ear.on_health)
    for number in range(HISTORY):
        await clients[0].put("workers/busy", b"%d" % number)
    assert await clients[0].claim("writer", b"0") is not None
    there = {f"workers/{number}": b"%d" % number for number in range(CLIENTS)}
    await _wipe(mortal, tmp_path)
    for ear in heard:
        await ear.until(lambda ear: ear.health == [False, True] and ear.keys == there)
    for ear in heard:
        assert ear.changes[-1].revision < HISTORY  # it counts anew
    claim = await clients[1].claim("writer", b"1")
    assert claim is not None
    assert await clients[0].claim("writer", b"0") is None
    await clients[0].unregister("writer")  # what it had is gone, what is there is another's
    assert await clients[1].claim("writer", b"1") == claim
    await clients[2].put("workers/late", b"late")
    for ear in heard:
        await ear.until(lambda ear: ear.keys == there | {"workers/late": b"late"})


async def test_under_load(mortal: EmbeddedEtcd, clients: list[EtcdRegistry], tmp_path: Path) -> None:
    """What is registered, claimed and put while it happens is there afterwards, and every watch knows the same."""
    heard = [Heard() for _ in clients]
    for client, ear in zip(clients, heard, strict=True):
        await client.watch("workers/", ear.on_change)
    over = asyncio.Event()

    async def busy(number: int) -> int:
        turn = 0
        while not over.is_set():
            turn += 1
            value = b"%d of %d" % (turn, number)
            await _persist(lambda: clients[number].register(f"workers/{number}", value))  # noqa: B023
            await _persist(lambda: clients[number].claim("writer", b"%d" % number))
            await asyncio.sleep(0.01)
        return turn

    load = [asyncio.create_task(busy(number)) for number in range(CLIENTS)]
    await asyncio.sleep(0.3)
    await _wipe(mortal, tmp_path)
    await asyncio.sleep(0.5)
    over.set()
    turns = await asyncio.gather(*load)
    there = {f"workers/{number}": b"%d of %d" % (turn, number) for number, turn in enumerate(turns)}
    for ear in heard:
        await ear.until(lambda ear: ear.keys == there)
    claims = [await client.claim("writer", b"again") for client in clients]
    assert sum(claim is not None for claim in claims) == 1


async def test_watch_from_a_former_life(mortal: EmbeddedEtcd) -> None:
    """A watch from a revision that etcd has not reached ends at once instead of being silent until it has."""
    connection = EtcdConnection(mortal.endpoint, mortal.credentials)
    connection.log_in()
    now = connection.put("/contrail/x", b"1")
    stream = connection.watch("/contrail/", now + 2)
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.to_thread(list, stream) == []
    assert not stream.stood
    stream.cancel()
    connection.close()


class Forgetful(EmbeddedEtcd):
    """Started without its users, as an operator's own etcd is that lost its data."""

    def _enable_auth(self, connection: EtcdConnection) -> bool:
        return True


@pytest.fixture
async def forgetful(mortal: EmbeddedEtcd, tmp_path: Path) -> AsyncIterator[Forgetful]:
    """What takes the place of `mortal`, on its port and folder."""
    server = Forgetful(tmp_path / "data", port=int(mortal.endpoint.rpartition(":")[2]))
    yield server
    await server.stop()


async def test_without_users(mortal: EmbeddedEtcd, forgetful: Forgetful, tmp_path: Path) -> None:
    """Who was let in before waits for its users to be made again; who comes new is refused, and told why."""
    credentials, heard = mortal.credentials, Heard()
    client = await EtcdRegistry.connect(mortal.endpoint, "test", credentials)
    await client.register("workers/a", b"1")
    await client.watch("workers/", heard.on_change, heard.on_health)
    await mortal.stop()
    shutil.rmtree(tmp_path / "data" / "etcd")
    await forgetful.start()
    await heard.until(lambda heard: heard.health == [False])
    await _until_said(client, "make its users again")
    with pytest.raises(Refused, match="not enabled"):
        await EtcdRegistry.connect(forgetful.endpoint, "test", credentials)
    operator = EtcdConnection(forgetful.endpoint, None)
    assert credentials.user is not None
    assert credentials.password is not None
    operator.enable_auth(credentials.user, credentials.password)
    operator.close()
    await heard.until(lambda heard: heard.health == [False, True] and heard.keys == {"workers/a": b"1"})
    await client.close()


async def _until_said(client: EtcdRegistry, text: str) -> None:
    """Every call fails as one that may succeed later, and soon for that reason."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with pytest.raises(Unavailable) as caught:
                await client.put("workers/b", b"2")
            if text in str(caught.value):
                return


async def test_users_are_made_again(mortal: EmbeddedEtcd, tmp_path: Path) -> None:
    """A private etcd that lost its data knows the same password again, and lets nobody else in."""
    await _wipe(mortal, tmp_path)
    connection = EtcdConnection(mortal.endpoint, mortal.credentials)
    connection.log_in()
    assert connection.get("/contrail/").keys == []
    connection.close()
    stranger = EtcdConnection(mortal.endpoint, None)
    with pytest.raises(Refused):
        stranger.get("/contrail/")
    stranger.close()
