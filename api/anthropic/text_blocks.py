"""Blocks of a message that are text, or that can be read as text."""

from __future__ import annotations

from collections.abc import Sequence

from api.anthropic.body import Block
from api.openai.templates.messages import Part
from api.server.errors import bad_parameter, not_supported


def content_of(place: str, content: str | Sequence[Block]) -> str | list[Part]:
    """A chat's content of the same text; ApiError names the block that is no text."""
    if isinstance(content, str):
        return content
    return [part_of(f"{place}[{index}]", block) for index, block in enumerate(content)]


def part_of(place: str, block: Block) -> Part:
    """A chat's part of the same text; ApiError if the block is no text."""
    return Part(type="text", text=_text(place, block))


def given(value: str | None, param: str) -> str:
    """The value; ApiError if it is missing."""
    if value is None:
        raise bad_parameter(param, "is required")
    return value


def _text(place: str, block: Block) -> str:
    match block.type:
        case "text":
            return given(block.text, f"{place}.text")
        case "tool_reference":
            return given(block.tool_name if block.name is None else block.name, f"{place}.tool_name")
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
