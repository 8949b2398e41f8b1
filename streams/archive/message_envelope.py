"""Envelope: what a message says of itself, read without its events; a third of the price of decoding it."""

from __future__ import annotations

import msgspec

from core.codec import JSON_START
from core.ids import LOST_SUFFIX


class _Event(msgspec.Struct):
    """Of an event no more than that it is one."""

    type: str


class Envelope(msgspec.Struct, frozen=True):
    """The source of a message, and its position in the source's chain."""

    v: int
    source: str
    n: int
    prev: bytes
    sent_ms: int
    events: list[_Event]

    def of(self, owner: str) -> bool:
        """True if the message belongs on that owner's subject: folds skip messages of other writers there."""
        return self.source in (owner, owner + LOST_SUFFIX)


def envelope(payload: bytes) -> Envelope | None:
    """The message's envelope; None for what is no message of ours. Known events may still be unreadable."""
    try:
        found: Envelope = (_json if payload[:1] == JSON_START else _msgpack).decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found


_msgpack: msgspec.msgpack.Decoder[Envelope] = msgspec.msgpack.Decoder(Envelope)
_json: msgspec.json.Decoder[Envelope] = msgspec.json.Decoder(Envelope)
