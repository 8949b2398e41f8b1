"""`functions` and `function_call`, OpenAI's deprecated form of tools: asked and answered in it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from core.prompt import tokens_from_bytes
from tests.api.conftest import Api
from tests.api.scripted import spoken, tokenizer
from tests.api.speaking import speak

CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
USER: Any = {"role": "user", "content": "?"}
ASKED: Any = {"model": "tiny", "messages": [USER], "functions": [{"name": "f", "parameters": {"type": "object"}}]}


@pytest.fixture(autouse=True)
def _parsers(api: Api) -> None:
    """The model knows tools, and calls one twice."""
    speak(api.backend)
    api.backend.script = spoken("hm</think>", CALL, CALL)


def sent(api: Api) -> str:
    """The last prompt as text."""
    return tokenizer().decode(tokens_from_bytes(api.backend.requests[-1].tokens), skip_special_tokens=False)


async def test_a_call_whole_and_sent_back(api: Api) -> None:
    """One call alone, which the next turn brings with its result."""
    answer = await api.client.chat.completions.create(**ASKED)
    (choice,) = answer.choices
    call = choice.message.function_call
    assert call
    assert (call.name, json.loads(call.arguments), choice.finish_reason) == ("f", {"a": 1}, "function_call")
    assert choice.message.tool_calls is None
    assert sent(api) == "<tool f><|user|>?<|end|><|assistant|>"
    result = {"role": "function", "name": "f", "content": "2"}
    await api.client.chat.completions.create(**ASKED | {"messages": [USER, choice.message.model_dump(), result]})
    assert '<call call00001 f {"a": 1}>' in sent(api)
    assert "<|tool|>2<of call00001>" in sent(api)


async def test_a_call_streamed(api: Api) -> None:
    """Its name once, then pieces of its arguments."""
    names, arguments, finishes = [], "", []
    async for chunk in await api.client.chat.completions.create(**ASKED, stream=True):
        (choice,) = chunk.choices
        assert choice.delta.tool_calls is None
        finishes += [choice.finish_reason] if choice.finish_reason else []
        if (call := choice.delta.function_call) is not None:
            names += [call.name] if call.name else []
            arguments += call.arguments or ""
    assert (names, json.loads(arguments), finishes) == (["f"], {"a": 1}, ["function_call"])


@pytest.mark.parametrize(
    ("wanted", "said", "called", "finish"),
    [
        ({"name": "f"}, '{"a": 1}', True, "stop"),
        ("none", CALL, False, "stop"),
        ("auto", CALL, True, "function_call"),
    ],
)
async def test_whether_a_function_is_called(api: Api, wanted: Any, said: str, called: bool, finish: str) -> None:
    """By its name, which ends like a text as with tools; by the model's choice; or not at all."""
    api.backend.script = spoken("hm</think>", said)
    (choice,) = (await api.client.chat.completions.create(**ASKED, function_call=wanted)).choices
    assert (choice.message.function_call is not None, choice.finish_reason) == (called, finish)


@pytest.mark.parametrize("fields", [{"functions": []}, {"functions": None, "function_call": "auto"}])
async def test_no_functions_are_none(api: Api, fields: Any) -> None:
    """As without the fields."""
    api.backend.script = spoken("hm</think>so")
    answer = await api.client.chat.completions.create(**ASKED | fields)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("so", "stop")
    assert "<tool" not in sent(api)


async def test_others_are_answered_with_tool_calls(api: Api) -> None:
    """What is worked out for one form is not taken for the other."""
    tools = [{"type": "function", "function": ASKED["functions"][0]}]
    for fields, name in ((ASKED, "function_call"), ({**ASKED, "functions": None, "tools": tools}, "tool_calls")):
        answer = await api.client.chat.completions.create(**fields)
        assert answer.choices[0].finish_reason == name
