"""A body of /v1/messages as the chat that it asks for: its content blocks as text, its system text, its tools.

Claude Code's billing line is taken out of system text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from api.anthropic.messages_types import (
    Block,
    CountRequest,
    InputMessage,
    MessagesRequest,
    MessagesTool,
    OutputFormat,
    ToolChoice,
)
from api.anthropic.tool_changes import CUSTOM, TOOL_CHANGES, is_hosted, tools_of
from api.openai.types.request_types import (
    CalledFunction,
    ChatMessage,
    ChatRequest,
    Function,
    JsonSchema,
    NamedChoice,
    Part,
    ResponseFormat,
    Tool,
    ToolCall,
    ToolName,
    as_json,
)
from api.server.errors import bad_parameter, not_supported


def content_of(place: str, content: str | Sequence[Block]) -> str | list[Part]:
    """A chat's content of the same text; ApiError names the block that is no text."""
    if isinstance(content, str):
        return content
    return [part_of(f"{place}[{index}]", block) for index, block in enumerate(content)]


def part_of(place: str, block: Block) -> Part:
    """A chat's part of the same text; ApiError if the block is no text."""
    return Part(type="text", text=_text(place, block))


def require(value: str | None, param: str) -> str:
    """The value; ApiError if it is missing."""
    if value is None:
        raise bad_parameter(param, "is required")
    return value


def _text(place: str, block: Block) -> str:
    match block.type:
        case "text":
            return require(block.text, f"{place}.text")
        case "tool_reference":
            return require(block.tool_name if block.name is None else block.name, f"{place}.tool_name")
        case "document":
            return _titled(block.title, _document(f"{place}.source", block.source))
        case "search_result":
            source = block.source if isinstance(block.source, str) else None
            return _titled(block.title, _titled(source, _joined(f"{place}.content", block.content or "")))
    raise not_supported(place, f"{place}: content of type {block.type!r}")


def _document(place: str, source: object) -> str:
    """The text of a document that is sent as text."""
    match source:
        case {"type": "text", "data": str(data)}:
            return data
        case {"type": "content", "content": str(text)}:
            return text
        case {"type": "content", "content": list(blocks)}:
            texts = [_inner(f"{place}.content[{index}]", block) for index, block in enumerate(blocks)]
            return "\n".join(texts)
        case {"type": str(kind)}:
            raise not_supported(place, f"{place}: a document of type {kind!r}; only text")
    raise bad_parameter(place, "must be a source of type 'text' with its data, or 'content'")


def _inner(place: str, block: object) -> str:
    match block:
        case {"type": "text", "text": str(text)}:
            return text
    raise not_supported(place, f"{place}: a block that is no text")


