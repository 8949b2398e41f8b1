"""Whoever hangs up, wherever the request is: the engine stops within a step, and nothing is left of it anywhere."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator
from random import Random

from actors.engines.simulated.simulated_engine import SimulatedEngine
from actors.router.router import Router
from core.clock import ManualClock
from core.events import RequestFinished
from core.generation import Output
from core.settings import RoutingSettings
from core.subjects import ROUTING
from tests.actors.world import FAST, World, request, world
from tests.fixtures.eventually import eventually
from tests.output_stream import generate

STEP_MS = 10
STEPS = dataclasses.replace(FAST, prefill_us_per_token=0, decode_us_per_step=1000 * STEP_MS, max_seqs=2)
HANG_UPS = 150


async def stepped(it: World) -> tuple[Router, SimulatedEngine, ManualClock]:
    """A router with one worker, whose engine makes a step whenever the clock is moved by STEP_MS; what is asked is with
    it at once."""
    clock = ManualClock(1000)
    engine = SimulatedEngine("sim", STEPS, clock)
    await it.worker("a", engine=engine)
    router = await it.router(settings=RoutingSettings(hold_max_ms=0))
    await it.ready(router)
    return router, engine, clock


def asked(router: Router, number: int) -> AsyncGenerator[Output, None]:
    return generate(router, "sim", request(range(number * 50, number * 50 + 40), max_tokens=1000))


async def test_the_engine_stops_within_a_step() -> None:
    """Of a request that runs, and of one that waits for a place there; one that has its client goes on."""
    async with world() as it:
        router, engine, clock = await stepped(it)
        streams = [asked(router, number) for number in range(3)]
        firsts = [asyncio.create_task(anext(stream)) for stream in streams]
        await eventually(lambda: engine.load().running == 2 and engine.load().waiting == 1, "two run, one waits")
        await asyncio.wait(firsts[:2])
        waiting = next(i for i, first in enumerate(firsts) if not first.done())
        running = next(i for i, first in enumerate(firsts) if first.done())
        steps = engine.state.steps
        firsts[waiting].cancel()
        await asyncio.wait([firsts[waiting]])
        await streams[waiting].aclose()
        await streams[running].aclose()
        await eventually(lambda: it.workers["a"].port.streams == 1, "the worker has heard of it")
        clock.advance(STEP_MS)
        await eventually(lambda: engine.state.steps > steps, "a step")
        load = engine.load()
        assert (load.running, load.waiting) == (1, 0)
        assert engine.state.steps == steps + 1
        (other,) = {0, 1, 2} - {waiting, running}
        assert (await anext(streams[other])).tokens
        await streams[other].aclose()


async def test_many_hang_ups_leave_nothing() -> None:
    """At any moment of a request: engines idle, nothing in flight in any fold, no name kept, every end told once."""
    async with world() as it:
        for name in ("a", "b"):
            await it.worker(name, settings=FAST)
        router = await it.router()
        await it.ready(router, 2)
        random = Random(7)

        async def client(number: int) -> None:
            stream = asked(router, number)
            reading = asyncio.create_task(_read(stream, random.randrange(6)))
            await asyncio.wait([reading], timeout=random.choice((0.0, 0.001, 0.01, 0.05)))
            reading.cancel()
            await asyncio.wait([reading])
            await stream.aclose()

        await asyncio.gather(*map(client, range(HANG_UPS)))
        engines = [worker.engine for worker in it.workers.values()]
        await eventually(lambda: not any(worker.port.streams for worker in it.workers.values()), "nothing is served")
        await eventually(lambda: not any(engine.load().blocks_used for engine in engines), "engines idle")
        assert not any(engine.load().running + engine.load().waiting for engine in engines)
        await it.settled(router)
        assert not router.scheduler.running
        assert not router.scheduler.requests
        assert not router.state.routing.in_flight_load.busy
        assert not router.publisher.pending_events.in_flight_load.busy
        assert not any(link.streams for link in router.fleet.clients.values())
        ends = await it.told(ROUTING, RequestFinished)
        assert {end.outcome for end in ends} == {"abort"}
        assert len(ends) == len({end.request for end in ends})


async def _read(stream: AsyncGenerator[Output, None], outputs: int) -> None:
    for _ in range(outputs):
        await anext(stream)
