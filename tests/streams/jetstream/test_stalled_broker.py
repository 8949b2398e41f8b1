"""A consumer that sends heartbeats and does not get on: it lives on a server that does not catch up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

from core.errors import Unavailable
from core.ids import Epoch, StreamSeq
from core.subjects import ROUTING
from streams.jetstream import stream_reader, stream_tail
from streams.jetstream.stream_reader import StreamReader
from streams.jetstream.stream_tail import StreamTail
from streams.log import Record, StreamState
from tests.fixtures.eventually import eventually

LAST = 10
CHECK_S = 0.1
HEARTBEAT_S = 0.02
PATIENCE_S = 0.6
OVER_S = 5.0
"""What a busy machine may add."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_tail, "CHECK_EVERY_S", CHECK_S)
    monkeypatch.setattr(stream_tail, "HEARTBEAT_S", HEARTBEAT_S)
    monkeypatch.setattr(stream_reader, "HEARTBEAT_S", HEARTBEAT_S)
    monkeypatch.setattr(stream_reader, "PATIENCE_S", PATIENCE_S)


def record(seq: int) -> Record:
    return Record(ROUTING, StreamSeq(seq), seq, "s", b"%d" % seq)


class Stream:
    """A stream of ten messages, as its leader has it, and the consumers that were made on it."""

    def __init__(self, reach: list[int]) -> None:
        self.reach = reach
        """How far the server of each consumer has got, the first first; the last again for all others."""
        self.held = set(range(1, LAST + 1))
        self.looks = 0
        self.at_a_look: Callable[[], None] = lambda: None
        self.pulls: list[Consumer] = []

    async def state(self) -> StreamState:
        self.looks += 1
        self.at_a_look()
        return StreamState(Epoch(1), StreamSeq(1), StreamSeq(LAST), len(self.held), 0)

    async def at(self, seq: StreamSeq) -> Record | None:
        return record(seq) if seq in self.held else None

    async def following(self, seq: StreamSeq) -> Record | None:
        return next((record(held) for held in sorted(self.held) if held >= seq), None)

    def consumer(self, deliver: Callable[[Record, int], None], _held: object = None) -> Consumer:
        reach = self.reach[min(len(self.pulls), len(self.reach) - 1)]
        self.pulls.append(Consumer(deliver, reach, self.held))
        return self.pulls[-1]

    def tail(self, seen: list[int]) -> StreamTail:
        return StreamTail(self.consumer, self.state, self.at, 1, lambda record: seen.append(record.seq), None, None)  # type: ignore[arg-type]

    def one_pass(self) -> AsyncIterator[Record]:
        return StreamReader(self.consumer, self.state, self.following, 1).records()  # type: ignore[arg-type]


class Consumer:
    """Its server sends heartbeats, and the messages that it has."""

    silent = False

    def __init__(self, deliver: Callable[[Record, int], None], reach: int, held: set[int]) -> None:
        self.broken, self.stirred = asyncio.Event(), asyncio.Event()
        self._deliver = deliver
        self._reach = reach
        self._held = held

    async def open(self, start: int) -> int:
        self.get_on(start, self._reach)
        return LAST - self._reach

    def get_on(self, start: int, end: int) -> None:
        for seq in range(start, end + 1):
            if seq in self._held:
                self._deliver(record(seq), LAST - seq)
        self.stirred.set()

    def top_up(self) -> None:
        pass

    def close(self) -> None:
        self.broken.set()


async def test_a_tail_leaves_a_consumer_that_is_stuck() -> None:
    """Two looks that find it at the same place, though the stream goes on: another one is made, as often as needed."""
    stream, seen = Stream([3, 3, LAST]), list[int]()
    tail = stream.tail(seen)
    await tail.start()
    await eventually(lambda: seen == list(range(1, LAST + 1)))
    assert len(stream.pulls) == 3
    looks = stream.looks
    assert looks >= 3 + 2 * 2  # one when each was opened, two before each of the others
    await eventually(lambda: stream.looks > looks + 4)
    assert len(stream.pulls) == 3
    await tail.stop()


async def test_a_tail_keeps_a_consumer_that_gets_on() -> None:
    """Late at every look, but never at the same place."""
    stream, seen = Stream([1]), list[int]()
    tail = stream.tail(seen)
    await tail.start()
    stream.at_a_look = lambda: stream.pulls[0].get_on(len(seen) + 1, min(len(seen) + 1, LAST))
    await eventually(lambda: len(seen) == LAST)
    assert (seen, len(stream.pulls)) == (list(range(1, LAST + 1)), 1)
    await tail.stop()


async def test_nobody_is_late_with_what_is_gone() -> None:
    """A stream whose newest messages were deleted tells their numbers: no consumer is given up for them."""
    stream, seen = Stream([LAST]), list[int]()
    stream.held -= {9, 10}
    tail = stream.tail(seen)
    await tail.start()
    await eventually(lambda: stream.looks > 5)
    assert (seen, len(stream.pulls)) == (list(range(1, 9)), 1)
    await tail.stop()


async def test_a_pass_tries_another_consumer() -> None:
    """One that delivers nothing more gives way before the patience is at its end, and the pass goes on behind it."""
    stream = Stream([3, LAST])
    began_s = time.monotonic()
    async with asyncio.timeout(PATIENCE_S + OVER_S):
        assert [record.seq async for record in stream.one_pass()] == list(range(1, LAST + 1))
    assert time.monotonic() - began_s >= PATIENCE_S / stream_reader.CONSUMERS_TRIED
    assert len(stream.pulls) == stream_reader.CONSUMERS_TRIED


async def test_a_pass_ends() -> None:
    """No consumer delivers what the leader says is there: Unavailable, when the patience is at its end."""
    stream, got = Stream([3]), list[int]()
    began_s = time.monotonic()
    async with asyncio.timeout(PATIENCE_S + OVER_S):
        with pytest.raises(Unavailable, match="stopped delivering"):
            async for record in stream.one_pass():
                got.append(record.seq)
    assert time.monotonic() - began_s >= PATIENCE_S
    assert got == [1, 2, 3]
    assert len(stream.pulls) <= stream_reader.CONSUMERS_TRIED
