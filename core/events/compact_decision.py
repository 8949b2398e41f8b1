"""Compact decisions: versions 3 and 4 of `RequestRouted` on the wire, an array in place of a map.

Only encoding and decoding know this form; in memory a decision is a `RequestRouted` with `v` 3 or 4. The types on the
wire are others, so that earlier programs take them for events that they do not know.

Version 4 leaves out what its reader knows: the names of the streams in the cursor, and columns of the values that most
decisions have.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET
from msgspec.structs import astuple, fields

from core.events.base import before_array
from core.events.routing import (
    COLUMNS,
    COMPACT_VERSION,
    SHORT_VERSION,
    Columns,
    PrefixFetch,
    PromptBase,
    RequestRouted,
)
from core.ids import StreamName
from core.subjects import JOBS, LOAD, ROUTING, kv_stream

COMPACT_DECISION, SHORT_DECISION = "RequestRouted3", "RequestR4"
"""The types on the wire. They begin like that of the other versions: journals count decisions by that."""
COMPACT_TYPES = frozenset({COMPACT_DECISION, SHORT_DECISION})
BASE, ADAPTER, FETCH, LOAD_TIME = "base", "adapter", "fetch", "load_time"
LAST = frozenset({BASE, ADAPTER, FETCH, LOAD_TIME})
"""The last values. One that the decision does not have is None, or left out where no later one stands."""
VALUES: dict[str, Any] = {
    field.name: field.type for field in fields(RequestRouted) if field.name not in LAST and field.name != "v"
}
"""The other values with their types, in the order of the wire: that of the fields of the class."""
_BASE = (BASE, PromptBase | None, None)
_LAST = (
    _BASE,
    (ADAPTER, str | None, None),
    (FETCH, PrefixFetch | None, None),
    (LOAD_TIME, tuple[int, ...] | None, None),
)


class ShortColumns(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Columns as version 4 has them: None stands for a column that follows from the number of candidates, or from
    `overlap`."""

    cost: tuple[int, ...]
    overlap: tuple[int, ...]
    overlap_all: tuple[int, ...] | None
    """None: equal to `overlap`."""
    pending: tuple[int, ...] | None
    """None: all 0."""
    prefill: tuple[int, ...]
    active_blocks: tuple[int, ...]
    active_requests: tuple[int, ...]
    waiting: tuple[int, ...] | None
    """None: all 0."""
    known: tuple[int, ...] | None
    """None: all 1."""
    wait_us: tuple[int, ...] | None = None
    """As in `Columns`; so are the next."""
    reuse: tuple[int, ...] | None = None
    overlap_host: tuple[int, ...] | None = None
    overlap_disk: tuple[int, ...] | None = None
    turnover: tuple[int, ...] | None = None

    def columns(self) -> Columns:
        """All columns."""
        overlap = self.overlap
        zeros, ones = _constants(len(overlap))
        return Columns(
            self.cost,
            overlap,
            overlap if self.overlap_all is None else self.overlap_all,
            zeros if self.pending is None else self.pending,
            self.prefill,
            self.active_blocks,
            self.active_requests,
            zeros if self.waiting is None else self.waiting,
            ones if self.known is None else self.known,
            self.wait_us,
            self.reuse,
            self.overlap_host,
            self.overlap_disk,
            self.turnover,
        )


_KV = kv_stream(0)
Cursor = dict[StreamName, tuple[int, int]]
Positions = tuple[tuple[int, int], ...]
"""A cursor without the names of its streams, which are `stream_names` of their number."""
SHORT_VALUES = {
    **VALUES,
    "cursor": dict[str, tuple[int, int]] | Positions,
    "columns": ShortColumns | dict[str, tuple[int, ...]],
}
"""The same of version 4. A cursor with other streams has their names."""
_CURSOR, _COLUMNS = map([*VALUES].index, ("cursor", "columns"))
DecisionValues: Any = msgspec.defstruct("DecisionValues", [*VALUES.items(), *_LAST], gc=False, array_like=True)
"""The array of all values. A reader passes over further ones."""
ShortValues: Any = msgspec.defstruct("ShortValues", [*SHORT_VALUES.items(), *_LAST], gc=False, array_like=True)
"""The same of version 4."""


class CompactDecision(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag=COMPACT_DECISION):
    """The event as it stands in a message in version 3."""

    v: ClassVar[int] = COMPACT_VERSION
    d: DecisionValues

    @property
    def event(self) -> RequestRouted:
        """The decision."""
        return RequestRouted(*_with_unset([*astuple(self.d)]), v=COMPACT_VERSION)


