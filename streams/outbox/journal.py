"""Journal: a backlog that outlives its process, with the message that is in flight.

Every event that is put stands in the file at once, and so does every sealed message before it is offered. So a
successor goes on where the process was killed: the message in flight with the same bytes, then what was not sealed.
When all is told the next record goes to the ring's start again, so that a quiet outbox touches few pages.
"""

from __future__ import annotations

import hashlib
import logging
import struct
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from msgspec import UNSET, UnsetType

from core.codec import DECISIONS, READABLE, is_decision, newest_key
from core.errors import Corrupt
from core.events import DecisionCounts, Event
from core.ids import SourceId, StreamName
from streams.outbox.backlog import (
    ENVELOPE_BYTES,
    BacklogSize,
    Batch,
    EventCounts,
    OutboxLimits,
    SealedMessage,
    encoded,
    message_id,
)
from streams.outbox.journal_file import (
    ALIGN,
    EVENT,
    READABLE_EVENT,
    SEALED,
    SUFFIX,
    WRAP,
    JournalCounts,
    JournalFile,
    JournalIdentity,
    JournalPosition,
    JournalTail,
    next_lap,
    size_of,
)

logger = logging.getLogger(__name__)

CAPACITY_BYTES = 256 * 1024 * 1024
CAPACITY_BYTES_MIN = 1024
RESERVE_SHARE = 4
"""This part of the ring is left to sealed messages and restatements …"""
RESERVE_BYTES_MAX = 8 * 1024 * 1024
"""… and no more than this."""
REWIND_BYTES = 256 * 1024
"""An empty ring begins at its start again once it has come this far."""
RELEASE_BYTES = 16 * 1024 * 1024
"""An empty ring that has come this far gives back memory and disk."""
RECENT_EVENTS_MAX = 1024
"""So many of the events that wait are in memory too: what is sealed soon need not be read back."""
SCAN_RECORDS = 512
"""Records of a dead process's journal that are looked at before others have their turn."""

_SEALED = struct.Struct("<QI")
_EVENTS = (EVENT, READABLE_EVENT)
_PLAIN = (EVENT, False)
_KINDS = {**dict.fromkeys(READABLE, (READABLE_EVENT, False)), **dict.fromkeys(DECISIONS, (EVENT, True))}
"""The kind of record of a type of event, and True for decisions; of the other types it is _PLAIN."""
_Waiting = tuple[int, bytes, int, bool]
"""An event that waits: the fields of its StoredRecord, and True for a decision."""


def identity(namespace: str, stream: StreamName, source: str, chain_key: bytes) -> JournalIdentity:
    """The identity in a journal's header; the key itself cannot be derived from it."""
    check = hashlib.blake2b(b"journal", key=newest_key(chain_key), digest_size=16).digest()
    return JournalIdentity(check, namespace, stream, source)


