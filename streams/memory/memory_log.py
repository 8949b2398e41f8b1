"""MemoryLog: the log in memory, with the rules of the broker's; for tests and simulation, with faults on demand.

1. As in nats-server 2.15 the expected sequence is tested before the message id, so a retry of a stored message is
   a WrongSequence. Set `id_first` for the other order, which writers must live with too.
2. Message ids are remembered for as long as the message itself is retained.
3. Nothing expires by itself.
4. Faults take effect at once; readers are woken and look for themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from core.clock import Clock
from core.errors import Unavailable
from core.ids import Epoch, StreamName, StreamSeq
from core.subjects import check_namespace, subject
from streams.log import NO_FINGERPRINTS, QUEUE_LIMITS, Fingerprints, QueueLimits, Record, StreamState
from streams.memory.memory_queue import MemoryQueue, SharedQueue
from streams.memory.memory_stream import MemoryStream

DELIVERED_PER_TURN_MAX = 256
"""Records that a tail delivers before other tasks have their turn."""


class MemoryTail:
    """Delivers from one stream on the event loop; see `streams.log.Tail`.

    Before each delivery it asks what `JetStreamTail` asks when it opens and every few seconds: whether the history
    that it has read is still there.
    """

    def __init__(
        self,
        found: Callable[[], MemoryStream],
        start: StreamSeq,
        on_record: Callable[[Record], None],
        on_reset: Callable[[StreamState], None] | None,
        after: Record | None,
    ) -> None:
        self.stopped = False
        self._found = found
        self._next = max(int(start), 1)
        self._on_record = on_record
        self._on_reset = on_reset
        self._epoch: Epoch = found().epoch
        self._last = after
        """The last that was delivered."""
        self._scheduled = False

    def __repr__(self) -> str:
        return f"<MemoryTail next {self._next}>"

    async def stop(self) -> None:
        self.stopped = True

    def kick(self) -> None:
        """Records are delivered in a later turn of the loop."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        if self.stopped:
            return
        try:
            stream = self._found()
        except Unavailable:  # `kick` follows when the log is back
            return
        self._check_history(stream)
        records = stream.from_seq(self._next, DELIVERED_PER_TURN_MAX)
        for record in records:
            self._next = record.seq + 1
            self._last = record
            self._on_record(record)
        if len(records) == DELIVERED_PER_TURN_MAX:
            self.kick()

    def _check_history(self, stream: MemoryStream) -> None:
        state = stream.state()
        if state.epoch == self._epoch and state.last_seq >= self._next - 1 and self._holds_last(stream, state):
            return
        self._epoch = state.epoch
        self._next = state.first_seq
        self._last = None
        if self._on_reset is not None:
            self._on_reset(state)

    def _holds_last(self, stream: MemoryStream, state: StreamState) -> bool:
        """True if the last record delivered is there as it was, or if retention removed it."""
        return self._last is None or self._last.seq < state.first_seq or stream.at(self._last.seq) == self._last


__all__ = ["DELIVERED_PER_TURN_MAX", "MemoryLog", "MemoryTail", "Store"]

Store = dict[StreamName, MemoryStream]
"""A copy of all streams, as of a broker's data folder."""


