"""MemoryStream: one stream of the log in memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from operator import attrgetter
from typing import Self

from core.errors import WrongSequence
from core.ids import Epoch, StreamSeq
from streams.log import NO_FINGERPRINTS, Fingerprints, Record, StreamState

_SEQ = attrgetter("seq")
_TIME = attrgetter("time_ms")


class MemoryStream:
    """Records in order of their sequences, with holes where some were deleted."""

    def __init__(self, epoch: Epoch) -> None:
        self.epoch = epoch
        self.fingerprints: Fingerprints = dict(NO_FINGERPRINTS)
        self.last = 0
        """The last sequence that was used, deleted or not."""
        self._first = 1
        """Records before this one are no longer retained."""
        self._records: list[Record] = []
        self._bytes = 0
        self._seq_by_subject: dict[str, StreamSeq] = {}
        self._seq_by_id: dict[str, StreamSeq] = {}

    def copy(self) -> Self:
        """The same history once more, growing apart from now on."""
        new = type(self)(self.epoch)
        vars(new).update({name: copy(value) for name, value in vars(self).items()})
        return new

    # --- reading -----------------------------------------------------------------------------------------------

    def state(self) -> StreamState:
        first = self._records[0].seq if self._records else StreamSeq(self.last + 1)
        deleted = self.last + 1 - first - len(self._records)
        return StreamState(self.epoch, first, StreamSeq(self.last), len(self._records), self._bytes, deleted)

    def at(self, seq: int) -> Record | None:
        """The record, found in O(log n); None if the stream does not hold it."""
        index = self._index(seq)
        found = self._records[index] if index < len(self._records) else None
        return found if found is not None and found.seq == seq else None

    def end(self, subject: str) -> StreamSeq:
        """The sequence of the subject's newest record; 0 if there is none."""
        return self._seq_by_subject.get(subject, StreamSeq(0))

    def known(self, message_id: str) -> StreamSeq | None:
        """Sequence of the message with that id."""
        return self._seq_by_id.get(message_id)

    def from_seq(self, start: int, limit: int | None = None) -> list[Record]:
        index = self._index(start)
        return self._records[index : None if limit is None else index + limit]

    def from_time(self, time_ms: int) -> StreamSeq:
        """The first sequence stored at or after that time."""
        index = bisect_left(self._records, time_ms, key=_TIME)
        return self._records[index].seq if index < len(self._records) else StreamSeq(self.last + 1)

    # --- writing -----------------------------------------------------------------------------------------------

    def store(self, new: Record, message_id: str, expected: int) -> Record:
        """The record as stored: with the next sequence, and a time not before the last one's."""
        if self.end(new.subject) != expected:
            raise WrongSequence(f"{new.subject} ends at {self.end(new.subject)}, not at {expected}")
        before_ms = self._records[-1].time_ms if self._records else 0
        self.last += 1
        stored = new._replace(seq=StreamSeq(self.last), time_ms=max(new.time_ms, before_ms))
        self._records.append(stored)
        self._bytes += len(stored.payload)
        self._seq_by_subject[stored.subject] = stored.seq
        self._seq_by_id[message_id] = stored.seq
        return stored

    # --- faults ------------------------------------------------------------------------------------------------

    def cut(self, seq: int) -> None:
        """Records after `seq` were never there."""
        self.last = min(self.last, seq)
        self._seq_by_id = {key: kept for key, kept in self._seq_by_id.items() if kept <= seq}
        self._hold(self._records[: self._index(seq + 1)])

    def expire(self, seq: int) -> None:
        """Records before `seq` are no longer retained."""
        assert seq <= self.last + 1
        self._first = max(seq, self._first)
        self._seq_by_id = {key: kept for key, kept in self._seq_by_id.items() if kept >= self._first}
        self._hold(self.from_seq(seq))

    def put(self, seq: int, record: Record | None) -> None:
        """This record, or none, stands in the place of the one that the stream holds there."""
        index = self._index(seq)
        assert self._records[index].seq == seq, f"the stream does not hold {seq}"
        self._hold([*self._records[:index], *([] if record is None else [record]), *self._records[index + 1 :]])

    def replace(self, records: Sequence[Record]) -> None:
        """The stream holds these records and no others; their sequences rise."""
        assert all(one.seq < other.seq for one, other in pairwise(records))
        self.last = records[-1].seq if records else 0
        self._first = records[0].seq if records else 1
        self._seq_by_id = {}
        self._hold(list(records))

    def _hold(self, records: list[Record]) -> None:
        self._records = records
        self._bytes = sum(len(record.payload) for record in records)
        self._seq_by_subject = {record.subject: record.seq for record in records}

    def _index(self, seq: int) -> int:
        """Position of the first record at or after `seq`."""
        guess = seq - self._first  # right unless something was deleted before it
        if 0 <= guess < len(self._records) and self._records[guess].seq == seq:
            return guess
        return bisect_left(self._records, seq, key=_SEQ)
