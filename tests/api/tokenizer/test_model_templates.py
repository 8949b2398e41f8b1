"""Chats rendered with the templates of real models, against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from api.openai.types.request_types import ChatRequest
from api.server.errors import ApiError
from api.tokenizer.chat_template import ChatTemplate, render

TEMPLATES = {path.stem: path.read_text() for path in sorted((Path(__file__).parents[1] / "templates").glob("*.jinja"))}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "How the weather is, in <b>one</b> city's centre.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Its name, as in 'Zürich'."},
                "days": {"type": "integer", "description": "How many."},
            },
            "required": ["city"],
        },
    },
}
SYSTEM = {"role": "system", "content": "Be brief."}
ASKED = {"role": "user", "content": "How is it in Zürich?"}
ARGUMENTS = {"city": "Zürich", "days": 2}


def called(arguments: Any, text: str | None) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": arguments}
    calls = [{"id": "abcdefgh1", "type": "function", "function": function}]
    return {"role": "assistant", "content": text, "tool_calls": calls}


TOLD = {"role": "tool", "tool_call_id": "abcdefgh1", "content": '{"celsius": 21}'}
ANSWERED = {"role": "assistant", "content": " It is warm. "}
THOUGHT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nIt is warm."}
CHATS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]] | None]] = {
    "a question": ([ASKED], None),
    "with a system message": ([SYSTEM, ASKED], None),
    "turns": ([SYSTEM, ASKED, ANSWERED, ASKED], None),
    "thoughts": ([ASKED, THOUGHT, ASKED], None),
    "tools": ([SYSTEM, ASKED], [WEATHER]),
    "a call": ([ASKED, called(json.dumps(ARGUMENTS), None), TOLD], [WEATHER]),
    "two rounds": ([SYSTEM, ASKED, called(json.dumps(ARGUMENTS), ""), TOLD, ANSWERED, ASKED], [WEATHER]),
}
TOOLLESS = ("deepseek_r1", "llama3_2_vision")
"""Their templates know nothing of tools."""


def request(messages: list[dict[str, Any]], **fields: Any) -> ChatRequest:
    return msgspec.json.decode(json.dumps({"model": "m", "messages": messages, **fields}), type=ChatRequest)


def as_transformers_wants(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same, with what its documentation asks for: arguments as objects, and text."""
    return [called(ARGUMENTS, it["content"] or "") if "tool_calls" in it else it for it in messages]


def transformers(source: str, messages: list[dict[str, Any]], **fields: Any) -> str:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    (rendered,), _ = utils.render_jinja_template([messages], chat_template=source, **SPECIAL, **fields)
    return str(rendered)


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_as_transformers_renders_it(name: str, chat: str) -> None:
    """Every template gives for every chat the text that transformers gives, or refuses it as there."""
    messages, tools = CHATS[chat]
    if tools and name in TOOLLESS:
        pytest.skip("knows no tools")
    template = ChatTemplate(TEMPLATES[name], SPECIAL)
    if name == "hermes_2_pro_tool_use":
        tools = tools or [WEATHER]
    expected = transformers(TEMPLATES[name], as_transformers_wants(messages), tools=tools, add_generation_prompt=True)
    assert render(request(messages, tools=tools), template) == expected


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3_1", "mistral_v3"])
def test_a_last_message_is_continued_as_transformers_does(name: str) -> None:
    """The prompt ends where the message does, also where the template trims it."""
    messages = [ASKED, {"role": "assistant", "content": "It is "}]
    expected = transformers(TEMPLATES[name], messages, tools=None, continue_final_message=True)
    got = render(request(messages, continue_final_message=True), ChatTemplate(TEMPLATES[name], SPECIAL))
    assert got == expected
    assert got.endswith("It is" if name in {"llama3_1", "mistral_v3"} else "It is ")


@pytest.mark.parametrize("fields", [{"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}])
def test_thinking_is_switched_off(fields: dict[str, Any]) -> None:
    """By the template's own variable, or by OpenAI's parameter."""
    template = ChatTemplate(TEMPLATES["qwen3"], SPECIAL)
    expected = transformers(TEMPLATES["qwen3"], [ASKED], tools=None, add_generation_prompt=True, enable_thinking=False)
    assert render(request([ASKED], **fields), template) == expected
    assert expected.endswith("<think>\n\n</think>\n\n")
    assert not render(request([ASKED], reasoning_effort="high"), template).endswith("</think>\n\n")


def test_what_a_template_refuses_is_the_callers_fault() -> None:
    """Mistral's wants its own ids, and turns in order."""
    template = ChatTemplate(TEMPLATES["mistral_v3"], SPECIAL)
    for messages, words in (
        ([ASKED, ASKED], "must alternate"),
        ([ASKED, called("{}", None), {**TOLD, "tool_call_id": "call_1"}], "length 9"),
    ):
        with pytest.raises(ApiError, match=words) as caught:
            render(request(messages), template)
        assert (caught.value.status, caught.value.param) == (400, "messages")


PARTS_WANTED = ("llama3_2_vision",)


@pytest.mark.parametrize("name", TEMPLATES)
def test_which_templates_want_parts(name: str) -> None:
    """As vLLM's server detects it from the template alone."""
    assert ChatTemplate(TEMPLATES[name], SPECIAL).wants_parts is (name in PARTS_WANTED)


def test_parts_of_a_message() -> None:
    """One text becomes of them, or they stay parts, as the template wants it."""
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert "user\na\nb<|im_end|>" in render(request(parts), ChatTemplate(TEMPLATES["qwen2_5"], SPECIAL))
    assert "\n\nab<|eot_id|>" in render(request(parts), ChatTemplate(TEMPLATES["llama3_2_vision"], SPECIAL))
