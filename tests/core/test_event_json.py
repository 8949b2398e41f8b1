"""Events as people read them: whatever stands in one, JSON can say it."""

from __future__ import annotations

import json
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.block_spans import stretch
from core.codec import CHAIN_START, Message
from core.event_json import ABSENT, message_lines
from core.events import BlocksStored, Event
from core.ids import SourceId, StreamName, StreamSeq
from core.prompt import hashes_to_bytes
from tests.core.test_codec import events_of

SOURCE = SourceId("0123456789abcdef")


def lines(event: Event) -> list[dict[str, object]]:
    message = Message(source=SOURCE, n=3, prev=CHAIN_START, sent_ms=1, events=(event,))
    return message_lines(StreamName("kv_0"), StreamSeq(7), 0, message)


@pytest.mark.parametrize("kind", get_args(Event))
@settings(deadline=None, max_examples=20)
@given(st.data())
def test_every_event_can_be_shown(kind: type[Event], data: st.DataObject) -> None:
    """With every field but its version."""
    event = data.draw(events_of(kind))
    (line,) = lines(event)
    assert json.loads(json.dumps(line))["type"] == kind.__name__
    absent = {name for name in ABSENT if getattr(event, name, None) is msgspec.UNSET}
    assert {name for name in event.__struct_fields__ if name != "v"} - absent <= line.keys()
    assert not absent & line.keys()


def test_where_blocks_lie_is_said_in_numbers() -> None:
    """The place of each piece in its span and its blocks; heads as other hashes."""
    event = BlocksStored(**stretch(hashes_to_bytes(range(40)), 5, 20)._asdict())
    (line,) = lines(event)
    assert line["pieces"] == [{"place": 5, "blocks": 11}, {"place": 0, "blocks": 4}]
    assert line["heads"] == ["0000000000000000"]
