"""The work queue in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from core.clock import ManualClock
from core.ids import StreamSeq
from core.subjects import JOBS
from streams.memory.memory_log import MemoryLog
from streams.memory.memory_queue import matches
from tests.contracts.queue import NEVER_S, QueueContract, got, said


class TestMemoryQueue(QueueContract):
    @pytest.fixture
    async def log(self) -> MemoryLog:
        log = MemoryLog("test", ManualClock(1_000_000))
        await log.ensure([JOBS])
        return log

    @pytest.fixture
    def break_off(self, log: MemoryLog) -> Callable[[], Awaitable[None]]:
        async def go() -> None:
            log.away = True

        return go

    async def test_back_again(self, log: MemoryLog) -> None:
        """When the log is back, the queue goes on."""
        queue = await self.open(log)
        await self.ask(log, "a", "b")
        await (await got(queue)).done()
        log.away = True
        log.away = False
        assert said([await got(queue)]) == [("b", 1)]

    async def test_replaced_history(self, log: MemoryLog) -> None:
        """Of a stream made anew all comes; what was cut off or expired does not come again."""
        queue = await self.open(log)
        await self.ask(log, "a", "b", "c")
        for _ in range(3):
            await (await got(queue)).again(0.02)
        log.cut(JOBS, StreamSeq(2))
        log.expire(JOBS, StreamSeq(2))
        assert said([await got(queue)]) == [("b", 2)]
        await self.ask(log, "d")
        assert said([await got(queue)]) == [("d", 1)]
        log.remake(JOBS)
        await self.ask(log, "e")
        assert said([await got(queue)]) == [("e", 1)]
        assert await queue.next(NEVER_S) is None


def test_wildcards() -> None:
    """As NATS has them."""
    cases = {
        ("a.b", "a.b"): True,
        ("a.b", "a.c"): False,
        ("a.*", "a.b"): True,
        ("a.*", "a.b.c"): False,
        ("a.*.c", "a.b.c"): True,
        ("a.*.c", "a.b.d"): False,
        ("a.>", "a.b.c"): True,
        ("a.>", "a"): False,
        (">", "a"): True,
        ("a.*.>", "a.b.c.d"): True,
        ("a.*.>", "a.b"): False,
    }
    assert {case: matches(*case) for case in cases} == cases
