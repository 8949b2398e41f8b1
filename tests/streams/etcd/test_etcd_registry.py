from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from core.errors import Unavailable
from streams.embedded.embedded_etcd import EmbeddedEtcd
from streams.etcd.etcd_client import BOUND_S, EtcdConnection
from streams.etcd.etcd_registry import EtcdRegistry
from tests.contracts.registry import PATIENCE_S, Connect, Heard, RegistryContract
from tests.fixtures.cable import Cable

SLACK_S = 2.0
"""What a busy machine may add to a bound."""


@pytest.fixture
def namespace() -> str:
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
async def mortal(tmp_path: Path) -> AsyncIterator[EmbeddedEtcd]:
    """An etcd for one test, which may kill it."""
    server = EmbeddedEtcd(tmp_path / "data")
    await server.start()
    yield server
    await server.stop()


class TestEtcdRegistry(RegistryContract):
    @pytest.fixture
    async def connect(self, etcd_server: EmbeddedEtcd, namespace: str) -> AsyncIterator[Connect]:
        connected: list[EtcdRegistry] = []

        async def connect() -> EtcdRegistry:
            registry = await EtcdRegistry.connect(etcd_server.endpoint, namespace, etcd_server.credentials)
            connected.append(registry)
            return registry

        yield connect
        await asyncio.gather(*(registry.close() for registry in connected))


async def test_namespaces_are_apart(etcd_server: EmbeddedEtcd, namespace: str) -> None:
    """A namespace neither sees nor hears another, even one whose name begins alike."""
    one = await EtcdRegistry.connect(etcd_server.endpoint, namespace, etcd_server.credentials)
    other = await EtcdRegistry.connect(etcd_server.endpoint, f"{namespace}-2", etcd_server.credentials)
    await other.put("workers/a", b"1")
    assert await one.get("") == []
    await asyncio.gather(one.close(), other.close())


