"""The runner: a state that follows the log, whatever becomes of the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from core.clock import ManualClock
from core.codec import CHAIN_START, encode_event, encode_message
from core.errors import Refused
from core.events import WorkerJoined
from core.ids import SourceId, StreamName, StreamSeq, new_id
from core.subjects import LOAD, ROUTING, kv_stream, subject
from projections.folds.state import Applied, State
from projections.runner import runner as runner_module
from projections.runner.runner import LAG_EVENTS_MAX, Runner
from streams.memory.memory_log import MemoryLog
from tests.fixtures.eventually import eventually

KV = kv_stream(0)
JOINED = WorkerJoined(
    name="w", model="m", role="decode", engine="e", block_size=16, capacity_blocks=1, context_max=1, address="",
    partition=0,
)  # fmt: skip


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks come often, so that tests wait little."""
    monkeypatch.setattr(runner_module, "RETRY_S", 0.01)
    monkeypatch.setattr(runner_module, "MEASURE_EVERY_S", 0.01)


async def join(log: MemoryLog, stream: StreamName = KV, messages: int = 1) -> None:
    """That many workers joined there."""
    for _ in range(messages):
        worker = new_id()
        payload = encode_message(SourceId(worker), 0, CHAIN_START, 0, [encode_event(JOINED)])
        await log.append(stream, subject("test", stream, worker), payload, worker, StreamSeq(0))


@asynccontextmanager
async def running(log: MemoryLog) -> AsyncIterator[tuple[Runner, list[Applied]]]:
    """A runner and all that it applied."""
    applied: list[Applied] = []
    runner = Runner(log, State(bytes(32)), applied.append)
    runner.start()
    try:
        yield runner, applied
    finally:
        await runner.stop()


async def log_with(*streams: StreamName) -> MemoryLog:
    log = MemoryLog("test", ManualClock(1000))
    await log.ensure(list(streams))
    return log


async def test_what_is_there_and_what_comes_is_folded() -> None:
    """In every stream, those too that are made later; nothing after it was stopped."""
    log = await log_with(KV, LOAD, ROUTING)
    await join(log, messages=700)
    async with running(log) as (runner, applied):
        assert not runner.caught_up
        await eventually(lambda: runner.caught_up and len(runner.state.alive()) == 700, "catch-up")
        await log.ensure([kv_stream(1)])
        await join(log, kv_stream(1), 2)
        await eventually(lambda: len(runner.state.alive()) == 702, "the new stream")
        assert len(applied) == 2  # of what was there before, nobody needs to be told
    await join(log)
    await asyncio.sleep(0.02)
    assert len(runner.state.alive()) == 702


async def test_streams_without_a_fold_are_left_alone() -> None:
    """A newer program may have made them."""
    log = await log_with(KV, StreamName("later"))
    async with running(log) as (runner, _):
        await eventually(lambda: runner.caught_up, "catch-up")
        assert list(runner.state.cursor) == [KV]


async def test_caught_up_means_within_the_bound() -> None:
    """LAG_EVENTS_MAX messages behind is close enough, one more is not."""
    log = await log_with(KV)
    async with running(log) as (runner, _):
        await eventually(lambda: runner.caught_up, "catch-up")
        runner._lag.events = {KV: LAG_EVENTS_MAX}
        assert runner.caught_up
        runner._lag.events = {KV: LAG_EVENTS_MAX, LOAD: 1}
        assert not runner.caught_up


async def test_a_log_that_is_away_is_waited_for() -> None:
    """At the start, and later: what was known stays, what was missed comes."""
    log = await log_with(KV)
    log.away = True
    async with running(log) as (runner, applied):
        await asyncio.sleep(0.03)
        assert not runner.caught_up
        log.away = False
        await eventually(lambda: runner.caught_up, "the log")
        await join(log)
        await eventually(lambda: len(applied) == 1, "the first")
        log.away = True
        await asyncio.sleep(0.03)
        assert len(runner.state.alive()) == 1
        log.away = False
        await join(log)
        await eventually(lambda: len(applied) == 2, "the second")


async def test_one_stream_that_cannot_be_followed_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """It is said, and tried again until it can."""
    log = await log_with(KV, LOAD, ROUTING)
    await join(log)
    tail, refused = log.tail, 0

    async def refuse(stream: StreamName, *rest: object, **more: object) -> object:
        nonlocal refused
        if stream == ROUTING and refused < 3:
            refused += 1
            raise Refused("no rights")
        return await tail(stream, *rest, **more)  # type: ignore[arg-type]

    log.tail = refuse  # type: ignore[method-assign, assignment]
    async with running(log) as (runner, _):
        await eventually(lambda: len(runner.state.alive()) == 1, "the other stream")
        await eventually(lambda: runner.caught_up, "all streams")
        assert refused == 3
        assert ROUTING in runner.state.cursor
        assert "no rights" in caplog.text


async def test_a_stream_made_anew_before_it_was_followed_has_its_own_epoch() -> None:
    """A try that failed between looking at a stream and following it leaves nothing of the old one."""
    log = await log_with(KV)
    tail, failed = log.tail, False

    async def fail_once(*given: object, **more: object) -> object:
        nonlocal failed
        if not failed:
            failed = True
            log.remake(KV)
            raise Refused("just now")
        return await tail(*given, **more)  # type: ignore[arg-type]

    log.tail = fail_once  # type: ignore[method-assign, assignment]
    async with running(log) as (runner, _):
        await eventually(lambda: runner.caught_up, "catch-up")
        assert runner.state.cursor[KV].epoch == (await log.state(KV)).epoch
