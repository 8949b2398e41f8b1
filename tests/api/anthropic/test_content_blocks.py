"""What programs of Anthropic's API send beside text: taken where it can be read, left out where it says nothing."""

from __future__ import annotations

from typing import Any

import pytest

from core.prompt import tokens_from_bytes
from tests.api.conftest import Api
from tests.api.scripted import tokenizer
from tests.api.speaking import speak

ASKED: Any = {"role": "user", "content": "why?"}
PLAIN = {"type": "text", "media_type": "text/plain", "data": "rain"}
TEXT = {"type": "text", "text": "rain"}


@pytest.fixture(autouse=True)
def _longer(api: Api) -> None:
    """A context that holds them."""
    speak(api.backend)


async def prompt(api: Api, messages: list[Any], **fields: Any) -> str:
    """What the model gets."""
    body = {"model": "tiny", "max_tokens": 5, "messages": messages, **fields}
    answer = await api.http.post("/v1/messages", json=body)
    assert answer.status_code == 200, answer.text
    return tokenizer().decode(tokens_from_bytes(api.backend.requests[-1].tokens), skip_special_tokens=False)


async def test_redacted_thoughts_are_left_out(api: Api) -> None:
    """Nothing here can read them; the rest of the turn stands."""
    blocks = [{"type": "redacted_thinking", "data": "x" * 40}, {"type": "text", "text": "so"}]
    text = await prompt(api, [ASKED, {"role": "assistant", "content": blocks}, ASKED])
    assert text == "<|user|>why?<|end|><|assistant|>so<|end|><|user|>why?<|end|><|assistant|>"


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"type": "tool_reference", "tool_name": "weather"}, "weather"),
        ({"type": "document", "source": PLAIN}, "rain"),
        ({"type": "document", "title": "Oslo", "source": {"type": "content", "content": "rain"}}, "Oslo\nrain"),
        ({"type": "document", "source": {"type": "content", "content": [TEXT, TEXT]}}, "rain\nrain"),
        ({"type": "search_result", "source": "a.org", "title": "Oslo", "content": [TEXT]}, "Oslo\na.org\nrain"),
    ],
)
async def test_what_can_be_read_as_text_is(api: Api, block: dict[str, Any], text: str) -> None:
    """In a tool's result, and of a user."""
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [TEXT, block]}
    said = await prompt(api, [ASKED, call, {"role": "user", "content": [result]}])
    assert f"<|tool|>rain\n{text}<of c>" in said
    assert f"<|user|>{text}<|end|>" in await prompt(api, [{"role": "user", "content": [block]}])


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"type": "image", "source": {"type": "base64"}}, "messages[0].content[0]: content of type 'image'"),
        ({"type": "document", "source": {"type": "base64"}}, "content[0].source: a document of type 'base64'"),
        ({"type": "document"}, "messages[0].content[0].source: must be"),
        ({"type": "document", "source": {"type": "content", "content": [{"type": "image"}]}}, "no text"),
        ({"type": "tool_reference"}, "messages[0].content[0].tool_name: is required"),
    ],
)
async def test_what_is_no_text_is_named(api: Api, block: dict[str, Any], text: str) -> None:
    """With its place."""
    body = {"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": [block]}]}
    answer = await api.http.post("/v1/messages", json=body)
    assert answer.status_code == 400
    assert text in answer.json()["error"]["message"]


async def test_what_changes_nothing_is_taken(api: Api) -> None:
    """As programs send it without being asked; and temperatures as the engine takes them."""
    fields = {
        "temperature": 1.5,
        "metadata": {"user_id": "me"},
        "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
        "service_tier": "auto",
        "mcp_servers": [],
        "nobody": {"knows": "this"},
    }
    cached = {"cache_control": {"type": "ephemeral"}}
    text = await prompt(api, [{"role": "user", "content": [{**TEXT, **cached}]}], **fields)
    assert text == "<|user|>rain<|end|><|assistant|>"
    assert api.backend.requests[0].sampling.temperature == 1.5


async def test_tools_that_cannot_run_here_are_left_out_and_named(api: Api) -> None:
    """Whatever else is offered stays; how to choose is not said of none at all."""
    hosted = [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"type": "mcp_toolset", "mcp_server_name": "a"},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "bash_20250124", "name": "bash2"},
    ]
    body = {"model": "tiny", "max_tokens": 5, "messages": [ASKED], "tools": hosted, "tool_choice": {"type": "auto"}}
    for path, fields in (("", {}), ("", {"stream": True}), ("/count_tokens", {})):
        answer = await api.http.post(f"/v1/messages{path}", json={**body, **fields})
        assert answer.status_code == 200, answer.text
        named = answer.headers.get("x-contrail-left-out-tools")
        assert named == (None if path else "web_search_20250305, mcp_toolset, bash_20250124")
    tool = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
    offered = {**body, "tools": [*hosted, tool], "tool_choice": {"type": "any"}}
    answer = await api.http.post("/v1/messages", json=offered)
    assert answer.status_code == 200, answer.text
    guided = api.backend.requests[-1].sampling.guided
    assert guided is not None
    assert "look" in (guided.json_schema or "")
    assert "bash" not in (guided.json_schema or "")
