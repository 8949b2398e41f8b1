"""One source's chain: whatever happens on the way, the log holds it whole and in order."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from core.clock import ManualClock
from core.codec import CHAIN_START, decode_message, digest, encode_event, encode_message
from core.errors import Refused
from core.events import WorkerLost
from core.ids import SourceId, StreamSeq
from streams.memory.memory_log import MemoryLog
from streams.outbox.backlog import OutboxLimits
from streams.outbox.outbox import Outbox
from streams.topology import PAYLOAD_MIN
from tests.fixtures.eventually import eventually
from tests.streams.source import (
    KEY,
    KV,
    SOURCE,
    SUBJECT,
    Owner,
    messages,
    outbox_on,
    reasons,
    running,
    said,
)


@pytest.fixture
async def log() -> MemoryLog:
    log = MemoryLog("test", ManualClock(1))
    await log.ensure([KV])
    return log


@pytest.fixture
def owner() -> Owner:
    return Owner()


async def test_chain(log: MemoryLog, owner: Owner) -> None:
    """Messages count from 0, each names the digest of the one before; `head` is the last acknowledged one's."""
    outbox = outbox_on(log, owner)
    async with running(outbox):
        for n in range(3):
            outbox.put(said(n))
            assert await outbox.drain(5)
    found = await messages(log)
    assert [message.n for message in found] == [0, 1, 2]
    assert reasons(found) == ["0", "1", "2"]
    end = await log.last(KV, SUBJECT)
    assert end is not None
    assert (outbox.head, outbox.last_seq) == (digest(end.payload, KEY), end.seq)
    assert (outbox.n_acked, outbox.sealed, outbox.depth, outbox.bytes) == (3, None, 0, 0)
    assert repr(outbox) == f"<Outbox {SUBJECT} n 3, 0 events wait>"


async def test_batches_grow(log: MemoryLog, owner: Owner) -> None:
    """What happens while an append is under way goes into the next message."""
    outbox = outbox_on(log, owner)
    log.away = True
    async with running(outbox):
        outbox.put(said(0))
        await eventually(lambda: outbox.sealed)
        for i in range(1, 100):
            outbox.put(said(i))
        assert outbox.depth == 100
        log.away = False
        assert await outbox.drain(5)
    assert [len(message.events) for message in await messages(log)] == [1, 99]


@pytest.mark.parametrize("over", [0, 1])
async def test_message_at_its_bounds(log: MemoryLog, owner: Owner, over: int) -> None:
    """A message holds `events_max` events and never more than `message_bytes_max` bytes."""
    by_count = outbox_on(log, owner, OutboxLimits(events_max=10))
    for i in range(10 + over):
        by_count.put(said(i))
    async with running(by_count):
        assert await by_count.drain(5)
    assert [len(message.events) for message in await messages(log)] == [10, 1][: 1 + over]


async def test_message_bytes(log: MemoryLog, owner: Owner) -> None:
    """Messages fill up to `message_bytes_max` and not past it; an event that is larger goes alone."""
    limits = OutboxLimits(message_bytes_max=4096)
    outbox = outbox_on(log, owner, limits)
    for size in [300] * 40 + [9000] + [300] * 3:
        outbox.put(said("x" * size))
    async with running(outbox):
        assert await outbox.drain(5)
    sizes = [(len(r.payload), len(decode_message(r.payload).events)) async for r in log.read(KV, StreamSeq(1))]
    large = [pair for pair in sizes if pair[0] > 4096]
    assert [count for _, count in large] == [1]
    assert all(size > 3000 for size, _ in sizes[: sizes.index(large[0]) - 1])
    assert sum(count for _, count in sizes) == 44


@pytest.mark.parametrize("over", [0, 1])
async def test_an_event_at_its_bound(log: MemoryLog, owner: Owner, over: int) -> None:
    """One that no broker would take is dropped and counted, and the chain goes on without it."""
    bound = len(encode_event(said("x" * 5000)))
    outbox = outbox_on(log, owner, OutboxLimits(event_bytes_max=bound))
    for text in ("first", "x" * (5000 + over), "last"):
        outbox.put(said(text))
    async with running(outbox):
        assert await outbox.drain(5)
    assert [len(reason) for reason in reasons(await messages(log))] == ([5, 4] if over else [5, 5000, 4])
    assert outbox.counts.dropped_events == over
    assert outbox.error is None
    assert OutboxLimits().event_bytes_max < PAYLOAD_MIN


async def test_the_last_word_is_not_dropped(log: MemoryLog, owner: Owner) -> None:
    """After an overflow it comes instead of the restatement; else behind all that waits."""
    outbox = outbox_on(log, owner, OutboxLimits(pending_events_max=10))
    for i in range(20):
        outbox.put(said(i))
    assert outbox.drops
    outbox.finish(said("left"))
    async with running(outbox):
        assert await outbox.drain(5)
    assert reasons(await messages(log))[-1] == "left"
    assert owner.restated == 0
    calm = outbox_on(log, owner)
    calm.finish(said("left"))
    assert calm.depth == 1


