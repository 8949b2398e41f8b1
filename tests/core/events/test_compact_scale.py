"""A planner's events as rows: the same events come back, and earlier programs do not take them for others."""

from __future__ import annotations

from typing import Any
from unittest.mock import ANY

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from core.codec import decode_message, encode_planned, encode_readable
from core.events import EVENT_TYPES, UnknownEvent
from core.events.compact_scale import ROW_FIELDS, SCALE_TYPES, encode_scale
from core.events.scale import SCALE_EVENTS, CapacityLearned, DemandRolled, ScaleEvent
from core.ids import SourceId
from tests.core.test_codec import events_of
from tests.projections.scaling.demands import CAPACITY, rolled

SOURCE = SourceId("planner")
WITH_ROW = tuple(ROW_FIELDS)


def sealed(*events: ScaleEvent, n: int = 0) -> bytes:
    return encode_planned(SOURCE, n, bytes(16), 5, events)


@settings(deadline=None)
@given(st.lists(st.one_of([events_of(kind) for kind in SCALE_EVENTS]), min_size=1, max_size=3))
def test_a_message_of_rows_has_the_events_of_one_in_json(events: list[Any]) -> None:
    """So a stream that an earlier program began goes on, and is read as one."""
    assert decode_message(sealed(*events)) == decode_message(encode_readable(SOURCE, 0, bytes(16), 5, events))


def test_fields_beside_the_row_keep_their_names() -> None:
    """They are written only where the event has them."""
    plain = rolled(1, 10)
    began = replace(plain, since=17)
    assert b"since" not in encode_scale(plain)
    assert b"since" in encode_scale(began)
    assert len(encode_scale(began)) < len(encode_scale(plain)) + 12
    measured = replace(CAPACITY, profile="digest", decode_requests=(1, 2), decode_rows_us=((1, 2), (3, 4)))
    assert decode_message(sealed(began, measured)).events == (began, measured)


def test_a_later_version_is_no_row() -> None:
    """Its form is for the program that knows it to choose."""
    event = replace(rolled(1, 10), v=2)
    assert msgspec.msgpack.decode(encode_scale(event))["type"] == "DemandRolled"
    assert decode_message(sealed(event)).events == (UnknownEvent(name="DemandRolled", fields=ANY),)


def test_earlier_programs_know_no_event_of_these_types() -> None:
    """They would decode other values under a known name."""
    assert not SCALE_TYPES & set(EVENT_TYPES)
    assert {msgspec.msgpack.decode(encode_scale(each))["type"] for each in (rolled(1, 1), CAPACITY)} < SCALE_TYPES


@pytest.mark.parametrize("kind", WITH_ROW)
def test_a_row_begins_with_the_fields_of_the_event(kind: type[DemandRolled | CapacityLearned]) -> None:
    """In their order. A field that is added later has a default, and stands by its name."""
    names = [field.name for field in fields(kind)]
    assert tuple(names[: len(ROW_FIELDS[kind])]) == ROW_FIELDS[kind]
