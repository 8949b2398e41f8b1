"""Progress of requests on the wire: first tokens and ends are arrays, as their classes have the order of the values.

The types on the wire are others than the names of the classes, so that earlier programs take them for events that they
do not know. Version 1 is a map; its classes here turn into the same events.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import NODEFAULT
from msgspec.structs import astuple, fields

from core.events.base import EventBase, before_array
from core.events.routing import PROGRESS_VERSION, RequestFinished, RequestPrefilled

COMPACT_PREFILLED, COMPACT_FINISHED = "First2", "End2"
"""The types on the wire; the version in the array is that of the event."""


class CompactPrefilled(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag=COMPACT_PREFILLED):
    """The event as it stands in a message."""

    v: ClassVar[int] = PROGRESS_VERSION
    event: RequestPrefilled = msgspec.field(name="e")


class CompactFinished(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag=COMPACT_FINISHED):
    """The same of an end."""

    v: ClassVar[int] = PROGRESS_VERSION
    event: RequestFinished = msgspec.field(name="e")


def _map_of(kind: type[EventBase]) -> Any:
    """The struct of version 1, a map of the values before `v`. Its `v` is that of the other forms: it says that the
    event is another object."""
    values = list(takewhile(lambda field: field.name != "v", fields(kind)))
    required = [(field.name, field.type) for field in values if field.default is NODEFAULT]
    others = [(field.name, field.type, field.default) for field in values if field.default is not NODEFAULT]
    version = ("version", Annotated[int, msgspec.Meta(lt=PROGRESS_VERSION)], msgspec.field(default=1, name="v"))
    return msgspec.defstruct(
        f"{kind.__name__}Map",
        [*required, *others, version],
        namespace={"v": PROGRESS_VERSION, "event": property(lambda self: kind(*astuple(self)[:-1], v=self.version))},
        tag_field="type",
        tag=kind.__name__,
        omit_defaults=True,
        frozen=True,
    )


PrefilledMap, FinishedMap = _map_of(RequestPrefilled), _map_of(RequestFinished)
_PREFILLED, _FINISHED = before_array(COMPACT_PREFILLED, "e"), before_array(COMPACT_FINISHED, "e")
_encode = msgspec.msgpack.Encoder().encode


def encode_prefilled(event: RequestPrefilled) -> bytes:
    """The event in the form of its version."""
    return _PREFILLED + _encode(event) if event.v >= PROGRESS_VERSION else _encode(PrefilledMap(*astuple(event)))


def encode_finished(event: RequestFinished) -> bytes:
    """The same of an end; version 1 has no stages, and an end without any is written as before there were some."""
    if event.stages and event.v >= PROGRESS_VERSION:
        return _FINISHED + _encode(event)
    values = astuple(event)[:-1]
    return _FINISHED + _encode(values) if event.v >= PROGRESS_VERSION else _encode(FinishedMap(*values))
