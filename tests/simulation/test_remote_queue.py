"""The work queue over a network that delays and loses, and workers that are killed."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from core.errors import Unavailable
from core.ids import StreamSeq
from core.subjects import JOBS, asked_token, asked_wildcard, subject
from streams.log import QueueLimits
from streams.memory.memory_log import MemoryLog
from tests.simulation.loop import Process, VirtualClock, VirtualLoop
from tests.simulation.network import Network
from tests.simulation.options import Options
from tests.simulation.remote_log import ANSWER_TIMEOUT_S, Broker, RemoteLog
from tests.simulation.witness import Witness

NAMESPACE = "test"
LIMITS = QueueLimits(ack_wait_s=5.0, deliveries_max=1_000, pending_max=8)
JOBS_COUNT = 40
INSTANT = Options(instant=1.0)
ROUGH = Options(instant=0.3, slow=0.1, slow_s=0.5, ask_lost=0.1, answer_lost=0.1)


class Workers:
    """Processes that share a queue, and what each of them has done."""

    def __init__(self, loop: VirtualLoop, seed: int, options: Options) -> None:
        self.log = MemoryLog(NAMESPACE, VirtualClock(loop))
        self.done: list[tuple[str, int]] = []
        """Who has done which, once it knows that the log heard of it."""
        self.begun: list[tuple[str, int, int]] = []
        """Who was handed which, and which time it was."""
        self.processes: list[Process] = []
        network = Network(loop, random.Random(seed), options)
        self._loop, self._random = loop, random.Random(seed + 1)
        self._broker = Broker(self.log, Process("log"), network, Witness(loop), options)

    def start(self, name: str, work_s: float) -> Process:
        """A process that takes one after the other, for ever."""
        process = Process(name)
        self.processes.append(process)
        log = RemoteLog(self._broker, process, self._loop, self._random)
        self._loop.create_task(self._work(log, name, work_s), context=process.context)
        return process

    async def ask(self, count: int) -> None:
        """So many messages are in the log."""
        written, last = subject(NAMESPACE, JOBS, asked_token("d0")), StreamSeq(0)
        for number in range(count):
            last = await self.log.append(JOBS, written, b"%d" % number, str(number), last)

    async def _work(self, log: RemoteLog, name: str, work_s: float) -> None:
        queue = None
        while True:
            try:
                queue = queue or await log.queue(JOBS, "prefill", asked_wildcard(NAMESPACE), LIMITS)
                delivery = await queue.next(2.0)
                if delivery is None:
                    continue
                self.begun.append((name, delivery.record.seq, delivery.number))
                await asyncio.sleep(work_s)
                await delivery.working()
                await asyncio.sleep(work_s)
                await delivery.done()
                self.done.append((name, delivery.record.seq))
            except Unavailable:
                await asyncio.sleep(0.1)


def run(what: Any, seed: int = 1, options: Options = INSTANT) -> None:
    loop = VirtualLoop(random.Random(seed))
    try:
        it = Workers(loop, seed, options)
        loop.run_until_complete(what(it))
        for process in it.processes:
            loop.bury(process)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()


def test_the_dead_do_not_acknowledge() -> None:
    """What a killed process was handed comes again to another one, not before its time is over."""

    async def story(it: Workers) -> None:
        await it.log.ensure([JOBS])
        first = it.start("first", 1.0)
        await asyncio.sleep(0.1)
        await it.ask(1)
        await asyncio.sleep(0.5)
        first.kill()
        it.start("second", 0.1)
        await asyncio.sleep(LIMITS.ack_wait_s - 0.7)
        assert it.begun == [("first", 1, 1)]
        await asyncio.sleep(1.0)
        assert it.begun == [("first", 1, 1), ("second", 1, 2)]
        assert it.done == [("second", 1)]

    run(story)


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_lost(seed: int) -> None:
    """Calls that fail, answers that are lost, a worker that is killed: each message is done in the end, and what is
    handed out twice says so."""

    async def story(it: Workers) -> None:
        await it.log.ensure([JOBS])
        doomed = it.start("doomed", 0.2)
        for name in ("one", "two"):
            it.start(name, 0.2)
        await asyncio.sleep(2 * ANSWER_TIMEOUT_S + 1.0)
        await it.ask(JOBS_COUNT)
        await asyncio.sleep(2.0)
        doomed.kill()
        await asyncio.sleep(120.0)
        # a `done` whose answer was lost was done all the same
        assert {seq for _, seq, _ in it.begun} == set(range(1, JOBS_COUNT + 1))
        quiet = len(it.begun)
        await asyncio.sleep(60.0)
        assert len(it.begun) == quiet
        numbers = [(seq, number) for _, seq, number in it.begun]
        assert len(set(numbers)) == len(numbers)
        assert quiet > JOBS_COUNT, "nothing went wrong"

    run(story, seed, ROUGH)


def test_cancelled() -> None:
    """What was on the way to a `next` that is cancelled is for the next one at once."""

    async def story(it: Workers) -> None:
        await it.log.ensure([JOBS])
        log = RemoteLog(it._broker, Process("p"), it._loop, random.Random(1))
        queue = await log.queue(JOBS, "prefill", asked_wildcard(NAMESPACE), LIMITS)
        await it.ask(20)
        for wait_s in (0.001 * number for number in range(20)):
            waiting = it._loop.create_task(queue.next(2.0))
            await asyncio.sleep(wait_s)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await asyncio.sleep(0.2)
            begun_s = it._loop.now_s
            found = await queue.next(2.0) if waiting.cancelled() else waiting.result()
            assert found is not None
            assert it._loop.now_s - begun_s < 1.0
            await found.done()
        assert await queue.next(2 * LIMITS.ack_wait_s) is None

    run(story, options=Options(instant=0.0, slow=0.0, delay_s=0.02))
