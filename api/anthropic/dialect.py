"""Anthropic's Messages API over our chats."""

from __future__ import annotations

import orjson

from api.anthropic.answer import MessageTeller
from api.anthropic.body import CountRequest, MessagesRequest
from api.anthropic.translation import chat_of
from api.openai.dialect import Dialect
from api.openai.errors import ApiError
from api.openai.further.errand import Errand
from api.openai.further.tokenizing import Tokenizing
from core.prompt import TOKEN_BYTES

ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class AnthropicError(ApiError):
    """An error in Anthropic's shape."""

    def __init__(self, error: ApiError, request_id: str) -> None:
        super().__init__(
            error.status, error.message, type=error.type, param=error.param, code=error.code, headers=error.headers
        )
        self._request_id = request_id

    def body(self) -> bytes:
        """The answer's JSON."""
        kind = ERROR_TYPES.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")
        error = {"type": kind, "message": self.message}
        return orjson.dumps({"type": "error", "error": error, "request_id": self._request_id})


MESSAGES = Dialect(
    body_type=MessagesRequest,
    chat_of=chat_of,
    teller=lambda _asked, accepted, request_id, _clock: MessageTeller(accepted, request_id),
    told=AnthropicError,
)


class TokenCount:
    """`/v1/messages/count_tokens`: the prompt as a generation would have it, counted."""

    def __init__(self, tokenizing: Tokenizing) -> None:
        self._tokenizing = tokenizing

    async def answer(self, asked: CountRequest, errand: Errand) -> bytes:
        """Anthropic's JSON of the count."""
        tokens = await self._tokenizing.prompt(chat_of(asked), errand.size)
        return orjson.dumps({"input_tokens": len(tokens) // TOKEN_BYTES})
