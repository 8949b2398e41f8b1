"""Several streams as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from api.openai.generation import WAITING_MAX, merge_streams

STREAMS = 3


class Streams:
    """Some that never end, and what became of them."""

    def __init__(self) -> None:
        self.made = 0
        self.closed = 0

    async def endless(self) -> AsyncGenerator[int, None]:
        try:
            while True:
                await asyncio.sleep(0)
                self.made += 1
                yield self.made
        finally:
            self.closed += 1


async def test_who_does_not_read_is_waited_for() -> None:
    """However long: the streams stand still once so many items wait. Closing closes all of them."""
    streams = Streams()
    async with aclosing(merge_streams([streams.endless() for _ in range(STREAMS)])) as items:
        await anext(items)
        for _ in range(10 * WAITING_MAX):
            await asyncio.sleep(0)
        assert WAITING_MAX <= streams.made <= WAITING_MAX + 1 + STREAMS
    assert streams.closed == STREAMS


async def test_an_error_comes_after_what_came_before_it() -> None:
    """Then all other streams are closed, though their items wait."""
    streams = Streams()

    async def failing() -> AsyncGenerator[int, None]:
        yield -1
        raise LookupError("over")

    seen: list[int] = []
    with pytest.raises(LookupError, match="over"):
        async for item in merge_streams([streams.endless(), failing()]):
            seen.append(item)  # noqa: PERF401 - what was seen before the error counts
    assert -1 in seen
    assert streams.closed == 1


async def test_what_ends_at_different_times_is_all_there() -> None:
    """Nothing is lost or told twice, and order holds within a stream."""

    async def some(start: int, count: int) -> AsyncGenerator[int, None]:
        for number in range(start, start + count):
            yield number

    counts = (0, 1, 2 * WAITING_MAX)
    seen = [item async for item in merge_streams([some(1000 * place, count) for place, count in enumerate(counts)])]
    for place, count in enumerate(counts):
        assert [item for item in seen if item // 1000 == place] == list(range(1000 * place, 1000 * place + count))
