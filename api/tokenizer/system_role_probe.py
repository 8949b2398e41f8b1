"""Whether a chat template writes a system message where it stands, found by rendering small conversations.

Some templates refuse a system message behind the first place, some drop it, some write the last one in place of the
first. For these, all system messages become one at the start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from api.server.errors import ApiError

CONVERSATIONS = (
    ("system", "user", "system", "user"),
    ("system", "user", "assistant", "system", "user"),
    ("system", "user", "assistant", "user", "system"),
    ("user", "system"),
)
"""Roles; the last system message of each is the one in question."""
TOOL = {"type": "function", "function": {"name": "probe", "description": "", "parameters": {"type": "object"}}}


class Render(Protocol):
    """`ChatTemplate.render`."""

    def __call__(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> str: ...


def takes_system_anywhere(render: Render, *, parts: bool) -> bool:
    """Whether every conversation is rendered whole and in order, with tools and without; those do not count that the
    template refuses without the system message, too."""
    judged = [
        _in_place(render, _messages(roles, parts=parts), tools) for roles in CONVERSATIONS for tools in (None, [TOOL])
    ]
    return True in judged and False not in judged


def _messages(roles: Sequence[str], *, parts: bool) -> list[dict[str, Any]]:
    texts = [_text(at) for at in range(len(roles))]
    contents = [[{"type": "text", "text": text}] if parts else text for text in texts]
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]


def _text(at: int) -> str:
    """Of the message at this place; no template writes it of its own."""
    return f"probe{at}text"


def _in_place(render: Render, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> bool | None:
    """None if nothing can be told of it."""
    inner = max(at for at, message in enumerate(messages) if message["role"] == "system")
    try:
        render(messages[:inner] + messages[inner + 1 :], tools=tools)
    except ApiError:
        return None
    try:
        text = render(messages, tools=tools)
    except ApiError:
        return False
    places = [text.find(_text(at)) for at in range(len(messages))]
    return -1 not in places and places == sorted(places)
