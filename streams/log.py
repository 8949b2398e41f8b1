"""The event log, and work queues over its streams, as the rest of Contrail sees them.

A stream is an ordered sequence of sealed messages. A queue is one durable reader that all workers share: it hands each
message of its stream to one of them at a time, oldest first; the stream keeps its history.

Two implementations pass one contract suite: `streams.memory` (tests, simulation) and `streams.jetstream`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from core.ids import Epoch, StreamName, StreamSeq

REMADE, ROLLED_BACK, DELETED = "remade", "rolled back", "deleted"
"""Kinds of losses that the extent of a stream shows."""
Fingerprints = Mapping[str, str]
"""Fingerprints of a deployment's key by generation, as `DeploymentKey.fingerprints` gives them."""
NO_FINGERPRINTS: Fingerprints = MappingProxyType({})


class Record(NamedTuple):
    """One message as the log holds it."""

    stream: StreamName
    seq: StreamSeq
    time_ms: int
    """When the log stored it, by the log's clock."""
    subject: str
    payload: bytes


class StreamState(NamedTuple):
    """The extent of a stream now."""

    epoch: Epoch
    first_seq: StreamSeq
    """The oldest retained; last_seq + 1 if there is none."""
    last_seq: StreamSeq
    messages: int
    bytes: int
    deleted: int = 0
    """Missing between the first and the last: retention takes from the front only, so somebody took these away."""
    bytes_max: int = 0
    """The stream's own bound on its bytes; 0 for none."""
    age_max_s: float = 0.0
    """The stream's own bound on the age of its messages; 0 for none."""
    time_us: int = 0
    """The clock of the stream's leader at the answer, in microseconds since 1970; 0 if it does not say. It stamps
    records."""

    def loss_since(self, epoch: int, last_seq: int, deleted: int) -> str:
        """The kind of the loss if the stream had this extent before; empty for none. Retention is no loss."""
        if self.epoch != epoch:
            return REMADE
        if self.last_seq < last_seq:
            return ROLLED_BACK
        return DELETED if self.deleted > deleted else ""


Extents = Mapping[StreamName, StreamState]
"""Of the streams that existed at one look."""


class Tail(Protocol):
    """A running reader; it resumes by itself after reconnects, exactly where it stopped."""

    async def stop(self) -> None:
        """No record is delivered after this returns."""


class QueueLimits(NamedTuple):
    """Every bound of a queue; the first to open it settles them."""

    ack_wait_s: float = 5.0
    """A message without a sign of work for so long is handed out again."""
    deliveries_max: int = 5
    """Deliveries of a message for work; one more follows, so that its receiver can report that it is given up."""
    pending_max: int = 1024
    """Messages handed out and not acknowledged, of all workers together."""


QUEUE_LIMITS = QueueLimits()


class Delivery(Protocol):
    """One message, handed to us."""

    record: Record
    number: int
    """Number of this delivery of the message, from 1. After a crash the broker may count too little. One over
    `deliveries_max` is the last: its receiver reports that the message is given up."""

    async def done(self) -> None:
        """It is handed out no more. Unavailable if the broker did not say that it heard it: then it may be."""

    async def working(self) -> None:
        """The time until it is handed out again begins anew. Unavailable as above."""

    async def again(self, delay_s: float = 0.0) -> None:
        """It is handed out again after the delay, to anybody, unless it was for the last time. Unavailable as above."""


class Queue(Protocol):
    """Owned by one task, which asks for one message at a time. A queue that somebody deletes at the broker is made
    again: it goes on behind the last message that this one was handed.

    Raises Unavailable when the log cannot be reached, Refused when it says no for good.
    """

    async def next(self, wait_s: float) -> Delivery | None:
        """The oldest message that waits; None if none came in time, known at most a second later. Unavailable as soon
        as the log is away. Cancelled, it takes none: what was on the way is handed back, and counts as handed out."""

    async def close(self) -> None:
        """Nothing is asked for any more; what was handed to us and not acknowledged goes to others at once."""


class EventLog(Protocol):
    """Raises Unavailable when it cannot be reached, Refused when it says no for good."""

    async def ensure(self, streams: list[StreamName], fingerprints: Fingerprints = NO_FINGERPRINTS) -> None:
        """These streams exist; those that exist already keep their history.

        They have these fingerprints beside those that they had. Only a credential that may change streams adds them to
        a stream that exists.
        """

    async def fingerprints(self, stream: StreamName) -> Fingerprints:
        """The fingerprints that the stream has; the first one written for a generation stays."""

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
        """The extent of the stream now."""

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
        last record delivered as it was, its history was replaced: `on_reset` gets the extent of the stream now, and
        the records follow from the oldest on. Deletions further back are not reported: the chains find a message
        that one reader has and others lack. Both run on the event loop and must not raise.
        """

    async def queue(self, stream: StreamName, name: str, subjects: str, limits: QueueLimits = QUEUE_LIMITS) -> Queue:
        """The durable queue of this name over the stream's messages of these subjects (a wildcard); made if it is not
        there, with what the stream is given from now on."""

    async def streams(self) -> list[StreamName]:
        """The namespace's streams that exist, sorted."""

    async def close(self) -> None:
        """Nothing is held any more."""
