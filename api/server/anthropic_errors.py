"""Errors as Anthropic's clients expect them: `{"type": "error", "error": {type, message}, request_id}`."""

from __future__ import annotations

import orjson

from api.server.errors import OVERLOADED, ApiError, ContextExceeded, with_renamed_parameter

PATH = "/v1/messages"
"""Here and below it errors have this shape."""
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    OVERLOADED: "overloaded_error",
    504: "timeout_error",
}
NAMES = {
    "tools": "tools",
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "continue_final_message": "messages",
}
"""Parameters of the chat that have another name in these bodies, or other ones within."""
WITHIN = {".json_schema": "", ".function.parameters": ".input_schema", ".function": ""}
"""What stands there for parts of their paths."""


class AnthropicError(ApiError):
    """An error in Anthropic's words and shape."""

    def __init__(self, error: ApiError, request_id: str) -> None:
        told = with_renamed_parameter(error, NAMES, WITHIN)
        message = _too_long(error) if isinstance(error, ContextExceeded) else told.message
        # Anthropic's programs wait for `retry-after`, and ask again
        status = OVERLOADED if told.status == 503 else told.status
        super().__init__(status, message, type=told.type, param=told.param, code=told.code, headers=told.headers)
        self._request_id = request_id

    def body(self) -> bytes:
        """The answer's JSON."""
        kind = TYPES.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")
        error = {"type": kind, "message": self.message}
        return orjson.dumps({"type": "error", "error": error, "request_id": self._request_id})


def _too_long(error: ContextExceeded) -> str:
    """Anthropic's own words: Claude Code reads the two numbers from them, and compacts its history."""
    allowed = error.context_max if error.tokens > error.context_max else error.tokens_max
    return f"prompt is too long: {error.tokens} tokens > {allowed} maximum"


def error_for_path(path: str, error: ApiError, request_id: str) -> ApiError:
    """The error as clients of the path know errors."""
    ours = path != PATH and not path.startswith(f"{PATH}/")
    return error if ours else AnthropicError(error, request_id)
