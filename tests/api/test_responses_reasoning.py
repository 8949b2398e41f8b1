"""Reasoning in /v1/responses: as content, or as its summary."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import Api
from tests.api.scripted import spoken
from tests.api.speaking import speak
from tests.api.test_responses import told


@pytest.mark.parametrize("word", ["auto", "concise", "detailed"])
async def test_reasoning_is_its_own_summary_where_one_is_asked_for(api: Api, word: str) -> None:
    """Clients that ask for one show nothing else; whole and streamed."""
    speak(api.backend)
    api.backend.script = spoken("think", "ing</think>", "so")
    asked: Any = {"reasoning": {"summary": word}}
    whole = await api.client.responses.create(model="tiny", input="hi", **asked)
    events = await told(api, **asked)
    last = events[-1]
    assert last.type == "response.completed"
    for response in (whole, last.response):
        item: Any = response.output[0]
        assert item.type == "reasoning"
        assert [(part.type, part.text) for part in item.summary] == [("summary_text", "thinking")]
        assert item.content is None
    assert [event.type for event in events[2:8]] == [
        "response.output_item.added", "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta", "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done", "response.reasoning_summary_part.done",
    ]  # fmt: skip
    told_of = [event for event in events if event.type.startswith("response.reasoning_")]
    for event in told_of:
        type(event).model_validate(event.to_dict(), strict=True)
    assert {getattr(event, "summary_index") for event in told_of} == {0}  # noqa: B009 - all of these types have it
    assert [event.delta for event in events if event.type == "response.reasoning_summary_text.delta"] == [
        "think",
        "ing",
    ]


@pytest.mark.parametrize("asked", [{}, {"reasoning": {"effort": "low"}}, {"reasoning": {"summary": "none"}}])
async def test_reasoning_is_content_where_no_summary_is_asked_for(api: Api, asked: Any) -> None:
    """As vLLM's server sends it."""
    speak(api.backend)
    api.backend.script = spoken("hm</think>", "so")
    events = await told(api, **asked)
    assert not any("summary" in event.type for event in events)
    assert any(event.type == "response.reasoning_text.delta" for event in events)
