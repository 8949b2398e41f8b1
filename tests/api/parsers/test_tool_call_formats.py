"""Calls of tools in an answer's text, however it is cut."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.parsers.output_parser import OutputParser
from api.parsers.tool_call_formats import (
    HEAD_CHARS_MAX,
    HermesParser,
    Llama3JsonParser,
    MistralParser,
    NamedCallParser,
    RequiredCallParser,
)
from api.parsers.tool_calls import ToolCallCollector, mistral_id, openai_id
from tests.api.parsers.reading import Message, cut, read

Make = Callable[[], OutputParser]

READERS: dict[str, Make] = {
    "hermes": lambda: HermesParser(ToolCallCollector()),
    "llama3_json": lambda: Llama3JsonParser(ToolCallCollector(), {"f", "g"}),
    "mistral": lambda: MistralParser(ToolCallCollector()),
    "required": lambda: RequiredCallParser(ToolCallCollector()),
}
PIECES = [
    *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<tool", "[TOO"),
    *('{"name": "f", "arguments": {"a": [1, {"b": "}"}]}}', '{"arguments": {}, "name": "g"}', '{"name": "f"}'),
    *('{"type": "function", "name": "g", "parameters": {"x": "<tool_call>\\""}}', '{"name": "h", "parameters": {}}'),
    *('{"name": "f", "arguments": null}', '{"name": "f", "parameters": "x"}', '{"name": 1}', '"name"', '{"', '":'),
    *("{", "}", "[", "]", ",", ";", '"', "\\", ":", " ", "\n", "f", "g{", "text", "ü🤡", "null", "<"),
]


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_cut_changes_the_message(name: str, data: st.DataObject) -> None:
    """Any pieces say what the whole says; and where no call was found, all of it is text."""
    pieces = data.draw(cut(PIECES))
    message = read(READERS[name](), pieces)
    assert message == read(READERS[name](), ["".join(pieces)])
    assert message == read(READERS[name](), list("".join(pieces)))
    if not message.called:
        assert message == Message("".join(pieces))


ARGUMENTS = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9), lambda inner: st.lists(inner, max_size=3)
    ),
    max_size=3,
)
CALLS = st.lists(st.tuples(st.sampled_from(["f", "g"]), ARGUMENTS), min_size=1, max_size=3)
WRITTEN: dict[str, Callable[[list[dict[str, object]]], str]] = {
    "hermes": lambda calls: "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls),
    "llama3_json": lambda calls: "; ".join(json.dumps(call) for call in calls),
    "mistral": lambda calls: f"[TOOL_CALLS] {json.dumps(calls)}",
    "required": json.dumps,
}


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=60, deadline=None)
@given(calls=CALLS, step=st.integers(1, 30))
def test_every_call_is_found(name: str, calls: list[tuple[str, dict[str, object]]], step: int) -> None:
    """Names, and arguments to the letter, and nothing of them as text."""
    key = "parameters" if name in {"llama3_json", "required"} else "arguments"
    text = WRITTEN[name]([{"name": called, key: arguments} for called, arguments in calls])
    message = read(READERS[name](), [text[start : start + step] for start in range(0, len(text), step)])
    expected = tuple((called, json.dumps(arguments)) for called, arguments in calls)
    assert message == Message(calls=expected, called=True)


CASES: list[tuple[str, str, str, tuple[tuple[str, str], ...]]] = [
    ("hermes", "Let me see.\n<tool_call>{}</tool_call>", "Let me see.\n<tool_call>{}</tool_call>", ()),
    ("hermes", 'Wait.\n<tool_call>{"name": "f", "arguments": {"a":  1}}</tool_call>', "Wait.\n", (("f", '{"a":  1}'),)),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>.', ".", (("f", '{"a": 1}'),)),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1</tool_call>.', ".", (("f", '{"a": 1'),)),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", (("f", "{}"),)),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "b', "", (("f", '{"a": "b'),)),
    ("hermes", '<tool_call>{"name": "f", "argu', '<tool_call>{"name": "f", "argu', ()),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}', '<tool_call>{"name": "f", "arguments": [1]}', ()),
    ("hermes", ' \n<tool_call>{"name": "f"}</tool_call> \n', "", (("f", "{}"),)),
    ("hermes", '<tool_call>{"name": "\\u0066"}</tool_call>', "", (("f", "{}"),)),
    ("hermes", '<tool_call>{"name": "\\ud800"}</tool_call>', '<tool_call>{"name": "\\ud800"}</tool_call>', ()),
    ("required", '[{"name": "\\ud800", "parameters": {}}]', '[{"name": "\\ud800", "parameters": {}}]', ()),
    ("llama3_json", '{"name": "h", "parameters": {}}', '{"name": "h", "parameters": {}}', ()),
    ("llama3_json", '{"name": "f", "age": 3}', '{"name": "f", "age": 3}', ()),
    ("llama3_json", '<|python_tag|>{"name": "f", "parameters": {}}', "", (("f", "{}"),)),
    ("llama3_json", "<|python_tag|>f.call()", "<|python_tag|>f.call()", ()),
    ("llama3_json", 'So: {"name": "f", "parameters": {}}', 'So: {"name": "f", "parameters": {}}', ()),
    ("llama3_json", '{"name": "f", "parameters": {}} so.', " so.", (("f", "{}"),)),
    ("mistral", '[TOOL_CALLS]f{"a": 1}[TOOL_CALLS]g[ARGS]{}', "", (("f", '{"a": 1}'), ("g", "{}"))),
    ("mistral", '[TOOL_CALLS]f[CALL_ID]a1B[ARGS]{"a": 1}', "", (("f", '{"a": 1}'),)),
    ("mistral", "[TOOL_CALLS]f of x", "[TOOL_CALLS]f of x", ()),
    ("mistral", "[TOOL_CALLS]f[OTHER]{}", "[TOOL_CALLS]f[OTHER]{}", ()),
    ("mistral", "[TOOL_CALLS] [1]", "[TOOL_CALLS] [1]", ()),
    ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {}}, 1]', ", 1]", (("f", "{}"),)),
    ("required", "I cannot.", "I cannot.", ()),
    ("required", '[{"name": "f", "parameters": {"a', "", (("f", '{"a'),)),
    ("required", '[{"name": "f", "parameters": {}}, {"name": "f", "para', "", (("f", "{}"),)),
    ("required", '[{"name": "f", "parameters": {}}] so', " so", (("f", "{}"),)),
]


@pytest.mark.parametrize(("name", "text", "said", "calls"), CASES)
def test_what_is_a_call_and_what_is_text(name: str, text: str, said: str, calls: tuple[tuple[str, str], ...]) -> None:
    """Broken ends, missing parts, and things that only look like calls."""
    for pieces in ([text], list(text)):
        assert read(READERS[name](), pieces) == Message(said, calls=calls, called=bool(calls))


def test_arguments_leave_as_they_come() -> None:
    """The name leaves whole, as soon as its arguments begin; these leave with every piece."""
    reader = HermesParser(ToolCallCollector())
    pieces = ["<tool_call>", '{"na', 'me": "f", "argu', 'ments": {', '"a": "b', 'c"}', "}", "</tool_call>"]
    said = [reader.push(piece, ()).tools for piece in pieces]
    assert [[(delta.name, delta.arguments) for delta in tools] for tools in said] == [
        [], [], [], [("f", "{")], [("", '"a": "b')], [("", 'c"}')], [], []
    ]  # fmt: skip


def test_an_answer_in_json_is_not_held_back() -> None:
    """Its first key tells that it is no call."""
    reader = Llama3JsonParser(ToolCallCollector(), {"f"})
    assert [reader.push(piece, ()).text for piece in ("{", '"users"', ": [", "1")] == ["", '{"users"', ": [", "1"]


def test_one_call_at_most() -> None:
    """Without parallel calls the first alone leaves."""
    text = WRITTEN["hermes"]([{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}])
    assert read(HermesParser(ToolCallCollector(single=True)), [text]) == Message(calls=(("f", "{}"),), called=True)


def test_a_named_call_is_all_of_the_text() -> None:
    """It ends with `stop`, as OpenAI's does."""
    assert read(NamedCallParser(ToolCallCollector(), "f"), [" ", '{"a"', ": 1}"]) == Message(calls=(("f", '{"a": 1}'),))
    assert read(NamedCallParser(ToolCallCollector(), "f"), [""]) == Message()


def test_marks_that_are_special_tokens_are_kept_in_the_text() -> None:
    """Only where the tokenizer has them as such: others of its special tokens would show, too."""
    assert HermesParser(ToolCallCollector(), {"<tool_call>"}).keeps_special_tokens
    assert not HermesParser(ToolCallCollector(), {"<|im_end|>"}).keeps_special_tokens
    assert MistralParser(ToolCallCollector(), {"[TOOL_CALLS]"}).keeps_special_tokens


def test_a_head_without_end_is_text() -> None:
    """What has no arguments after so many characters is no call."""
    text = "[TOOL_CALLS]" + "f" * (HEAD_CHARS_MAX + 1)
    reader = MistralParser(ToolCallCollector())
    assert reader.push(text[:-1], ()).text == ""
    assert reader.push(text[-1], ()).text == text


def test_ids() -> None:
    """They look like OpenAI's; Mistral's templates want nine letters and digits."""
    assert openai_id().startswith("call_")
    assert len({openai_id() for _ in range(50)}) == 50
    assert len(mistral_id()) == 9
    assert mistral_id().isalnum()
