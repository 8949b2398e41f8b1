"""The log in memory: the same rules as the broker's, for tests and simulation, with faults on demand.

1. As in nats-server 2.15 the expected sequence is tested before the message id, so a retry of a stored message is
   a WrongSequence. Set `id_first` for the other order, which writers must live with too.
2. Message ids are remembered for as long as the message itself stands.
3. Nothing expires by itself.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable

from core.clock import Clock
from core.errors import Unavailable, WrongSequence
from core.ids import Epoch, StreamName, StreamSeq
from core.subjects import check_namespace, subject
from streams.log import Record, StreamState

DELIVERED_PER_TURN_MAX = 256
"""Records that a tail delivers before other tasks have their turn."""


class _Stream:
    """One stream's records, without holes from `first` on."""

    def __init__(self, epoch: Epoch) -> None:
        self.epoch = epoch
        self.first = 1
        self.records: list[Record] = []
        self.seq_by_subject: dict[str, StreamSeq] = {}
        self.seq_by_id: dict[str, StreamSeq] = {}

    @property
    def last(self) -> int:
        return self.first + len(self.records) - 1

    def state(self) -> StreamState:
        size = sum(len(record.payload) for record in self.records)
        return StreamState(self.epoch, StreamSeq(self.first), StreamSeq(self.last), len(self.records), size)

    def from_seq(self, start: int, limit: int | None = None) -> list[Record]:
        skip = max(start - self.first, 0)
        return self.records[skip : None if limit is None else skip + limit]

    def cut(self, seq: int) -> None:
        del self.records[max(seq - self.first + 1, 0) :]
        self.seq_by_id = {key: kept for key, kept in self.seq_by_id.items() if kept <= seq}
        self.seq_by_subject = {record.subject: record.seq for record in self.records}

    def expire(self, seq: int) -> None:
        del self.records[: max(seq - self.first, 0)]
        self.first = max(seq, self.first)
        self.seq_by_subject = {key: kept for key, kept in self.seq_by_subject.items() if kept >= self.first}


