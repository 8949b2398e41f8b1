"""What stands in a simulated run's log, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from core.events import Event, UnknownEvent
from core.ids import StreamName
from replay.recording.recording import Recording
from replay.simulate.simulated_log import KEY, START_MS


class Said(NamedTuple):
    """One event."""

    at_ms: int
    """Since the start of the run."""
    owner: str
    event: Event | UnknownEvent


def said(path: Path, stream: StreamName) -> list[Said]:
    """All events of the stream, in order."""
    with Recording.open(path, KEY) as recording:
        return [
            Said(frame.time_ms - START_MS, frame.owner, event)
            for frame in recording.frames(stream)
            if frame.message is not None
            for event in frame.message.events
        ]
