"""Reasoning in an answer's text, and what stands behind it."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from api.openai.types.request_types import ChatRequest
from api.parsers.loaded_models import load_model
from api.parsers.output_parser import OutputParser
from api.parsers.parser_selection import select_parser
from api.parsers.reasoning import ChainedParser, ThinkParser
from api.parsers.tool_call_formats import HermesParser
from api.parsers.tool_calls import ToolCallCollector
from core.prompt import tokens_to_bytes
from tests.api.parsers.reading import Message, cut, read
from tests.api.scripted import files, ids, tokenizer

NAMED = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
TINY = load_model("tiny", files() | {"contrail.json": json.dumps(NAMED).encode()})
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "f"}}]
PIECES = ["<think>", "</think>", "<tool_call>", "</tool_call>", CALL, "hm", "\n", " ", "<", "<th", "/", ">", "text"]


def reader(prompt: str = "", **fields: Any) -> OutputParser:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "?"}], **fields}
    found = select_parser(msgspec.convert(body, ChatRequest), TINY, tokens_to_bytes(ids(prompt)))
    assert found is not None
    return found


def whole(text: str, *, calls_end: bool) -> tuple[str, str]:
    """Reasoning and rest of a whole text, told plainly."""
    if text.lstrip().startswith("<think>"):
        text = text.lstrip().removeprefix("<think>")
    found = re.search("</think>|(?=<tool_call>)" if calls_end else "</think>", text)
    return (text[: found.start()], text[found.end() :]) if found else (text, "")


@settings(max_examples=200, deadline=None)
@given(pieces=cut(PIECES), calls_end=st.booleans(), ended=st.booleans())
def test_no_cut_changes_the_message(pieces: list[str], *, calls_end: bool, ended: bool) -> None:
    """Any pieces say what the whole says; nothing but marks is lost."""
    text = "".join(pieces)
    reasoning, rest = ("", text) if ended else whole(text, calls_end=calls_end)
    expected = read(HermesParser(ToolCallCollector()), [rest])._replace(reasoning=reasoning)
    assert (
        read(
            ChainedParser(
                ThinkParser(ended=ended, calls_end=calls_end), HermesParser(ToolCallCollector()), include_reasoning=True
            ),
            pieces,
        )
        == expected
    )
    plain = read(ChainedParser(ThinkParser(ended=ended, calls_end=calls_end), None, include_reasoning=True), pieces)
    assert plain == Message(rest, reasoning)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<think>\nhm\n</think>\n\nHi.", Message("\n\nHi.", "\nhm\n")),
        ("hm</think>Hi.", Message("Hi.", "hm")),
        ("\n<think>hm</think>Hi. </think>", Message("Hi. </think>", "hm")),
        ("hm", Message("", "hm")),
        ("hm</thi", Message("", "hm</thi")),
        ("<thing>hm", Message("", "<thing>hm")),
        ("<think></think>Hi.", Message("Hi.")),
        ("<thi", Message("", "<thi")),
        (f"hm</think>\n{CALL}", Message("", "hm", (("f", '{"a": 1}'),), called=True)),
        (f"hm{CALL}", Message("", "hm", (("f", '{"a": 1}'),), called=True)),
    ],
)
def test_reasoning_then_the_rest(text: str, message: Message) -> None:
    """Whether the model opens it or not; calls are found behind it, and end it."""
    for pieces in ([text], list(text)):
        assert read(reader(tools=TOOLS), pieces) == message


def test_the_prompt_may_have_closed_it() -> None:
    """A template that switches thinking off writes an empty thought: then all is answer. One may open it as well."""
    assert read(reader("<|assistant|><think>\n\n</think>\n\n"), ["Hi."]) == Message("Hi.")
    assert read(reader("<|assistant|><think>\n"), ["hm</think>Hi."]) == Message("Hi.", "hm")
    assert read(reader("a</think>b<|assistant|>"), ["hm</think>Hi."]) == Message("Hi.", "hm")


def test_guided_answers_follow_the_engine() -> None:
    """With deepseek_r1 it looks for the last mark in the whole prompt, and guides from the start if that closed."""
    made = Tokenizer.from_str(tokenizer().to_str())
    made.add_tokens([AddedToken(mark, special=False) for mark in ("<think>", "</think>")])
    named = json.dumps({"reasoning_parser": "deepseek_r1"}).encode()
    model = load_model("m", files() | {"tokenizer.json": made.to_str().encode(), "contrail.json": named})
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
    guided = msgspec.convert(body | {"response_format": {"type": "json_object"}}, ChatRequest)
    opening, closing = model.parsers.opening, model.parsers.closing
    assert opening is not None
    assert closing is not None
    shifted = closing << 8  # its bytes hold the token's, but not where a token begins
    for prompt, ended in (
        ([], False),
        ([opening, 7, closing, 7, 8], True),
        ([closing, 7, opening, 7], False),
        ([opening, 7, shifted, 0], False),
    ):
        found = select_parser(guided, model, tokens_to_bytes(prompt))
        assert found is not None
        assert read(found, ["{}"]) == (Message("{}") if ended else Message("", "{}"))
    plain = select_parser(
        msgspec.convert(body, ChatRequest), model, tokens_to_bytes([opening, 7, closing, *ids("user")])
    )
    assert plain is not None
    assert read(plain, ["hm</think>Hi."]) == Message("Hi.", "hm")


def test_a_continued_message_may_have_closed_it() -> None:
    """What the client wrote itself decides."""
    for start, message in (
        ("<think>h", Message("Hi.", "m")),
        ("<think>h</think>So", Message("m</think>Hi.")),
        ("So", Message("m</think>Hi.")),
    ):
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": start}]
        assert read(reader(messages=messages, continue_final_message=True), ["m</think>Hi."]) == message


def test_who_does_not_want_it_is_not_told() -> None:
    """The answer is the same otherwise."""
    assert read(reader(include_reasoning=False), ["hm</think>Hi."]) == Message("Hi.")


def test_guided_answers_come_behind_the_reasoning() -> None:
    """A format holds for the answer; the engine leaves the reasoning free, and so the text has both."""
    asked = reader(response_format={"type": "json_object"})
    assert read(asked, ['hm</think>{"a"', ": 1}"]) == Message('{"a": 1}', "hm")
    named = reader(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "f"}})
    assert read(named, ['hm</think>\n{"a": 1}']) == Message("", "hm", (("f", '{"a": 1}'),))
    required = reader(tools=TOOLS, tool_choice="required")
    text = 'hm</think>[{"name": "f", "parameters": {}}]'
    assert read(required, list(text)) == Message("", "hm", (("f", "{}"),), called=True)


def test_marks_that_are_special_tokens_are_kept() -> None:
    """They would be skipped."""
    assert ThinkParser(special={"</think>"}).keeps_special_tokens
    assert not ThinkParser(special={"<|im_end|>"}).keeps_special_tokens
    assert ChainedParser(
        ThinkParser(), HermesParser(ToolCallCollector(), {"<tool_call>"}), include_reasoning=True
    ).keeps_special_tokens
