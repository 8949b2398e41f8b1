"""ReadOnlyLog: the calls of `streams.log.EventLog` that a log in files refuses, since it never grows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from typing import NoReturn

from core.errors import Refused
from core.ids import StreamName, StreamSeq
from streams.log import NO_FINGERPRINTS, QUEUE_LIMITS, Fingerprints, Queue, QueueLimits, Record, StreamState, Tail


class ReadOnlyLog(ABC):
    """The base of logs in files. A subclass reads; every call that would write or follow is Refused here."""

    @property
    @abstractmethod
    def refusal(self) -> str:
        """The sentence of a refusal."""

    @abstractmethod
    def read(self, stream: StreamName, start: StreamSeq) -> AsyncIterator[Record]:
        """See `streams.log.EventLog`."""

    async def last(self, stream: StreamName, subject: str) -> Record | None:
        """The newest message of a subject. O(messages): files have no list of subjects."""
        found = None
        async for record in self.read(stream, StreamSeq(1)):
            if record.subject == subject:
                found = record
        return found

    async def ensure(self, streams: list[StreamName], fingerprints: Fingerprints = NO_FINGERPRINTS) -> None:
        self._refuse(streams, fingerprints)

    async def append(
        self, stream: StreamName, subject: str, payload: bytes, message_id: str, expected_seq: StreamSeq
    ) -> StreamSeq:
        self._refuse(stream, subject, payload, message_id, expected_seq)

    async def tail(
        self,
        stream: StreamName,
        start: StreamSeq,
        on_record: Callable[[Record], None],
        *,
        on_reset: Callable[[StreamState], None] | None = None,
        after: Record | None = None,
    ) -> Tail:
        self._refuse(stream, start, on_record, on_reset, after)

    async def queue(self, stream: StreamName, name: str, subjects: str, limits: QueueLimits = QUEUE_LIMITS) -> Queue:
        self._refuse(stream, name, subjects, limits)

    def _refuse(self, *asked: object) -> NoReturn:
        del asked
        raise Refused(self.refusal)
