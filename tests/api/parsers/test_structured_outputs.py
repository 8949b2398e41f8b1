"""Formats of an answer, and calls that a request insists on, as what the engine is held to."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from api.openai.types.request_types import ChatRequest, CompletionRequest
from api.parsers.structured_outputs import CHOICES_MAX, SCHEMA_BYTES_MAX, SCHEMA_DEPTH_MAX, read_guided
from api.server.errors import ApiError
from core.generation import Guided

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"$ref": "#/$defs/a"}}}


def guided(**fields: Any) -> Guided | None:
    body = {"model": "m", "messages": [{"role": "user", "content": "?"}], **fields}
    return read_guided(msgspec.json.decode(json.dumps(body), type=ChatRequest))


def schema_of(found: Guided | None) -> Any:
    assert found is not None
    assert found.json_schema is not None
    return json.loads(found.json_schema)


def tool(name: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": True}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Guided(json_object=True)),
        ({"structured_outputs": {"json_object": True}}, Guided(json_object=True)),
        ({"structured_outputs": {"regex": "a+"}}, Guided(regex="a+")),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, Guided(choices=("yes", "no"))),
        ({"structured_outputs": {"grammar": "root ::= 'a'"}}, Guided(grammar="root ::= 'a'")),
        ({"structured_outputs": {"json": '{"type": "object"}'}}, Guided(json_schema='{"type":"object"}')),
        ({"response_format": {"type": "text"}, "structured_outputs": {"regex": "a"}}, Guided(regex="a")),
        ({"tools": [tool("f")]}, None),
        ({"tools": [tool("f")], "tool_choice": "none"}, None),
    ],
)
def test_what_is_asked_for(fields: dict[str, Any], expected: Guided | None) -> None:
    """OpenAI's formats and vLLM's."""
    assert guided(**fields) == expected


def test_a_schema_keeps_its_order() -> None:
    """Engines write the properties in it."""
    found = guided(
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
    )
    assert list(schema_of(found)["properties"]) == ["b", "a"]
    assert (
        read_guided(
            msgspec.json.decode(
                msgspec.json.encode({"model": "m", "prompt": "?", "structured_outputs": {"json": SCHEMA}}),
                type=CompletionRequest,
            )
        )
        == found
    )


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"not": schema}
    return schema


FORMAT = "response_format"
OUTPUTS = "structured_outputs"


def of_schema(schema: Any) -> dict[str, Any]:
    return {FORMAT: {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({FORMAT: {"type": "xml"}}, "response_format.type"),
        ({FORMAT: {"type": "json_schema"}}, "response_format.json_schema"),
        (of_schema(None), "response_format.json_schema.schema"),
        (of_schema(deep(SCHEMA_DEPTH_MAX + 2)), "response_format.json_schema.schema"),
        (of_schema({"title": "x" * SCHEMA_BYTES_MAX}), "response_format.json_schema.schema"),
        ({OUTPUTS: {}}, OUTPUTS),
        ({OUTPUTS: {"regex": "a", "choice": ["a"]}}, OUTPUTS),
        ({OUTPUTS: {"regex": "a"}, FORMAT: {"type": "json_object"}}, OUTPUTS),
        ({OUTPUTS: {"regex": ""}}, "structured_outputs.regex"),
        ({OUTPUTS: {"regex": "ü" * (SCHEMA_BYTES_MAX // 2 + 1)}}, "structured_outputs.regex"),
        ({OUTPUTS: {"choice": []}}, "structured_outputs.choice"),
        ({OUTPUTS: {"choice": ["a", ""]}}, "structured_outputs.choice"),
        ({OUTPUTS: {"choice": ["a"] * (CHOICES_MAX + 1)}}, "structured_outputs.choice"),
        ({OUTPUTS: {"json": "{"}}, "structured_outputs.json"),
        ({OUTPUTS: {"json": "[1]"}}, "structured_outputs.json"),
        ({OUTPUTS: {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({OUTPUTS: {"regex": "a"}, "tools": [tool("f")], "tool_choice": "required"}, OUTPUTS),
        ({"tools": [tool("f", deep(SCHEMA_DEPTH_MAX + 2))], "tool_choice": "required"}, "tools"),
    ],
)
def test_what_cannot_be_kept(fields: dict[str, Any], param: str) -> None:
    """Exactly one rule, within bounds; the error names the place."""
    with pytest.raises(ApiError) as caught:
        guided(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_bounds_are_allowed() -> None:
    """The largest of each."""
    assert guided(**of_schema(deep(SCHEMA_DEPTH_MAX)))
    assert guided(structured_outputs={"regex": "a" * SCHEMA_BYTES_MAX})
    assert guided(structured_outputs={"choice": ["a"] * CHOICES_MAX})


def test_a_named_tool_is_its_arguments() -> None:
    """A format beside it gives way, as with vLLM."""
    named = {"type": "function", "function": {"name": "g"}}
    tools = [tool("f"), tool("g", SCHEMA)]
    assert schema_of(guided(tools=tools, tool_choice=named, response_format={"type": "json_object"})) == SCHEMA
    assert schema_of(guided(tools=[tool("g")], tool_choice=named)) == {"type": "object", "properties": {}}


def test_required_is_a_list_of_calls() -> None:
    """Definitions stand where references find them; one call alone if there may be no more."""
    tools = [tool("f"), tool("g", {**SCHEMA, "$defs": {"a": {"type": "string"}}})]
    schema = schema_of(guided(tools=tools, tool_choice="required"))
    assert (schema["type"], schema["minItems"], "maxItems" in schema) == ("array", 1, False)
    assert schema["$defs"] == {"a": {"type": "string"}}
    assert schema["items"]["anyOf"] == [
        {
            "properties": {"name": {"type": "string", "enum": [name]}, "parameters": parameters},
            "required": ["name", "parameters"],
        }
        for name, parameters in (("f", {"type": "object", "properties": {}}), ("g", SCHEMA))
    ]
    assert schema_of(guided(tools=tools, tool_choice="required", parallel_tool_calls=False))["maxItems"] == 1


def test_definitions_must_agree() -> None:
    """Two tools cannot mean two things by one name."""
    tools = [tool("f", {"$defs": {"a": {"type": "string"}}}), tool("g", {"$defs": {"a": {"type": "integer"}}})]
    with pytest.raises(ApiError, match="another tool defines 'a'"):
        guided(tools=tools, tool_choice="required")
