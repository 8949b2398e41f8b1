"""Workers that are there and do nothing: found out, each in its own way, and their answers go on elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

from actors.engines.simulated.simulated_engine import SimulatedEngine
from actors.membership import failure_detector
from actors.worker import engine_watchdog
from core.events import RequestMigrated, RequestRouted, WorkerLost
from core.generation import Output
from core.ids import WorkerId
from core.subjects import ROUTING, kv_stream
from tests.actors.membership.test_failure_detector import freeze, worker_id
from tests.actors.moving import fleet, greedy, rest, right, scripted, stream_of, until_more, where
from tests.actors.scripted_engine import ScriptedEngine
from tests.actors.world import collect, request, world
from tests.fixtures.eventually import eventually


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Observations come often, so that tests wait little."""
    monkeypatch.setattr(failure_detector, "OBSERVE_EVERY_S", 0.02)
    monkeypatch.setattr(failure_detector, "SILENT_S", 0.4)
    monkeypatch.setattr(engine_watchdog, "CHECK_EVERY_S", 0.02)
    yield


async def test_an_engine_that_hangs_is_found_out() -> None:
    """Its worker answers as before, finds it out, and ends itself."""
    async with world() as it:
        router = await fleet(it, "a", "b", engine_stall_s=0.4)
        tokens: list[int] = []
        stream = stream_of(router, greedy())
        await until_more(stream, tokens, 5)
        hung = it.workers.pop(where(it, router))
        engine = hung.engine
        assert isinstance(engine, SimulatedEngine)
        engine.hang()
        more = asyncio.create_task(rest(stream, tokens))
        reason = await hung.serve()
        assert reason == "engine dead: it hangs: no step for 0.4 s though requests wait"
        await hung.stop(reason, drain=False)
        assert await more == "length"
        assert tokens == right()
        (moved,) = await it.told(ROUTING, RequestMigrated)
        assert moved.reason == reason


async def test_steps_and_idleness_are_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that ends steps gets on, whatever comes of them; one that nobody waits for need not."""
    monkeypatch.setattr(engine_watchdog, "CHECK_EVERY_S", 0.002)
    seen = [None] * 30 + [(step,) for step in range(30)] + [(30,)] * 40
    looks = iter(seen)

    def evidence() -> object:
        return next(looks)

    engine = ScriptedEngine()
    assert "hangs" in await engine_watchdog.wait_until_dead(engine, evidence, 0.04)
    assert 30 + 30 + 20 <= len(seen) - len(list(looks)) <= 30 + 30 + 22


async def test_a_stopped_worker_is_found_out_before_its_lease_is_over() -> None:
    """Its streams go on elsewhere, and nothing is said of its end: it may wake up."""
    async with world() as it:
        router = await fleet(it, "a", "b")
        tokens: list[int] = []
        stream = stream_of(router, greedy())
        await until_more(stream, tokens, 5)
        name = where(it, router)
        stopped = await freeze(it, name)
        assert await rest(stream, tokens) == "length"
        assert tokens == right()
        assert not router.fleet.connected(stopped)
        assert not await it.told(kv_stream(0), WorkerLost)
        assert router.fleet.connected(WorkerId(worker_id(it, "b" if name == "a" else "a")))
        await it.crash(name)


async def test_a_worker_that_falls_silent_gets_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before its connection is given up, as long as there are others; when it answers it is used again."""
    monkeypatch.setattr(failure_detector, "MUTE_S", 0.1)
    monkeypatch.setattr(failure_detector, "SILENT_S", 600.0)
    async with world() as it:
        router = await fleet(it, "a", "b")
        connections = list(it.workers["a"].port._connections)
        for connection in connections:
            assert connection._transport is not None
            connection._transport.pause_reading()
        silent = worker_id(it, "a")
        await eventually(lambda: router.failure_detector.suspected == {silent}, "it is silent")
        for number in range(6):
            await collect(router, request(range(number * 99, number * 99 + 40)))
        await it.settled(router)
        assert {event.worker for event in await it.told(ROUTING, RequestRouted)} == {worker_id(it, "b")}
        for connection in connections:
            assert connection._transport is not None
            connection._transport.resume_reading()
        await eventually(lambda: not router.failure_detector.suspected, "it answers")


async def test_a_silent_connection_with_answers_to_pings_stands() -> None:
    """A long prompt makes no token for a while, and an idle worker says nothing by itself."""
    async with world() as it:
        router, engines = await scripted(it, "a")
        stream = stream_of(router, msgspec.structs.replace(greedy(), id="x"))
        first = asyncio.create_task(stream.__anext__())
        line = router.fleet.clients[worker_id(it, "a")]._connection
        await asyncio.sleep(1.0)
        assert router.fleet.clients[worker_id(it, "a")]._connection is line
        engines["a"].script("x").put_nowait(Output(tokens=(5,), finish="stop"))
        assert (await first).tokens == (5,)
        await stream.aclose()


async def test_late_tokens_of_a_worker_that_wakes_up_are_nobodys() -> None:
    """It finds its connection broken, and its engine stops."""
    async with world() as it:
        router = await fleet(it, "a", "b")
        tokens: list[int] = []
        stream = stream_of(router, greedy())
        await until_more(stream, tokens, 5)
        stopped = it.workers[where(it, router)]
        for connection in stopped.port._connections:
            assert connection._transport is not None
            connection._transport.pause_reading()
            connection._writable = False
        asleep = list(stopped.port._connections)
        moved = len(await it.told(ROUTING, RequestMigrated))
        assert await rest(stream, tokens) == "length"
        assert tokens == right()
        assert len(await it.told(ROUTING, RequestMigrated)) == moved + 1
        for connection in asleep:
            connection.resume_writing()
        await eventually(lambda: not stopped.port.streams, "nothing is served")
        await eventually(lambda: not stopped.engine.load().running, "the engine stopped")
        await eventually(lambda: router.fleet.connected(worker_id(it, stopped.options.name)), "it is used again")
