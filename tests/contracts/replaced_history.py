"""What a tail tells when the log behind it is not the one that it has read, for every implementation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import pytest

from core.ids import StreamName, StreamSeq
from core.subjects import kv_stream, subject
from streams.log import EventLog, Record, StreamState, Tail
from tests.fixtures.eventually import eventually

KV = kv_stream(0)
NAMESPACE = "test"


class Broker(Protocol):
    """A log, and what can be done to it behind everybody's back."""

    log: EventLog

    async def delete(self, seq: int) -> None:
        """The message is deleted through the broker's own API."""

    async def remake(self) -> None:
        """The stream is deleted and made again."""

    async def copy(self) -> None:
        """The store as it is now is kept for `put_back`."""

    async def put_back(self, then: Callable[[EventLog], Awaitable[object]]) -> None:
        """The store is as it was at the copy, and `then` was done to it before any reader could look."""

    async def damage(self, seq: int) -> None:
        """A byte of the stored message is flipped, while the broker is down."""


class Reader:
    """A tail and what it told."""

    def __init__(self) -> None:
        self.seen: list[Record] = []
        self.resets: list[StreamState] = []
        self.tail: Tail

    async def follow(self, log: EventLog, count: int, after: Record | None = None) -> Reader:
        """Follows, and has seen `count` records."""
        start = StreamSeq(1 if after is None else after.seq + 1)
        self.tail = await log.tail(KV, start, self.seen.append, on_reset=self._reset, after=after)
        await self.has_seen(count)
        return self

    async def has_seen(self, count: int) -> None:
        await eventually(lambda: len(self.seen) >= count, f"{count} records, seen are {len(self.seen)}")

    async def was_told(self) -> None:
        await eventually(lambda: self.resets, "a reset")

    def _reset(self, state: StreamState) -> None:
        self.resets.append(state)
        self.seen.clear()


async def append(count: int, log: EventLog, token: str = "w") -> None:
    """So many messages more, of a source of that name."""
    written = subject(NAMESPACE, KV, token)
    end = await log.last(KV, written)
    last = StreamSeq(0) if end is None else end.seq
    for _ in range(count):
        last = await log.append(KV, written, f"{token} after {last}".encode(), f"{token}:{last}", last)


async def read(log: EventLog, stream: StreamName = KV) -> list[Record]:
    return [record async for record in log.read(stream, StreamSeq(1))]


class ReplacedHistoryContract:
    """Subclasses give `broker`: its log is of the namespace `test`, has an empty `kv_0`, and is looked at often."""

    @pytest.fixture
    async def broker(self) -> Broker:
        raise NotImplementedError

    async def expect_reset(self, broker: Broker, reader: Reader) -> None:
        """The reader is told once, and then has what the log holds, and what comes."""
        await reader.was_told()
        there = await read(broker.log)
        await reader.has_seen(len(there))
        await append(1, broker.log, "later")
        await reader.has_seen(len(there) + 1)
        assert reader.seen == await read(broker.log)
        assert len(reader.resets) == 1
        await reader.tail.stop()

    async def test_rolled_back(self, broker: Broker) -> None:
        """A store put back to an earlier copy: the reader is told, and begins again."""
        await append(3, broker.log)
        await broker.copy()
        await append(4, broker.log)
        reader = await Reader().follow(broker.log, 7)
        await broker.put_back(partial(append, 0))
        await self.expect_reset(broker, reader)
        assert reader.resets[0].last_seq == 3

    async def test_rolled_back_and_grown_again(self, broker: Broker) -> None:
        """The same sequences with other messages, reached before anybody looked: told all the same."""
        await append(3, broker.log)
        await broker.copy()
        await append(4, broker.log)
        reader = await Reader().follow(broker.log, 7)
        epoch = (await broker.log.state(KV)).epoch
        await broker.put_back(partial(append, 9, token="other"))
        await self.expect_reset(broker, reader)
        assert (reader.resets[0].epoch, reader.resets[0].last_seq) == (epoch, 12)

    async def test_put_back_to_what_it_is(self, broker: Broker) -> None:
        """A copy that lacks nothing of what was read replaces nothing."""
        await append(3, broker.log)
        await broker.copy()
        reader = await Reader().follow(broker.log, 3)
        await broker.put_back(partial(append, 2))
        await reader.has_seen(5)
        assert (reader.seen, reader.resets) == (await read(broker.log), [])
        await reader.tail.stop()

    async def test_made_anew_and_grown_again(self, broker: Broker) -> None:
        """A stream deleted and made again under a reader, with as many messages as before."""
        await append(3, broker.log)
        reader = await Reader().follow(broker.log, 3)
        epoch = (await broker.log.state(KV)).epoch
        await broker.remake()
        await append(5, broker.log)
        await self.expect_reset(broker, reader)
        assert reader.resets[0].epoch > epoch

    async def test_deleted_at_the_cursor(self, broker: Broker) -> None:
        """The message that the reader had last is deleted."""
        await append(3, broker.log)
        reader = await Reader().follow(broker.log, 3)
        await broker.delete(3)
        await self.expect_reset(broker, reader)

    async def test_deleted_behind_the_cursor(self, broker: Broker) -> None:
        """No reader that had it is disturbed; those who come find a hole, and the stream's state counts it."""
        await append(4, broker.log)
        reader = await Reader().follow(broker.log, 4)
        await broker.delete(2)
        await append(1, broker.log)
        await reader.has_seen(5)
        state = await broker.log.state(KV)
        assert (state.first_seq, state.last_seq, state.messages, state.deleted) == (1, 5, 4, 1)
        assert [record.seq for record in await read(broker.log)] == [1, 3, 4, 5]
        assert await broker.log.at(KV, StreamSeq(2)) is None
        assert [record.seq for record in (await Reader().follow(broker.log, 4)).seen] == [1, 3, 4, 5]
        assert reader.resets == []
        await reader.tail.stop()

    async def test_oldest_deleted(self, broker: Broker) -> None:
        """It looks as if retention had taken it: no hole, no reset."""
        await append(3, broker.log)
        reader = await Reader().follow(broker.log, 3)
        await broker.delete(1)
        await append(1, broker.log)
        await reader.has_seen(4)
        state = await broker.log.state(KV)
        assert (state.first_seq, state.messages, state.deleted) == (2, 3, 0)
        assert reader.resets == []
        await reader.tail.stop()

    @pytest.mark.parametrize("seq", [2, 5])
    async def test_damaged(self, broker: Broker, seq: int) -> None:
        """A flipped byte: nobody is given the wrong bytes; who had read that message last is told."""
        await append(5, broker.log)
        before = await read(broker.log)
        reader = await Reader().follow(broker.log, 5)
        await broker.damage(seq)
        if seq == 5:
            await self.expect_reset(broker, reader)
        assert [record for record in await read(broker.log) if record.seq <= 5] == [
            record for record in before if record.seq != seq
        ]
        assert await broker.log.at(KV, StreamSeq(seq)) is None
        assert len(reader.resets) == (seq == 5)
        await reader.tail.stop()

    async def test_read_before(self, broker: Broker) -> None:
        """A tail that begins behind a record which its caller has read is told if that is another one by now."""
        await append(3, broker.log)
        record = (await read(broker.log))[1]
        same = await Reader().follow(broker.log, 1, after=record)
        assert ([found.seq for found in same.seen], same.resets) == ([3], [])
        other = await Reader().follow(broker.log, 3, after=record._replace(payload=b"another"))
        assert ([found.seq for found in other.seen], len(other.resets)) == ([1, 2, 3], 1)
        await same.tail.stop()
        await other.tail.stop()
