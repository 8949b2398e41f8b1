"""Virtual time, and processes that are killed between two steps."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.simulation.loop import PROCESS, Process, Stuck, VirtualLoop
from tests.simulation.network import Network
from tests.simulation.options import Options


def run(what: Coroutine[Any, Any, Any], order: random.Random | None = None) -> VirtualLoop:
    loop = VirtualLoop(order)
    try:
        loop.run_until_complete(what)
    finally:
        loop.close()
    return loop


def test_time_jumps_to_the_next_timer() -> None:
    """A day of sleep takes no time, and timers go off in the order in which they are due."""
    went_off: list[int] = []

    async def sleeps(hours: int) -> None:
        await asyncio.sleep(hours * 3600)
        went_off.append(hours)

    async def main() -> None:
        await asyncio.gather(*map(sleeps, (24, 1, 7)))

    assert run(main()).time() == 24 * 3600
    assert went_off == [1, 7, 24]


def test_what_can_never_end_is_said() -> None:
    """A world in which nothing can happen any more does not hang."""

    async def waits() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck):
        run(waits())


def test_the_killed_do_nothing_more() -> None:
    """A killed process takes no further step: no `finally`, no `except`."""
    did: list[str] = []

    async def works() -> None:
        try:
            for step in range(10):
                did.append(f"step {step}")
                await asyncio.sleep(1)
        finally:
            did.append("cleaned up")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        process = Process("p")
        task = loop.create_task(works(), context=process.context)
        await asyncio.sleep(1.5)
        process.kill()
        await asyncio.sleep(60)
        assert did == ["step 0", "step 1"]
        loop.bury(process)
        task.cancel()
        await asyncio.wait([task])

    run(main())


def test_the_paused_go_on_where_they_were() -> None:
    """A paused process takes no step, and what was due meanwhile happens when it goes on, in the same order."""
    did: list[tuple[str, float]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        process = Process("p")

        async def sleeps(name: str, for_s: float) -> None:
            await asyncio.sleep(for_s)
            did.append((name, loop.now_s))

        tasks = [loop.create_task(sleeps(f"{s} s", s), context=process.context) for s in (1.0, 3.0, 2.0, 9.0)]
        await asyncio.sleep(1.5)
        process.pause()
        await asyncio.sleep(4.0)
        assert did == [("1.0 s", 1.0)]
        loop.go_on(process)
        await asyncio.wait(tasks)

    run(main())
    assert did == [("1.0 s", 1.0), ("2.0 s", 5.5), ("3.0 s", 5.5), ("9.0 s", 9.0)]


def test_what_was_held_up_arrives_where_it_belongs() -> None:
    """Bytes that were on the way to a process that is dead by now wake nobody, and those to a living one wake it."""
    heard: list[str | None] = []

    class Listens(asyncio.Protocol):
        def data_received(self, _: bytes) -> None:
            process = PROCESS.get()
            heard.append(None if process is None else process.name)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        network = loop.network = Network(loop, random.Random(1), Options(instant=1.0))
        speaker, listener = Process("speaker"), Process("listener")

        async def speak() -> None:
            transport, _ = await loop.create_connection(asyncio.Protocol, "", server.port)
            for _ in range(2):
                network.hold(listener)
                transport.write(b"x")
                await asyncio.sleep(1)

        server = listener.context.run(network.listen, Listens)
        speaking = loop.create_task(speak(), context=speaker.context)
        await asyncio.sleep(0.5)
        network.release(listener)
        await speaking
        listener.kill()
        network.release(listener)
        await asyncio.sleep(1)

    run(main())
    assert heard == ["listener"]


@pytest.mark.parametrize("seed", [1, 2])
def test_the_order_of_tasks_is_the_seeds(seed: int) -> None:
    """Tasks that can run do so in an order that the seed draws; callbacks keep theirs."""

    def order(seed: int) -> tuple[list[int], list[int]]:
        steps: list[int] = []
        calls: list[int] = []

        async def step(number: int) -> None:
            steps.append(number)

        async def main() -> None:
            for number in range(20):
                asyncio.get_running_loop().call_soon(calls.append, number)
            await asyncio.gather(*map(step, range(20)))

        run(main(), random.Random(seed))
        return steps, calls

    steps, calls = order(seed)
    assert calls == list(range(20))
    assert steps != calls
    assert sorted(steps) == calls
    assert (steps, calls) == order(seed)