OWNER = """
import asyncio, sys
from streams.etcd.etcd_registry import EtcdRegistry
from streams.etcd.etcd_credentials import EtcdCredentials

async def main(endpoint, namespace, user, password):
    registry = await EtcdRegistry.connect(endpoint, namespace, EtcdCredentials(user=user, password=password), lease_s=2)
    await registry.register("workers/a", b"1")
    print("registered", flush=True)
    await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_killed_owner(etcd_server: EmbeddedEtcd, namespace: str) -> None:
    """A registration outlives its lease time while its owner lives, and is gone soon after it was killed."""
    heard, credentials = Heard(), etcd_server.credentials
    watcher = await EtcdRegistry.connect(etcd_server.endpoint, namespace, credentials)
    await watcher.watch("workers/", heard.on_change)
    command = [sys.executable, "-c", OWNER, etcd_server.endpoint, namespace, str(credentials.user)]
    owner = await asyncio.create_subprocess_exec(*command, str(credentials.password), start_new_session=True)
    try:
        await heard.until(lambda heard: heard.keys == {"workers/a": b"1"})
        await asyncio.sleep(3.0)  # one and a half lease times
        assert len(heard.changes) == 1
    finally:
        owner.kill()
        await owner.wait()
    killed = time.monotonic()
    await heard.until(lambda heard: heard.keys == {})
    assert time.monotonic() - killed < 2.0 + 1.0 + SLACK_S  # the lease, etcd's own granularity
    await watcher.close()


async def test_etcd_killed_and_restarted(mortal: EmbeddedEtcd, namespace: str) -> None:
    """After a crash of etcd everything goes on by itself, void tokens included, and health was told."""
    heard = Heard()
    one = await EtcdRegistry.connect(mortal.endpoint, namespace, mortal.credentials)
    other = await EtcdRegistry.connect(mortal.endpoint, namespace, mortal.credentials)
    await one.register("workers/a", b"1")
    await other.watch("workers/", heard.on_change, heard.on_health)
    mortal.kill()
    await heard.until(lambda heard: heard.health == [False])
    with pytest.raises(Unavailable):
        await one.put("workers/b", b"2")
    with pytest.raises(Unavailable):
        await one.register("workers/c", b"3")
    await mortal.start()
    await one.put("workers/b", b"2")
    await heard.until(lambda heard: heard.health == [False, True])
    # the wish that failed is fulfilled without being asked again
    await heard.until(lambda heard: heard.keys == {"workers/a": b"1", "workers/b": b"2", "workers/c": b"3"})
    await one.unregister("workers/c")
    await heard.until(lambda heard: "workers/c" not in heard.keys)
    await asyncio.gather(one.close(), other.close())


async def test_etcd_lost_its_data(mortal: EmbeddedEtcd, namespace: str, tmp_path: Path) -> None:
    """Registrations are put again into an etcd that began anew; what was put for good is told as gone."""
    heard = Heard()
    one = await EtcdRegistry.connect(mortal.endpoint, namespace, mortal.credentials, lease_s=3)
    await one.put("workers/old", b"0")
    await one.register("workers/a", b"1")
    await one.watch("workers/", heard.on_change, heard.on_health)
    mortal.kill()
    (tmp_path / "data" / "etcd").rename(tmp_path / "lost")
    await mortal.start()
    await heard.until(lambda heard: heard.health == [False, True] and heard.keys == {"workers/a": b"1"})
    assert [change.key for change in await one.get("")] == ["workers/a"]
    await one.close()


async def test_claim_of_one_cut_off(etcd_server: EmbeddedEtcd, namespace: str) -> None:
    """A claim goes with its lease, is another's then, and is neither put again nor deleted by its former owner."""
    cable = Cable(etcd_server.endpoint)
    await cable.mend()
    one = await EtcdRegistry.connect(cable.endpoint, namespace, etcd_server.credentials, lease_s=2)
    other = await EtcdRegistry.connect(etcd_server.endpoint, namespace, etcd_server.credentials)
    await one.register("workers/one", b"1")
    former = await one.claim("writer", b"one")
    assert former is not None
    await cable.cut()
    revision = await _claimed(other, "writer", b"other")
    with pytest.raises(Unavailable):
        await one.unregister("writer")  # the wish stands
    await cable.mend()
    await _until_there(other, "workers/one")
    assert revision > former
    assert await one.claim("writer", b"one") is None
    await one.unregister("writer")
    assert [change.value for change in await other.get("writer")] == [b"other"]
    await asyncio.gather(one.close(), other.close())
    await cable.cut()


async def test_claim_outlives_a_crash_of_etcd(mortal: EmbeddedEtcd, namespace: str) -> None:
    """A claim whose lease etcd still knows after its crash is the same claim."""
    one = await EtcdRegistry.connect(mortal.endpoint, namespace, mortal.credentials)
    revision = await one.claim("writer", b"one")
    mortal.kill()
    await mortal.start()
    assert await one.claim("writer", b"one") == revision
    await one.close()


async def _claimed(registry: EtcdRegistry, key: str, value: bytes) -> int:
    """Claims it as soon as it can be had."""
    async with asyncio.timeout(PATIENCE_S):
        while (revision := await registry.claim(key, value)) is None:
            await asyncio.sleep(0.05)
    return revision