def _joined(place: str, content: str | Sequence[Block]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join([_text(f"{place}[{index}]", block) for index, block in enumerate(content)])


def _titled(title: str | None, text: str) -> str:
    return f"{title}\n{text}" if title else text


BILLING = "x-anthropic-billing-header:"
"""So begins the first line of Claude Code's system text. Its end is another one in each conversation: in the prompt, it
would keep all that follows from being found in a cache."""


def system_message(place: str, content: str | Sequence[Block]) -> ChatMessage | None:
    """The chat's message; None if it holds no text. ApiError names the block that is no text."""
    texts_only = content if isinstance(content, str) else [block for block in content if block.type not in TOOL_CHANGES]
    read = content_of(place, texts_only)
    kept: str | list[Part]
    if isinstance(read, str):
        kept = _without_billing(read)
    else:
        texts = [_without_billing(part.text or "") for part in read]
        kept = [Part(type="text", text=text) for text in texts if text]
    return ChatMessage(role="system", content=kept) if kept else None


def _without_billing(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(BILLING) else text


CHOICES = {"auto": "auto", "any": "required", "none": "none"}
THINKING = {"enabled": True, "adaptive": True, "disabled": False}
"""Types of `thinking`, and whether templates that know `enable_thinking` are told to."""


def to_chat_request(body: CountRequest) -> ChatRequest:
    """The chat; ApiError for what cannot be had here."""
    tools = [_tool(place, tool) for place, tool in tools_of(body) if not is_hosted(tool)]
    choice = _choice(body.tool_choice)
    return ChatRequest(
        model=body.model,
        messages=list(_messages(body)),
        tools=tools or None,
        # how to choose is said of no tools, too, once the conversation has removed all of them
        tool_choice=choice if tools or choice not in {"auto", "none"} else None,
        parallel_tool_calls=False if body.tool_choice and body.tool_choice.disable_parallel_tool_use else None,
        chat_template_kwargs=_thinking(body),
        response_format=_format(body.output_config.format if body.output_config else None),
        reasoning_effort=body.output_config.effort if body.output_config else None,
        **_ended(body),
        **_sampling(body),
    )


def _begun(body: CountRequest) -> int | None:
    """The index of the message that begins the answer: an assistant's, if only system messages follow it."""
    spoken = (at for at in reversed(range(len(body.messages))) if body.messages[at].role != "system")
    last = next(spoken, None)
    return last if last is not None and body.messages[last].role == "assistant" else None


def _ended(body: CountRequest) -> dict[str, Any]:
    begun = _begun(body) is not None
    return {"add_generation_prompt": False, "continue_final_message": True} if begun else {}


def _sampling(body: CountRequest) -> dict[str, Any]:
    if not isinstance(body, MessagesRequest):
        return {}
    same = {name: getattr(body, name) for name in ("stream", "temperature", "top_p", "top_k", "metadata", "cache_salt")}
    return {**same, "max_tokens": body.max_tokens, "stop": body.stop_sequences}


def _thinking(body: CountRequest) -> dict[str, Any] | None:
    if body.thinking is None:
        return None
    if body.thinking.type not in THINKING:
        raise bad_parameter("thinking.type", f"must be one of {', '.join(THINKING)}")
    return {"enable_thinking": THINKING[body.thinking.type]}


def _format(output: OutputFormat | None) -> ResponseFormat | None:
    if output is None:
        return None
    if output.type != "json_schema" or output.schema is None:
        raise bad_parameter("output_config.format", "must be a json_schema with its schema")
    return ResponseFormat(type="json_schema", json_schema=JsonSchema(name="output", schema=as_json(output.schema)))


def _messages(body: CountRequest) -> Iterator[ChatMessage]:
    if body.system and (system := system_message("system", body.system)):
        yield system
    turns = list(enumerate(body.messages))
    if (begun := _begun(body)) is not None:
        turns.append(turns.pop(begun))  # what is to be continued stands last
    for index, message in turns:
        place = f"messages[{index}]"
        match message.role:
            case "assistant":
                yield _turn(f"{place}.content", message)
            case "user":
                yield from _user(f"{place}.content", message)
            case "system":
                if system := system_message(f"{place}.content", message.content):
                    yield system
            case _:
                raise bad_parameter(f"{place}.role", "must be user, assistant or system")


def _user(place: str, message: InputMessage) -> Iterator[ChatMessage]:
    """Results of tools are messages of their own."""
    if isinstance(message.content, str):
        yield ChatMessage(role="user", content=message.content)
        return
    parts: list[Part] = []
    for index, block in enumerate(message.content):
        here = f"{place}[{index}]"
        if block.type != "tool_result":
            parts.append(part_of(here, block))
            continue
        if parts:
            yield ChatMessage(role="user", content=parts)
            parts = []
        result = content_of(f"{here}.content", block.content or "")
        yield ChatMessage(role="tool", content=result, tool_call_id=block.tool_use_id)
    if parts:
        yield ChatMessage(role="user", content=parts)


def _turn(place: str, message: InputMessage) -> ChatMessage:
    if isinstance(message.content, str):
        return ChatMessage(role="assistant", content=message.content)
    text, thought, calls = "", "", []
    for index, block in enumerate(message.content):
        match block.type:
            case "thinking":
                thought += block.thinking or ""
            case "redacted_thinking":
                pass  # nothing here can read it, and no model of ours wrote it
            case "tool_use":
                function = CalledFunction(
                    name=require(block.name, f"{place}[{index}].name"), arguments=block.input or {}
                )
                calls.append(ToolCall(function=function, id=block.id))
            case _:
                text += part_of(f"{place}[{index}]", block).text or ""
    return ChatMessage(role="assistant", content=text, reasoning=thought or None, tool_calls=calls or None)


def _tool(place: str, tool: MessagesTool) -> Tool:
    if tool.type not in {None, *CUSTOM}:
        raise bad_parameter(f"{place}.type", "must be 'custom', or the type of one of Anthropic's own tools")
    if not tool.name:
        raise bad_parameter(f"{place}.name", "is required")
    return Tool(function=Function(name=tool.name, description=tool.description, parameters=tool.input_schema))


def _choice(choice: ToolChoice | None) -> str | NamedChoice | None:
    if choice is None:
        return None
    if choice.type == "tool":
        return NamedChoice(function=ToolName(name=require(choice.name, "tool_choice.name")))
    if choice.type not in CHOICES:
        raise bad_parameter("tool_choice.type", f"must be one of {', '.join(CHOICES)}, tool")
    return CHOICES[choice.type]
