"""System messages between others: written where they stand if the model's template can, else part of the first one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from api.openai.types.request_types import ChatRequest
from api.tokenizer.chat_template import ChatTemplate, render
from core.prompt import tokens_from_bytes
from tests.api.conftest import Api
from tests.api.scripted import tokenizer
from tests.api.speaking import speak

TEMPLATES = {path.stem: path.read_text() for path in sorted((Path(__file__).parents[1] / "templates").glob("*.jinja"))}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
FIRST_ONLY = ("deepseek_r1", "mistral_v3")
"""The first one writes the last system message in place of all, the second one refuses it."""
TOOL = {"type": "function", "function": {"name": "look", "description": "", "parameters": {"type": "object"}}}
EACH = "{% for m in messages %}{{ m.content }}{% endfor %}"
TURNS = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "one?"},
    {"role": "assistant", "content": "one"},
    {"role": "user", "content": "two?"},
    {"role": "system", "content": "be kind"},
]
WEATHER: Any = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
ASKED: Any = [{"role": "user", "content": "why?"}]


def rendered(name: str, messages: list[dict[str, Any]]) -> str:
    body = {"model": "m", "messages": messages, "tools": [TOOL] if name.startswith("hermes") else None}
    return render(msgspec.json.decode(json.dumps(body), type=ChatRequest), ChatTemplate(TEMPLATES[name], SPECIAL))


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_template_writes_all_of_them(name: str) -> None:
    """In order, or the system text first; a conversation that goes on has the same beginning, if they are in place."""
    text = rendered(name, TURNS)
    order = ["be brief", "be kind", "one?", "two?"] if name in FIRST_ONLY else ["be brief", "one?", "two?", "be kind"]
    places = [text.find(said) for said in order]
    assert -1 not in places
    if name != "mistral_v3":  # which writes the system text before the last question
        assert places == sorted(places)
    assert ChatTemplate(TEMPLATES[name], SPECIAL).takes_system_anywhere is (name not in FIRST_ONLY)


@pytest.mark.parametrize(
    ("source", "anywhere"),
    [
        (EACH, True),
        ("{% for m in messages if m.role != 'system' or loop.first %}{{ m.content }}{% endfor %}", False),
        ("{% for m in messages | sort(attribute='role') %}{{ m.content }}{% endfor %}", False),
        (EACH + "{% if messages[-1].role == 'system' %}{{ raise_exception('x') }}{% endif %}", False),
        (EACH + "{% if not tools %}{{ raise_exception('x') }}{% endif %}", True),
        ("{{ raise_exception('always') }}", False),
    ],
)
def test_templates_are_probed_once(source: str, anywhere: bool) -> None:
    """They write such a message and all others in order; what they refuse anyway tells nothing."""
    assert ChatTemplate(source, SPECIAL).takes_system_anywhere is anywhere


def sent(api: Api) -> str:
    """The last prompt as text."""
    return tokenizer().decode(tokens_from_bytes(api.backend.requests[-1].tokens), skip_special_tokens=False)


async def post(api: Api, messages: list[Any], **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "max_tokens": 5, "messages": messages, **fields}
    answer = await api.http.post("/v1/messages", json=body)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    counted = await api.http.post("/v1/messages/count_tokens", json=body)
    assert counted.json()["input_tokens"] == len(api.backend.requests[-1].tokens) // 4
    return told


async def test_messages_and_chats_take_them_anywhere(api: Api) -> None:
    """As Claude Code sends reminders; one at the end does not make the conversation end otherwise."""
    kind = {"role": "system", "content": [{"type": "text", "text": "be kind"}]}
    await post(api, [*ASKED, kind], system="be brief")
    whole = "<|start|><|system|>be brief<|end|><|user|>why?<|end|><|system|>be kind<|end|><|assistant|>"
    assert sent(api) == whole
    messages = [{"role": "system", "content": "be brief"}, *ASKED, kind]
    answer = await api.http.post("/v1/chat/completions", json={"model": "tiny", "max_tokens": 5, "messages": messages})
    assert answer.status_code == 200, answer.text
    assert sent(api) == whole


@pytest.mark.parametrize("after", [[], [{"role": "system", "content": "be kind"}]])
async def test_the_beginning_of_an_answer_is_continued(api: Api, after: list[Any]) -> None:
    """The last message that is not a system one counts, and is the last of the prompt."""
    await post(api, [*ASKED, {"role": "assistant", "content": "so"}, *after])
    inner = "<|system|>be kind<|end|>" if after else ""
    assert sent(api) == f"<|start|><|user|>why?<|end|>{inner}<|assistant|>so"


ADDED = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": WEATHER}}


def change(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "tool": {"type": "tool_reference", "name": name}}


@pytest.mark.parametrize(
    ("blocks", "offered"),
    [
        ([ADDED], "<tool look><tool weather>"),
        ([change("tool_addition", "look")], "<tool look>"),
        ([change("tool_removal", "look"), ADDED], "<tool weather>"),
        ([ADDED, change("tool_removal", "weather"), change("tool_removal", "look")], ""),
        ([change("tool_removal", "look"), change("tool_addition", "look")], "<tool look>"),
        ([{"type": "tool_addition", "tool": {"type": "mcp_tool_reference", "server_name": "x"}}], "<tool look>"),
    ],
)
async def test_tools_are_added_in_the_midst(api: Api, blocks: list[Any], offered: str) -> None:
    """By their names or their definitions; a message of nothing else is none."""
    speak(api.backend)
    look = {"name": "look", "input_schema": {"type": "object"}}
    await post(api, [*ASKED, {"role": "system", "content": blocks}], tools=[look], tool_choice={"type": "auto"})
    assert sent(api) == f"{offered}<|user|>why?<|end|><|assistant|>"


@pytest.mark.parametrize(
    ("role", "block", "text"),
    [
        ("system", {"type": "tool_addition"}, "messages[1].content[0].tool: is required"),
        ("system", change("tool_addition", "x"), "messages[1].content[0].tool.name: 'x' is not declared"),
        ("system", {"type": "tool_addition", "tool": {"type": "tool_definition"}}, "tool.definition: is required"),
        ("system", {"type": "image"}, "messages[1].content[0]: content of type 'image'"),
        ("user", ADDED, "messages[1].content[0]: content of type 'tool_addition'"),
    ],
)
async def test_a_change_that_names_no_tool_is_refused(api: Api, role: str, block: dict[str, Any], text: str) -> None:
    """With its place."""
    body = {"model": "tiny", "max_tokens": 5, "messages": [*ASKED, {"role": role, "content": [block]}]}
    answer = await api.http.post("/v1/messages", json=body)
    assert answer.status_code == 400
    assert text in answer.json()["error"]["message"]


def billing(suffix: str) -> str:
    return f"x-anthropic-billing-header: cc_version=2.1.197.{suffix}; cc_entrypoint=cli; cch={suffix};"


def block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


@pytest.mark.parametrize(
    "system",
    [
        lambda line: [block(line), block("be brief")],
        lambda line: [block(f"{line}\nbe brief")],
        lambda line: f"{line}\nbe brief",
    ],
    ids=["block", "line", "text"],
)
async def test_the_billing_line_is_no_part_of_the_prompt(api: Api, system: Any) -> None:
    """Two conversations that differ in it alone have the same one."""
    prompts = []
    for suffix in ("a1b", "f7e"):
        line = billing(suffix)
        inner = {"role": "system", "content": [block(line), block("be kind")]}
        await post(api, [*ASKED, inner, {"role": "system", "content": line}], system=system(line))
        prompts.append(sent(api))
    kind = "<|system|>be kind<|end|>"
    assert prompts == [f"<|start|><|system|>be brief<|end|><|user|>why?<|end|>{kind}<|assistant|>"] * 2


async def test_a_billing_line_alone_is_no_system_text(api: Api) -> None:
    """Then there is none."""
    for system in (billing("a"), [block(billing("a"))]):
        await post(api, ASKED, system=system)
        assert sent(api) == "<|start|><|user|>why?<|end|><|assistant|>"


async def test_what_users_and_tools_say_of_billing_stays(api: Api) -> None:
    """And what stands within system text."""
    speak(api.backend)
    line = billing("a")
    result = {"type": "tool_result", "tool_use_id": "a", "content": [block(line)]}
    turns = [{"role": "user", "content": line}, {"role": "assistant", "content": line}]
    await post(api, [*turns, {"role": "user", "content": [result, block(line)]}], system=f"so\n{line}")
    assert sent(api).count(line) == 5
