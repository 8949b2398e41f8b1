"""From what people type into the page's box to the decisions that they mean."""

from __future__ import annotations

import pytest

from api.debug.timeline.decision_table import DecisionTable, search
from core.codec import CHAIN_START, encode_event, encode_message
from core.events import Event
from core.ids import SourceId
from replay.recording.request_history import PLACES, RequestHistory
from tests.projections.facts import finished, routed, worker_id

A, R = worker_id(1), "ee" * 8
FIRST_MS = 1_790_000_000_000
"""2026-09-21, 14:13:20 UTC."""


@pytest.fixture
def decisions() -> DecisionTable:
    """A decision every ten seconds for three minutes, but for the second one, which is in the first one's message."""
    names = ["20260101", "25:99 as a name", *(f"req-{number}" for number in range(14))]
    messages: list[list[Event]] = [[routed("first", A), finished("none"), finished("none"), routed("beside it", A)]]
    messages += [[routed(name, A)] for name in names]
    history = RequestHistory()
    rows = []
    for n, events in enumerate(messages):
        payload = encode_message(SourceId(R), n, CHAIN_START, 0, [encode_event(event) for event in events])
        rows.append((n + 1, FIRST_MS + 10_000 * (n + 1 if n else 0), R, payload))
    assert list(history.read(rows)) == []
    return DecisionTable(history)


def found(decisions: DecisionTable, text: str) -> list[str]:
    """The requests of what is found."""
    numbers = list(decisions.column("n"))
    return [decisions.requests[numbers.index(n)] for n in search(decisions, text, FIRST_MS + 170_000)["found"]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("routing:1", ["first"]),
        ("routing:1+3", ["beside it"]),
        ("routing:1+0", ["first"]),
        ("routing:2+0", ["20260101"]),
        ("routing:1+1", []),
        ("routing:99999", []),
        ("kv_0:7", []),
    ],
)
def test_places_are_those_of_the_address(decisions: DecisionTable, text: str, expected: list[str]) -> None:
    """Of a message its first decision; with a place, as the page's address says it, that one and no other."""
    assert found(decisions, text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("14:13:45", ["20260101"]),
        ("2026-09-21T14:13:30Z", ["beside it"]),
        ("14:10", ["first"]),
        ("-1h", ["first"]),
        ("2026-09-21T20:00", ["req-13"]),
        ("2001-01-01", []),
        ("2099-01-01", []),
        ("25:98", []),
        ("-99999999d", []),
    ],
)
def test_times_are_those_of_the_recording(decisions: DecisionTable, text: str, expected: list[str]) -> None:
    """The decision before; at its edges the first or the last one; none for another day, and for what is no time."""
    assert found(decisions, text) == expected


def test_a_name_may_look_like_a_time(decisions: DecisionTable) -> None:
    """The request that is called so comes first."""
    assert found(decisions, "20260101") == ["20260101"]
    assert found(decisions, "25:99") == ["25:99 as a name"]
    assert found(decisions, "2026") == ["20260101"]


def test_numbers_are_those_that_the_page_knows(decisions: DecisionTable) -> None:
    """A message's sequence times PLACES, and its place."""
    assert search(decisions, "routing:1+3", FIRST_MS)["found"] == [PLACES + 3]