@pytest.mark.parametrize("id_first", [False, True])
async def test_stored_but_not_acknowledged(log: MemoryLog, owner: Owner, id_first: bool) -> None:
    """A message whose acknowledgement is lost stands once, whichever the broker tests first."""
    log.id_first = id_first
    log.acks_to_lose = 1
    outbox = outbox_on(log, owner)
    async with running(outbox):
        outbox.put(said(0))
        assert await outbox.drain(5)
        outbox.put(said(1))
        assert await outbox.drain(5)
    assert [message.n for message in await messages(log)] == [0, 1]
    assert outbox.counts.settled == (0 if id_first else 1)
    assert (outbox.counts.stored, outbox.counts.retried, owner.restated) == (2, 1, 0)


@pytest.mark.parametrize("over", [0, 1])
@pytest.mark.parametrize("bound", ["events", "bytes"])
async def test_overflow_at_the_bound(log: MemoryLog, owner: Owner, bound: str, over: int) -> None:
    """What fits is kept; one more drops all that is not sealed, then everything, until a restatement takes its place.

    The message in flight is not touched, and what is put after the restatement follows it.
    """
    size = len(encode_event(said("00")))
    bounds: dict[str, Any] = {"pending_events_max": 10} if bound == "events" else {"pending_bytes_max": 10 * size}
    outbox = outbox_on(log, owner, OutboxLimits(retry_min_s=0.001, retry_max_s=0.002, **bounds))
    log.away = True
    async with running(outbox):
        outbox.put(said("in flight"))
        await eventually(lambda: outbox.sealed)
        for i in range(10 + over):
            outbox.put(said(f"{i:02}"))
        if over:
            outbox.put(said("too late"))
        assert outbox.depth == (1 if over else 11)
        assert not outbox.idle
        log.away = False
        assert await outbox.drain(5)
        outbox.put(said("after"))
        assert await outbox.drain(5)
    between = ["restated"] if over else [f"{i:02}" for i in range(10)]
    assert reasons(await messages(log)) == ["in flight", *between, "after"]
    assert outbox.counts.dropped_events == (12 if over else 0)
    assert (outbox.counts.overflows, outbox.counts.restated, owner.restated) == (over, over, over)


async def test_a_restatement_larger_than_the_bound(log: MemoryLog, owner: Owner) -> None:
    """A restatement is let in whatever its size, and events that follow it do not make it an overflow again."""
    owner.restatement = [said(f"part {i}") for i in range(50)]
    outbox = outbox_on(log, owner, OutboxLimits(pending_events_max=10, events_max=5, retry_min_s=0.001))
    for i in range(11):
        outbox.put(said(i))
    async with running(outbox):
        await eventually(lambda: owner.restated)
        for i in range(10):
            outbox.put(said(i))
        assert await outbox.drain(5)
    assert reasons(await messages(log)) == [f"part {i}" for i in range(50)] + [str(i) for i in range(10)]
    assert owner.restated == 1


@pytest.mark.parametrize("fault", ["cut", "remake", "expire"])
@pytest.mark.parametrize("in_flight", [True, False])
async def test_history_replaced(log: MemoryLog, owner: Owner, fault: str, in_flight: bool) -> None:
    """If the log does not end where we left it, we go on with the next n from where it ends, and restate.

    Also when there is nothing to append: then an idle check finds it.
    """
    outbox = outbox_on(log, owner)
    async with running(outbox):
        for i in range(3):
            outbox.put(said(i))
            assert await outbox.drain(5)
        if in_flight:
            log.away = True
            outbox.put(said("in flight"))
            await eventually(lambda: outbox.sealed)
        if fault == "cut":
            log.cut(KV, StreamSeq(1))
        elif fault == "remake":
            log.remake(KV)
        else:
            log.expire(KV, StreamSeq(4))
        log.away = False
        await eventually(lambda: owner.restated)
        outbox.put(said("after"))
        assert await outbox.drain(5)
    found = await messages(log)
    expected = ["in flight"] * in_flight + ["restated", "after"]
    assert reasons(found) == ["0"] * (fault == "cut") + expected
    assert found[-1].n == 3 + len(expected) - 1
    assert (outbox.counts.cut, owner.restated, owner.superseded) == (1, 1, [])


@pytest.mark.parametrize("damage", ["no message", "another source"])
async def test_our_last_message_is_damaged(log: MemoryLog, owner: Owner, damage: str) -> None:
    """Only an end written by another ends our chain; anything else in its place is history lost: restate."""
    outbox = outbox_on(log, owner)
    async with running(outbox):
        outbox.put(said(0))
        assert await outbox.drain(5)
        stranger = encode_message(SourceId("c" * 16), 0, CHAIN_START, 0, [encode_event(said("x"))])
        log.rewrite(KV, StreamSeq(1), b"\x00" if damage == "no message" else stranger)
        await eventually(lambda: owner.restated)
        outbox.put(said(1))
        assert await outbox.drain(5)
    assert (outbox.counts.cut, owner.restated, owner.superseded) == (1, 1, [])
    assert (await log.state(KV)).last_seq >= 2


