"""Adapters that are loaded at the first request for them: slots, evictions by use, and loads that fail."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from actors.engines.engine_adapters import AdapterCopy, EngineAdapters
from actors.worker import adapter_slots
from actors.worker.adapter_slots import AdapterSlots
from core.clock import SystemClock
from core.errors import CallerError, Declined, Unavailable
from core.events import AdapterChange, AdapterEvicted, AdapterLoaded, AdapterUnloaded
from tests.fixtures.adapter_folder import adapter_folder
from tests.fixtures.eventually import eventually

NAMES = ("a", "b", "c", "d")


class ScriptedLoads:
    """An engine's side, and everything that was done in order."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.faults: dict[str, Exception] = {}
        self.gate = asyncio.Event()
        self.gate.set()

    async def attach(self, copy: AdapterCopy) -> None:
        await self.gate.wait()
        if copy.name in self.faults:
            raise self.faults[copy.name]
        self.done.append(f"load {copy.name}")

    async def detach(self, copy: AdapterCopy) -> None:
        self.done.append(f"forget {copy.name}")

    def note(self, event: AdapterChange) -> None:
        self.done.append(f"{type(event).__name__} {event.name}")


class Opened:
    """Two slots for four adapters."""

    def __init__(self) -> None:
        self.loads = ScriptedLoads()
        self.engine = EngineAdapters(self.loads.attach, self.loads.detach)
        self.slots = AdapterSlots(self.engine, 2, SystemClock(), self.loads.note)

    async def stage(self, folder: Path) -> None:
        await self.slots.stage({name: adapter_folder(folder / name, name.encode()) for name in NAMES})

    def id(self, name: str) -> str:
        return self.slots.adapters[name].id

    async def use(self, *names: str) -> None:
        for name in names:
            async with self.slots.using(self.id(name)):
                with self.engine.using(self.id(name)):
                    pass

    @property
    def loaded(self) -> str:
        return "".join(each[0] for each in self.slots.loaded)


@pytest.fixture
async def opened(tmp_path: Path) -> Opened:
    opened = Opened()
    await opened.stage(tmp_path)
    return opened


async def test_the_first_request_loads(opened: Opened) -> None:
    """All are announced as cold, with the time of their files. A load changes that alone, and comes once."""
    before = dict(opened.slots.adapters)
    assert {each.cold for each in before.values()} == {True}
    await opened.use("a", "a")
    assert opened.loads.done == ["load a", "AdapterLoaded a"]
    after = opened.slots.adapters["a"]
    assert (after.id, after.loaded_ms, after.cold is True) == (before["a"].id, before["a"].loaded_ms, False)
    assert opened.slots.adapters["b"] == before["b"]
    opened.engine.close()


async def test_the_least_recently_used_goes(opened: Opened) -> None:
    """The log has its end before the engine forgets it. One that comes back lies where it lay."""
    await opened.use("a", "b", "a", "c")
    assert opened.loaded == "ac"
    assert opened.loads.done[4:] == ["AdapterEvicted b", "forget b", "load c", "AdapterLoaded c"]
    assert opened.slots.adapters["b"].cold is True
    folders = {copy.folder for copy in opened.engine.served()}
    await opened.use("b", "c")
    assert opened.loaded == "bc"
    assert len({copy.folder for copy in opened.engine.served()} | folders) == 3
    opened.engine.close()


async def test_one_with_requests_stays(opened: Opened) -> None:
    """Another one goes in its place; while each has some, a request for a third waits until one ends."""
    async with AsyncExitStack() as busy:
        await busy.enter_async_context(opened.slots.using(opened.id("a")))
        await opened.use("b", "c")
        assert opened.loaded == "ac"
        second = opened.slots.using(opened.id("c"))
        await second.__aenter__()
        waiting = asyncio.create_task(opened.use("d"))
        await asyncio.sleep(0.01)
        assert (waiting.done(), opened.loaded) == (False, "ac")
        await second.__aexit__(None, None, None)
        await waiting
        assert opened.loaded == "ad"
    opened.engine.close()


async def test_a_wait_has_a_bound(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """LOAD_WAIT_S, for a slot and for the load of others; the request is declined."""
    monkeypatch.setattr(adapter_slots, "LOAD_WAIT_S", 0.05)
    async with opened.slots.using(opened.id("a")), opened.slots.using(opened.id("b")):
        with pytest.raises(Declined, match="no adapter was without requests"):
            await opened.use("c")
    opened.loads.gate.clear()
    first = asyncio.create_task(opened.use("c"))
    await asyncio.sleep(0)
    with pytest.raises(Declined, match="other adapters were loaded"):
        await opened.use("d")
    opened.loads.gate.set()
    await first
    opened.engine.close()


async def test_requests_at_once_load_once(opened: Opened) -> None:
    """They wait for the one load, and a request that is given up leaves the others theirs."""
    opened.loads.gate.clear()
    tasks = [asyncio.create_task(opened.use("a")) for _ in range(5)]
    await asyncio.sleep(0.01)
    tasks[0].cancel()
    opened.loads.gate.set()
    await asyncio.gather(*tasks[1:])
    assert opened.loads.done == ["load a", "AdapterLoaded a"]
    opened.engine.close()


async def test_one_that_the_engine_refuses(opened: Opened) -> None:
    """Is announced no more; one that an engine cannot load now is kept."""
    opened.loads.faults = {"a": CallerError("rank 512"), "b": Unavailable("away")}
    adapter = opened.id("a")
    with pytest.raises(Declined, match="cannot be loaded: rank 512"):
        await opened.use("a")
    assert opened.loads.done == ["AdapterUnloaded a"]
    assert [*opened.slots.adapters] == ["b", "c", "d"]
    assert not opened.slots.announces(adapter)
    with pytest.raises(Declined, match="not served here any more"):
        async with opened.slots.using(adapter):
            pass
    with pytest.raises(Declined, match="cannot be loaded now: away"):
        await opened.use("b")
    opened.loads.faults = {}
    await opened.use("b")
    assert opened.loaded == "b"
    opened.engine.close()


async def test_events_name_the_weights(opened: Opened) -> None:
    """Each has the digest of the adapter that it is about."""
    events: list[AdapterChange] = []
    opened.slots._on_change = events.append
    await opened.use("a", "b", "c")
    kinds = [AdapterLoaded, AdapterLoaded, AdapterEvicted, AdapterLoaded]
    assert [type(event) for event in events] == kinds
    assert [event.digest for event in events] == [opened.slots.adapters[name].digest for name in "abac"]
    assert not any(isinstance(event, AdapterUnloaded) for event in events)
    await eventually(lambda: opened.loaded == "bc", "two are loaded")
    opened.engine.close()