class Journal:
    """See `streams.outbox.backlog.Backlog`; one process at a time has it."""

    def __init__(self, file: JournalFile, limits: OutboxLimits) -> None:
        self.source = SourceId(file.source)
        """The source of the events."""
        self._file = file
        self._limits = limits
        self._capacity = file.capacity
        self._events_max = limits.journal_events_max
        self._reserve = min(file.capacity // RESERVE_SHARE, RESERVE_BYTES_MAX)
        self._tail = self._next = file.standing.events_from
        self._clear = 0
        """A record whose data would end here, put at the tail, is within the lap, the room and the disk for sure."""
        self._oldest = _oldest(file.standing)
        self.events = 0
        self._bytes = 0
        self._decisions = 0
        """Decisions among the events that wait."""
        self._made = 0
        """See JournalCounts, as for those below."""
        self._dropped_events = 0
        self._dropped_decisions = 0
        self._recent: deque[_Waiting] = deque()
        """The first of the events that wait."""
        self._in_flight = False
        self._taken = self._unmarked = EventCounts(0, 0)
        """The events of the message that was taken last; and they, as long as the file has no room for it."""

    @staticmethod
    def create(
        folder: Path, whose: JournalIdentity, limits: OutboxLimits, capacity_bytes: int = CAPACITY_BYTES
    ) -> Journal:
        """An empty journal in the folder, which is made if it is missing. Unavailable if the disk refuses."""
        assert capacity_bytes >= CAPACITY_BYTES_MIN
        journal = Journal(JournalFile.create(folder / (whose.source + SUFFIX), capacity_bytes, whose), limits)
        journal._keep_counts()
        return journal

    @staticmethod
    def open_left(path: Path, ours: JournalIdentity, limits: OutboxLimits) -> Journal | None:
        """A dead process's journal, to be scanned first. None, Refused and Corrupt as `JournalFile.open_left`."""
        file = JournalFile.open_left(path, ours)
        return None if file is None else Journal(file, limits)

    def __repr__(self) -> str:
        return f"<Journal {self._file.path.name}: {self.events} events, {self.held.bytes} bytes>"

    @property
    def standing(self) -> JournalPosition:
        """The progress of its outbox."""
        return self._file.standing

    @property
    def decision_counts(self) -> DecisionCounts | UnsetType:
        """Counts of the source for its end. After `scan`, records that cannot be read count as dropped. UNSET if the
        journal is of an earlier version, or if nothing was decided or dropped."""
        if not (self._made or self._dropped_events):
            return UNSET
        others = self._dropped_events - self._dropped_decisions
        return DecisionCounts(self._made, self._dropped_decisions, others)

    @property
    def encoded_bytes(self) -> int:
        return self._bytes

    @property
    def held(self) -> BacklogSize:
        return BacklogSize(self.events, self._tail - self._oldest, self._capacity)

    # --- Backlog -----------------------------------------------------------------------------------------------

    def offer(self, event: Event) -> bool:
        return self.events < self._events_max and self._put(event, self._reserve)

    def restate(self, event: Event) -> bool:
        return self._put(event, 0)

    def clear(self) -> EventCounts:
        dropped = EventCounts(self.events, self._decisions)
        self._dropped_events += dropped.events
        self._dropped_decisions += dropped.decisions
        self.events, self._bytes, self._decisions, self._next = 0, 0, 0, self._tail
        self._recent.clear()
        self._keep_counts()
        if self.standing.sealed_at or not self._in_flight:
            self._mark(self.standing._replace(events_from=self._tail))
        return dropped

    def note_dropped(self, event: Event) -> None:
        decided = type(event) in DECISIONS
        self._made += decided
        self._dropped_events += 1
        self._dropped_decisions += decided
        self._keep_counts()

    def take(self) -> Batch:
        room, most = self._limits.message_bytes_max - ENVELOPE_BYTES, min(self.events, self._limits.events_max)
        encodings: list[bytes] = []
        readable, decisions, size = True, 0, 0
        while len(encodings) < most:
            kind, data, after, decides = self._event()
            if encodings and size + len(data) > room:
                break
            if self._recent:
                self._recent.popleft()
            self._next = after
            encodings.append(data)
            readable = readable and kind == READABLE_EVENT
            decisions += decides
            size += len(data)
        self._count_taken(len(encodings), decisions, size)
        self._taken = EventCounts(len(encodings), decisions)
        return Batch(encodings, readable)

    def seal(self, sealed: SealedMessage) -> None:
        """The message stands in the file; if the disk is full, its events stay there instead."""
        self._in_flight = True
        data = _SEALED.pack(sealed.n, sealed.events) + sealed.payload
        if self._tail + len(data) > self._clear and not self._make_room(len(data), 0):
            self._unmarked = self._taken
            logger.warning("no room for message %d in %r: if the process dies now it is sealed anew", sealed.n, self)
            return
        at, (_, _, n_acked, last_seq, head) = self._tail, self._file.standing
        self._tail = self._file.write(at, SEALED, data, self._made, self.events)
        self._mark(JournalPosition(at, self._next, n_acked, last_seq, head))
        self._keep_counts()

    def acknowledge(self, n_acked: int, head: bytes, last_seq: int) -> None:
        self._in_flight = False
        tail = self._tail
        if not self.events:
            if tail % self._capacity >= REWIND_BYTES:
                self._tail = next_lap(tail, self._capacity)
            self._next = self._tail
        self._mark(JournalPosition(0, self._next, n_acked, last_seq, head))
        if self._unmarked.events or self._tail != tail:  # else `seal` kept the same counts
            self._unmarked = EventCounts(0, 0)
            self._keep_counts()
        if not self.events and self._file.allocated >= RELEASE_BYTES:
            self._file.release()
            self._clear = 0

    def abandon(self) -> EventCounts:
        """Waiting events stay in the file for a successor that finds the journal."""
        return EventCounts(0, 0)

    # --- for a successor ---------------------------------------------------------------------------------------

    def scan(self) -> Iterator[None]:
        """The events that a dead process left are counted once this has ended; it yields so that others have their
        turn."""
        at, seen, kept, tail = self._next, 0, self._file.counts, self._file.tail
        uncounted = EventCounts(0, 0)
        """Put after the counts were kept."""
        unmarked = 0
        """Decisions put after the tail was kept: the process was killed in between."""
        while (record := self._file.read(at)) is not None and record.after - self._oldest <= self._capacity:
            at = self._tail = record.after
            if record.kind in _EVENTS:
                decides = is_decision(record.data)
                self.events += 1
                self._bytes += len(record.data)
                self._decisions += decides
                if record.after > kept.tail:
                    uncounted = EventCounts(uncounted.events + 1, uncounted.decisions + decides)
                unmarked += decides and record.after > tail.after
            seen += 1
            if seen % SCAN_RECORDS == 0:
                yield
        if kept.tail:
            self._made = max(kept.made, tail.made) + unmarked
            self._count_lost(kept, tail, uncounted)
        if max(self.standing.sealed_at, tail.after) > self._tail:
            logger.error("%r is damaged: records behind offset %d are lost", self, self._tail)

    def in_flight(self) -> SealedMessage | None:
        """The message that may be in the log already. Corrupt if there was one and it cannot be read."""
        at = self.standing.sealed_at
        if not at:
            return None
        record = self._file.read(at)
        if record is None or record.kind != SEALED:
            raise Corrupt(f"{self!r}: message {self.standing.n_acked} cannot be read")
        n, events = _SEALED.unpack_from(record.data)
        return SealedMessage(n, record.data[_SEALED.size :], events, message_id(self.source, n))

    def peek(self) -> bytes | None:
        """The encoding of the first event that waits."""
        return self._event()[1] if self.events else None

    def skip(self) -> None:
        """The first event waits no more: a message holds it."""
        _, data, self._next, decides = self._event()
        if self._recent:
            self._recent.popleft()
        self._count_taken(1, decides, len(data))

    def close(self, *, delete: bool) -> None:
        """The file is gone, or there for another to find. May be called again."""
        self._file.close(delete=delete)

    # -----------------------------------------------------------------------------------------------------------

    def _count_lost(self, kept: JournalCounts, tail: JournalTail, uncounted: EventCounts) -> None:
        """Events that the journal held and that cannot be read count as dropped; dropped events that are still there do
        not. `uncounted` were put after the counts were kept, and can be read."""
        events = kept.events - (self.events - uncounted.events)
        decisions = kept.decisions - (self._decisions - uncounted.decisions)
        if kept.tail <= self._tail:  # others than those that are still there are in a message
            events, decisions = min(0, events), min(0, decisions)
        if tail.after > self._tail:
            events += max(0, tail.events - kept.events - uncounted.events)
            decisions += max(0, tail.made - kept.made - uncounted.decisions)
        self._dropped_events = max(0, kept.dropped_events + events)
        self._dropped_decisions = max(0, kept.dropped_decisions + decisions)
        self._keep_counts()

    def _keep_counts(self) -> None:
        self._file.keep_counts(
            self._tail,
            self.events + self._unmarked.events,
            self._decisions + self._unmarked.decisions,
            self._made,
            self._dropped_events,
            self._dropped_decisions,
        )

    def _put(self, event: Event, reserve: int) -> bool:
        data = encoded(event, self._limits)
        kind, decides = _KINDS.get(type(event), _PLAIN)
        length = len(data)
        if self._tail + length > self._clear and not self._make_room(length, reserve):
            return False
        if decides:
            self._decisions += 1
            self._made += 1
        self._tail = self._file.write(self._tail, kind, data, self._made, self.events + 1)
        if len(self._recent) == self.events < RECENT_EVENTS_MAX:
            self._recent.append((kind, data, self._tail, decides))
        self.events += 1
        self._bytes += length
        return True

    def _make_room(self, length: int, reserve: int) -> bool:
        """So much data can be written at the tail; False, and nothing changed, if there is no room."""
        size, at = size_of(length), self._tail
        wraps = size > self._capacity - at % self._capacity
        if wraps:
            at = next_lap(at, self._capacity)
        room_end = self._oldest + self._capacity
        if at + size + reserve > room_end or not self._file.has_disk(at, size):
            return False
        if wraps:
            if not self._file.has_disk(self._tail, size_of(0)):
                return False
            self._file.write(self._tail, WRAP, b"")
            self._tail = at
        lap = at - at % self._capacity
        self._clear = min(lap + self._file.allocated, room_end - self._reserve) - 2 * ALIGN
        return True

    def _event(self) -> _Waiting:
        """The first event that waits."""
        if self._recent:
            return self._recent[0]
        while True:
            record = self._file.read(self._next)
            if record is None:
                raise Corrupt(f"{self!r}: an event that was written cannot be read")
            if record.kind in _EVENTS:
                return *record, is_decision(record.data)
            self._next = record.after  # messages stand between the events

    def _count_taken(self, events: int, decisions: int, size: int) -> None:
        """So many events, of so many bytes, wait no more."""
        self.events -= events
        self._decisions -= decisions
        self._bytes -= size

    def _mark(self, standing: JournalPosition) -> None:
        self._file.mark(standing)
        self._oldest = _oldest(standing)


def _oldest(standing: JournalPosition) -> int:
    """The first offset that is still needed."""
    sealed_at, events_from = standing.sealed_at, standing.events_from
    return sealed_at if 0 < sealed_at < events_from else events_from
