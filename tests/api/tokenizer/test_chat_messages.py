"""A chat's messages as its template sees them."""

from __future__ import annotations

import json
from math import inf
from typing import Any

import msgspec
import pytest

from api.openai.types.request_types import ChatRequest
from api.server.errors import ApiError
from api.tokenizer import chat_template
from api.tokenizer.chat_template import VARIABLES_BYTES_MAX, VARIABLES_MAX, ChatTemplate, render
from api.tokenizer.model_tokenizer import ModelTokenizer
from tests.api.scripted import files

SHOWN = "{% for m in messages %}{{ m | tojson }}\n{% endfor %}"
PARTED = "{% for m in messages %}{{ m | tojson }}\n{% for c in m.content %}{% endfor %}{% endfor %}"
FIRST = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('first') }}{% endif %}"
    "{{ m | tojson }}\n{% endfor %}"
)
USER = {"role": "user", "content": "?"}


def rendered(source: str, *messages: dict[str, Any], **fields: Any) -> str:
    body = {"model": "m", "messages": list(messages), **fields}
    return render(msgspec.json.decode(json.dumps(body), type=ChatRequest), ChatTemplate(source, {"bos_token": "<s>"}))


def shown(*messages: dict[str, Any], source: str = SHOWN) -> list[dict[str, Any]]:
    return [json.loads(line) for line in rendered(source, *messages).splitlines()]


def call(arguments: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}


def test_everything_that_a_message_has() -> None:
    """Names, calls and the answers to them, reasoning under both of its names; unknown fields are left out."""
    assert shown(
        {"role": "user", "content": "?", "name": "ann", "unknown": 1},
        {**call('{"a": 1}'), "reasoning_content": "hm"},
        {
            "role": "tool",
            "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}],
            "tool_call_id": "c1",
        },
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ) == [
        {"role": "user", "content": "?", "name": "ann"},
        {**call({"a": 1}), "content": "", "reasoning": "hm", "reasoning_content": "hm"},
        {"role": "tool", "content": "1\n2", "tool_call_id": "c1"},
        {"role": "assistant", "content": "no"},
    ]


def test_calls_in_the_deprecated_form() -> None:
    """They are calls of tools, and each result belongs to the last one."""
    function = {"name": "f", "arguments": '{"a": 1}'}
    told = {"role": "function", "name": "f", "content": "1"}
    called = {"role": "assistant", "content": None, "function_call": function}
    first, second = ({**call({"a": 1})["tool_calls"][0], "id": name} for name in ("call00001", "call00003"))
    assert shown(USER, called, told, called, told) == [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [first]},
        {"role": "tool", "content": "1", "tool_call_id": "call00001", "name": "f"},
        {"role": "assistant", "content": "", "tool_calls": [second]},
        {"role": "tool", "content": "1", "tool_call_id": "call00003", "name": "f"},
    ]


def test_parts_where_the_template_goes_through_them() -> None:
    """Texts become parts, too; what a tool said stays text."""
    tool = {"role": "tool", "content": "1", "tool_call_id": "c1"}
    assert shown(USER, tool, source=PARTED) == [{"role": "user", "content": [{"type": "text", "text": "?"}]}, tool]


@pytest.mark.parametrize("arguments", ["{broken", "[1]", "", None, "9" * 5000, "[" * 100_000])
def test_past_arguments_that_are_no_object(arguments: Any) -> None:
    """They stand in the history, where refusing them would fail every later turn."""
    assert shown(call(arguments))[0]["tool_calls"][0]["function"]["arguments"] == {}


def test_arguments_that_came_as_an_object() -> None:
    """Some clients send them so."""
    assert shown(call({"a": [1]}))[0]["tool_calls"][0]["function"]["arguments"] == {"a": [1]}


def test_arguments_with_half_a_surrogate_pair() -> None:
    """An escape can say it alone, as name or value; whole pairs, and backslashes before a `u`, stay as they are."""
    written = r'{"\ud83d": ["\udc00", 1e999], "b": "\ud83d\ude00", "c": "\\ud83d", "d": 100000000000000000000000}'
    told = shown(call(written))[0]["tool_calls"][0]["function"]["arguments"]
    assert told == {"\ufffd": ["\ufffd", inf], "b": "😀", "c": r"\ud83d", "d": 10**23}


