"""The bodies of Anthropic's /v1/messages and /v1/messages/count_tokens. `messages_request` checks the rest."""

from __future__ import annotations

from typing import Any

import msgspec

from api.openai.types.request_types import AtLeastOne, Kind, ModelName, Salt, Temperature, TopK, TopP


class Block(msgspec.Struct, frozen=True):
    """One piece of a message: which fields it has depends on its type."""

    type: Kind
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    """Of a tool_use …"""
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    """… and of the tool_result that belongs to it."""
    content: str | list[Block] | None = None
    tool: ToolChange | None = None
    """Of a tool_addition or a tool_removal."""
    tool_name: str | None = None
    """Of a tool_reference."""
    title: str | None = None
    source: Any = None
    """Of a document or a search_result."""


class InputMessage(msgspec.Struct, frozen=True):
    role: Kind
    content: str | list[Block]


class MessagesTool(msgspec.Struct, frozen=True):
    name: str = ""
    type: Kind | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChange(msgspec.Struct, frozen=True):
    """The tool that a conversation adds or removes: one of `tools` by its name, or a new one by its definition."""

    type: Kind
    name: str | None = None
    definition: MessagesTool | None = None


class ToolChoice(msgspec.Struct, frozen=True):
    type: Kind
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, frozen=True):
    type: Kind


class OutputFormat(msgspec.Struct, frozen=True):
    type: Kind
    schema: dict[str, Any] | None = None


class OutputConfig(msgspec.Struct, frozen=True):
    format: OutputFormat | None = None
    effort: str | None = None


class CountRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a body that make up the prompt."""

    model: ModelName
    messages: list[InputMessage]
    system: str | list[Block] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessagesRequest(CountRequest, frozen=True, kw_only=True):
    """A chat."""

    max_tokens: AtLeastOne
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    metadata: dict[str, msgspec.Raw] | None = None
    """Its `user_id` may name a session."""
    cache_salt: Salt | None = None
    """vLLM's."""
