"""Events that wait to be sealed: in order, bounded, each encoded once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from core.codec import encode_event
from core.events import Event

LateEvent = Callable[[], Event]
"""An event that is made only when its message is sealed."""
Item = Event | LateEvent

ENVELOPE_BYTES = 512
"""More than what a message takes beside its events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxLimits:
    """Every bound of an outbox."""

    message_bytes_max: int = 256 * 1024
    """A message is closed before it would grow past this; an event larger than that goes alone."""
    events_max: int = 1024
    """Events in one message."""
    pending_events_max: int = 65_536
    """Events not yet sealed; one more is an overflow. A restatement does not count."""
    pending_bytes_max: int = 32 * 1024 * 1024
    late_event_bytes: int = 4096
    """What an event that is not made yet counts as."""
    retry_min_s: float = 0.05
    """First pause after the log was not there; it doubles …"""
    retry_max_s: float = 1.0
    """… up to this."""
    idle_check_s: float = 10.0
    """After so long without anything to append, the end of our subject is looked at."""

    def within(self, payload_max: int) -> OutboxLimits:
        """These limits with messages of at most half of what the broker takes."""
        return replace(self, message_bytes_max=min(self.message_bytes_max, payload_max // 2))


class _Entry:
    __slots__ = ("bounded", "encoded", "item", "size")

    def __init__(self, item: Item, nominal_bytes: int, *, bounded: bool) -> None:
        self.item = item
        self.bounded = bounded
        self.encoded = None if callable(item) else encode_event(item)
        self.size = nominal_bytes if self.encoded is None else len(self.encoded)


class Backlog:
    """What one outbox still has to seal."""

    def __init__(self, limits: OutboxLimits) -> None:
        self._limits = limits
        self._entries: deque[_Entry] = deque()
        self._bounded_events = 0
        self._bounded_bytes = 0
        self.bytes = 0
        """Of all that waits, encoded."""

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<Backlog {len(self)} events, {self.bytes} bytes>"

    def offer(self, item: Item) -> bool:
        """True if the item waits now; False, and nothing changed, if that would pass a bound."""
        entry = _Entry(item, self._limits.late_event_bytes, bounded=True)
        full = self._bounded_events + 1 > self._limits.pending_events_max
        if full or self._bounded_bytes + entry.size > self._limits.pending_bytes_max:
            return False
        self._add(entry)
        return True

    def restate(self, item: Item) -> None:
        """The item waits, whatever the bounds say: it stands for all that was dropped."""
        self._add(_Entry(item, self._limits.late_event_bytes, bounded=False))

    def clear(self) -> int:
        """Nothing waits any more; returns how many events that were."""
        dropped = len(self._entries)
        self._entries.clear()
        self._bounded_events = self._bounded_bytes = self.bytes = 0
        return dropped

    def take(self) -> tuple[list[Event], list[bytes]]:
        """The events of the next message with their encodings; at least one, if any waits."""
        room = self._limits.message_bytes_max - ENVELOPE_BYTES
        events: list[Event] = []
        encodings: list[bytes] = []
        while self._entries and len(events) < self._limits.events_max:
            event, encoded = self._made(self._entries[0])
            if events and len(encoded) > room:
                break
            self._count(self._entries.popleft(), -1)
            events.append(event)
            encodings.append(encoded)
            room -= len(encoded)
        return events, encodings

    def _made(self, entry: _Entry) -> tuple[Event, bytes]:
        """The entry's event, made now if it was not before."""
        if callable(entry.item):
            self._count(entry, -1)
            entry.item = entry.item()
            entry.encoded = encode_event(entry.item)
            entry.size = len(entry.encoded)
            self._count(entry, 1)
        assert entry.encoded is not None
        return entry.item, entry.encoded

    def _add(self, entry: _Entry) -> None:
        self._entries.append(entry)
        self._count(entry, 1)

    def _count(self, entry: _Entry, sign: int) -> None:
        self.bytes += sign * entry.size
        if entry.bounded:
            self._bounded_events += sign
            self._bounded_bytes += sign * entry.size