class MemoryTail:
    """Delivers from one stream on the event loop; see `streams.log.Tail`."""

    def __init__(
        self,
        log: MemoryLog,
        stream: StreamName,
        start: StreamSeq,
        on_record: Callable[[Record], None],
        on_reset: Callable[[StreamState], None] | None,
    ) -> None:
        self._log = log
        self._stream = stream
        self._next = max(int(start), 1)
        self._on_record = on_record
        self._on_reset = on_reset
        self._epoch = log.found(stream).epoch
        self._scheduled = False
        self._stopped = False

    def __repr__(self) -> str:
        return f"<MemoryTail {self._stream} next {self._next}>"

    async def stop(self) -> None:
        self._stopped = True
        self._log.forget(self)

    def kick(self) -> None:
        """What can be delivered will be, in a later turn of the loop."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        if self._stopped or self._log.away:
            return
        stream = self._log.found(self._stream)
        self._check_history(stream)
        for record in stream.from_seq(self._next, DELIVERED_PER_TURN_MAX):
            self._next = record.seq + 1
            self._on_record(record)
        if self._next <= stream.last:
            self.kick()

    def _check_history(self, stream: _Stream) -> None:
        if stream.epoch == self._epoch and stream.last >= self._next - 1:
            return
        self._epoch = stream.epoch
        self._next = stream.first
        if self._on_reset is not None:
            self._on_reset(stream.state())


class MemoryLog:
    """A whole namespace's log in this process; see `streams.log.EventLog`."""

    def __init__(self, namespace: str, clock: Clock) -> None:
        self.namespace = check_namespace(namespace)
        self.id_first = False
        """Whether a known message id is told before the expected sequence is tested."""
        self.acks_to_lose = 0
        """How many of the next appends are stored but answered with Unavailable."""
        self._clock = clock
        self._streams: dict[StreamName, _Stream] = {}
        self._tails: list[MemoryTail] = []
        self._away = False

    def __repr__(self) -> str:
        return f"<MemoryLog {self.namespace}: {', '.join(sorted(self._streams))}>"

    # --- faults ------------------------------------------------------------------------------------------------

    @property
    def away(self) -> bool:
        """While true, every call raises Unavailable and tails stand still."""
        return self._away

    @away.setter
    def away(self, away: bool) -> None:
        self._away = away
        self._kick_tails()

    def cut(self, stream: StreamName, seq: StreamSeq) -> None:
        """What came after `seq` was never there, as after a roll-back."""
        self._streams[stream].cut(seq)
        self._kick_tails()

    def expire(self, stream: StreamName, seq: StreamSeq) -> None:
        """What came before `seq` is no longer retained."""
        assert seq <= self._streams[stream].last + 1
        self._streams[stream].expire(seq)

    def remake(self, stream: StreamName) -> None:
        """The stream is deleted and made anew: empty, in a new epoch."""
        later = max(self._clock.wall_ms(), self._streams[stream].epoch + 1)
        self._streams[stream] = _Stream(Epoch(later))
        self._kick_tails()

    # --- EventLog ----------------------------------------------------------------------------------------------

    async def ensure(self, streams: list[StreamName]) -> None:
        self._check_here()
        for name in streams:
            if name not in self._streams:
                self._streams[name] = _Stream(Epoch(self._clock.wall_ms()))

    async def append(
        self, stream: StreamName, subject: str, payload: bytes, message_id: str, expected_seq: StreamSeq
    ) -> StreamSeq:
        await asyncio.sleep(0)  # as at a broker, others have their turn while an append is on the way
        found = self.found(stream)
        self._check_subject(stream, subject)
        known = found.seq_by_id.get(message_id)
        if self.id_first and known is not None:
            return known
        actual = found.seq_by_subject.get(subject, 0)
        if actual != expected_seq:
            raise WrongSequence(f"{subject} ends at {actual}, not at {expected_seq}")
        seq = self._store(found, stream, subject, payload, message_id) if known is None else known
        if self.acks_to_lose:
            self.acks_to_lose -= 1
            raise Unavailable("the acknowledgement was lost")
        return seq

    async def last(self, stream: StreamName, subject: str) -> Record | None:
        found = self.found(stream)
        seq = found.seq_by_subject.get(subject)
        return None if seq is None else found.records[seq - found.first]

    async def at(self, stream: StreamName, seq: StreamSeq) -> Record | None:
        found = self.found(stream)
        return found.records[seq - found.first] if found.first <= seq <= found.last else None

    async def state(self, stream: StreamName) -> StreamState:
        return self.found(stream).state()

    async def seek(self, stream: StreamName, time_ms: int) -> StreamSeq:
        found = self.found(stream)
        return StreamSeq(found.first + bisect_left(found.records, time_ms, key=lambda record: record.time_ms))

    async def read(self, stream: StreamName, start: StreamSeq) -> AsyncIterator[Record]:
        for record in self.found(stream).from_seq(start):
            self._check_here()
            yield record

    async def tail(
        self,
        stream: StreamName,
        start: StreamSeq,
        on_record: Callable[[Record], None],
        *,
        on_reset: Callable[[StreamState], None] | None = None,
    ) -> MemoryTail:
        tail = MemoryTail(self, stream, start, on_record, on_reset)
        self._tails.append(tail)
        tail.kick()
        return tail

    async def streams(self) -> list[StreamName]:
        self._check_here()
        return sorted(self._streams)

    async def close(self) -> None:
        for tail in list(self._tails):
            await tail.stop()

    # --- for the tails -----------------------------------------------------------------------------------------

    def found(self, name: StreamName) -> _Stream:
        """The stream; Unavailable if it, or the log, is not there."""
        self._check_here()
        if name not in self._streams:
            raise Unavailable(f"stream {name} is not there")
        return self._streams[name]

    def forget(self, tail: MemoryTail) -> None:
        """The tail is not woken any more."""
        if tail in self._tails:
            self._tails.remove(tail)

    def _store(self, found: _Stream, stream: StreamName, subject: str, payload: bytes, message_id: str) -> StreamSeq:
        seq = StreamSeq(found.last + 1)
        before_ms = found.records[-1].time_ms if found.records else 0
        found.records.append(Record(stream, seq, max(self._clock.wall_ms(), before_ms), subject, payload))
        found.seq_by_subject[subject] = seq
        found.seq_by_id[message_id] = seq
        self._kick_tails()
        return seq

    def _kick_tails(self) -> None:
        for tail in self._tails:
            tail.kick()

    def _check_subject(self, stream: StreamName, written: str) -> None:
        assert written.startswith(subject(self.namespace, stream, "")), f"{written} is not a subject of {stream}"

    def _check_here(self) -> None:
        if self._away:
            raise Unavailable("the log is away")
