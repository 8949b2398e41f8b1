"""etcd forgets writes that it acknowledged, and goes on: another hand undoes them behind the backs of their owners."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streams.embedded.embedded_etcd import EmbeddedEtcd
from streams.embedded.etcd_binary import bundled_version
from streams.etcd.etcd_client import EtcdConnection
from streams.etcd.etcd_lease import PROBE_S_MAX
from streams.etcd.etcd_registry import EtcdRegistry
from tests.contracts.registry import Heard

MENDED_S = PROBE_S_MAX + 2.0
"""A lost write is written again by the next keep-alive."""
WRITES = 20


@pytest.fixture
def namespace() -> str:
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
def hand(etcd_server: EmbeddedEtcd) -> Iterator[EtcdConnection]:
    """A connection past every lease."""
    connection = EtcdConnection(etcd_server.endpoint, etcd_server.credentials)
    connection.log_in()
    yield connection
    connection.close()


async def _mended(heard: Heard, condition: Callable[[Heard], bool]) -> None:
    async with asyncio.timeout(MENDED_S):
        await heard.until(condition)


async def test_owners_write_again_what_etcd_lost(
    etcd_server: EmbeddedEtcd, namespace: str, hand: EtcdConnection
) -> None:
    """A registration that is gone, has its former value, or another lease is put again, a released one goes again."""
    one = await EtcdRegistry.connect(etcd_server.endpoint, namespace, etcd_server.credentials)
    heard, root = Heard(), f"/contrail/{namespace}/"
    wanted = {f"workers/{name}": b"2" for name in ("gone", "former", "leaseless")}
    for key in [*wanted, "workers/left"]:
        await one.register(key, b"1")
    for key, value in wanted.items():
        await one.register(key, value)
    await one.unregister("workers/left")
    await one.claim("writer", b"one")
    await one.unregister("writer")
    await one.watch("", heard.on_change)
    assert heard.keys == wanted
    lease = one._lease._lease
    assert lease is not None
    hand.delete(root + "workers/gone")
    hand.put(root + "workers/former", b"1", lease)
    hand.put(root + "workers/leaseless", b"2")
    hand.put(root + "workers/left", b"1", lease)
    hand.put(root + "writer", b"one", lease)
    await _mended(heard, lambda heard: "workers/left" in heard.keys and "workers/gone" not in heard.keys)
    await _mended(heard, lambda heard: heard.keys == wanted)
    await one.close()
    assert hand.get(root).keys == []  # all of them were under the lease


async def test_a_claim_of_another_is_no_lost_write(
    etcd_server: EmbeddedEtcd, namespace: str, hand: EtcdConnection
) -> None:
    """What is released may be another's afterwards, and stays; so does a claim of our own."""
    one = await EtcdRegistry.connect(etcd_server.endpoint, namespace, etcd_server.credentials)
    other = await EtcdRegistry.connect(etcd_server.endpoint, namespace, etcd_server.credentials)
    await one.claim("writer", b"one")
    await one.unregister("writer")
    claim = await other.claim("writer", b"other")
    assert await one.claim("reader", b"one") is not None
    await asyncio.sleep(MENDED_S)
    assert await other.claim("writer", b"other") == claim
    assert [change.value for change in await other.get("reader")] == [b"one"]
    await asyncio.gather(one.close(), other.close())


async def test_the_bundled_etcd_commits_a_write_before_it_acknowledges_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database's file holds the value when the answer comes, so that a crash cannot lose it."""
    monkeypatch.setenv("PATH", "")
    server = EmbeddedEtcd(tmp_path)
    await server.start()
    try:
        connection = EtcdConnection(server.endpoint, server.credentials)
        connection.log_in()
        version = bundled_version()
        assert version is not None
        assert not version.sound  # else this test, and the limit that it is about, may go
        for _ in range(WRITES):
            value = uuid.uuid4().hex.encode()
            connection.put("/contrail/test/key", value)
            assert value in (tmp_path / "etcd" / "member" / "snap" / "db").read_bytes()
        connection.close()
    finally:
        await server.stop()
