"""The comparison with vLLM's own server finds what differs, and explains no more than it says."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from tests.e2e.compare_fields import Difference, differences, parsed
from tests.e2e.compare_rules import rule_of


class Answer(NamedTuple):
    status: int
    body: Any


def found(ours: Any, theirs: Any) -> list[tuple[str, str, str]]:
    return [each[1:] for each in differences("a", Answer(200, ours), Answer(200, theirs))]


def streamed(*events: dict[str, Any]) -> Any:
    lines = [f"data: {json.dumps(event)}" for event in events]
    return parsed("\n\n".join([*lines, "data: [DONE]", ""]).encode(), "text/event-stream")


def text(piece: str, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": piece, **fields}]}


def test_fields_and_values() -> None:
    """What one of them does not have, what has another value, and lists of another length; new ids do not count."""
    assert found({"id": 1, "a": None}, {"id": 2}) == [("a", "null", "absent")]
    assert found({"a": [{"b": 1.0}]}, {"a": [{"b": 1.005}]}) == []
    assert found({"a": [{"b": 1.0}]}, {"a": [{"b": 1.5}]}) == [("a[].b", "1.0", "1.5")]
    assert found({"a": [1]}, {"a": [1, 2]}) == [("a", "[1]", "[1, 2]")]
    assert list(differences("a", Answer(200, {}), Answer(404, None))) == [("a", "status", "200: {}", "404: null")]


def test_streams_are_compared_without_their_cuts() -> None:
    """By their texts, the kinds of their fields and the order of their types."""
    whole = streamed(text("so be it"))
    assert found(streamed(text("so "), text("be it")), whole) == []
    assert found(streamed(text("so "), text("be")), whole) == [("said.0", '"so be"', '"so be it"')]
    assert found(streamed(text("so be it", more=None)), whole) == [("fields.choices[].more", "NoneType", "absent")]
    assert found(streamed({"type": "a"}, {"type": "b"}), streamed({"type": "b"}))[0][0] == "types"


@pytest.mark.parametrize(
    ("field", "ours", "theirs", "explained"),
    [
        ("choices[].text", '"so\\ufffd"', '"so"', True),
        ("choices[].text", '"so"', '"to"', False),
        ("choices[].token_ids", "absent", "null", True),
        ("choices[].token_ids", "absent", "[1, 2]", False),
        ("choices[].finish_reason", '"stop"', '"length"', False),
        ("usage.completion_tokens", "2", "3", False),
        ("choices[].logprobs.token_logprobs[]", "-1.0", "-2.0", False),
        ("error.message", '"a"', '"b"', False),
    ],
)
def test_rules_explain_no_more_than_they_say(field: str, ours: str, theirs: str, explained: bool) -> None:
    """In a case that no rule names."""
    assert (rule_of(Difference("completion", field, ours, theirs)) is not None) == explained
