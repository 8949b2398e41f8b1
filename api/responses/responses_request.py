"""A body of /v1/responses as the chat that it asks for. Nothing is stored here: what would need that is refused.

The items of an input become messages: the items of one turn of the model are one message again.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from msgspec import UNSET

from api.openai.types.request_types import (
    CalledFunction,
    ChatMessage,
    ChatRequest,
    JsonSchema,
    NamedChoice,
    Part,
    ResponseFormat,
    ToolCall,
    ToolName,
    as_json,
)
from api.parsers.structured_outputs import check_depth
from api.responses.responses_types import AllowedTool, ChosenTool, Item, ItemPart, ResponsesRequest, TextFormat
from api.responses.tool_catalog import CUSTOM_INPUT, HOSTED_ITEMS, ToolCatalog
from api.server.errors import ApiError, bad_parameter, not_supported, with_renamed_parameter

Content = str | list[ItemPart]

REFERENCE = "refers to a stored item, and nothing is stored here: send `store: false`, and the items themselves"
"""Clients that leave `store` on, as the AI SDK does, refer to the items of earlier answers."""
TEXT_PARTS = {"input_text", "output_text", "text", "reasoning_text", "summary_text"}


def messages_of(instructions: str | None, given: str | Sequence[Item], catalog: ToolCatalog) -> list[ChatMessage]:
    """The conversation, the instructions before it; ApiError names the item that cannot be part of one here. Calls
    have the names under which the catalog offers their tools."""
    conversation = _Conversation(catalog)
    if instructions:
        conversation.append(ChatMessage(role="system", content=instructions))
    if isinstance(given, str):
        conversation.append(ChatMessage(role="user", content=given))
        return conversation.messages()
    for index, item in enumerate(given):
        conversation.add(f"input[{index}]", item)
    return conversation.messages()


class _Conversation:
    """Messages so far. Reasoning, text and calls that follow each other are one turn of the assistant."""

    def __init__(self, catalog: ToolCatalog) -> None:
        self._catalog = catalog
        self._messages: list[ChatMessage] = []
        self._thoughts: list[str] = []
        """Reasoning that belongs to the next message or call."""
        self._turn: _Turn | None = None
        """The assistant's message that goes on."""

    def add(self, place: str, item: Item) -> None:
        match item.type:
            case "message":
                self._message(place, item)
            case "reasoning":
                thought: Content = item.content or item.summary or ""
                self._thoughts.append(_text(place, thought))
            case "function_call":
                self._call(place, item, item.arguments)
            case "custom_tool_call":
                self._call(place, item, {CUSTOM_INPUT: item.input or ""})
            case "function_call_output" | "custom_tool_call_output":
                self._result(place, item)
            case "additional_tools":
                pass  # the catalog has them
            case "item_reference":
                raise bad_parameter(place, REFERENCE)
            case other if other in HOSTED_ITEMS:
                pass  # the answer names them: see `tool_catalog.left_out`
            case other:
                raise not_supported(place, f"{place}: an item of type {other!r}")

    def append(self, message: ChatMessage) -> None:
        """The message follows; the assistant's turn before it is over."""
        self._end_turn()
        self._messages.append(message)
        self._thoughts.clear()

    def messages(self) -> list[ChatMessage]:
        """All of them."""
        self._end_turn()
        return self._messages

    def _message(self, place: str, item: Item) -> None:
        role = _given(item.role, f"{place}.role")
        content = _content(item.content, f"{place}.content")
        if role != "assistant":
            shown = content if isinstance(content, str) else _parts(place, content, "content")
            self.append(ChatMessage(role=role, content=shown))
            return
        self._present_turn().texts.append(_text(place, content))

    def _result(self, place: str, item: Item) -> None:
        if isinstance(item.output, dict):
            raise bad_parameter(f"{place}.output", "must be a string or a list of content")
        output = _content(item.output, f"{place}.output")
        call = _given(item.call_id, f"{place}.call_id")
        self.append(ChatMessage(role="tool", content=_text(place, output, "output"), tool_call_id=call))

    def _call(self, place: str, item: Item, arguments: str | dict[str, Any] | None) -> None:
        name = self._catalog.flat_name(_given(item.name, f"{place}.name"), item.namespace)
        function = CalledFunction(name=name, arguments=arguments)
        call = ToolCall(function=function, id=_given(item.call_id, f"{place}.call_id"))
        self._present_turn().calls.append(call)

    def _present_turn(self) -> _Turn:
        """The assistant's message that goes on, or a new one."""
        if self._turn is None or any(self._thoughts):
            self._end_turn()
            self._turn = _Turn("".join(self._thoughts), [], [])
            self._thoughts.clear()
        return self._turn

    def _end_turn(self) -> None:
        if self._turn is not None:
            reasoning, texts, calls = self._turn
            content = "".join(texts) if texts else None
            message = ChatMessage(
                role="assistant", content=content, reasoning=reasoning or None, tool_calls=calls or None
            )
            self._messages.append(message)
            self._turn = None


class _Turn(NamedTuple):
    """A message of the assistant in pieces: to join it again with each item takes seconds for many."""

    reasoning: str
    texts: list[str]
    calls: list[ToolCall]


def _given(value: str | None, param: str) -> str:
    if value is None:
        raise bad_parameter(param, "is required")
    return value


def _content(value: Content | None, param: str) -> Content:
    if value is None:
        raise bad_parameter(param, "is required")
    return value


def _text(place: str, content: str | Sequence[ItemPart], field: str = "content") -> str:
    if isinstance(content, str):
        return content
    return "".join(part.text or "" for part in _parts(place, content, field))


