from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from core.errors import Unavailable
from streams.memory.memory_registry import MemoryRegistry, MemoryRegistryStore
from tests.contracts.registry import Connect, Heard, RegistryContract


class TestMemoryRegistry(RegistryContract):
    @pytest.fixture
    async def connect(self) -> AsyncIterator[Connect]:
        store = MemoryRegistryStore()

        async def connect() -> MemoryRegistry:
            return MemoryRegistry(store)

        yield connect


async def test_away() -> None:
    """One who was away is told what differs, and what it wished or lost meanwhile is put right."""
    store, heard = MemoryRegistryStore(), Heard()
    one, other = MemoryRegistry(store), MemoryRegistry(store)
    await one.register("workers/one", b"1")
    await other.put("workers/old", b"2")
    await one.watch("workers/", heard.on_change, heard.on_health)
    heard.changes.clear()
    one.away = True
    for call in (one.get(""), one.put("k", b"")):
        with pytest.raises(Unavailable):
            await call
    with pytest.raises(Unavailable):
        await one.register("workers/wished", b"3")
    store.expire("workers/one")
    store.delete("workers/old")
    await other.put("workers/new", b"4")
    assert heard.changes == []
    one.away = False
    await heard.until(lambda heard: heard.health == [False, True])
    assert heard.keys == {"workers/one": b"1", "workers/new": b"4", "workers/wished": b"3"}
    assert ("workers/old", None) in heard.story
    assert repr(one) == "<MemoryRegistry 2 held, 1 watches>"


async def test_expire() -> None:
    """A key that expires is gone for all who watch it."""
    store, heard = MemoryRegistryStore(), Heard()
    owner, watcher = MemoryRegistry(store), MemoryRegistry(store)
    await owner.register("workers/a", b"1")
    await watcher.watch("workers/", heard.on_change)
    store.expire("workers/a")
    await heard.until(lambda heard: heard.story == [("workers/a", b"1"), ("workers/a", None)])


async def test_closed_while_away() -> None:
    """What a process leaves without contact stays until its lease ends."""
    store = MemoryRegistryStore()
    owner = MemoryRegistry(store)
    await owner.register("workers/a", b"1")
    owner.away = True
    await owner.close()
    assert [change.key for change in store.below("")] == ["workers/a"]
    store.expire("workers/a")
    assert store.below("") == []


async def test_claim_expires() -> None:
    """A claim whose lease ran out is free, is not put again, and is not its former owner's to give up."""
    store = MemoryRegistryStore()
    one, other = MemoryRegistry(store), MemoryRegistry(store)
    former = await one.claim("writer", b"1")
    assert former is not None
    one.away = True
    for call in (one.claim("writer", b"1"), one.unregister("writer")):
        with pytest.raises(Unavailable):
            await call
    store.expire("writer")
    later = await other.claim("writer", b"2")
    one.away = False
    assert later is not None
    assert later > former
    assert await one.claim("writer", b"1") is None
    await one.unregister("writer")
    await one.close()
    assert [change.value for change in store.below("")] == [b"2"]


async def test_claim_given_up_while_away() -> None:
    """A claim that nobody took meanwhile is gone when contact is back, as it was wished."""
    store = MemoryRegistryStore()
    one = MemoryRegistry(store)
    await one.claim("writer", b"1")
    one.away = True
    with pytest.raises(Unavailable):
        await one.unregister("writer")
    assert store.find("writer") is not None
    one.away = False
    assert store.find("writer") is None


async def test_wiped() -> None:
    """After everything was lost, registrations are there again, claims are to be made, watches know what differs."""
    store, heard = MemoryRegistryStore(), Heard()
    one, other = MemoryRegistry(store), MemoryRegistry(store)
    await one.register("workers/one", b"1")
    await one.put("workers/put", b"2")
    await one.claim("writer", b"1")
    await other.watch("workers/", heard.on_change, heard.on_health)
    one.away = other.away = True
    store.wipe()
    one.away = other.away = False
    await heard.until(lambda heard: heard.health == [False, True] and heard.keys == {"workers/one": b"1"})
    assert store.revision == 1
    assert await other.claim("writer", b"2") == 2
    assert await one.claim("writer", b"1") is None
