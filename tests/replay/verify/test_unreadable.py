"""Messages in which the broker changed a byte: `verify` counts what they held as what it can read of them shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from core.events.routing import COMPACT_VERSION, SHORT_VERSION
from core.settings import RoutingSettings
from replay.verify.verify import verify
from tests.replay.staged import ASKED, R, Stage


@pytest.mark.parametrize("version", [1, COMPACT_VERSION, SHORT_VERSION])
@pytest.mark.parametrize(
    ("old", "new", "decisions"),
    [(b"sent_ms", b"senv_ms", 1), (b"\xa4tiny", b"\xa4t\xffny", 2), (b"\xa4tiny", b"\x94\1\1\1\1", 2)],
)
def test_a_changed_message_is_counted_alike(
    tmp_path: Path, version: int, old: bytes, new: bytes, decisions: int
) -> None:
    """What is no message has no decisions; a decision that cannot be read is one, and not judged. The total had such
    decisions, and no verdict was among them."""
    stage = Stage()
    stage.pair()
    stage.replica(R, "r1", RoutingSettings(policy="kv"))
    for request in ("x", "y"):
        event = replace(stage.decided(request, ASKED), v=version)
        stage.tell(event)
    last = stage._records[-1]
    assert last.payload.count(old) == 1
    stage._records[-1] = last._replace(payload=last.payload.replace(old, new))
    with stage.recording(tmp_path / "log") as recording:
        found = verify(recording)
    assert (found.decisions, found.verified, found.unaccounted) == (decisions, 1, 0)
