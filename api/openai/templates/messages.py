"""The parts of a chat's body: messages and their content, tools and calls of them, formats of the answer.

Types only; what they do not say is checked where it is used, so that the error can name the place.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Part(msgspec.Struct, frozen=True):
    """One piece of a message's content; only text is read."""

    type: str
    text: str | None = None
    refusal: str | None = None


class CalledFunction(msgspec.Struct, frozen=True):
    """What an assistant called in an earlier message."""

    name: str
    arguments: str | dict[str, Any] | None = None
    """JSON text, as OpenAI's clients send it; some send the object itself."""


class ToolCall(msgspec.Struct, frozen=True):
    function: CalledFunction
    id: str | None = None
    type: str = "function"


class ChatMessage(msgspec.Struct, frozen=True):
    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    """Of an assistant, instead of content."""
    reasoning: str | None = None
    reasoning_content: str | None = None
    """The older name of `reasoning`."""
    function_call: CalledFunction | None = None
    """A call in OpenAI's deprecated form; a message of role `function` has its result."""


class Function(msgspec.Struct, frozen=True):
    """A tool, as the request describes it."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema of an object."""
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True):
    function: Function
    type: str = "function"


class ToolName(msgspec.Struct, frozen=True):
    name: str


class NamedChoice(msgspec.Struct, frozen=True):
    """`tool_choice` that names a tool."""

    type: str = "function"
    function: ToolName | None = None


ToolChoice = str | NamedChoice
"""`none`, `auto`, `required`, or one tool."""


class JsonSchema(msgspec.Struct, frozen=True):
    name: str
    schema: dict[str, Any] | bool | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """`text`, `json_object`, or `json_schema` with one."""

    type: str
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct, frozen=True):
    """vLLM's own way to say the same and more; exactly one field is given."""

    json: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Any = None
    """Refused."""
