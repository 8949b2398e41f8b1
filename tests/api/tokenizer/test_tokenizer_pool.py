"""Threads for long texts: who begins, who waits, and what ends work that is not needed any more."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from api.server.caller import CALLER, Caller
from api.tokenizer.tokenizer_pool import SMALL_BYTES_MAX, Abandoned, Proceed, TokenizerPool

LARGE = SMALL_BYTES_MAX + 1


class Held:
    """Work that runs until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun: list[str] = []
        self.abandoned: list[str] = []

    def work(self, name: str) -> Callable[[Proceed], str]:
        def run(proceed: Proceed) -> str:
            self.begun.append(name)
            while not self.go.wait(0.002):
                try:
                    proceed()
                except Abandoned:
                    self.abandoned.append(name)
                    raise
            return name

        return run

    async def seen(self, count: int) -> list[str]:
        async with asyncio.timeout(5):
            while len(self.begun) < count:
                await asyncio.sleep(0.002)
        await asyncio.sleep(0.01)
        return self.begun


async def test_large_bodies_leave_a_thread_to_small_ones() -> None:
    """However many there are; in the order in which they came."""
    pool, held = TokenizerPool(threads=3), Held()
    large = [asyncio.create_task(pool.run(held.work(f"large {at}"), LARGE)) for at in range(5)]
    assert await held.seen(2) == ["large 0", "large 1"]
    small = asyncio.create_task(pool.run(held.work("small"), SMALL_BYTES_MAX))
    assert await held.seen(3) == ["large 0", "large 1", "small"]
    held.go.set()
    assert await asyncio.gather(*large, small) == ["large 0", "large 1", "large 2", "large 3", "large 4", "small"]
    assert repr(pool) == "<TokenizerPool 0 of 3 threads busy, 0 waiting>"


async def test_one_tenant_never_has_the_last_thread() -> None:
    """Even with small bodies; without a name, or as different ones, small bodies may have all of them."""
    pool, held = TokenizerPool(threads=3), Held()
    ours = [asyncio.create_task(pool.run(held.work(f"a {at}"), 10, "a")) for at in range(4)]
    assert await held.seen(2) == ["a 0", "a 1"]
    other = asyncio.create_task(pool.run(held.work("b"), 10, "b"))
    assert await held.seen(3) == ["a 0", "a 1", "b"]
    held.go.set()
    await asyncio.gather(*ours, other)
    held = Held()
    anyone = [asyncio.create_task(pool.run(held.work(f"{at}"), 10)) for at in range(3)]
    assert len(await held.seen(3)) == 3
    held.go.set()
    await asyncio.gather(*anyone)


async def test_the_tenant_is_the_keys() -> None:
    """Not the one that a header names, unless the key is a gateway's."""
    pool, held = TokenizerPool(threads=2), Held()
    caller = CALLER.set(Caller("key", "mine"))
    try:
        ours = [asyncio.create_task(pool.run(held.work(f"{at}"), 10, f"claimed {at}")) for at in range(2)]
        assert await held.seen(1) == ["0"]
        CALLER.set(Caller("gate", "mine", gateway=True))
        gateway = asyncio.create_task(pool.run(held.work("gateway"), 10, "other"))
        assert await held.seen(2) == ["0", "gateway"]
    finally:
        CALLER.reset(caller)
        held.go.set()
    await asyncio.gather(*ours, gateway)


@pytest.mark.parametrize("waits", [False, True])
async def test_work_of_a_request_that_is_over_ends(waits: bool) -> None:
    """Before its next step, or before its first; its thread is free then, and nothing waits for it."""
    pool, held = TokenizerPool(threads=2), Held()
    first = asyncio.create_task(pool.run(held.work("first"), LARGE))
    assert await held.seen(1) == ["first"]
    second = asyncio.create_task(pool.run(held.work("second"), LARGE))
    await asyncio.sleep(0.01)
    over, other = (second, first) if waits else (first, second)
    over.cancel()
    with pytest.raises(asyncio.CancelledError):
        await over
    if not waits:
        assert await held.seen(2) == ["first", "second"]
        assert held.abandoned == ["first"]
    held.go.set()
    assert await other == ("first" if waits else "second")
    assert len(held.begun) == (1 if waits else 2)
    assert repr(pool) == "<TokenizerPool 0 of 2 threads busy, 0 waiting>"


async def test_a_request_that_ends_as_its_work_may_begin_leaves_its_thread() -> None:
    """Cancelled in the turn of the loop in which it was admitted."""
    pool, held = TokenizerPool(threads=2), Held()
    first = asyncio.create_task(pool.run(held.work("first"), LARGE))
    second = asyncio.create_task(pool.run(held.work("second"), LARGE))
    await held.seen(1)
    held.go.set()
    await first
    second.cancel()
    with suppress(asyncio.CancelledError):
        await second
    third = await pool.run(held.work("third"), LARGE)
    assert third == "third"
    await asyncio.sleep(0.01)
    assert repr(pool) == "<TokenizerPool 0 of 2 threads busy, 0 waiting>"


@pytest.mark.parametrize(("error", "raised"), [(ValueError, ValueError), (StopIteration, RuntimeError)])
async def test_what_work_raises_is_raised(error: type[Exception], raised: type[Exception]) -> None:
    """And its thread is free again. No future can hold a StopIteration: its waiter would wait for ever."""
    pool = TokenizerPool(threads=2)

    def fails(_: Proceed) -> None:
        raise error

    for _ in range(5):
        async with asyncio.timeout(5):
            with pytest.raises(raised):
                await pool.run(fails, LARGE)
    assert repr(pool) == "<TokenizerPool 0 of 2 threads busy, 0 waiting>"


async def test_a_request_that_ends_as_its_turn_comes() -> None:
    """Before: a thread was lost for ever each time; after as many times as there are threads, no text was tokenized."""
    pool, held = TokenizerPool(threads=2), Held()
    running = asyncio.create_task(pool.run(held.work("running"), LARGE))
    assert await held.seen(1) == ["running"]
    waiting = asyncio.create_task(pool.run(held.work("waiting"), LARGE))
    behind = asyncio.create_task(pool.run(held.work("behind"), LARGE))
    await asyncio.sleep(0)
    held.go.set()
    time.sleep(0.05)  # the thread has ended before the loop takes notice of it …
    await asyncio.sleep(0)  # … which it does now, and in its next turn the job that waits is due
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert [*await asyncio.wait_for(asyncio.gather(running, behind), 5)] == ["running", "behind"]
    assert held.begun == ["running", "behind"]
    assert repr(pool) == "<TokenizerPool 0 of 2 threads busy, 0 waiting>"
