"""Which workers a replica knows, what it knows of their models, and what it forgets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import orjson
import pytest

from actors.router import model_catalog as catalog_module
from actors.router.fleet import FAILED_FOR_MS, STALE_AFTER_MS, Fleet
from actors.transport.worker_server import WorkerServer
from core.clock import ManualClock
from core.ids import WorkerId, new_id
from streams.memory.memory_registry import MemoryRegistry, MemoryRegistryStore
from tests.actors.scripted_engine import ScriptedHost
from tests.actors.transport.linking import LINK, TokenReader
from tests.actors.world import request
from tests.fixtures.eventually import eventually

NOBODY: frozenset[WorkerId] = frozenset()


class Yard:
    """A fleet over a registry in memory, and workers that are nothing but their ports."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000)
        self.store = MemoryRegistryStore()
        self.registry = MemoryRegistry(self.store)
        self.changes = 0
        self.fleet = Fleet(self.registry, self.clock, LINK, lambda: "r", self._changed)
        self.hosts: dict[WorkerId, ScriptedHost] = {}
        self.ports: dict[WorkerId, WorkerServer] = {}
        self.addresses: dict[WorkerId, str] = {}

    def _changed(self) -> None:
        self.changes += 1

    async def worker(self, *, registered: bool = True, **details: object) -> WorkerId:
        worker, host = WorkerId(new_id()), ScriptedHost()
        host.worker = worker
        self.hosts[worker], self.ports[worker] = host, WorkerServer(host, LINK)
        name, port = await self.ports[worker].open("127.0.0.1", 0)
        self.addresses[worker] = f"{name}:{port}"
        if registered:
            self.register(worker, **details)
        return worker

    def register(self, worker: WorkerId, **details: object) -> None:
        known = {"model": "sim", "engine": "e 1", "block_size": 16, "context_max": 100, "address": ""}
        value = {**known, "address": self.addresses[worker], "name": "w", "surprise": [], **details}
        self.store.put(f"workers/{worker}", orjson.dumps(value))

    async def unregister(self, worker: WorkerId) -> None:
        self.store.delete(f"workers/{worker}")
        await eventually(lambda: worker not in self.fleet.registered, "it is gone")

    async def connected(self, worker: WorkerId) -> None:
        await eventually(lambda: self.fleet.connected(worker), "a connection")

    async def known(self, model: str = "sim") -> None:
        await eventually(lambda: model in self.fleet.catalog, "the model is known")


@asynccontextmanager
async def yard() -> AsyncIterator[Yard]:
    """Nothing of it is left behind."""
    it = Yard()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(it.registry.close)
        stack.push_async_callback(lambda: asyncio.gather(*(port.close() for port in it.ports.values())))
        stack.push_async_callback(it.fleet.close)
        await it.fleet.start()
        yield it


async def test_a_registered_worker_is_connected_and_its_model_known() -> None:
    """The card has what the worker registered and gave; a model nobody serves is none."""
    async with yard() as it:
        await it.known() if await it.worker() else None
        card = it.fleet.catalog.card("sim", 3)
        assert (card.name, card.engine, card.context_max, card.workers) == ("sim", "e 1", 100, 3)
        assert card.files == {"tokenizer.json": b"{}"}
        assert it.fleet.catalog.block_size("sim") == 16
        with pytest.raises(KeyError):
            it.fleet.catalog.card("other", 0)
        assert it.changes


async def test_a_worker_that_was_connected_before_it_registered_teaches_too() -> None:
    """As when its lease was lost and came back: the order of connection and registration does not matter."""
    async with yard() as it:
        worker = await it.worker(registered=False)
        it.fleet.connect(worker, it.addresses[worker])
        await it.connected(worker)
        assert "sim" not in it.fleet.catalog
        it.register(worker)
        await it.known()