class ShortDecision(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag=SHORT_DECISION):
    """The event as it stands in a message in version 4."""

    v: ClassVar[int] = SHORT_VERSION
    d: ShortValues

    @property
    def event(self) -> RequestRouted:
        """The decision."""
        values = [*astuple(self.d)]
        values[_CURSOR] = cursor_of(values[_CURSOR])
        if type(columns := values[_COLUMNS]) is ShortColumns:
            values[_COLUMNS] = columns.columns()
        return RequestRouted(*_with_unset(values), v=SHORT_VERSION)


def partial_values(*names: str) -> Any:
    """The type of the array of both versions for partial readers, which read these values alone."""
    last = len(VALUES) if BASE in names else max(map([*VALUES].index, names)) + 1
    types = [*SHORT_VALUES.items()][:last]
    known: list[Any] = [(each, kind if each in names else msgspec.Raw) for each, kind in types]
    return msgspec.defstruct("PartialValues", [*known, _BASE] if BASE in names else known, gc=False, array_like=True)


def cursor_of(value: Cursor | Positions) -> Cursor:
    """The cursor with the names of its streams."""
    if isinstance(value, dict):
        return value
    if len(value) == len(_USUAL_NAMES):  # as below, at a third of the price
        jobs, kv, load, routing = value
        return {JOBS: jobs, _KV: kv, LOAD: load, ROUTING: routing}
    return dict(zip(stream_names(len(value)), value, strict=True))


def _positions(cursor: Mapping[str, tuple[int, int]]) -> Mapping[str, tuple[int, int]] | list[tuple[int, int]]:
    """The inverse: without names if the streams are those of their number."""
    try:
        usual = [cursor[JOBS], cursor[_KV], cursor[LOAD], cursor[ROUTING]]
    except KeyError:
        usual = []
    if len(usual) == len(cursor):
        return usual
    return [*cursor.values()] if (*cursor,) == stream_names(len(cursor)) else cursor


@lru_cache(maxsize=64)
def stream_names(number: int) -> tuple[StreamName, ...]:
    """The streams of a log that has so many, in the order of a cursor: `jobs` came after the first three, and all
    others are of caches."""
    return tuple(sorted([ROUTING, LOAD, _KV, JOBS, *map(kv_stream, range(1, number - 3))][:number]))


_USUAL_NAMES = stream_names(4)
"""Those of a log with one stream of caches."""


@lru_cache(maxsize=64)
def _constants(number: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The columns of so many candidates with all values 0, and with all values 1."""
    return (0,) * number, (1,) * number


_START, _SHORT_START = before_array(COMPACT_DECISION, "d"), before_array(SHORT_DECISION, "d")
_encode = msgspec.msgpack.Encoder().encode


def _with_unset(values: list[Any]) -> list[Any]:
    """The last values as the event has them."""
    last = len(VALUES)
    values[last:] = [UNSET if each is None else each for each in values[last:]]
    return values


def _without_unset(values: list[Any]) -> list[Any]:
    """The last values as they stand on the wire."""
    while values[-1] is UNSET:
        values.pop()
    last = len(VALUES)
    values[last:] = [None if each is UNSET else each for each in values[last:]]
    return values


def encode_compact(event: RequestRouted) -> bytes:
    """The decision as a CompactDecision."""
    values = _without_unset([*astuple(event)[:-1]])
    if type(columns := event.columns) is Columns:
        values[_COLUMNS] = _without_last([*astuple(columns)], least=len(COLUMNS) + 1)
    return _START + _encode(values)


def encode_short(event: RequestRouted) -> bytes:
    """The decision as a ShortDecision."""
    values = _without_unset([*astuple(event)[:-1]])
    values[_CURSOR] = _positions(event.cursor)
    if type(columns := event.columns) is Columns:
        values[_COLUMNS] = _short(columns)
    return _SHORT_START + _encode(values)


def _short(columns: Columns) -> list[tuple[int, ...] | None]:
    """The values of ShortColumns."""
    overlap, overlap_all, pending = columns.overlap, columns.overlap_all, columns.pending
    waiting, known = columns.waiting, columns.known
    zeros, ones = _constants(len(overlap))
    short = [
        columns.cost,
        overlap,
        None if overlap_all == overlap else overlap_all,
        None if pending == zeros else pending,
        columns.prefill,
        columns.active_blocks,
        columns.active_requests,
        None if waiting == zeros else waiting,
        None if known == ones else known,
    ]
    if columns.wait_us is not None:
        short += [columns.wait_us, columns.reuse, columns.overlap_host, columns.overlap_disk, columns.turnover]
        _without_last(short, least=len(COLUMNS) + 1)
    return short


def _without_last(columns: list[Any], least: int) -> list[Any]:
    """Without the last columns that the decision does not have, as programs wrote it that knew none of these; `least`
    stand at any rate."""
    while len(columns) > least and columns[-1] is None:
        columns.pop()
    return columns
