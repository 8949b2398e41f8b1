"""Tools, reasoning and formats over the whole route, with the `openai` client."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from typing import Any

import openai
import pytest

from core.prompt import tokens_from_bytes
from tests.api.conftest import Api
from tests.api.scripted import card, files, spoken, tokenizer
from tests.api.speaking import speak

NAMED = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
USER: Any = {"role": "user", "content": "?"}


@pytest.fixture(autouse=True)
def _parsers(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model names its parsers."""
    model = dataclasses.replace(card("tiny"), files=files() | {"contrail.json": json.dumps(NAMED).encode()})
    monkeypatch.setattr(api.backend, "models", lambda: [model])


async def test_a_call_with_reasoning_before_it(api: Api) -> None:
    """Whole: reasoning, text, call and `tool_calls`; and the call is sent back with what the tool said."""
    api.backend.script = spoken("hm</think>Let me see.\n", CALL)
    answer = await api.client.chat.completions.create(model="tiny", messages=[USER], tools=[TOOL])
    (choice,) = answer.choices
    (call,) = choice.message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, call.function.arguments) == ("f", '{"a": 1}')
    assert (choice.message.content, choice.finish_reason) == ("Let me see.\n", "tool_calls")
    assert getattr(choice.message, "reasoning") == "hm"  # noqa: B009 - not a field of the client's type
    told: Any = {"role": "tool", "tool_call_id": call.id, "content": "2"}
    sent: Any = [USER, choice.message.model_dump(), told]
    api.backend.script = spoken("hm</think>Two.")
    answer = await api.client.chat.completions.create(model="tiny", messages=sent, tools=[TOOL])
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Two.", "stop")


async def test_a_streamed_call(api: Api) -> None:
    """The same in pieces: one id and name, arguments as they come."""
    api.backend.script = spoken("h", "m</th", "ink>", *CALL, "\n", CALL)
    options: Any = {"model": "tiny", "messages": [USER], "tools": [TOOL]}
    reasoning, calls, finishes = "", defaultdict[int, list[str]](list), []
    async for chunk in await api.client.chat.completions.create(**options, stream=True):
        (choice,) = chunk.choices
        reasoning += getattr(choice.delta, "reasoning", None) or ""
        assert not choice.delta.content
        finishes += [choice.finish_reason] if choice.finish_reason else []
        for call in choice.delta.tool_calls or []:
            assert call.function is not None
            calls[call.index] += [call.function.name or "", call.function.arguments or ""]
    assert (reasoning, finishes) == ("hm", ["tool_calls"])
    assert {index: "".join(pieces) for index, pieces in calls.items()} == {0: 'f{"a": 1}', 1: 'f{"a": 1}'}
    assert len(calls[0]) > 4


async def test_what_the_engine_is_held_to(api: Api) -> None:
    """A format or a call that is insisted on reaches it; a plain request has none."""
    forced: Any = {"type": "function", "function": {"name": "f"}}
    for fields in ({}, {"response_format": {"type": "json_object"}}, {"tools": [TOOL], "tool_choice": forced}):
        api.backend.script = spoken("hm</think>", '{"a": 1}')
        options: Any = {"model": "tiny", "messages": [USER], **fields}
        answer = await api.client.chat.completions.create(**options)
        assert answer.choices[0].finish_reason == "stop"
    plain, formed, called = [request.sampling.guided for request in api.backend.requests]
    assert plain is None
    assert formed is not None
    assert formed.json_object
    assert called is not None
    assert called.json_schema == '{"type":"object"}'
    assert [call.function.arguments for call in answer.choices[0].message.tool_calls] == ['{"a": 1}']


HALF = r'{"a": "\ud83d"}'
CALLED = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": HALF}}]}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [USER, CALLED, {"role": "tool", "tool_call_id": "c", "content": "2"}]}),
        ("/v1/responses", {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": HALF}]}),
        ("/tokenize", {"messages": [USER, CALLED]}),
    ],
)
async def test_half_a_surrogate_pair_in_past_arguments(api: Api, path: str, fields: dict[str, Any]) -> None:
    """A model may write such an escape, and the client sends it back in every later turn."""
    speak(api.backend)
    answer = await api.http.post(path, json={"model": "tiny", **fields})
    assert answer.status_code == 200, answer.text
    tokens = answer.json().get("tokens") or tokens_from_bytes(api.backend.requests[-1].tokens)
    assert '{"a": "\ufffd"}' in tokenizer().decode(tokens)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_name_that_no_answer_can_hold(api: Api, stream: bool) -> None:
    """It is no tool's: what looked like a call is text."""
    text = CALL.replace('"f"', r'"\ud800"')
    api.backend.script = spoken("hm</think>", text)
    options: Any = {"model": "tiny", "messages": [USER], "tools": [TOOL]}
    if stream:
        chunks = [it async for it in await api.client.chat.completions.create(**options, stream=True)]
        said = "".join(it.choices[0].delta.content or "" for it in chunks)
    else:
        said = (await api.client.chat.completions.create(**options)).choices[0].message.content or ""
    assert said == text


async def test_thoughts_alone_are_sent_back(api: Api) -> None:
    """An answer that was cut off while it thought has no content; the talk goes on with it."""
    api.backend.script = spoken("thinking", finish="length")
    answer = await api.client.chat.completions.create(model="tiny", messages=[USER], max_tokens=9)
    said = answer.choices[0].message
    assert (said.content, getattr(said, "reasoning")) == (None, "thinking")  # noqa: B009 - likewise
    api.backend.script = spoken("hm</think>Two.")
    for turn in (said.model_dump(), said.model_dump(exclude_none=True), {"role": "assistant", "refusal": "no"}):
        messages: Any = [USER, turn, USER]
        answer = await api.client.chat.completions.create(model="tiny", messages=messages)
        assert answer.choices[0].message.content == "Two."


async def test_each_choice_has_a_reader_of_its_own(api: Api) -> None:
    """One calls, the other speaks."""
    api.backend.script = spoken("hm</think>", CALL)
    api.backend.scripts = {".1": spoken("so</think>Hi.")}
    answer = await api.client.chat.completions.create(model="tiny", messages=[USER], tools=[TOOL], n=2)
    assert [choice.finish_reason for choice in answer.choices] == ["tool_calls", "stop"]
    assert [choice.message.content or "" for choice in answer.choices] == ["", "Hi."]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"extra_body": {"chat_template": "x"}}, "chat_template"),
        ({"extra_body": {"chat_template_kwargs": {"messages": []}}}, "chat_template_kwargs"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0]",
        ),
    ],
)
async def test_what_is_refused(api: Api, fields: dict[str, Any], param: str) -> None:
    """Before any worker is asked."""
    with pytest.raises(openai.BadRequestError) as caught:
        await api.client.chat.completions.create(**{"model": "tiny", "messages": [USER], **fields})
    assert caught.value.param == param
    assert not api.backend.requests
