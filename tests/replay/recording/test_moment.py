"""Moments as people type them: those that no calendar has are refused."""

from __future__ import annotations

import pytest

from core.errors import CallerError
from core.event_json import time_text
from replay.recording.moment import AtTime, parse_moment

NOW_MS = 1_700_000_000_123


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("09:57:01Z", "2023-11-14T09:57:01.000Z"),
        ("14:03", "2023-11-14T14:03:00.000Z"),
        ("-1.5h", "2023-11-14T20:43:20.123Z"),
        ("-700000d", "0107-05-03T22:13:20.123Z"),
        ("0001-01-01", "0001-01-01T00:00:00.000Z"),
        ("9999-12-31T23:59:59", "9999-12-31T23:59:59.000Z"),
    ],
)
def test_times_of_the_calendar(text: str, time: str) -> None:
    """Each has a name."""
    moment = parse_moment(text, NOW_MS)
    assert isinstance(moment, AtTime)
    assert time_text(moment.time_ms) == time


@pytest.mark.parametrize(
    "text",
    ["-1000000d", f"-{'9' * 400}d", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"],
    ids=["days ago", "beyond all numbers", "before year 1", "after year 9999"],
)
def test_times_that_no_calendar_has(text: str) -> None:
    """They are refused in a sentence: nothing could name them."""
    with pytest.raises(CallerError, match="lies outside of the years 1 to 9999"):
        parse_moment(text, NOW_MS)
