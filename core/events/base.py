"""EventBase: the form of every event of the log."""

from __future__ import annotations

import msgspec

from core.ids import COLUMN_WIDTH


class EventBase(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=True):
    """An immutable fact in the past tense; its `type` on the wire is the name of its class."""

    v: int = 1
    """Version of this event type."""


def check_width(column: bytes) -> None:
    """ValueError, which a decoder makes a validation error, unless it holds whole numbers of 8 bytes."""
    if len(column) % COLUMN_WIDTH:
        raise ValueError(f"a column of {len(column)} bytes holds no whole numbers of {COLUMN_WIDTH}")


def before_array(kind: str, key: str) -> bytes:
    """The bytes of an event of that type before its one value, which is an array under that key (msgpack)."""
    return b"\x82\xa4type" + b"".join(map(msgspec.msgpack.encode, (kind, key)))
