"""What every registry must do, in memory and on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from core.errors import Unavailable
from streams.registry import Change, Registry

Connect = Callable[[], Awaitable[Registry]]
"""Another process's registry on the same store and namespace."""

PATIENCE_S = 30.0
"""Longest wait of a test for what must come."""


class Heard:
    """What a watch told, in order, and a way to wait for more."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.health: list[bool] = []
        self._more = asyncio.Event()

    def on_change(self, change: Change) -> None:
        self.changes.append(change)
        self._more.set()

    def on_health(self, healthy: bool) -> None:
        self.health.append(healthy)
        self._more.set()

    @property
    def story(self) -> list[tuple[str, bytes | None]]:
        """Keys and values as they came."""
        return [(change.key, change.value) for change in self.changes]

    @property
    def keys(self) -> dict[str, bytes]:
        """What is there, for one who believed all changes."""
        now = {change.key: change.value for change in self.changes}
        return {key: value for key, value in now.items() if value is not None}

    async def until(self, so: Callable[[Heard], bool]) -> None:
        """Returns when it is so; TimeoutError if it does not become so."""
        async with asyncio.timeout(PATIENCE_S):
            while not so(self):
                self._more.clear()
                await self._more.wait()


class RegistryContract:
    """Subclasses define the fixture `connect`, which closes what it connected."""

    async def test_put_and_get(self, connect: Connect) -> None:
        """What one process puts the other gets, sorted by key, with growing revisions."""
        one, other = await connect(), await connect()
        later = await one.put("workers/b", b"2")
        latest = await one.put("workers/a", b"1")
        assert latest > later
        assert await other.get("workers/") == [Change("workers/a", b"1", latest), Change("workers/b", b"2", later)]

    async def test_prefix(self, connect: Connect) -> None:
        """A prefix selects what begins with it, the empty one everything."""
        one = await connect()
        for key in ("replicas/a", "workers/a", "workers2/a"):
            await one.put(key, b"x")
        assert [change.key for change in await one.get("workers/")] == ["workers/a"]
        assert [change.key for change in await one.get("")] == ["replicas/a", "workers/a", "workers2/a"]
        assert await one.get("settings/") == []

    async def test_register_lasts_as_long_as_the_process(self, connect: Connect) -> None:
        """A registration is there until its owner closes; what was put stays."""
        owner, other = await connect(), await connect()
        await owner.register("workers/a", b"1")
        await owner.put("settings/routing", b"2")
        assert [change.key for change in await other.get("")] == ["settings/routing", "workers/a"]
        await owner.close()
        assert [change.key for change in await other.get("")] == ["settings/routing"]

    async def test_register_again_and_unregister(self, connect: Connect) -> None:
        """Registering again replaces the value; unregistering removes the key, and may be repeated."""
        one = await connect()
        await one.register("workers/a", b"1")
        await one.register("workers/a", b"2")
        assert [change.value for change in await one.get("workers/")] == [b"2"]
        await one.unregister("workers/a")
        await one.unregister("workers/a")
        assert await one.get("workers/") == []

    async def test_claim_is_one_process_s_alone(self, connect: Connect) -> None:
        """A claim is refused to others, the same when made again, and given up as a registration is."""
        one, other = await connect(), await connect()
        revision = await one.claim("snapshots/writer", b"1")
        assert revision is not None
        assert await other.claim("snapshots/writer", b"2") is None
        assert await one.claim("snapshots/writer", b"3") == revision
        assert await other.get("snapshots/") == [Change("snapshots/writer", b"1", revision)]
        await one.unregister("snapshots/writer")
        await one.unregister("snapshots/writer")
        later = await other.claim("snapshots/writer", b"2")
        assert later is not None
        assert later > revision
        assert await one.claim("snapshots/writer", b"1") is None

    async def test_claims_of_many_at_once(self, connect: Connect) -> None:
        """One of them has it, however many ask."""
        registries = [await connect() for _ in range(4)]
        claims = await asyncio.gather(*(registries[i % 4].claim("one", b"%d" % (i % 4)) for i in range(40)))
        granted = {i % 4: claim for i, claim in enumerate(claims) if claim is not None}
        assert len(granted) == 1
        assert [claim for claim in claims if claim is not None] == [*granted.values()] * 10

    async def test_claim_of_another_is_not_given_up(self, connect: Connect) -> None:
        """Whoever tried and failed, or never had it, cannot take it away."""
        one, other = await connect(), await connect()
        assert await one.claim("snapshots/writer", b"1") is not None
        assert await other.claim("snapshots/writer", b"2") is None
        await other.unregister("snapshots/writer")
        assert [change.value for change in await one.get("snapshots/")] == [b"1"]

    async def test_claim_ends_with_its_process(self, connect: Connect) -> None:
        """When its owner closes, a claim is gone for those who watch, and another's to make."""
        owner, other, heard = await connect(), await connect(), Heard()
        await other.watch("claims/", heard.on_change)
        assert await owner.claim("claims/a", b"1") is not None
        await owner.close()
        await heard.until(lambda heard: heard.story == [("claims/a", b"1"), ("claims/a", None)])
        assert await other.claim("claims/a", b"2") is not None

    async def test_claim_of_what_is_there_for_good(self, connect: Connect) -> None:
        """A key that was put, or that another registered, cannot be claimed."""
        one, other = await connect(), await connect()
        await other.put("put", b"1")
        await other.register("registered", b"1")
        assert await one.claim("put", b"2") is None
        assert await one.claim("registered", b"2") is None

    async def test_watch_tells_what_is_there_then_changes(self, connect: Connect) -> None:
        """When `watch` returns, what was there has been told; each later change follows once, in order."""
        one, other, heard = await connect(), await connect(), Heard()
        await other.put("workers/a", b"1")
        await one.watch("workers/", heard.on_change, heard.on_health)
        assert heard.story == [("workers/a", b"1")]
        await other.register("workers/b", b"2")
        await other.put("elsewhere", b"-")
        await other.put("workers/a", b"3")
        await other.unregister("workers/b")
        await other.unregister("workers/never")
        await other.put("workers/end", b"4")
        await heard.until(lambda heard: "workers/end" in heard.keys)
        assert heard.story[1:] == [
            ("workers/b", b"2"),
            ("workers/a", b"3"),
            ("workers/b", None),
            ("workers/end", b"4"),
        ]
        revisions = [change.revision for change in heard.changes]
        assert revisions == sorted(set(revisions))
        assert heard.health == []

    async def test_watch_tells_the_end_of_a_process(self, connect: Connect) -> None:
        """A watch hears of registrations whose owner closed."""
        one, owner, heard = await connect(), await connect(), Heard()
        await one.watch("workers/", heard.on_change)
        await owner.register("workers/a", b"1")
        await owner.close()
        await heard.until(lambda heard: heard.story == [("workers/a", b"1"), ("workers/a", None)])

    async def test_watches_are_apart(self, connect: Connect) -> None:
        """Several watches of one process each hear their own prefix."""
        one, workers, replicas = await connect(), Heard(), Heard()
        await one.watch("workers/", workers.on_change)
        await one.watch("replicas/", replicas.on_change)
        await one.put("replicas/a", b"1")
        await one.put("workers/a", b"2")
        await workers.until(lambda heard: heard.story == [("workers/a", b"2")])
        await replicas.until(lambda heard: heard.story == [("replicas/a", b"1")])

    async def test_many_changes_from_several_writers(self, connect: Connect) -> None:
        """No change is lost, doubled or out of order when many come at once."""
        one, heard = await connect(), Heard()
        writers = [await connect() for _ in range(3)]
        await one.watch("n/", heard.on_change)
        written = await asyncio.gather(*(writers[i % 3].put("n/x", b"%d" % i) for i in range(100)))
        await heard.until(lambda heard: len(heard.changes) >= 100)
        assert [change.revision for change in heard.changes] == sorted(written)

    async def test_closed(self, connect: Connect) -> None:
        """After `close` calls raise Unavailable, watches are silent, and closing again is harmless."""
        one, other, silent, heard = await connect(), await connect(), Heard(), Heard()
        await one.watch("workers/", silent.on_change, silent.on_health)
        await other.watch("workers/", heard.on_change)
        await one.close()
        await one.close()
        await other.put("workers/a", b"1")
        await heard.until(lambda heard: bool(heard.changes))
        assert silent.changes == []
        assert silent.health == []
        for call in (one.put("k", b""), one.get("")):
            with pytest.raises(Unavailable):
                await call
        with pytest.raises(Unavailable):
            await one.register("k", b"")
        with pytest.raises(Unavailable):
            await one.claim("c", b"")
