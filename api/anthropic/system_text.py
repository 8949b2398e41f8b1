"""System text, of the whole conversation and of single messages, without Claude Code's billing line."""

from __future__ import annotations

from collections.abc import Sequence

from api.anthropic.body import Block
from api.anthropic.text_blocks import content_of
from api.anthropic.tool_changes import TOOL_CHANGES
from api.openai.templates.messages import ChatMessage, Part

BILLING = "x-anthropic-billing-header:"
"""So begins the first line of Claude Code's system text. Its end is another one in each conversation: in the prompt, it
would keep all that follows from being found in a cache."""


def system_message(place: str, content: str | Sequence[Block]) -> ChatMessage | None:
    """The chat's message; None if it holds no text. ApiError names the block that is no text."""
    said = content if isinstance(content, str) else [block for block in content if block.type not in TOOL_CHANGES]
    read = content_of(place, said)
    kept: str | list[Part]
    if isinstance(read, str):
        kept = _without_billing(read)
    else:
        texts = [_without_billing(part.text or "") for part in read]
        kept = [Part(type="text", text=text) for text in texts if text]
    return ChatMessage(role="system", content=kept) if kept else None


def _without_billing(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(BILLING) else text
