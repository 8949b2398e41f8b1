"""What coding agents' programs send, as `make test-agents` has recorded it, without their texts: each is answered.

The files in tests/fixtures/agents are written by `make test-agents ARGS=--keep-requests` at the versions pinned there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from core.models import ModelCard
from core.prompt import tokens_from_bytes
from tests.api.conftest import Api
from tests.api.scripted import card, spoken, tokenizer
from tests.api.speaking import speaking_files

FOLDER = Path(__file__).parents[1] / "fixtures" / "agents"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
LOOPS = ("claude", "codex", "opencode", "qwen")
MODELS = ("quick", "small")
CONTEXT_MAX = 100_000
TEXT = "It is so."


def sent(name: str) -> dict[str, Any]:
    """The recorded request."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_bytes())
    return found


@pytest.fixture
def roomy(api: Api) -> Api:
    """The API over models with tools, reasoning and a long context, under the names that the programs ask for."""

    def models() -> list[ModelCard]:
        return [replace(card(name), files=speaking_files(), context_max=CONTEXT_MAX) for name in MODELS]

    api.backend.models = models  # type: ignore[method-assign]
    api.backend.script = spoken("I think.", "</think>", TEXT)
    return api


async def events(api: Api, name: str) -> list[Any]:
    """What the recorded request is answered with: each event's data."""
    asked = sent(name)
    answer = await api.http.post(asked["path"], json=asked["body"], headers=asked["headers"])
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def chat_text(told: Sequence[Any]) -> str:
    assert told[-1] == "[DONE]"
    deltas = [choice["delta"] for chunk in told[:-1] for choice in chunk["choices"]]
    assert "".join(delta.get("reasoning") or "" for delta in deltas) == "I think."
    reasons = [choice["finish_reason"] for chunk in told[:-1] for choice in chunk["choices"]]
    assert [reason for reason in reasons if reason] == ["stop"]
    return "".join(delta.get("content") or "" for delta in deltas)


def message_text(told: Sequence[Any]) -> str:
    kinds = [event["type"] for event in told]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert told[-2]["delta"]["stop_reason"] == "end_turn"
    deltas = [event["delta"] for event in told if event["type"] == "content_block_delta"]
    assert "".join(delta["thinking"] for delta in deltas if delta["type"] == "thinking_delta") == "I think."
    return "".join(delta["text"] for delta in deltas if delta["type"] == "text_delta")


def response_text(told: Sequence[Any]) -> str:
    assert [told[0]["type"], told[-1]["type"]] == ["response.created", "response.completed"]
    output = told[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message"]
    assert output[0]["encrypted_content"], "it asked for reasoning that comes back"
    assert "I think." in output[0]["summary"][0]["text"]
    return "".join(event["delta"] for event in told if event["type"] == "response.output_text.delta")


TEXTS = {"/v1/chat/completions": chat_text, "/v1/messages": message_text, "/v1/responses": response_text}


def prompt(api: Api) -> str:
    """The last prompt as text."""
    return tokenizer().decode(tokens_from_bytes(api.backend.requests[-1].tokens), skip_special_tokens=False)


@pytest.mark.parametrize("name", NAMES)
async def test_request(roomy: Api, name: str) -> None:
    """It is answered in the words of its API, with reasoning and text apart."""
    told = await events(roomy, name)
    assert TEXTS[sent(name)["path"].partition("?")[0]](told) == TEXT


@pytest.mark.parametrize("program", LOOPS)
async def test_turns(roomy: Api, program: str) -> None:
    """Each turn's prompt begins with that of the turn before it, so that all of it is found cached."""
    prompts = []
    for turn in (1, 2, 3):
        await events(roomy, f"{program}_turn{turn}")
        prompts.append(prompt(roomy))
    for before, after in pairwise(prompts):
        assert after.startswith(before.removesuffix("<|assistant|>"))
        assert len(after) > len(before)


def test_all_programs_are_there() -> None:
    """A folder that lost its files would be tested by nothing."""
    assert {name.partition("_")[0] for name in NAMES} == {*LOOPS, "aider"}
    assert len(NAMES) >= 26
