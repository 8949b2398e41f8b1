"""Anthropic's messages as the chat that they ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from api.anthropic.body import CountRequest, Message, MessagesRequest, OutputFormat, Tool, ToolChoice
from api.anthropic.system_text import system_message
from api.anthropic.text_blocks import content_of, given, part_of
from api.anthropic.tool_changes import CUSTOM, is_hosted, tools_of
from api.openai.requests.types import ChatRequest
from api.openai.templates.messages import (
    CalledFunction,
    ChatMessage,
    Function,
    JsonSchema,
    NamedChoice,
    Part,
    ResponseFormat,
    ToolCall,
    ToolName,
)
from api.openai.templates.messages import Tool as ChatTool
from api.server.errors import bad_parameter

CHOICES = {"auto": "auto", "any": "required", "none": "none"}
THINKING = {"enabled": True, "adaptive": True, "disabled": False}
"""Types of `thinking`, and whether templates that know `enable_thinking` are told to."""


def chat_of(asked: CountRequest) -> ChatRequest:
    """The chat; ApiError for what cannot be had here."""
    tools = [_tool(place, tool) for place, tool in tools_of(asked) if not is_hosted(tool)]
    choice = _choice(asked.tool_choice)
    return ChatRequest(
        model=asked.model,
        messages=list(_messages(asked)),
        tools=tools or None,
        # how to choose is said of no tools, too, once the conversation has removed all of them
        tool_choice=choice if tools or choice not in {"auto", "none"} else None,
        parallel_tool_calls=False if asked.tool_choice and asked.tool_choice.disable_parallel_tool_use else None,
        chat_template_kwargs=_thinking(asked),
        response_format=_format(asked.output_config.format if asked.output_config else None),
        reasoning_effort=asked.output_config.effort if asked.output_config else None,
        **_ended(asked),
        **_sampling(asked),
    )


def _begun(asked: CountRequest) -> int | None:
    """Where the beginning of the answer stands: an assistant's message, if only system messages follow it."""
    spoken = (at for at in reversed(range(len(asked.messages))) if asked.messages[at].role != "system")
    last = next(spoken, None)
    return last if last is not None and asked.messages[last].role == "assistant" else None


def _ended(asked: CountRequest) -> dict[str, Any]:
    begun = _begun(asked) is not None
    return {"add_generation_prompt": False, "continue_final_message": True} if begun else {}


def _sampling(asked: CountRequest) -> dict[str, Any]:
    if not isinstance(asked, MessagesRequest):
        return {}
    same = {
        name: getattr(asked, name) for name in ("stream", "temperature", "top_p", "top_k", "metadata", "cache_salt")
    }
    return {**same, "max_tokens": asked.max_tokens, "stop": asked.stop_sequences}


def _thinking(asked: CountRequest) -> dict[str, Any] | None:
    if asked.thinking is None:
        return None
    if asked.thinking.type not in THINKING:
        raise bad_parameter("thinking.type", f"must be one of {', '.join(THINKING)}")
    return {"enable_thinking": THINKING[asked.thinking.type]}


def _format(wanted: OutputFormat | None) -> ResponseFormat | None:
    if wanted is None:
        return None
    if wanted.type != "json_schema" or wanted.schema is None:
        raise bad_parameter("output_config.format", "must be a json_schema with its schema")
    return ResponseFormat(type="json_schema", json_schema=JsonSchema(name="output", schema=wanted.schema))


def _messages(asked: CountRequest) -> Iterator[ChatMessage]:
    if asked.system and (told := system_message("system", asked.system)):
        yield told
    turns = list(enumerate(asked.messages))
    if (begun := _begun(asked)) is not None:
        turns.append(turns.pop(begun))  # what is to be continued stands last
    for index, message in turns:
        place = f"messages[{index}]"
        match message.role:
            case "assistant":
                yield _turn(f"{place}.content", message)
            case "user":
                yield from _user(f"{place}.content", message)
            case "system":
                if told := system_message(f"{place}.content", message.content):
                    yield told
            case _:
                raise bad_parameter(f"{place}.role", "must be user, assistant or system")


def _user(place: str, message: Message) -> Iterator[ChatMessage]:
    """Results of tools are messages of their own."""
    if isinstance(message.content, str):
        yield ChatMessage(role="user", content=message.content)
        return
    said: list[Part] = []
    for index, block in enumerate(message.content):
        here = f"{place}[{index}]"
        if block.type != "tool_result":
            said.append(part_of(here, block))
            continue
        if said:
            yield ChatMessage(role="user", content=said)
            said = []
        result = content_of(f"{here}.content", block.content or "")
        yield ChatMessage(role="tool", content=result, tool_call_id=block.tool_use_id)
    if said:
        yield ChatMessage(role="user", content=said)


def _turn(place: str, message: Message) -> ChatMessage:
    if isinstance(message.content, str):
        return ChatMessage(role="assistant", content=message.content)
    said, thought, calls = "", "", []
    for index, block in enumerate(message.content):
        match block.type:
            case "thinking":
                thought += block.thinking or ""
            case "redacted_thinking":
                pass  # nothing here can read it, and no model of ours wrote it
            case "tool_use":
                function = CalledFunction(name=given(block.name, f"{place}[{index}].name"), arguments=block.input or {})
                calls.append(ToolCall(function=function, id=block.id))
            case _:
                said += part_of(f"{place}[{index}]", block).text or ""
    return ChatMessage(role="assistant", content=said, reasoning=thought or None, tool_calls=calls or None)


def _tool(place: str, tool: Tool) -> ChatTool:
    if tool.type not in {None, *CUSTOM}:
        raise bad_parameter(f"{place}.type", "must be 'custom', or the type of one of Anthropic's own tools")
    if not tool.name:
        raise bad_parameter(f"{place}.name", "is required")
    return ChatTool(function=Function(name=tool.name, description=tool.description, parameters=tool.input_schema))


def _choice(choice: ToolChoice | None) -> str | NamedChoice | None:
    if choice is None:
        return None
    if choice.type == "tool":
        return NamedChoice(function=ToolName(name=given(choice.name, "tool_choice.name")))
    if choice.type not in CHOICES:
        raise bad_parameter("tool_choice.type", f"must be one of {', '.join(CHOICES)}, tool")
    return CHOICES[choice.type]
