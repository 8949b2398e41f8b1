"""vLLM's own parsers behind our protocol, and ours against them."""

from __future__ import annotations

import importlib
import json
import warnings
from functools import cache
from typing import Any

import msgspec
import pytest
from tokenizers import AddedToken, Tokenizer

from api.openai.types.request_types import ChatRequest
from api.parsers.loaded_models import LoadedModel, load_model
from api.parsers.output_parser import OutputParser
from api.parsers.parser_selection import select_parser
from api.parsers.tool_calls import MISTRAL_ID_CHARS
from api.parsers.vllm_parsers import VllmParsers
from api.server.errors import ApiError
from core.prompt import tokens_to_bytes
from tests.api.parsers.reading import Message
from tests.api.scripted import files, tokenizer

MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>")
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = ("f", '{"a": 1}')


@pytest.fixture(scope="module", autouse=True)
def _vllm() -> None:
    """Imported once, its warnings let be."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("vllm.parser.parser_manager")
        pytest.importorskip("vllm.entrypoints.openai.chat_completion.protocol")
        importlib.import_module("transformers").PreTrainedTokenizerFast  # noqa: B018 - imported when it is looked up


@cache
def marked() -> Tokenizer:
    """The small tokenizer with the marks of formats as tokens."""
    made = Tokenizer.from_str(tokenizer().to_str())
    made.add_tokens([AddedToken(mark, special=False) for mark in MARKS])
    return made


@cache
def model(tools: str | None, reasoning: str | None) -> LoadedModel:
    named = json.dumps({"tool_call_parser": tools, "reasoning_parser": reasoning}).encode()
    return load_model("m", files() | {"tokenizer.json": marked().to_str().encode(), "contrail.json": named})


def asked(**fields: Any) -> ChatRequest:
    return msgspec.convert({"model": "m", "messages": [{"role": "user", "content": "?"}], **fields}, ChatRequest)


def read(reader: OutputParser | None, text: str) -> Message:
    """The text token by token."""
    assert reader is not None
    said = [
        reader.push(marked().decode([token]), [token]) for token in marked().encode(text, add_special_tokens=False).ids
    ]
    said.append(reader.finish())
    calls: dict[int, tuple[str, str]] = {}
    for delta in (delta for piece in said for delta in piece.tools):
        assert not delta.id or delta.id.startswith("call_") or len(delta.id) == MISTRAL_ID_CHARS
        name, arguments = calls.get(delta.call, ("", ""))
        calls[delta.call] = (name + delta.name, arguments + delta.arguments)
    text, reasoning = "".join(piece.text for piece in said), "".join(piece.reasoning for piece in said)
    return Message(text, reasoning, tuple(calls.values()), reader.called)


PROMPT = tokens_to_bytes([5, 6])


@pytest.mark.parametrize("stream", [True, False])
def test_calls_that_only_vllm_can_read(*, stream: bool) -> None:
    """Streamed or not, with one call or several, and text."""

    def reader(**fields: Any) -> OutputParser | None:
        return select_parser(asked(tools=[TOOL], stream=stream, **fields), model("pythonic", None), PROMPT)

    assert read(reader(), "[f(a=1), f(a=1)]") == Message(calls=(CALL, CALL), called=True)
    assert read(reader(parallel_tool_calls=False), "[f(a=1), f(a=1)]") == Message(calls=(CALL,), called=True)
    assert read(reader(), "Hello.") == Message("Hello.")


@pytest.mark.parametrize("stream", [True, False])
def test_arguments_that_a_parser_writes_anew(*, stream: bool) -> None:
    """Half a surrogate pair, which an escape can say and no answer can hold, is replaced."""
    reader = select_parser(asked(tools=[TOOL], stream=stream), model("pythonic", None), PROMPT)
    ((_, arguments),) = read(reader, r'[f(a="\ud800")]').calls
    assert arguments.encode()


@pytest.mark.parametrize("stream", [True, False])
def test_reasoning_that_only_vllm_can_read(*, stream: bool) -> None:
    """Alone, with calls that are insisted on, or not told."""
    text = "hm</think>"
    step3 = model(None, "step3")
    assert read(select_parser(asked(stream=stream), step3, PROMPT), text + "Hi.").text.strip() == "Hi."
    required = asked(stream=stream, tools=[TOOL], tool_choice="required")
    found = read(select_parser(required, step3, PROMPT), text + '[{"name": "f", "parameters": {"a": 1}}]')
    assert (found.reasoning.strip(), found.text.strip(), found.calls) == ("hm", "", (CALL,))
    silent = read(select_parser(asked(stream=stream, include_reasoning=False), step3, PROMPT), text + "Hi.")
    assert (silent.reasoning, silent.text.strip()) == ("", "Hi.")


def test_parsers_that_nobody_has() -> None:
    """The model serves all but what needs them."""
    unknown = model("nobodys", None)
    assert select_parser(asked(), unknown) is None
    with pytest.raises(ApiError, match="vLLM cannot read 'nobodys' for this model") as caught:
        select_parser(asked(tools=[TOOL]), unknown)
    assert (caught.value.status, caught.value.param) == (400, "tool_choice")


HERMES = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
LLAMA = '{"name": "f", "parameters": {"a": 1}}'
SAME = [
    ("hermes", None, "Hello."),
    ("hermes", None, HERMES),
    ("hermes", None, f"Wait.\n{HERMES}\n{HERMES}"),
    ("hermes", "deepseek_r1", f"<think>hm</think>{HERMES}"),
    ("hermes", "deepseek_r1", "hm</think>\n\nHello."),
    ("hermes", "deepseek_r1", "hm"),
    (None, "deepseek_r1", "<think>\nhm</think>Hello."),
    (None, "qwen3", "<think>\nhm\n</think>\n\nHello."),
    (None, "qwen3", "hm<tool_call>x"),
    ("llama3_json", None, LLAMA),
    ("llama3_json", None, f"{LLAMA}; {LLAMA}"),
    ("llama3_json", None, "Hello {a}."),
    ("mistral", None, '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "f", "arguments": {"a": 1}}]'),
    ("mistral", None, "Hello."),
]


@pytest.mark.parametrize(("tools", "reasoning", "text"), SAME)
def test_ours_say_what_vllms_say(tools: str | None, reasoning: str | None, text: str) -> None:
    """Of what models write when they keep to their format."""
    request = asked(stream=True, **({"tools": [TOOL]} if tools else {}))
    theirs = VllmParsers("m", tools, reasoning, marked()).reader(request, PROMPT, tools=tools is not None)
    assert read(select_parser(request, model(tools, reasoning), PROMPT), text) == read(theirs, text)


def test_what_vllm_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the caller's, not a failure of ours."""
    pythonic = model("pythonic", None)
    monkeypatch.setattr(pythonic.parsers.vllm, "_request_type", lambda **_: int("x"))
    with pytest.raises(ApiError, match="the model's parser refuses the request") as caught:
        select_parser(asked(tools=[TOOL]), pythonic, PROMPT)
    assert caught.value.status == 400


def test_a_parser_that_fails_leaves_the_text(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Streamed or not: nothing is lost, nothing is raised; the log has where it failed, and nothing of the text."""

    def fail(text: str, *_: object, **__: object) -> None:
        raise ValueError(f"cannot read {text}")

    for stream in (True, False):
        reader: Any = select_parser(asked(tools=[TOOL], stream=stream), model("pythonic", None), PROMPT)
        for name in ("parse", "parse_delta"):
            monkeypatch.setattr(reader._parser, name, fail)
        assert read(reader, "[f(a=1)]") == Message("[f(a=1)]")
    assert "in fail" in caplog.text
    assert "builtins.ValueError" in caplog.text
    assert "a=1" not in caplog.text
