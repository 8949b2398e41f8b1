"""A planner's periods, decisions and capacities on the wire: their values as a row (msgpack), without names.

1. A row has the values of ROW_FIELDS in order. Fields beside them stand by their names in a map, where they are not at
   their defaults. So a field that is added to an event needs no other row.
2. The types on the wire are others than the names of the classes, so that earlier programs take the events for ones
   that they do not know. Earlier logs have the same events as JSON objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import msgspec
from msgspec import NODEFAULT, UNSET
from msgspec.structs import asdict, astuple, fields

from core.events.base import EventBase
from core.events.scale import CapacityLearned, DemandRolled, ScaleDecided, ScaleEvent, ScaleForecast

ROW_VERSION = 2
"""The version of the form …"""
EVENT_V = 1
"""… and that of the events that have it."""
COMPACT_DEMAND, COMPACT_CAPACITY, COMPACT_DECIDED = "Demand2", "Capacity2", "Decided2"
"""The types on the wire."""
ROW_FIELDS: Mapping[type[EventBase], tuple[str, ...]] = {
    DemandRolled: (
        "at_ms",
        "period_s",
        "arrivals",
        "queued",
        "refused",
        "waiting",
        "running",
        "ended",
        "attained",
        "first_token_ms",
        "between_tokens_us",
        "cells",
        "cursor",
    ),
    CapacityLearned: (
        "at_ms",
        "pass_tokens",
        "prefill_tokens",
        "prefill_us",
        "decode_tokens",
        "decode_us",
        "room_tokens",
        "startup_ms",
        "starts",
        "hits",
        "slots",
        "devices",
        "origin",
    ),
    ScaleDecided: (
        "at_ms",
        "periods",
        "rate_m",
        "burst_m",
        "forecast",
        "ready",
        "starting",
        "overdue",
        "draining",
        "candidates",
        "ceiling_bp",
        "goal_bp",
        "required",
        "target",
        "bound",
        "revision",
        "version",
    ),
}
FORECAST = "forecast"
"""The one value of a row that is a row itself."""


class ForecastRow(msgspec.Struct, frozen=True, array_like=True):
    """The values of a `ScaleForecast`."""

    predictor: str
    rate_m: int
    upper_m: int
    quantile: int
    horizon_s: int


def _types(kind: type[EventBase]) -> dict[str, Any]:
    found = {field.name: field.type for field in fields(kind)}
    return found | ({FORECAST: ForecastRow} if FORECAST in found else {})


def _row(kind: type[EventBase]) -> Any:
    types = _types(kind)
    values = [(name, types[name]) for name in ROW_FIELDS[kind]]
    return msgspec.defstruct(f"{kind.__name__}Row", values, array_like=True, frozen=True)


def _more(kind: type[EventBase]) -> Any:
    """The fields that are in no row."""
    rest = [field for field in fields(kind) if field.name not in (*ROW_FIELDS[kind], "v")]
    assert all(field.default is not NODEFAULT for field in rest), f"a field of {kind.__name__} is in no row"
    values = [(field.name, field.type, field.default) for field in rest]
    return msgspec.defstruct(f"{kind.__name__}More", values, omit_defaults=True, frozen=True)


DemandRow, DemandMore = _row(DemandRolled), _more(DemandRolled)
CapacityRow, CapacityMore = _row(CapacityLearned), _more(CapacityLearned)
DecidedRow, DecidedMore = _row(ScaleDecided), _more(ScaleDecided)


class CompactDemand(msgspec.Struct, frozen=True, tag_field="type", tag=COMPACT_DEMAND):
    """A period as it stands in a message."""

    v: ClassVar[int] = ROW_VERSION
    row: DemandRow = msgspec.field(name="e")  # type: ignore[valid-type]
    more: DemandMore | msgspec.UnsetType = msgspec.field(name="m", default=UNSET)  # type: ignore[valid-type]

    @property
    def event(self) -> ScaleEvent:
        """The event itself."""
        return DemandRolled(**_values(self.row, self.more))


class CompactCapacity(msgspec.Struct, frozen=True, tag_field="type", tag=COMPACT_CAPACITY):
    """The same of a capacity."""

    v: ClassVar[int] = ROW_VERSION
    row: CapacityRow = msgspec.field(name="e")  # type: ignore[valid-type]
    more: CapacityMore | msgspec.UnsetType = msgspec.field(name="m", default=UNSET)  # type: ignore[valid-type]

    @property
    def event(self) -> ScaleEvent:
        """The event itself."""
        return CapacityLearned(**_values(self.row, self.more))


class CompactDecided(msgspec.Struct, frozen=True, tag_field="type", tag=COMPACT_DECIDED):
    """The same of a decision."""

    v: ClassVar[int] = ROW_VERSION
    row: DecidedRow = msgspec.field(name="e")  # type: ignore[valid-type]
    more: DecidedMore | msgspec.UnsetType = msgspec.field(name="m", default=UNSET)  # type: ignore[valid-type]

    @property
    def event(self) -> ScaleEvent:
        """The event itself."""
        values = _values(self.row, self.more)
        forecast = values[FORECAST]
        return ScaleDecided(**{**values, FORECAST: ScaleForecast(**asdict(forecast))})


class _Parts(NamedTuple):
    form: Any
    row: Any
    more: Any


_PARTS: Mapping[type[EventBase], _Parts] = {
    DemandRolled: _Parts(CompactDemand, DemandRow, DemandMore),
    CapacityLearned: _Parts(CompactCapacity, CapacityRow, CapacityMore),
    ScaleDecided: _Parts(CompactDecided, DecidedRow, DecidedMore),
}
SCALE_FORMS = frozenset(parts.form for parts in _PARTS.values())
SCALE_TYPES = frozenset({COMPACT_DEMAND, COMPACT_CAPACITY, COMPACT_DECIDED})
"""The types of SCALE_FORMS on the wire."""
_encode = msgspec.msgpack.Encoder().encode


def encode_scale(event: ScaleEvent) -> bytes:
    """The event's own bytes: as a row, or as a map for a type or a version that has no row."""
    parts = _PARTS.get(type(event))
    if parts is None or event.v != EVENT_V:
        return _encode(event)
    names = (*ROW_FIELDS[type(event)], "v")
    values = {name: getattr(event, name) for name in ROW_FIELDS[type(event)]}
    if isinstance(event, ScaleDecided):
        values[FORECAST] = ForecastRow(*astuple(event.forecast))
    more = parts.more(**{name: each for name, each in asdict(event).items() if name not in names})
    return _encode(parts.form(parts.row(**values), UNSET if more == parts.more() else more))


def _values(row: msgspec.Struct, more: msgspec.Struct | msgspec.UnsetType) -> dict[str, Any]:
    return {**asdict(row), **({} if isinstance(more, msgspec.UnsetType) else asdict(more))}