class MemoryLog:
    """A whole namespace's log in this process; see `streams.log.EventLog`."""

    def __init__(self, namespace: str, clock: Clock) -> None:
        self.namespace = check_namespace(namespace)
        self.id_first = False
        """True if a known message id is checked before the expected sequence."""
        self.acks_to_lose = 0
        """Number of next appends that are stored but answered with Unavailable."""
        self.full = False
        """While true, appends raise Unavailable, as from a broker with a full disk; all else works."""
        self._clock = clock
        self._streams: Store = {}
        self._tails: list[MemoryTail] = []
        self._queues: dict[tuple[StreamName, str], SharedQueue] = {}
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
        self._kick()

    def cut(self, stream: StreamName, seq: StreamSeq) -> None:
        """Records after `seq` were never there, as after a roll-back."""
        self._streams[stream].cut(seq)
        self._kick()

    def expire(self, stream: StreamName, seq: StreamSeq) -> None:
        """Records before `seq` are no longer retained."""
        self._streams[stream].expire(seq)

    def remake(self, stream: StreamName) -> None:
        """The stream is deleted and made anew: empty, in a new epoch."""
        later = max(self._clock.wall_ms(), self._streams[stream].epoch + 1)
        self._streams[stream] = MemoryStream(Epoch(later))
        self._kick()

    def delete(self, stream: StreamName, seq: StreamSeq) -> None:
        """One message is gone, as by the broker's own API: a hole, unless it was the oldest."""
        self._streams[stream].put(seq, None)
        self._kick()

    def rewrite(self, stream: StreamName, seq: StreamSeq, payload: bytes | None) -> None:
        """The message holds another payload; None if the broker finds it damaged and leaves it out."""
        record = self._streams[stream].at(seq)
        assert record is not None, f"{stream} does not hold {seq}"
        self._streams[stream].put(seq, None if payload is None else record._replace(payload=payload))
        self._kick()

    def replace(self, stream: StreamName, records: Sequence[Record]) -> None:
        """The stream holds these records, under their own sequences, and no others."""
        self._streams[stream].replace(records)
        self._kick()

    def copy(self) -> Store:
        """All streams as they are now, for `restore`."""
        return {name: stream.copy() for name, stream in self._streams.items()}

    def restore(self, store: Store) -> None:
        """The store is put back to a copy: the same epochs, and later sequences are used again."""
        self._streams = {name: stream.copy() for name, stream in store.items()}
        self._kick()

    # --- EventLog ----------------------------------------------------------------------------------------------

    async def ensure(self, streams: list[StreamName], fingerprints: Fingerprints = NO_FINGERPRINTS) -> None:
        self._check_here()
        for name in streams:
            if name not in self._streams:
                self._streams[name] = MemoryStream(Epoch(self._clock.wall_ms()))
            stream = self._streams[name]
            stream.fingerprints = {**fingerprints, **stream.fingerprints}

    async def fingerprints(self, stream: StreamName) -> Fingerprints:
        return self._found(stream).fingerprints

    async def append(
        self, stream: StreamName, subject: str, payload: bytes, message_id: str, expected_seq: StreamSeq
    ) -> StreamSeq:
        await asyncio.sleep(0)  # as at a broker, others have their turn while an append is on the way
        found = self._found(stream)
        self._check_subject(stream, subject)
        if self.full:
            raise Unavailable("the log's disk is full")
        known = found.known(message_id)
        if known is not None and (self.id_first or found.end(subject) == expected_seq):
            return known
        new = Record(stream, StreamSeq(0), self._clock.wall_ms(), subject, payload)
        stored = found.store(new, message_id, expected_seq)
        self._kick()
        if self.acks_to_lose:
            self.acks_to_lose -= 1
            raise Unavailable("the acknowledgement was lost")
        return stored.seq

    async def last(self, stream: StreamName, subject: str) -> Record | None:
        found = self._found(stream)
        return found.at(found.end(subject))

    async def at(self, stream: StreamName, seq: StreamSeq) -> Record | None:
        return self._found(stream).at(seq)

    async def state(self, stream: StreamName) -> StreamState:
        return self._found(stream).state()._replace(time_us=self._clock.wall_ms() * 1000)

    async def seek(self, stream: StreamName, time_ms: int) -> StreamSeq:
        return self._found(stream).from_time(time_ms)

    async def read(self, stream: StreamName, start: StreamSeq) -> AsyncIterator[Record]:
        for record in self._found(stream).from_seq(start):
            self._check_here()
            yield record

    async def tail(
        self,
        stream: StreamName,
        start: StreamSeq,
        on_record: Callable[[Record], None],
        *,
        on_reset: Callable[[StreamState], None] | None = None,
        after: Record | None = None,
    ) -> MemoryTail:
        tail = MemoryTail(lambda: self._found(stream), start, on_record, on_reset, after)
        self._tails = [*(other for other in self._tails if not other.stopped), tail]
        tail.kick()
        return tail

    async def queue(
        self, stream: StreamName, name: str, subjects: str, limits: QueueLimits = QUEUE_LIMITS
    ) -> MemoryQueue:
        self._found(stream)
        if (stream, name) not in self._queues:
            self._queues[stream, name] = SharedQueue(lambda: self._found(stream), subjects, limits)
        return MemoryQueue(self._queues[stream, name])

    async def streams(self) -> list[StreamName]:
        self._check_here()
        return sorted(self._streams)

    async def close(self) -> None:
        for tail in self._tails:
            await tail.stop()

    # -----------------------------------------------------------------------------------------------------------

    def _found(self, name: StreamName) -> MemoryStream:
        """The stream; Unavailable if it, or the log, is not there."""
        self._check_here()
        if name not in self._streams:
            raise Unavailable(f"stream {name} is not there")
        return self._streams[name]

    def _kick(self) -> None:
        for tail in self._tails:
            if not tail.stopped:
                tail.kick()
        for queue in self._queues.values():
            queue.stir()

    def _check_subject(self, stream: StreamName, written: str) -> None:
        assert written.startswith(subject(self.namespace, stream, "")), f"{written} is not a subject of {stream}"

    def _check_here(self) -> None:
        if self._away:
            raise Unavailable("the log is away")
