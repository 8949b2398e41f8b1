"""A message's bytes are those that msgpack gives, however many events there are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from core.codec import encode_message
from core.ids import SourceId


@pytest.mark.parametrize("count", [0, 1, 15, 16, 255, 256, 2**16 - 1, 2**16])
def test_a_message_is_one_map_of_msgpack(count: int) -> None:
    """At each length at which the form of an array changes, events stand in it as they were encoded."""
    events: list[dict[str, Any]] = [{"type": "X", "v": 1, "n": i} for i in range(count)]
    whole = {"v": 1, "source": "s", "n": 70_000, "prev": bytes(16), "sent_ms": 2**41, "events": events}
    encoded = [msgspec.msgpack.encode(event) for event in events]
    assert encode_message(SourceId("s"), 70_000, bytes(16), 2**41, encoded) == msgspec.msgpack.encode(whole)
