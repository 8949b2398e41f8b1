"""A source of messages for tests: seals what it says in its chain, as a real outbox does."""

from __future__ import annotations

from typing import Any, NamedTuple

from core.codec import CHAIN_START, Message, decode_message, digest, encode_event, encode_message
from core.events import Event
from core.ids import SourceId, StreamName
from core.subjects import owner, subject
from projections.folds.source_fold import SourceFold

CHAIN_KEY = bytes(range(32))


class Said(NamedTuple):
    """One sealed message with where it was written."""

    stream: StreamName
    subject: str
    payload: bytes

    @property
    def owner(self) -> str:
        return owner(self.subject)

    @property
    def message(self) -> Message:
        return decode_message(self.payload)

    @property
    def digest(self) -> bytes:
        return digest(self.payload, CHAIN_KEY)


class Speaker:
    """One source in one stream."""

    def __init__(self, stream: str, source: str, *, about: str = "") -> None:
        self.stream = StreamName(stream)
        self.source = SourceId(source)
        self.subject = subject("test", self.stream, about or source)
        self.n_next = 0
        self.head = CHAIN_START

    def say(self, *events: Event) -> Said:
        """The next message of the chain; who does not deliver it makes a gap."""
        return self.say_raw(*(encode_event(event) for event in events))

    def say_raw(self, *events: bytes) -> Said:
        """The same for events that are bytes already."""
        payload = encode_message(self.source, self.n_next, self.head, 0, events)
        self.n_next += 1
        self.head = digest(payload, CHAIN_KEY)
        return Said(self.stream, self.subject, payload)


def fold(projection: SourceFold[Any, Any], *said: Said) -> list[bool]:
    """What each apply returned."""
    return [projection.apply(each.owner, each.message, each.digest) for each in said]
