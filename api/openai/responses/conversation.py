"""The items of an input as the messages of a chat: what the model said in one turn is one message again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from api.openai.responses.body import Item, ItemPart
from api.openai.responses.tool_catalog import CUSTOM_INPUT, HOSTED_ITEMS, ToolCatalog
from api.openai.templates.messages import CalledFunction, ChatMessage, Part, ToolCall
from api.server.errors import bad_parameter, not_supported

Content = str | list[ItemPart]

REFERENCE = "refers to a stored item, and nothing is stored here: send `store: false`, and the items themselves"
"""Clients that leave `store` on, as the AI SDK does, refer to the items of earlier answers."""
TEXT_PARTS = {"input_text", "output_text", "text", "reasoning_text", "summary_text"}


def messages_of(instructions: str | None, given: str | Sequence[Item], catalog: ToolCatalog) -> list[ChatMessage]:
    """The conversation, the instructions before it; ApiError names the item that cannot be part of one here. Calls
    have the names under which the catalog offers their tools."""
    conversation = _Conversation(catalog)
    if instructions:
        conversation.messages.append(ChatMessage(role="system", content=instructions))
    if isinstance(given, str):
        conversation.messages.append(ChatMessage(role="user", content=given))
        return conversation.messages
    for index, item in enumerate(given):
        conversation.add(f"input[{index}]", item)
    return conversation.messages


class _Conversation:
    """Messages so far. Reasoning, text and calls that follow each other are one turn of the assistant."""

    def __init__(self, catalog: ToolCatalog) -> None:
        self._catalog = catalog
        self.messages: list[ChatMessage] = []
        self._reasoning = ""
        """What was thought before a message or call that has not come yet."""

    def add(self, place: str, item: Item) -> None:
        match item.type:
            case "message":
                self._message(place, item)
            case "reasoning":
                thought: Content = item.content or item.summary or ""
                self._reasoning += _text(place, thought)
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

    def _message(self, place: str, item: Item) -> None:
        role = _given(item.role, f"{place}.role")
        content = _content(item.content, f"{place}.content")
        if role != "assistant":
            shown = content if isinstance(content, str) else _parts(place, content, "content")
            self._say(ChatMessage(role=role, content=shown))
            return
        turn = self._turn()
        said = turn.content if isinstance(turn.content, str) else ""
        self._replace(turn, content=said + _text(place, content))

    def _result(self, place: str, item: Item) -> None:
        if isinstance(item.output, dict):
            raise bad_parameter(f"{place}.output", "must be a string or a list of content")
        output = _content(item.output, f"{place}.output")
        call = _given(item.call_id, f"{place}.call_id")
        self._say(ChatMessage(role="tool", content=_text(place, output, "output"), tool_call_id=call))

    def _call(self, place: str, item: Item, arguments: str | dict[str, Any] | None) -> None:
        name = self._catalog.flat_name(_given(item.name, f"{place}.name"), item.namespace)
        function = CalledFunction(name=name, arguments=arguments)
        call = ToolCall(function=function, id=_given(item.call_id, f"{place}.call_id"))
        turn = self._turn()
        self._replace(turn, tool_calls=[*(turn.tool_calls or ()), call])

    def _turn(self) -> ChatMessage:
        """The assistant's message that goes on, or a new one."""
        if not self.messages or self.messages[-1].role != "assistant" or self._reasoning:
            self._say(ChatMessage(role="assistant", reasoning=self._reasoning or None))
        return self.messages[-1]

    def _replace(self, turn: ChatMessage, **fields: object) -> None:
        self.messages[-1] = msgspec.structs.replace(turn, **fields)

    def _say(self, message: ChatMessage) -> None:
        self.messages.append(message)
        self._reasoning = ""


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
