"""Backlog: what one outbox still has to seal, in order and bounded, each event encoded once.

MemoryBacklog is a worker's, whose cache can be restated if the events are lost with the process; a replica's is
`streams.outbox.journal`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from core.codec import READABLE, encode_event, is_decision
from core.events import Event
from core.ids import SourceId

ENVELOPE_BYTES = 512
"""An upper bound of a message's bytes beside its events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxLimits:
    """Every bound of an outbox."""

    message_bytes_max: int = 256 * 1024
    """A message is closed before it would grow past this; an event larger than that goes alone."""
    event_bytes_max: int = 700 * 1024
    """A larger event is not said at all: brokers that take less than that are refused (`PAYLOAD_MIN`), and what they
    refuse would end the chain."""
    events_max: int = 1024
    """Events in one message."""
    pending_events_max: int = 65_536
    """Events not yet sealed; one more is an overflow. A restatement does not count."""
    pending_bytes_max: int = 32 * 1024 * 1024
    """The same in bytes, in memory; a journal has its capacity instead."""
    journal_events_max: int = 262_144
    """Events not yet sealed in a journal: each is also ahead of the fold, and that is kept in memory."""
    pace_s: float = 0.002
    """From one message's first append to the next one's at least: what happens meanwhile goes with it, since the
    broker's answer costs as much for one event as for many. What comes after a pause goes at once."""
    retry_min_s: float = 0.05
    """First pause after the log was not there; it doubles …"""
    retry_max_s: float = 1.0
    """… up to this."""
    idle_check_s: float = 3.0
    """After so long without anything to append, the end of our subject is looked at."""


class EventTooLarge(ValueError):
    """No message can hold the event."""


def encoded(event: Event, limits: OutboxLimits) -> bytes:
    """The event's encoding. EventTooLarge if it passes the bound."""
    found = encode_event(event)
    if len(found) > limits.event_bytes_max:
        name = type(event).__name__
        raise EventTooLarge(f"{name} of {len(found)} bytes, of which {limits.event_bytes_max} can be said")
    return found


class Batch(msgspec.Struct, frozen=True):
    """The events of one message, in order."""

    encodings: list[bytes]
    readable: bool
    """True if all events are of low rate (`core.codec.READABLE`)."""


class SealedMessage(msgspec.Struct, frozen=True):
    """The message of an append: it stays the same from its first append until the log has it."""

    n: int
    payload: bytes
    events: int
    message_id: str
    """By it the broker knows a repeated append."""


def message_id(source: SourceId, n: int) -> str:
    """The id by which the broker knows the source's message n."""
    return f"{source}:{n}"


class EventCounts(msgspec.Struct, frozen=True):
    """Numbers of events, the decisions among them counted apart."""

    events: int
    decisions: int


class BacklogSize(NamedTuple):
    """The events that wait, and their bytes."""

    events: int
    bytes: int
    """As they take up room: encoded, and in a journal with what surrounds them."""
    capacity_bytes: int


class Backlog(Protocol):
    """Events that wait to be sealed; in memory, or in a journal that outlives the process."""

    events: int
    """Their number."""

    @property
    def encoded_bytes(self) -> int:
        """Of all that waits, encoded."""

    @property
    def held(self) -> BacklogSize:
        """The size of the backlog beside its capacity."""

    def offer(self, event: Event) -> bool:
        """True if the event waits now; False, and nothing changed, if that would pass a bound. EventTooLarge if it can
        never be said."""

    def restate(self, event: Event) -> bool:
        """The same for what stands for all that was dropped: only the last bound holds it back."""

    def clear(self) -> EventCounts:
        """Nothing waits any more; returns the counts of the events that did."""

    def note_dropped(self, event: Event) -> None:
        """The event is dropped and never waited; a journal keeps the counts of such events for a successor."""

    def take(self) -> Batch:
        """The events of the next message wait no more; at least one, if any waits. `seal` follows at once."""

    def seal(self, sealed: SealedMessage) -> None:
        """The events taken last stand in this message, which goes to the log as it is."""

    def acknowledge(self, n_acked: int, head: bytes, last_seq: int) -> None:
        """The sealed message is in the log: so many are, with this digest and sequence of the last."""

    def abandon(self) -> EventCounts:
        """Another ended our chain: nothing more is taken. Returns the counts of the events that are lost by that."""


class _Entry(NamedTuple):
    encoded: bytes
    readable: bool
    bounded: bool
    """True if the event counts for the bounds; a restatement does not."""


class MemoryBacklog:
    """See `streams.outbox.backlog.Backlog`."""

    def __init__(self, limits: OutboxLimits) -> None:
        self.events = 0
        self._limits = limits
        self._entries: deque[_Entry] = deque()
        self._bounded_events = 0
        self._bounded_bytes = 0
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<MemoryBacklog {self.events} events, {self.encoded_bytes} bytes>"

    @property
    def encoded_bytes(self) -> int:
        return self._bytes

    @property
    def held(self) -> BacklogSize:
        return BacklogSize(self.events, self._bytes, self._limits.pending_bytes_max)

    def offer(self, event: Event) -> bool:
        data = encoded(event, self._limits)
        full = self._bounded_events + 1 > self._limits.pending_events_max
        if full or self._bounded_bytes + len(data) > self._limits.pending_bytes_max:
            return False
        self._add(event, data, bounded=True)
        return True

    def restate(self, event: Event) -> bool:
        """The event waits, also beyond the bounds."""
        self._add(event, encoded(event, self._limits), bounded=False)
        return True

    def clear(self) -> EventCounts:
        dropped = EventCounts(self.events, sum(is_decision(entry.encoded) for entry in self._entries))
        self._entries.clear()
        self.events = self._bounded_events = self._bounded_bytes = self._bytes = 0
        return dropped

    def note_dropped(self, event: Event) -> None:
        pass

    def take(self) -> Batch:
        room = self._limits.message_bytes_max - ENVELOPE_BYTES
        encodings: list[bytes] = []
        readable = True
        while self._entries and len(encodings) < self._limits.events_max:
            entry = self._entries[0]
            if encodings and len(entry.encoded) > room:
                break
            self._count(self._entries.popleft(), -1)
            encodings.append(entry.encoded)
            readable = readable and entry.readable
            room -= len(entry.encoded)
        return Batch(encodings, readable)

    def seal(self, sealed: SealedMessage) -> None:
        pass  # the outbox has it, and both end with the process

    def acknowledge(self, n_acked: int, head: bytes, last_seq: int) -> None:
        pass

    def abandon(self) -> EventCounts:
        return self.clear()

    def _add(self, event: Event, data: bytes, *, bounded: bool) -> None:
        entry = _Entry(data, isinstance(event, READABLE), bounded)
        self._entries.append(entry)
        self._count(entry, 1)

    def _count(self, entry: _Entry, sign: int) -> None:
        size = sign * len(entry.encoded)
        self.events += sign
        self._bytes += size
        if entry.bounded:
            self._bounded_events += sign
            self._bounded_bytes += size
