"""CompactDecision: version 3 of `RequestRouted` on the wire, an array in place of a map.

Only encoding and decoding know this form; in memory a decision is a `RequestRouted` with `v` 3. The type on the wire is
another one, so that earlier programs take it for an event that they do not know.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
from msgspec import UNSET
from msgspec.structs import astuple, fields

from core.events.routing import COMPACT_VERSION, PromptBase, RequestRouted

COMPACT_DECISION = "RequestRouted3"
"""The type on the wire. It begins like that of the other versions: journals count decisions by that."""
BASE = "base"
"""The last value; a decision that continues no other leaves it out."""
VALUES: dict[str, Any] = {field.name: field.type for field in fields(RequestRouted) if field.name not in {BASE, "v"}}
"""The other values with their types, in the order of the wire: that of the fields of the class."""
_BASE = (BASE, PromptBase | None, None)

DecisionValues: Any = msgspec.defstruct("DecisionValues", [*VALUES.items(), _BASE], gc=False, array_like=True)
"""The array of all values. A reader passes over further ones."""


class CompactDecision(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag=COMPACT_DECISION):
    """The event as it stands in a message."""

    v: ClassVar[int] = COMPACT_VERSION
    d: DecisionValues

    def event(self) -> RequestRouted:
        """The decision."""
        values = astuple(self.d)
        if values[-1] is None:
            values = values[:-1]
        return RequestRouted(*values, v=COMPACT_VERSION)


def partial_values(*names: str) -> Any:
    """The type of the array for partial readers, which read these values alone."""
    last = len(VALUES) if BASE in names else max(map([*VALUES].index, names)) + 1
    known: list[Any] = [(each, kind if each in names else msgspec.Raw) for each, kind in [*VALUES.items()][:last]]
    return msgspec.defstruct("PartialValues", [*known, _BASE] if BASE in names else known, gc=False, array_like=True)


_START = b"\x82\xa4type" + msgspec.msgpack.encode(COMPACT_DECISION) + b"\xa1d"
"""The bytes before the array: the head of a map with two keys."""
_encode = msgspec.msgpack.Encoder().encode


def encode_compact(event: RequestRouted) -> bytes:
    """The decision as a CompactDecision."""
    values = astuple(event)
    return _START + _encode(values[:-1] if values[-2] is not UNSET else values[:-2])
