"""Tools as a request offers them, and who reads the answer."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from api.openai.types.request_types import ChatRequest
from api.parsers.loaded_models import LoadedModel, load_model, load_parsers
from api.parsers.output_parser import OutputParser
from api.parsers.parser_selection import select_parser
from api.parsers.tool_choice import TOOLS_MAX
from api.server.errors import ApiError
from core.errors import Corrupt
from tests.api.parsers.reading import Message, read
from tests.api.scripted import files, tokenizer

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


def model(tools: str | None = None, reasoning: str | None = None) -> LoadedModel:
    named = {"tool_call_parser": tools, "reasoning_parser": reasoning}
    return load_model("tiny", files() | {"contrail.json": json.dumps(named).encode()})


PLAIN = load_model("tiny", files())


def reader(model: LoadedModel, **fields: Any) -> OutputParser | None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "?"}], **fields}
    return select_parser(msgspec.json.decode(json.dumps(body), type=ChatRequest), model)


def test_most_answers_are_text_alone() -> None:
    """No tools, or none that may be called, and no reasoning."""
    assert reader(PLAIN) is None
    assert reader(model("hermes")) is None
    assert reader(PLAIN, tools=[TOOL], tool_choice="none") is None
    assert reader(PLAIN, tool_choice="none") is None


def named(count: int) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": f"f{index}"}} for index in range(count)]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": []}, "tools"),
        ({"tools": named(TOOLS_MAX + 1)}, "tools"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [{"type": "search", "function": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [TOOL, {"function": {"name": "a b"}}]}, "tools[1].function.name"),
        ({"tools": [{"function": {"name": "x" * 65}}]}, "tools[0].function.name"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ],
)
def test_what_cannot_be_offered(fields: dict[str, Any], param: str) -> None:
    """A clear 400, whatever the model."""
    with pytest.raises(ApiError) as caught:
        reader(model("hermes"), **fields)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_the_most_tools_that_may_be() -> None:
    """And the longest name."""
    assert reader(model("hermes"), tools=named(TOOLS_MAX)) is not None
    assert reader(model("hermes"), tools=[{"function": {"name": "x" * 64}}]) is not None


def test_a_choice_needs_a_parser() -> None:
    """The error says how to set one; calls that are insisted on need none."""
    with pytest.raises(ApiError, match="set tool_call_parser for it") as caught:
        reader(PLAIN, tools=[TOOL])
    assert (caught.value.status, caught.value.param) == (400, "tool_choice")
    required = reader(PLAIN, tools=[TOOL], tool_choice="required")
    assert required is not None
    assert read(required, ['[{"name": "f", "parameters": {}}]']) == Message(calls=(("f", "{}"),), called=True)


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("hermes", CALL),
        ("llama3_json", '{"name": "f", "parameters": {}}'),
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {}}]'),
    ],
)
def test_each_parser_of_our_own(parser: str, text: str) -> None:
    """By the name that vLLM's server has for it."""
    found = reader(model(parser), tools=[TOOL])
    assert found is not None
    assert read(found, [text]) == Message(calls=(("f", "{}"),), called=True)


def test_mistrals_ids_are_its_own() -> None:
    """Also of calls that are insisted on: its template would refuse others."""
    for fields in ({}, {"tool_choice": "required"}):
        found = reader(model("mistral"), tools=[TOOL], **fields)
        assert found is not None
        key, opening = ("parameters", "") if fields else ("arguments", "[TOOL_CALLS]")
        said = found.push(opening + json.dumps([{"name": "f", key: {}}]), ())
        assert [len(delta.id) for delta in said.tools] == [9]


def test_reasoning_and_tools() -> None:
    """The one first, then the others."""
    found = reader(model("hermes", "deepseek_r1"), tools=[TOOL])
    assert found is not None
    assert read(found, [f"hm</think>{CALL}"]) == Message("", "hm", (("f", "{}"),), called=True)


def test_a_file_that_cannot_be_read() -> None:
    """It is the worker's fault, and said when the model is loaded."""
    with pytest.raises(Corrupt, match=r"contrail\.json of model 'm'"):
        load_parsers("m", {"contrail.json": b"{"}, tokenizer())


WITHOUT_VLLM = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"vllm", "torch", "transformers"}:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
import tests.api.parsers.test_parser_selection as under_test
from api.server.errors import ApiError
under_test.test_reasoning_and_tools()
for tools, reasoning, fields in (("pythonic", None, {"tools": [under_test.TOOL]}), (None, "granite", {})):
    try:
        under_test.reader(under_test.model(tools, reasoning), **fields)
    except ApiError as error:
        print(error.status, error.param, error.message)
assert under_test.reader(under_test.model("pythonic")) is None
assert not {"vllm", "torch", "transformers"} & set(sys.modules)
"""


def test_our_own_parsers_need_no_vllm() -> None:
    """Where neither it nor torch can be imported, they work; of others the error says what to do."""
    ran = subprocess.run([sys.executable, "-c", WITHOUT_VLLM], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    tools, reasoning = ran.stdout.splitlines()
    assert tools.startswith("400 tool_choice tool_choice: the model's calls cannot be read: the parsers 'pythonic'")
    assert reasoning.startswith("500 None the model's reasoning cannot be read: the parsers 'granite' are vLLM's")
    assert tools.endswith("install vllm beside this front end, or choose one of our own")