async def test_what_one_worker_does_not_give_another_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learning goes on until a worker answers, while one is connected."""
    monkeypatch.setattr(catalog_module, "LEARN_RETRY_S", 0.01)
    async with yard() as it:
        first = await it.worker(registered=False)
        asked: list[bool] = []

        def files() -> dict[str, bytes]:
            asked.append(True)
            it.ports[first]._connections.copy().pop().abort()
            return {}

        it.hosts[first].files = files  # type: ignore[method-assign]
        it.register(first)
        await eventually(lambda: asked, "it was asked")
        await it.worker()
        await it.known()


async def test_a_model_is_learned_anew_with_new_workers() -> None:
    """Not while one of the kind that taught us is there; then at once, and also after all were gone for a while."""
    async with yard() as it:
        old = await it.worker()
        await it.known()
        new = await it.worker(block_size=32, engine="e 2")
        await it.connected(new)
        assert it.fleet.catalog.block_size("sim") == 16
        await it.unregister(old)
        await eventually(lambda: it.fleet.catalog.block_size("sim") == 32, "the new kind")
        await it.unregister(new)
        assert it.fleet.catalog.card("sim", 0).engine == "e 2"
        again = await it.worker(registered=False)
        it.hosts[again].tokenizer = {"tokenizer.json": b"new"}
        it.register(again, block_size=32, engine="e 2")
        await eventually(lambda: it.fleet.catalog.card("sim", 1).files["tokenizer.json"] == b"new", "the new tokenizer")


async def test_nonsense_in_the_registry_is_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """What is no registration is said and passed over; the others go on."""
    async with yard() as it:
        for number, value in enumerate((b"", b"[]", b"{}", b'{"model": 3}', b"\xff\xff")):
            it.store.put(f"workers/{number}", value)
        worker = await it.worker(block_size=0)
        await eventually(lambda: caplog.text.count("no registration of a worker") == 6, "all were read")
        assert not it.fleet.registered
        it.register(worker)
        await it.known()


async def test_nothing_is_kept_of_a_worker_that_is_over() -> None:
    """However its end comes: once it is neither registered nor alive by the log, its link can go, and all else went."""
    async with yard() as it:
        worker = await it.worker()
        await it.connected(worker)
        it.fleet.on_load_report(worker)
        it.fleet.on_request_failed(worker)
        it.fleet.forget_all_but(set())  # still registered: the log's word may be late
        assert it.fleet._reported_ms.keys() == it.fleet._failed_ms.keys() == {worker}
        await it.unregister(worker)
        it.fleet.forget_all_but({worker})
        assert it.fleet._reported_ms.keys() == it.fleet._failed_ms.keys() == {worker}
        it.fleet.forget_all_but(set())
        assert not (it.fleet._reported_ms or it.fleet._failed_ms)
        link = it.fleet.clients[worker]
        stream = TokenReader.of(link, request(range(4)))
        assert link.streams == 1
        it.fleet.drop(link)
        stream.close()
        assert not it.fleet.clients
        await eventually(lambda: not it.ports[worker]._connections, "the connection is closed")


async def test_what_only_this_replica_knows() -> None:
    """Not connected, failed and stale come and go with their bounds; if most are stale, it is we who are cut off."""
    async with yard() as it:
        a, b, c = [await it.worker() for _ in range(3)]
        for worker in (a, b, c):
            await it.connected(worker)
        gone = WorkerId(new_id())
        everyone = [a, b, c, gone]

        def local() -> dict[str, list[WorkerId]]:
            found = it.fleet.local(everyone, frozenset({c}))
            return {reason: sorted(workers) for reason, workers in found.items() if workers}

        assert local() == {"not_connected": [gone], "suspected": [c]}
        it.fleet.on_request_failed(a)
        it.fleet.on_request_failed(gone)
        it.fleet.on_request_failed(WorkerId("unknown"))
        it.clock.advance(FAILED_FOR_MS - 1)
        assert local() == {"not_connected": [gone], "suspected": [c], "failed": [a]}
        it.clock.advance(1)
        assert local() == {"not_connected": [gone], "suspected": [c]}
        it.clock.advance(STALE_AFTER_MS - FAILED_FOR_MS - 1)
        for worker in (b, c):
            it.fleet.on_load_report(worker)
        it.clock.advance(1)
        assert local()["stale"] == sorted([a, gone])
        it.clock.advance(STALE_AFTER_MS - 1)
        assert "stale" not in local()
        assert local()["cut_off"] == sorted(everyone)


async def test_what_only_this_replica_knows_is_kept_while_it_holds() -> None:
    """The very same answer, until a worker falls silent, fails, is suspected, or its link breaks."""
    async with yard() as it:
        a, b = [await it.worker() for _ in range(2)]
        for worker in (a, b):
            await it.connected(worker)
        everyone, local = [a, b], it.fleet.local
        first = local(everyone, NOBODY)
        it.clock.advance(STALE_AFTER_MS - 1)
        assert local(everyone, NOBODY) is first
        assert local(everyone, frozenset({b}))["suspected"] == {b}
        assert local(list(everyone), NOBODY) is not first
        it.fleet.on_load_report(a)
        it.clock.advance(1)
        assert local(everyone, NOBODY)["stale"] == {b}
        it.fleet.on_load_report(b)
        again = local(everyone, NOBODY)
        assert not again["stale"]
        it.fleet.on_request_failed(a)
        assert local(everyone, NOBODY)["failed"] == {a}
        it.clock.advance(FAILED_FOR_MS)
        assert not local(everyone, NOBODY)["failed"]
        it.fleet.clients[a].cut()
        assert local(everyone, NOBODY)["not_connected"] == {a}, "in the very turn in which it broke"
        await it.connected(a)
        assert not local(everyone, NOBODY)["not_connected"]


async def test_a_dropped_link_is_missed_at_once() -> None:
    """Though nobody of the links' own tells of it."""
    async with yard() as it:
        worker = await it.worker()
        await it.connected(worker)
        everyone = [worker]
        assert not it.fleet.local(everyone, NOBODY)["not_connected"]
        it.fleet.drop(it.fleet.clients[worker])
        assert it.fleet.local(everyone, NOBODY)["not_connected"] == {worker}


async def test_the_registry_away_changes_nothing() -> None:
    """What is known goes on, and that it is away is known; afterwards what differs is told."""
    async with yard() as it:
        worker = await it.worker()
        await it.known()
        it.registry.away = True
        await eventually(lambda: not it.fleet.registry_healthy, "it is away")
        it.store.expire(f"workers/{worker}")
        new = await it.worker()
        assert it.fleet.connected(worker)
        assert worker in it.fleet.registered
        it.registry.away = False
        await it.connected(new)
        assert worker not in it.fleet.registered
        assert it.fleet.registry_healthy


async def test_a_closed_fleet_connects_to_nobody() -> None:
    """Though the registry goes on telling."""
    async with yard() as it:
        await it.worker()
        await it.known()
        await it.fleet.close()
        it.fleet.clients.clear()
        await it.worker()
        await asyncio.sleep(0)
        assert not it.fleet.clients
