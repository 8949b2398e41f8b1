"""An outbox under faults in any order, and under a broker that goes away."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.clock import ManualClock, SystemClock
from streams.embedded.embedded_nats import EmbeddedNats
from streams.jetstream.jetstream_log import JetStreamLog
from streams.memory.memory_log import MemoryLog
from streams.outbox.backlog import OutboxLimits
from streams.topology import Topology
from tests.streams.source import (
    KV,
    Owner,
    messages,
    outbox_on,
    reasons,
    running,
    said,
)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 12)),
        st.tuples(st.just("away"), st.just(0)),
        st.tuples(st.just("back"), st.just(0)),
        st.tuples(st.just("lose_acks"), st.integers(1, 3)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("turns"), st.integers(1, 6)),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, id_first=st.booleans(), events_max=st.integers(1, 7))
async def test_whatever_happens(steps: list[tuple[str, int]], id_first: bool, events_max: int) -> None:
    """Whatever faults: n is 0, 1, 2, …, each message names the one before, all events are there in order, once."""
    log = MemoryLog("test", ManualClock(1))
    await log.ensure([KV])
    log.id_first = id_first
    owner = Owner()
    limits = OutboxLimits(events_max=events_max, retry_min_s=0.0, retry_max_s=0.0, pace_s=0.0)
    outbox = outbox_on(log, owner, limits)
    task = asyncio.create_task(outbox.run())
    count = 0
    for what, times in steps:
        if what == "put":
            for _ in range(times):
                outbox.put(said(count))
                count += 1
        elif what in {"away", "back"}:
            log.away = what == "away"
        elif what == "lose_acks":
            log.acks_to_lose = times
        elif what == "restart":
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            task = asyncio.create_task(outbox.run())
        else:
            for _ in range(times):
                await asyncio.sleep(0)
    log.away = False
    assert await outbox.drain(5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    found = await messages(log)
    assert [message.n for message in found] == list(range(len(found)))
    assert reasons(found) == [str(i) for i in range(count)]
    assert all(len(message.events) <= events_max for message in found)
    assert (outbox.counts.dropped_events, owner.restated) == (0, 0)


async def test_server_down_for_two_seconds(tmp_path: Path) -> None:
    """On JetStream, with the server killed under it and two seconds down: nothing lost, nothing twice, in order."""
    owner = Owner()
    server = EmbeddedNats(tmp_path)
    await server.start()
    log = await JetStreamLog.connect([server.url], "test", Topology(max_bytes=10**8), server.credentials)
    await log.ensure([KV])
    outbox = outbox_on(log, owner, OutboxLimits())
    clock = SystemClock()
    count = 0
    async with running(outbox):

        async def put_for(ms: int) -> None:
            nonlocal count
            end_ms = clock.monotonic_ms() + ms
            while clock.monotonic_ms() < end_ms:
                outbox.put(said(count))
                count += 1
                await asyncio.sleep(0.001)

        await put_for(200)
        server.kill()
        before = count
        await put_for(2_000)
        assert outbox.depth >= count - before > 0
        await server.start()
        await put_for(200)
        assert await outbox.drain(10)
    found = await messages(log)
    await log.close()
    await server.stop()
    assert [message.n for message in found] == list(range(len(found)))
    assert reasons(found) == [str(i) for i in range(count)]
    assert outbox.counts.retried > 0
    assert owner.restated == 0
