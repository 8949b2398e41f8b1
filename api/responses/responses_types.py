"""The body of /v1/responses. Types only; what they do not say is checked where it is translated."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta

from api.openai.types.request_types import (
    AtLeastOne,
    Count,
    Int32,
    Int64,
    Kind,
    ModelName,
    Repetition,
    Salt,
    Share,
    Temperature,
    TokenId,
    Top,
    TopK,
    TopP,
    Undecoded,
)

Metadata = Annotated[dict[str, str], Meta(max_length=16, description="an object of at most 16 strings")]


class ItemPart(msgspec.Struct, frozen=True):
    """One piece of an item's content."""

    type: Kind
    text: str | None = None
    refusal: str | None = None


class Item(msgspec.Struct, frozen=True):
    """One item of the input: which fields it has depends on its type."""

    type: Kind = "message"
    role: Kind | None = None
    """Of a message."""
    content: str | list[ItemPart] | None = None
    """Of a message; of reasoning, what was thought."""
    summary: list[ItemPart] | None = None
    """Of reasoning."""
    encrypted_content: str | None = None
    """Of reasoning: its text as an earlier answer sealed it."""
    call_id: str | None = None
    """Of a call, and of the output that belongs to it."""
    name: str | None = None
    namespace: str | None = None
    """Of a call: the namespace of the called tool."""
    arguments: str | None = None
    """Of a function_call."""
    input: str | None = None
    """Of a custom_tool_call."""
    output: str | list[ItemPart] | dict[str, msgspec.Raw] | None = None
    """Of a call's output; hosted tools alone have objects there."""
    tools: list[msgspec.Raw] | None = None
    """Of additional_tools."""


class TextFormat(msgspec.Struct, frozen=True):
    """`text`, `json_object`, or `json_schema` with one."""

    type: Kind
    name: str | None = None
    schema: dict[str, Any] | bool | None = None
    description: str | None = None
    strict: bool | None = None


class Text(msgspec.Struct, frozen=True):
    format: TextFormat | None = None
    verbosity: str | None = None


class Reasoning(msgspec.Struct, frozen=True):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class CustomFormat(msgspec.Struct, frozen=True):
    """The form of a custom tool's input: `text`, or `grammar` with one."""

    type: Kind
    syntax: str | None = None
    definition: str | None = None


class ResponsesTool(msgspec.Struct, frozen=True):
    """A tool: `function`, `custom`, or `namespace` with tools of these two types. Others are hosted by OpenAI."""

    type: Kind
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """Of a function."""
    strict: bool | None = None
    """Of a function."""
    format: CustomFormat | None = None
    """Of a custom tool."""
    tools: list[ResponsesTool] | None = None
    """Of a namespace."""


class AllowedTool(msgspec.Struct, frozen=True):
    """A tool that `allowed_tools` names."""

    type: Kind
    name: str | None = None
    namespace: str | None = None


class ChosenTool(msgspec.Struct, frozen=True):
    """`tool_choice` that names a tool, or with type `allowed_tools` several."""

    type: Kind
    name: str | None = None
    namespace: str | None = None
    mode: str | None = None
    """Of allowed_tools: `auto` or `required`."""
    tools: list[AllowedTool] | None = None
    """Of allowed_tools."""


class ResponsesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of /v1/responses. Undecoded fields are known and refused unless they are off."""

    model: ModelName
    input: str | list[Item]
    instructions: str | None = None
    max_output_tokens: AtLeastOne | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    text: Text | None = None
    tools: list[ResponsesTool] | None = None
    tool_choice: str | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    metadata: Metadata | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    client_metadata: dict[str, msgspec.Raw] | None = None
    """Codex's: it names its session in it."""
    stream: bool | None = None
    truncation: str | None = None
    include: list[str] | None = None
    service_tier: str | None = None
    top_logprobs: Top | None = None
    max_tool_calls: Count | None = None
    """Of hosted tools, of which there are none here."""
    store: bool | None = None
    """Taken; the answer says that nothing was stored."""
    # what would have to be kept here
    background: Undecoded = UNSET
    previous_response_id: Undecoded = UNSET
    conversation: Undecoded = UNSET
    prompt: Undecoded = UNSET
    # vLLM's
    stop: str | list[str] | None = None
    seed: Int64 | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    repetition_penalty: Repetition | None = None
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    stop_token_ids: list[TokenId] | None = None
    cache_salt: Salt | None = None
    priority: Int32 | None = None
    chat_template_kwargs: dict[str, Any] | None = None