@pytest.mark.parametrize("busy", [True, False])
async def test_superseded(log: MemoryLog, owner: Owner, busy: bool) -> None:
    """If another ended our chain we say so once, append nothing more, and count what is put as dropped."""
    outbox = outbox_on(log, owner)
    async with running(outbox) as task:
        outbox.put(said(0))
        assert await outbox.drain(5)
        lost = encode_event(WorkerLost(by="b" * 16, reason="silent"))
        other = SourceId(f"{SOURCE}-lost")
        payload = encode_message(other, 0, CHAIN_START, 0, [lost])
        await log.append(KV, SUBJECT, payload, f"{other}:0", outbox.last_seq)
        if busy:
            outbox.put(said(1))
        async with asyncio.timeout(5):
            await task
        assert not busy or not await outbox.drain(5)
    assert [record.payload for record in owner.superseded] == [payload]
    assert outbox.superseded == owner.superseded[0]
    assert outbox.ended
    outbox.put(said(2))
    assert outbox.counts.dropped_events >= 1
    assert (await log.state(KV)).last_seq == 2
    assert owner.restated == 0


async def test_refused(log: MemoryLog, owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal for good ends the outbox with that error; who drains is not left waiting, and the log stays away."""

    async def refuse(*_: object) -> StreamSeq:
        raise Refused("too large")

    monkeypatch.setattr(log, "append", refuse)
    outbox = outbox_on(log, owner)
    outbox.put(said(0))
    async with running(outbox) as task:
        assert not await outbox.drain(5)
        with pytest.raises(Refused, match="too large"):
            await task
    assert isinstance(outbox.error, Refused)
    assert (outbox.counts.refused, outbox.depth) == (1, 1)
    await eventually(lambda: outbox.away_s > 0)


async def test_cancelled_and_run_again(log: MemoryLog, owner: Owner) -> None:
    """A message sealed before a cancellation goes on with the same bytes; nothing is stored twice."""
    outbox = outbox_on(log, owner, OutboxLimits(retry_min_s=60))
    log.acks_to_lose = 1
    outbox.put(said(0))
    async with running(outbox):
        await eventually(lambda: outbox.counts.retried)
    assert outbox.depth == 1
    async with running(outbox):
        outbox.put(said(1))
        assert await outbox.drain(5)
    assert reasons(await messages(log)) == ["0", "1"]


async def test_drain_in_time(log: MemoryLog, owner: Owner) -> None:
    """A drain that cannot end says so after its time."""
    log.away = True
    outbox = outbox_on(log, owner)
    outbox.put(said(0))
    async with running(outbox):
        assert not await outbox.drain(0.02)
        log.away = False
        assert await outbox.drain(5)


async def test_pace(log: MemoryLog, owner: Owner) -> None:
    """Messages start `pace_s` apart at least, and what happens meanwhile goes together; after a pause, at once."""
    loop = asyncio.get_running_loop()
    pace_s = 0.05
    outbox = outbox_on(log, owner, OutboxLimits(pace_s=pace_s, idle_check_s=60))
    starts: list[float] = []
    append = log.append

    async def watched(*arguments: Any) -> StreamSeq:
        starts.append(loop.time())
        return await append(*arguments)

    log.append = watched  # type: ignore[method-assign, assignment]
    async with running(outbox):
        for count in range(60):
            outbox.put(said(count))
            await asyncio.sleep(0.002)
        assert await outbox.drain(5)
        await asyncio.sleep(2 * pace_s)
        began = loop.time()
        outbox.put(said(60))
        assert await outbox.drain(5)
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert min(gaps) > 0.8 * pace_s
    assert len(starts) < 10
    assert starts[-1] - began < 0.5 * pace_s
    assert reasons(await messages(log)) == [str(i) for i in range(61)]


async def test_away(log: MemoryLog, owner: Owner) -> None:
    """How long the log has acknowledged nothing while something waits; one task waits with it, and it ends."""
    outbox = outbox_on(log, owner)
    async with running(outbox):
        assert outbox.away_s == 0
        log.away = True
        await asyncio.sleep(0.05)
        assert outbox.away_s == 0, "nothing waits"
        outbox.put(said(0))
        await eventually(lambda: outbox.counts.retried)
        began = outbox.away_s
        await eventually(lambda: outbox.counts.retried > 10)
        assert outbox.away_s > began
        assert (outbox.depth, len(await tasks_of(outbox))) == (1, 1)
        log.away = False
        assert await outbox.drain(5)
        assert outbox.away_s == 0


async def tasks_of(outbox: Outbox) -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if "Outbox.run" in repr(task.get_coro())]


def test_a_rolled_back_log_is_noticed_within_seconds() -> None:
    """Also by an outbox that has nothing to say."""
    assert OutboxLimits().idle_check_s <= 3


async def test_closed(log: MemoryLog, owner: Owner) -> None:
    """What is put after the end is counted as dropped."""
    outbox = outbox_on(log, owner)
    outbox.close()
    outbox.put(said(0))
    assert (outbox.ended, outbox.depth, outbox.counts.dropped_events) == (True, 0, 1)