def _parts(place: str, content: Sequence[ItemPart], field: str) -> list[Part]:
    return [_part(f"{place}.{field}[{index}]", part) for index, part in enumerate(content)]


def _part(place: str, part: ItemPart) -> Part:
    if part.type == "refusal":
        return Part(type="text", text=part.refusal or "")
    if part.type not in TEXT_PARTS:
        raise not_supported(place, f"{place}: content of type {part.type!r}")
    if part.text is None:
        raise bad_parameter(f"{place}.text", "is required")
    return Part(type="text", text=part.text)


STORED = ("background", "previous_response_id", "conversation", "prompt")
"""Parameters that need storage between requests: refused."""
UNSTORED = (b"null", b"false", b'""')
LOGPROBS = "message.output_text.logprobs"
SERVICE_TIERS = ("auto", "default", "flex", "priority", "scale", "fast", "ultrafast")
"""OpenAI's words; all are served alike, and the answer says `default`."""
VERBOSITIES = ("low", "medium", "high")
"""OpenAI's words; no chat template knows them."""
TRUNCATIONS = ("auto", "disabled")
"""Nothing is cut off by either: a conversation that is too long is refused, so that the client shortens it."""
SAME_NAME = (
    "model", "temperature", "top_p", "user", "stream", "stop", "seed", "top_k", "min_p",
    "repetition_penalty", "ignore_eos", "min_tokens", "stop_token_ids", "cache_salt", "priority",
    "chat_template_kwargs", "metadata", "prompt_cache_key", "client_metadata",
)  # fmt: skip
"""Parameters that a chat has too, and means the same by them."""
NAMED_HERE = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "tools": "tools",
}
"""Parameters of the chat that have another name in this body, or other ones within."""
WITHIN = {".json_schema": "", ".function": ""}
"""The segments of a chat's parameter names that this API's names leave out."""


def to_chat_request(body: ResponsesRequest) -> ChatRequest:
    """The chat for this body; ApiError for features that are not supported here."""
    _check(body)
    catalog = ToolCatalog(body)
    return ChatRequest(
        messages=messages_of(body.instructions, body.input, catalog),
        max_completion_tokens=body.max_output_tokens,
        logprobs=bool(body.top_logprobs) or LOGPROBS in (body.include or ()),
        top_logprobs=body.top_logprobs,
        **_tools(body, catalog),
        response_format=_format(body.text.format if body.text else None),
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        **{name: getattr(body, name) for name in SAME_NAME},
    )


def rename_parameter(error: ApiError) -> ApiError:
    """The error with the parameter's name in this body."""
    return with_renamed_parameter(error, NAMED_HERE, WITHIN)


def _check(body: ResponsesRequest) -> None:
    for name in STORED:
        given = getattr(body, name)
        if given is not UNSET and bytes(given) not in UNSTORED:
            raise bad_parameter(
                name, "nothing is stored here: send the whole input, and leave this out", "unsupported_parameter"
            )
    _check_word("truncation", body.truncation, TRUNCATIONS)
    _check_word("service_tier", body.service_tier, SERVICE_TIERS)
    _check_word("text.verbosity", body.text.verbosity if body.text else None, VERBOSITIES)
    if not body.input and not body.instructions:
        raise bad_parameter("input", "must not be empty without instructions")


def _check_word(param: str, word: str | None, known: Sequence[str]) -> None:
    if word is not None and word not in known:
        raise bad_parameter(param, f"must be one of {', '.join(known)}")


def _tools(body: ResponsesRequest, catalog: ToolCatalog) -> dict[str, Any]:
    """The chat's parameters of tools: none without tools, though clients say how to choose among them."""
    choice, allowed = _choice(body.tool_choice, catalog)
    tools = [offered.tool for flat, offered in catalog if allowed is None or flat in allowed]
    if not tools and choice in {None, "auto", "none"}:
        return {}
    return {"tools": tools or None, "tool_choice": choice, "parallel_tool_calls": body.parallel_tool_calls}


def _choice(
    choice: str | ChosenTool | None, catalog: ToolCatalog
) -> tuple[str | NamedChoice | None, AbstractSet[str] | None]:
    """The chat's choice, and the names of the tools that it is restricted to, if it is."""
    if choice is None or isinstance(choice, str):
        return choice, None
    if choice.type == "allowed_tools":
        if choice.mode not in {"auto", "required"}:
            raise bad_parameter("tool_choice.mode", "must be 'auto' or 'required'")
        return choice.mode, _allowed(choice.tools or (), catalog)
    if choice.type not in {"function", "custom"} or not choice.name:
        raise not_supported(
            "tool_choice", f"tool_choice: type {choice.type!r}; a function or a custom tool by its name can be chosen"
        )
    return NamedChoice(function=ToolName(name=catalog.chosen(choice.name, choice.namespace))), None


def _allowed(tools: Sequence[AllowedTool], catalog: ToolCatalog) -> set[str]:
    """The model's names for them; hosted tools are not among those anyway."""
    names: set[str] = set()
    for tool in tools:
        if tool.type == "namespace":
            names |= catalog.within(tool.name or "")
        elif tool.type in {"function", "custom"}:
            names.add(catalog.chosen(tool.name or "", tool.namespace))
    return names


def _format(text_format: TextFormat | None) -> ResponseFormat | None:
    if text_format is None:
        return None
    check_depth(text_format.schema, "text.format.schema")
    if text_format.type != "json_schema":
        return ResponseFormat(type=text_format.type)
    if not text_format.name:
        raise bad_parameter("text.format.name", "is required")
    schema = JsonSchema(
        name=text_format.name,
        schema=as_json(text_format.schema),
        description=text_format.description,
        strict=text_format.strict,
    )
    return ResponseFormat(type="json_schema", json_schema=schema)
