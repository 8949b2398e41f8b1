"""Long pieces of work, one in each turn of the event loop."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from api.openai.request.body_reader import EventLoopThrottle


async def test_one_begins_in_each_turn_of_the_loop() -> None:
    """In the order in which they were asked for; what is short runs between any two."""
    throttle, began, turn = EventLoopThrottle(), list[tuple[str, int]](), 0

    async def work(name: str) -> None:
        await throttle.acquire()
        began.append((name, turn))

    tasks = [asyncio.create_task(work(name)) for name in "abcde"]
    while len(began) < 5:
        await asyncio.sleep(0)
        turn += 1
        assert turn < 50
    await asyncio.gather(*tasks)
    assert [name for name, _ in began] == [*"abcde"]
    at = [when for _, when in began]
    assert all(later > earlier for earlier, later in pairwise(at)), at
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert repr(throttle) == "<EventLoopThrottle 0 waiting>"
    await asyncio.wait_for(work("f"), 1)


async def test_one_alone_does_not_wait() -> None:
    """It begins in the turn in which it asks."""
    throttle = EventLoopThrottle()
    asked = throttle.acquire()
    with pytest.raises(StopIteration):
        asked.send(None)


async def test_who_is_over_is_passed_over() -> None:
    """And those behind it are not held up."""
    throttle, began = EventLoopThrottle(), list[int]()

    async def work(number: int) -> None:
        await throttle.acquire()
        began.append(number)

    tasks = [asyncio.create_task(work(number)) for number in range(4)]
    await asyncio.sleep(0)
    for task in tasks[1:3]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert began == [0, 3]