async def _until_there(registry: EtcdRegistry, key: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await registry.get(key):
            await asyncio.sleep(0.05)


async def test_cut_off(etcd_server: EmbeddedEtcd, namespace: str) -> None:
    """One who lost contact longer than its lease is told what it missed, deletions included, and is there again."""
    cable, heard, seen = Cable(etcd_server.endpoint), Heard(), Heard()
    await cable.mend()
    one = await EtcdRegistry.connect(cable.endpoint, namespace, etcd_server.credentials, lease_s=2)
    other = await EtcdRegistry.connect(etcd_server.endpoint, namespace, etcd_server.credentials)
    await one.register("workers/one", b"1")
    await other.register("workers/leaves", b"2")
    await one.watch("workers/", heard.on_change, heard.on_health)
    await other.watch("workers/", seen.on_change)
    await cable.cut()
    await heard.until(lambda heard: heard.health == [False])
    await other.unregister("workers/leaves")
    await other.put("workers/comes", b"3")
    await other.put("workers/comes", b"4")
    await seen.until(lambda seen: seen.keys == {"workers/comes": b"4"})  # the lease of the one cut off ran out
    await cable.mend()
    await seen.until(lambda seen: seen.keys == {"workers/comes": b"4", "workers/one": b"1"})
    await heard.until(lambda heard: heard.keys == {"workers/comes": b"4", "workers/one": b"1"})
    assert heard.health == [False, True]
    assert ("workers/leaves", None) in heard.story
    assert ("workers/comes", b"3") not in heard.story  # only what differs
    await asyncio.gather(one.close(), other.close())
    await cable.cut()


def _hang(server: EmbeddedEtcd) -> None:
    """The process holds its sockets and answers nothing; the signal alone would reach its threads one by one."""
    os.kill(server.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WNOWAIT)


async def test_etcd_hangs(mortal: EmbeddedEtcd, namespace: str) -> None:
    """When etcd hangs, calls raise Unavailable within their bound, health is told, and all is well afterwards."""
    heard = Heard()
    one = await EtcdRegistry.connect(mortal.endpoint, namespace, mortal.credentials)
    await one.register("workers/a", b"1")
    await one.watch("workers/", heard.on_change, heard.on_health)
    _hang(mortal)
    begun = time.monotonic()
    calls = await asyncio.gather(*(one.get("") for _ in range(20)), one.register("b", b""), return_exceptions=True)
    assert time.monotonic() - begun < BOUND_S + SLACK_S
    assert {type(call) for call in calls} == {Unavailable}
    await heard.until(lambda heard: heard.health == [False])
    os.kill(mortal.pid, signal.SIGCONT)
    await heard.until(lambda heard: heard.health == [False, True])
    await heard.until(lambda heard: heard.keys == {"workers/a": b"1"})
    await one.close()


async def test_close_while_etcd_hangs(mortal: EmbeddedEtcd, namespace: str) -> None:
    """Closing is bounded even then, and leaves no thread behind."""
    before = set(threading.enumerate())
    one, heard = await EtcdRegistry.connect(mortal.endpoint, namespace, mortal.credentials), Heard()
    await one.watch("", heard.on_change, heard.on_health)
    _hang(mortal)
    begun = time.monotonic()
    await one.close()
    assert time.monotonic() - begun < BOUND_S + SLACK_S
    for thread in threading.enumerate():
        if thread.name.startswith("etcd") and thread not in before:
            await asyncio.to_thread(thread.join, PATIENCE_S)
            assert not thread.is_alive()


async def test_nobody_there(namespace: str) -> None:
    """Connecting to nothing raises Unavailable within the bound."""
    begun = time.monotonic()
    with pytest.raises(Unavailable):
        await EtcdRegistry.connect("127.0.0.1:9", namespace, None)
    assert time.monotonic() - begun < BOUND_S + SLACK_S


async def test_compacted(etcd_server: EmbeddedEtcd, namespace: str) -> None:
    """A stream from a revision that was compacted away ends at once, as one that must be read anew."""
    connection = EtcdConnection(etcd_server.endpoint, etcd_server.credentials)
    connection.log_in()
    revisions = [connection.put(f"/contrail/{namespace}/x", b"%d" % i) for i in range(3)]
    connection._client.compact(revisions[-1])
    stream = connection.watch(f"/contrail/{namespace}/", revisions[0])
    assert await asyncio.to_thread(list, stream) == []
    stream.cancel()
    connection.close()
