"""The event log as the rest of Contrail sees it: ordered streams of sealed messages.

Two implementations pass one contract suite: `streams.memory` (tests, simulation) and `streams.jetstream`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from core.ids import Epoch, StreamName, StreamSeq
from streams.queue_limits import QUEUE_LIMITS, QueueLimits

if TYPE_CHECKING:
    from streams.queue import Queue


class Record(NamedTuple):
    """One message as the log holds it."""

    stream: StreamName
    seq: StreamSeq
    time_ms: int
    """When the log stored it, by the log's clock."""
    subject: str
    payload: bytes


class StreamState(NamedTuple):
    """What a stream holds now."""

    epoch: Epoch
    first_seq: StreamSeq
    """The oldest retained; last_seq + 1 if there is none."""
    last_seq: StreamSeq
    messages: int
    bytes: int
    deleted: int = 0
    """Missing between the first and the last: retention takes from the front only, so somebody took these away."""


class Tail(Protocol):
    """A running reader; it resumes by itself after reconnects, exactly where it stopped."""

    async def stop(self) -> None:
        """No record is delivered after this returns."""


class EventLog(Protocol):
    """Raises Unavailable when it cannot be reached, Refused when it says no for good."""

    async def ensure(self, streams: list[StreamName]) -> None:
        """These streams exist; those that exist already keep their history."""

    async def append(
        self, stream: StreamName, subject: str, payload: bytes, message_id: str, expected_seq: StreamSeq
    ) -> StreamSeq:
        """The payload stands in the stream at the sequence returned, once, however often it is offered.

        `expected_seq` is the last sequence of this subject that the writer knows (0 for none).
        WrongSequence if that is not so; Unavailable if it is not known whether it was stored.
        """

    async def last(self, stream: StreamName, subject: str) -> Record | None:
        """The newest message of a subject, read from the leader; None if there is none."""

    async def at(self, stream: StreamName, seq: StreamSeq) -> Record | None:
        """The message at that sequence, read from the leader; None if the stream does not hold it."""

    async def state(self, stream: StreamName) -> StreamState:
        """What the stream holds now."""

    async def seek(self, stream: StreamName, time_ms: int) -> StreamSeq:
        """The first sequence stored at or after that time; last_seq + 1 if there is none."""

    def read(self, stream: StreamName, start: StreamSeq) -> AsyncIterator[Record]:
        """The records from `start` (or the oldest retained) to what was the last when asked, in order.

        A message that was deleted, or that the log finds damaged, is left out.
        """

    async def tail(
        self,
        stream: StreamName,
        start: StreamSeq,
        on_record: Callable[[Record], None],
        *,
        on_reset: Callable[[StreamState], None] | None = None,
        after: Record | None = None,
    ) -> Tail:
        """Calls `on_record` for every record from `start` on, in order, without gaps or repeats, until stopped.

        `after` is the record before `start` as the caller has read it, if it has: it counts as delivered.

        If the stream is made anew, ends before `start - 1` or before what was delivered, or no longer holds the
        last record delivered as it was, its history was replaced: `on_reset` is told what the stream holds now, and
        the records follow from the oldest on. What stood further back and was deleted is not told: a message that
        a reader has and others lack is found by the chains. Both run on the event loop and must not raise.
        """

    async def queue(self, stream: StreamName, name: str, subjects: str, limits: QueueLimits = QUEUE_LIMITS) -> Queue:
        """The durable queue of this name over the stream's messages of these subjects (a wildcard); made if it is not
        there, with what the stream is given from now on."""

    async def streams(self) -> list[StreamName]:
        """The namespace's streams that exist, sorted."""

    async def close(self) -> None:
        """Nothing is held any more."""
