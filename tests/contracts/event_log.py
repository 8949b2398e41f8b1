"""The rules of `streams.log.EventLog`, for every implementation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from core.errors import Unavailable, WrongSequence
from core.ids import StreamName, StreamSeq
from core.subjects import LOAD, kv_stream, subject
from streams.log import EventLog, Record, StreamState
from tests.fixtures.eventually import eventually

KV = kv_stream(0)


class EventLogContract:
    """Subclasses give `log` (its streams `kv_0` and `load` exist and are empty) and `break_off`."""

    @pytest.fixture
    async def log(self) -> EventLog:
        raise NotImplementedError

    @pytest.fixture
    def break_off(self) -> Callable[[], Awaitable[None]]:
        """Makes the log unreachable."""
        raise NotImplementedError

    def subject(self, log: EventLog, token: str, stream: StreamName = KV) -> str:
        return subject(log.namespace, stream, token)  # type: ignore[attr-defined]

    async def append(self, log: EventLog, token: str, count: int, stream: StreamName = KV) -> list[StreamSeq]:
        """Appends `count` messages as one source would."""
        written = self.subject(log, token, stream)
        end = await log.last(stream, written)
        seqs = [StreamSeq(0) if end is None else end.seq]
        for _ in range(count):
            payload = f"{token} after {seqs[-1]}".encode()
            seqs.append(await log.append(stream, written, payload, f"{token}:{seqs[-1]}", seqs[-1]))
        return seqs[1:]

    async def read(self, log: EventLog, start: int, stream: StreamName = KV) -> list[Record]:
        return [record async for record in log.read(stream, StreamSeq(start))]

    async def test_order(self, log: EventLog) -> None:
        """Messages stand in the order of their appends, numbered from 1, each as it was written."""
        assert await self.append(log, "a", 2) == [1, 2]
        assert await self.append(log, "b", 1) == [3]
        records = await self.read(log, 1)
        assert [(r.stream, r.seq, r.subject) for r in records] == [
            (KV, 1, self.subject(log, "a")),
            (KV, 2, self.subject(log, "a")),
            (KV, 3, self.subject(log, "b")),
        ]
        assert [r.payload for r in records] == [b"a after 0", b"a after 1", b"b after 0"]
        assert [r.time_ms for r in records] == sorted(r.time_ms for r in records)

    async def test_expected_sequence_of_a_new_subject(self, log: EventLog) -> None:
        """A subject without messages ends at 0, whatever stands in others."""
        await self.append(log, "a", 1)
        with pytest.raises(WrongSequence):
            await log.append(KV, self.subject(log, "b"), b"x", "b:0", StreamSeq(1))
        assert await self.append(log, "b", 1) == [2]

    async def test_expected_sequence_of_a_known_subject(self, log: EventLog) -> None:
        """Only who knows where a subject ends may append to it; of two who do, the first wins."""
        await self.append(log, "a", 2)
        for wrong in (0, 1, 3):
            with pytest.raises(WrongSequence):
                await log.append(KV, self.subject(log, "a"), b"x", "other:0", StreamSeq(wrong))
        await log.append(KV, self.subject(log, "a"), b"x", "other:0", StreamSeq(2))
        with pytest.raises(WrongSequence):
            await log.append(KV, self.subject(log, "a"), b"y", "a:2", StreamSeq(2))
        assert (await log.state(KV)).last_seq == 3

    async def test_retry_of_a_stored_append(self, log: EventLog) -> None:
        """Offered again, a stored message is not stored again; the writer can find out that it was."""
        [seq] = await self.append(log, "a", 1)
        try:
            again = await log.append(KV, self.subject(log, "a"), b"a after 0", "a:0", StreamSeq(0))
        except WrongSequence:
            end = await log.last(KV, self.subject(log, "a"))
            assert end is not None
            assert end.payload == b"a after 0"
            again = end.seq
        assert again == seq
        assert (await log.state(KV)).messages == 1

    async def test_message_id(self, log: EventLog) -> None:
        """A message id that the log holds is not stored a second time, even where the sequence fits."""
        [seq] = await self.append(log, "a", 1)
        assert await log.append(KV, self.subject(log, "a"), b"a after 0", "a:0", seq) == seq
        assert (await log.state(KV)).messages == 1

    async def test_last(self, log: EventLog) -> None:
        """The end of each subject is its newest message; an unused subject has none."""
        await self.append(log, "a", 2)
        await self.append(log, "b", 1)
        end = await log.last(KV, self.subject(log, "a"))
        assert end == (await self.read(log, 2))[0]
        assert await log.last(KV, self.subject(log, "c")) is None

    async def test_at(self, log: EventLog) -> None:
        """The message at a sequence, as a pass gives it; None where the stream holds none."""
        await self.append(log, "a", 2)
        assert await log.at(KV, StreamSeq(2)) == (await self.read(log, 2))[0]
        assert await log.at(KV, StreamSeq(3)) is None
        assert await log.at(KV, StreamSeq(0)) is None
        assert await log.at(LOAD, StreamSeq(1)) is None

    async def test_fingerprints(self, log: EventLog) -> None:
        """A stream gets those that it lacks, and keeps those that it has; its history and its limits stay."""
        assert await log.fingerprints(KV) == {}
        await self.append(log, "a", 1)
        before = await log.state(KV)
        await log.ensure([KV, LOAD], {"0": "ab"})
        await log.ensure([KV], {"0": "cd", "1": "ef"})
        await log.ensure([KV])
        assert await log.fingerprints(KV) == {"0": "ab", "1": "ef"}
        assert await log.fingerprints(LOAD) == {"0": "ab"}
        assert (await log.state(KV))._replace(time_us=before.time_us) == before

    async def test_the_time_of_the_log_is_that_of_its_records(self, log: EventLog) -> None:
        before_us = (await log.state(KV)).time_us
        await self.append(log, "a", 1)
        after_us = (await log.state(KV)).time_us
        record = await log.at(KV, StreamSeq(1))
        assert record is not None
        assert before_us // 1000 <= record.time_ms <= after_us // 1000

    async def test_state(self, log: EventLog) -> None:
        """An empty stream begins at 1 and ends at 0; both grow with it, its epoch does not change."""
        empty = await log.state(KV)
        assert (empty.first_seq, empty.last_seq, empty.messages, empty.deleted) == (1, 0, 0, 0)
        await self.append(log, "a", 3)
        state = await log.state(KV)
        assert (state.first_seq, state.last_seq, state.messages) == (1, 3, 3)
        assert state.epoch == empty.epoch > 0
        assert state.bytes > 0

    async def test_ensure_keeps_history(self, log: EventLog) -> None:
        """To ensure a stream that exists changes nothing in it."""
        await self.append(log, "a", 1)
        before = await log.state(KV)
        await log.ensure([KV, LOAD])
        assert (await log.state(KV))._replace(time_us=before.time_us) == before

    async def test_seek(self, log: EventLog) -> None:
        """A time is found at the first message stored at or after it."""
        await self.append(log, "a", 3)
        records = await self.read(log, 1)
        for record in records:
            first = next(r.seq for r in records if r.time_ms >= record.time_ms)
            assert await log.seek(KV, record.time_ms) == first
        assert await log.seek(KV, records[0].time_ms - 10_000) == 1
        assert await log.seek(KV, records[-1].time_ms + 1) == 4

    async def test_read_bounds(self, log: EventLog) -> None:
        """A pass begins where it was told, ends at what was the last when it began, and may be empty."""
        await self.append(log, "a", 5)
        assert [r.seq for r in await self.read(log, 4)] == [4, 5]
        assert await self.read(log, 6) == []
        assert await self.read(log, 60) == []
        assert await self.read(log, 1, LOAD) == []
        seen: list[int] = []
        async for record in log.read(KV, StreamSeq(0)):
            if not seen:
                await self.append(log, "b", 1)
            seen.append(record.seq)
        assert seen == [1, 2, 3, 4, 5]

    async def test_tail_from_the_middle_and_live(self, log: EventLog) -> None:
        """A tail gives history from where it was told, then what comes, each once and in order, until stopped."""
        await self.append(log, "a", 5)
        seen: list[Record] = []
        tail = await log.tail(KV, StreamSeq(3), seen.append)
        assert seen == [] or seen[0].seq == 3
        await self.append(log, "b", 5)
        await eventually(lambda: len(seen) >= 8)
        assert seen == await self.read(log, 3)
        await tail.stop()
        await self.append(log, "b", 1)
        assert len(await self.read(log, 3)) == 9
        assert len(seen) == 8

    async def test_tail_from_the_end(self, log: EventLog) -> None:
        """A tail that begins right behind the end gives only what comes."""
        await self.append(log, "a", 2)
        seen: list[Record] = []
        resets: list[StreamState] = []
        tail = await log.tail(KV, StreamSeq(3), seen.append, on_reset=resets.append)
        await self.append(log, "a", 1)
        await eventually(lambda: seen)
        assert [r.seq for r in seen] == [3]
        assert resets == []
        await tail.stop()

    async def test_tail_from_beyond_history(self, log: EventLog) -> None:
        """Who knows more than the stream holds is told that history was replaced, and is given what there is."""
        await self.append(log, "a", 2)
        told: list[Record] = []
        untold: list[Record] = []
        resets: list[StreamState] = []
        tails = [
            await log.tail(KV, StreamSeq(9), told.append, on_reset=resets.append),
            await log.tail(KV, StreamSeq(9), untold.append),
        ]
        await eventually(lambda: len(told) == len(untold) == 2)
        assert [r.seq for r in told] == [r.seq for r in untold] == [1, 2]
        assert [state.last_seq for state in resets] == [2]
        for tail in tails:
            await tail.stop()

    async def test_two_tails(self, log: EventLog) -> None:
        """Tails keep their own positions."""
        await self.append(log, "a", 3)
        one: list[Record] = []
        two: list[Record] = []
        tails = [await log.tail(KV, StreamSeq(1), one.append), await log.tail(KV, StreamSeq(3), two.append)]
        await eventually(lambda: len(one) == 3 and two)
        assert [r.seq for r in one] == [1, 2, 3]
        assert [r.seq for r in two] == [3]
        for tail in tails:
            await tail.stop()

    async def test_streams_are_independent(self, log: EventLog) -> None:
        """Each stream has its own sequence; the namespace lists what exists."""
        assert await self.append(log, "a", 2) == [1, 2]
        assert await self.append(log, "a", 1, LOAD) == [1]
        assert await log.streams() == [KV, LOAD]
        assert [r.stream for r in await self.read(log, 1, LOAD)] == [LOAD]

    async def test_a_stream_that_is_not_there(self, log: EventLog) -> None:
        """It may be made any time: to be without it is to be without the log."""
        missing = kv_stream(7)
        with pytest.raises(Unavailable):
            await log.state(missing)
        with pytest.raises(Unavailable):
            await log.append(missing, self.subject(log, "a", missing), b"x", "a:0", StreamSeq(0))

    async def test_away(self, log: EventLog, break_off: Callable[[], Awaitable[None]]) -> None:
        """Every call says that the log is not there, and does not wait for it."""
        await self.append(log, "a", 1)
        await break_off()
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: log.ensure([KV]),
            lambda: log.append(KV, self.subject(log, "a"), b"x", "a:1", StreamSeq(1)),
            lambda: log.last(KV, self.subject(log, "a")),
            lambda: log.at(KV, StreamSeq(1)),
            lambda: log.state(KV),
            lambda: log.seek(KV, 0),
            lambda: log.tail(KV, StreamSeq(1), lambda _: None),
            log.streams,
            lambda: self.read(log, 1),
        ]
        for call in calls:
            with pytest.raises(Unavailable):
                await call()
