"""From what people type into the page's box to the decisions that they mean."""

from __future__ import annotations

import pytest

from api.debug.timeline.decision_table import PLACES, DecisionTable, search
from api.debug.timeline.timeline_events import RoutedFields

FIRST_MS = 1_790_000_000_000
"""2026-09-21, 14:13:20 UTC."""


@pytest.fixture
def decisions() -> DecisionTable:
    """A decision every ten seconds for three minutes, the second one of a message with two."""
    made = DecisionTable()
    names = ["first", "beside it", "20260101", "25:99 as a name", *(f"req-{number}" for number in range(14))]
    for at, name in enumerate(names):
        seq, place = (at, 0) if at else (1, 0)
        if at == 1:
            seq, place = 1, 3
        event = RoutedFields(request=name, attempt=0, worker="w", prompt_tokens=1, predicted_cached_tokens=0, now_ms=0)
        made.routed(seq, place, FIRST_MS + 10_000 * at, 0, 0, event)
    return made


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
