"""Anthropic's Messages API over our chats."""

from __future__ import annotations

import orjson

from api.anthropic.answer import MessageTeller
from api.anthropic.body import CountRequest, MessagesRequest
from api.anthropic.errors import AnthropicError
from api.anthropic.tool_changes import left_out
from api.anthropic.translation import chat_of
from api.openai.dialect import Dialect
from api.openai.further.errand import Errand
from api.openai.further.tokenizing import Tokenizing
from core.prompt import TOKEN_BYTES

COUNTED_MAX = 1_048_576
"""So many tokens may a prompt have that is only counted, also beyond the context: programs ask how far beyond."""

MESSAGES = Dialect(
    body_type=MessagesRequest,
    chat_of=chat_of,
    teller=lambda _asked, accepted, request_id, _clock: MessageTeller(accepted, request_id),
    told=AnthropicError,
    left_out=left_out,
)


class TokenCount:
    """`/v1/messages/count_tokens`: the prompt as a generation would have it, counted."""

    def __init__(self, tokenizing: Tokenizing) -> None:
        self._tokenizing = tokenizing

    async def answer(self, asked: CountRequest, errand: Errand) -> bytes:
        """Anthropic's JSON of the count."""
        tokens = await self._tokenizing.prompt(chat_of(asked), errand, COUNTED_MAX)
        return orjson.dumps({"input_tokens": len(tokens) // TOKEN_BYTES})
