"""A backlog in memory: a worker's, whose cache can be restated if what waits is lost with the process."""

from __future__ import annotations

from collections import deque

from core.codec import READABLE
from streams.backlog import ENVELOPE_BYTES, Batch, Held, Item, OutboxLimits, encoded
from streams.sealed import Sealed


class _Entry:
    __slots__ = ("bounded", "encoded", "item", "readable", "size")

    def __init__(self, item: Item, limits: OutboxLimits, *, bounded: bool) -> None:
        self.item = item
        self.bounded = bounded
        self.encoded = None if callable(item) else encoded(item, limits)
        self.readable = isinstance(item, READABLE)
        self.size = limits.late_event_bytes if self.encoded is None else len(self.encoded)


class MemoryBacklog:
    """See `streams.backlog.Backlog`."""

    def __init__(self, limits: OutboxLimits) -> None:
        self._limits = limits
        self._entries: deque[_Entry] = deque()
        self._bounded_events = 0
        self._bounded_bytes = 0
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<MemoryBacklog {len(self)} events, {self.encoded_bytes} bytes>"

    @property
    def encoded_bytes(self) -> int:
        return self._bytes

    @property
    def held(self) -> Held:
        return Held(len(self), self._bytes, self._limits.pending_bytes_max)

    def offer(self, item: Item) -> bool:
        entry = _Entry(item, self._limits, bounded=True)
        full = self._bounded_events + 1 > self._limits.pending_events_max
        if full or self._bounded_bytes + entry.size > self._limits.pending_bytes_max:
            return False
        self._add(entry)
        return True

    def restate(self, item: Item) -> bool:
        """The item waits, whatever the bounds say."""
        self._add(_Entry(item, self._limits, bounded=False))
        return True

    def clear(self) -> int:
        dropped = len(self._entries)
        self._entries.clear()
        self._bounded_events = self._bounded_bytes = self._bytes = 0
        return dropped

    def take(self) -> Batch:
        room = self._limits.message_bytes_max - ENVELOPE_BYTES
        encodings: list[bytes] = []
        readable = True
        while self._entries and len(encodings) < self._limits.events_max:
            entry = self._entries[0]
            made = self._made(entry)
            if encodings and len(made) > room:
                break
            self._count(self._entries.popleft(), -1)
            encodings.append(made)
            readable = readable and entry.readable
            room -= len(made)
        return Batch(encodings, readable)

    def seal(self, sealed: Sealed) -> None:
        pass  # the outbox has it, and both end with the process

    def acknowledge(self, n_acked: int, head: bytes, last_seq: int) -> None:
        pass

    def abandon(self) -> int:
        return self.clear()

    def _made(self, entry: _Entry) -> bytes:
        """The entry's encoding, made now if it was not before."""
        if callable(entry.item):
            self._count(entry, -1)
            entry.item = entry.item()
            entry.encoded = encoded(entry.item, self._limits)
            entry.readable = isinstance(entry.item, READABLE)
            entry.size = len(entry.encoded)
            self._count(entry, 1)
        assert entry.encoded is not None
        return entry.encoded

    def _add(self, entry: _Entry) -> None:
        self._entries.append(entry)
        self._count(entry, 1)

    def _count(self, entry: _Entry, sign: int) -> None:
        self._bytes += sign * entry.size
        if entry.bounded:
            self._bounded_events += sign
            self._bounded_bytes += sign * entry.size
