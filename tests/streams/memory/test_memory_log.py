"""The log in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from core.clock import ManualClock
from core.errors import Unavailable, WrongSequence
from core.ids import StreamSeq
from core.subjects import LOAD
from streams.log import EventLog, Record, StreamState
from streams.memory.memory_log import DELIVERED_PER_TURN_MAX, MemoryLog, Store
from tests.contracts.event_log import KV, EventLogContract
from tests.contracts.replaced_history import ReplacedHistoryContract
from tests.fixtures.eventually import eventually


class TestMemoryLog(EventLogContract):
    @pytest.fixture
    async def log(self) -> MemoryLog:
        log = MemoryLog("test", ManualClock(1_000_000))
        await log.ensure([KV, LOAD])
        return log

    @pytest.fixture
    def break_off(self, log: MemoryLog) -> Callable[[], Awaitable[None]]:
        async def go() -> None:
            log.away = True

        return go

    async def test_records_come_later(self, log: MemoryLog) -> None:
        """A tail never delivers within the append, and lets others have their turn."""
        seen: list[Record] = []
        await self.append(log, "a", DELIVERED_PER_TURN_MAX + 5)
        await log.tail(KV, StreamSeq(1), seen.append)
        assert seen == []
        await eventually(lambda: seen)
        assert len(seen) in {DELIVERED_PER_TURN_MAX, DELIVERED_PER_TURN_MAX + 5}
        await eventually(lambda: len(seen) == DELIVERED_PER_TURN_MAX + 5)

    async def test_away_holds_tails_back(self, log: MemoryLog) -> None:
        """What was appended before the log went away is delivered when it is back."""
        seen: list[Record] = []
        await log.tail(KV, StreamSeq(1), seen.append)
        await self.append(log, "a", 1)
        await eventually(lambda: len(seen) == 1)
        log.away = True
        with pytest.raises(Unavailable):
            await log.state(KV)
        tail_turns = asyncio.get_running_loop().create_future()
        log.away = False
        await self.append(log, "a", 1)
        log.away = True
        asyncio.get_running_loop().call_soon(tail_turns.set_result, len(seen))
        assert await tail_turns == 1
        log.away = False
        await eventually(lambda: len(seen) == 2)

    @pytest.mark.parametrize("fault", ["cut", "remake"])
    async def test_replaced_history(self, log: MemoryLog, fault: str) -> None:
        """After a cut or a remake a tail is told, and goes on with what there is."""
        seen: list[Record] = []
        resets: list[StreamState] = []
        await self.append(log, "a", 3)
        epoch = (await log.state(KV)).epoch
        await log.tail(KV, StreamSeq(1), seen.append, on_reset=resets.append)
        await eventually(lambda: len(seen) == 3)
        if fault == "cut":
            log.cut(KV, StreamSeq(1))
        else:
            log.remake(KV)
        await eventually(lambda: resets)
        assert await self.append(log, "b", 1) == [2 if fault == "cut" else 1]
        await eventually(lambda: seen[-1].subject.endswith(".b"))
        assert [r.seq for r in seen] == ([1, 2, 3, 1, 2] if fault == "cut" else [1, 2, 3, 1])
        assert (resets[0].epoch == epoch) == (fault == "cut")

    async def test_expired_history(self, log: MemoryLog) -> None:
        """Readers begin at the oldest that is retained; a subject whose messages are all gone ends at 0."""
        await self.append(log, "a", 2)
        await self.append(log, "b", 2)
        log.expire(KV, StreamSeq(4))
        assert [r.seq for r in await self.read(log, 1)] == [4]
        assert await log.last(KV, self.subject(log, "a")) is None
        assert (await log.state(KV)).first_seq == 4
        assert await log.append(KV, self.subject(log, "a"), b"x", "a:new", StreamSeq(0)) == 5

    async def test_lost_acknowledgement(self, log: MemoryLog) -> None:
        """The writer is told nothing, the message stands."""
        log.acks_to_lose = 1
        with pytest.raises(Unavailable):
            await self.append(log, "a", 1)
        with pytest.raises(WrongSequence):
            await log.append(KV, self.subject(log, "a"), b"a after 0", "a:0", StreamSeq(0))
        log.id_first = True
        assert await log.append(KV, self.subject(log, "a"), b"a after 0", "a:0", StreamSeq(0)) == 1

    async def test_full(self, log: MemoryLog) -> None:
        """A full disk stops appends and nothing else."""
        await self.append(log, "a", 1)
        log.full = True
        with pytest.raises(Unavailable, match="full"):
            await self.append(log, "a", 1)
        assert len(await self.read(log, 1)) == 1
        log.full = False
        assert await self.append(log, "a", 1) == [2]

    async def test_rewritten(self, log: MemoryLog) -> None:
        """A message that reads back as another: who had it last is told, and everybody is given the other."""
        seen: list[Record] = []
        resets: list[StreamState] = []
        await self.append(log, "a", 2)
        await log.tail(KV, StreamSeq(1), seen.append, on_reset=resets.append)
        await eventually(lambda: len(seen) == 2)
        log.rewrite(KV, StreamSeq(2), b"another")
        await eventually(lambda: len(seen) == 4)
        assert [record.payload for record in seen[2:]] == [b"a after 0", b"another"]
        assert len(resets) == 1

    async def test_replaced_by_records(self, log: MemoryLog) -> None:
        """Records given from outside stand under their own sequences, and writers go on behind them."""
        given = [Record(KV, StreamSeq(seq), seq, self.subject(log, "a"), b"x") for seq in (5, 6, 9)]
        log.replace(KV, given)
        assert await self.read(log, 1) == given
        state = await log.state(KV)
        assert (state.first_seq, state.last_seq, state.deleted) == (5, 9, 2)
        assert await log.append(KV, self.subject(log, "a"), b"y", "a:1", StreamSeq(9)) == 10
        log.replace(KV, [])
        assert await self.read(log, 1) == []
        assert (await log.state(KV)).last_seq == 0


class MemoryBroker:
    """The log in memory and its faults."""

    def __init__(self) -> None:
        self.log = MemoryLog("test", ManualClock(1_000_000))
        self._copied: Store = {}

    async def delete(self, seq: int) -> None:
        self.log.delete(KV, StreamSeq(seq))

    async def remake(self) -> None:
        self.log.remake(KV)

    async def copy(self) -> None:
        self._copied = self.log.copy()

    async def put_back(self, then: Callable[[EventLog], Awaitable[object]]) -> None:
        elsewhere = MemoryLog("test", ManualClock(1_000_000))
        elsewhere.restore(self._copied)
        await then(elsewhere)
        self.log.restore(elsewhere.copy())

    async def damage(self, seq: int) -> None:
        self.log.rewrite(KV, StreamSeq(seq), None)


class TestMemoryHistory(ReplacedHistoryContract):
    @pytest.fixture
    async def broker(self) -> MemoryBroker:
        broker = MemoryBroker()
        await broker.log.ensure([KV])
        return broker
