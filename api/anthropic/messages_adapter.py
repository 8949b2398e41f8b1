"""Anthropic's Messages API over our chats."""

from __future__ import annotations

import orjson

from api.anthropic.messages_encoder import MessagesEncoder
from api.anthropic.messages_request import to_chat_request
from api.anthropic.messages_types import CountRequest, MessagesRequest
from api.anthropic.tool_changes import omitted_tools
from api.openai.generation_route import ApiAdapter
from api.openai.tokenization import Tokenization
from api.openai.unary_route import UnaryRequest
from api.server.anthropic_errors import AnthropicError
from core.prompt import TOKEN_BYTES

COUNTED_MAX = 1_048_576
"""So many tokens may a prompt have that is only counted, also beyond the context: programs ask how far beyond."""

MESSAGES = ApiAdapter(
    body_type=MessagesRequest,
    to_request=to_chat_request,
    encoder=lambda _asked, prepared, request_id, _clock: MessagesEncoder(prepared, request_id),
    to_error=AnthropicError,
    omitted_tools=omitted_tools,
)


class TokenCount:
    """`/v1/messages/count_tokens`: the prompt as a generation would have it, counted."""

    def __init__(self, tokenization: Tokenization) -> None:
        self._tokenization = tokenization

    async def answer(self, body: CountRequest, unary_request: UnaryRequest) -> bytes:
        """Anthropic's JSON of the count."""
        tokens = await self._tokenization.prompt(to_chat_request(body), unary_request, COUNTED_MAX)
        return orjson.dumps({"input_tokens": len(tokens) // TOKEN_BYTES})