def test_an_assistant_without_content() -> None:
    """It may have thought alone, or refused: what it said is all there is of it."""
    thought = {"role": "assistant", "content": None, "reasoning": "hm"}
    assert shown(thought) == [{"role": "assistant", "content": "", "reasoning": "hm", "reasoning_content": "hm"}]
    assert shown({"role": "assistant", "refusal": "no"}) == [{"role": "assistant", "content": "no"}]
    assert shown({"role": "assistant", "content": "yes", "refusal": None}) == [{"role": "assistant", "content": "yes"}]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "robot", "content": ""}, "messages[1].role"),
        ({"role": "user"}, "messages[1].content"),
        ({"role": "tool", "tool_call_id": "c1"}, "messages[1].content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[1].content[0]"),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_audio"}]},
            "messages[1].content[1]",
        ),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text"),
        (
            {"role": "assistant", "tool_calls": [{"type": "x", "function": {"name": "f"}}]},
            "messages[1].tool_calls[0].type",
        ),
    ],
)
def test_what_no_template_is_given(message: dict[str, Any], param: str) -> None:
    """The error has the place."""
    with pytest.raises(ApiError, match=r"messages\[1\]") as caught:
        rendered(SHOWN, USER, message)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_developers_are_system_where_the_template_knows_none() -> None:
    """Those at the start become one message; a later one stays where it stands, unless the template wants it first."""
    developer = {"role": "developer", "content": "Be brief."}
    system = {"role": "system", "content": "Be kind."}
    assert shown(developer, USER) == [{**system, "content": "Be brief."}, USER]
    assert shown(system, developer, USER) == [{**system, "content": "Be kind.\n\nBe brief."}, USER]
    assert shown(system, USER, developer) == [system, USER, {**system, "content": "Be brief."}]
    assert shown(USER, developer, source=FIRST) == [{**system, "content": "Be brief."}, USER]
    assert shown(system, USER, developer, source=FIRST) == [{**system, "content": "Be kind.\n\nBe brief."}, USER]
    assert shown(developer, source=SHOWN + "{# 'developer' #}") == [developer]
    several = shown(system, developer, source=PARTED)
    assert [it["content"] for it in several] == ["Be kind.\n\nBe brief."]


def test_variables_of_the_template() -> None:
    """The request's own, documents, tools as vLLM writes them, and special tokens."""
    source = "{{ bos_token }}{{ style }}{{ documents | tojson }}{{ tools | tojson }}{{ add_generation_prompt }}"
    tool = {"type": "function", "function": {"name": "f", "strict": None}, "x": 1}
    got = rendered(source, USER, tools=[tool], documents=[{"text": "a"}], chat_template_kwargs={"style": "plain"})
    written = {"type": "function", "function": {"name": "f", "description": None, "parameters": None}}
    assert got == f'<s>plain[{{"text": "a"}}]{json.dumps([written])}True'
    assert rendered(source, USER, add_generation_prompt=False).endswith("nullnullFalse")


@pytest.mark.parametrize(
    "given",
    [
        {"messages": []},
        {"chat_template": "x"},
        {"a": "x" * VARIABLES_BYTES_MAX},
        {str(index): 0 for index in range(VARIABLES_MAX + 1)},
    ],
)
def test_variables_that_may_not_be(given: dict[str, Any]) -> None:
    """Those with fields of their own, and too many."""
    with pytest.raises(ApiError) as caught:
        rendered(SHOWN, USER, chat_template_kwargs=given)
    assert (caught.value.status, caught.value.param) == (400, "chat_template_kwargs")
    assert rendered("", USER, chat_template_kwargs={str(index): 0 for index in range(VARIABLES_MAX)}) == ""


@pytest.mark.parametrize(
    ("source", "message", "fields"),
    [
        ("{{ messages[-1].content }}", USER, {"add_generation_prompt": True}),
        ("{{ messages[-1].content }}", {**call("{}"), "content": ""}, {}),
        ("nothing", USER, {}),
    ],
)
def test_what_cannot_be_continued(source: str, message: dict[str, Any], fields: dict[str, Any]) -> None:
    """Nothing to continue, a template that leaves it out, or the wish for a new answer besides."""
    with pytest.raises(ApiError) as caught:
        rendered(source, message, continue_final_message=True, **fields)
    assert (caught.value.status, caught.value.param) == (400, "continue_final_message")


def test_a_part_is_continued() -> None:
    """What the template writes behind the last one is cut off."""
    source = "{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}<|end|>{% endfor %}"
    assert rendered(source, USER, {"role": "assistant", "content": "So "}, continue_final_message=True) == "?<|end|>So "


def test_a_prompt_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that writes without end is stopped, and ranges are."""
    monkeypatch.setattr(chat_template, "RENDERED_CHARS_MAX", 1000)
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}"
    for source in (endless, "{% for a in range(9999999) %}{% endfor %}"):
        with pytest.raises(ApiError, match="refuses them") as caught:
            rendered(source, USER)
        assert caught.value.param == "messages"
    assert len(rendered("{{ 'x' * 1000 }}", USER)) == 1000


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 // 0 }}",
        "{{ messages[0].content.x.y }}",
        "{{ {}['a']['b'] }}",
        "{{ 'a' + 1 }}",
    ],
)
def test_whatever_a_template_stumbles_over(source: str) -> None:
    """Its fault with these messages is a 400."""
    with pytest.raises(ApiError, match="refuses them"):
        rendered(source, USER)


def test_a_model_may_have_a_second_template_for_tools() -> None:
    """As transformers chooses: by name, where tools are offered."""
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools[0].function.name }}"}]
    model = ModelTokenizer("m", files() | {"tokenizer_config.json": json.dumps({"chat_template": named}).encode()})
    assert model.chat_template is not None
    body = {"model": "m", "messages": [USER]}
    assert render(msgspec.convert(body, ChatRequest), model.chat_template) == "plain"
    body["tools"] = [{"function": {"name": "f"}}]
    assert render(msgspec.convert(body, ChatRequest), model.chat_template) == "f"
