"""Errors as clients expect them: a status, and `{"error": {message, type, param, code}}` in OpenAI's shape.

Errors of ours become answers, lines of the log where the client is not at fault, and outcomes of the metrics.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator, Mapping

import orjson

from core.errors import CallerError, ContrailError, Unavailable
from core.failure import safe_message
from core.models import DeadlineExceeded, GenerationFailed, NoWorkers, Overloaded, RateLimited, UnknownModel

MESSAGE_CHARS_MAX = 2000
"""Of an error: a client's own words in it may be as long as a body."""
RETRY_AFTER_S = 1
"""The default of the retry-after header."""


class ApiError(ContrailError):
    """One error answer; everything that the client sees stands in its fields."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        message = message if len(message) <= MESSAGE_CHARS_MAX else f"{message[:MESSAGE_CHARS_MAX]} …"
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.headers = headers or {}

    def body(self) -> bytes:
        """The answer's JSON."""
        fields = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return orjson.dumps({"error": fields})


class ContextExceeded(ApiError):
    """400 for a prompt that leaves too little of the context for the answer, or is longer than all of it."""

    def __init__(self, param: str, model: str, tokens: int, tokens_max: int, context_max: int, fault: str = "") -> None:
        """`fault` says something else than that the model's context is too short."""
        fault = fault or _beyond_context(tokens, tokens_max, context_max)
        super().__init__(400, f"{param}: {fault}", param=param, code="context_length_exceeded")
        self.model = model
        self.tokens = tokens
        """Of the prompt; at least so many if they are more than `context_max`."""
        self.tokens_max = tokens_max
        """The longest prompt that would be taken."""
        self.context_max = context_max
        self._fault = fault

    def under(self, param: str) -> ContextExceeded:
        """The same of a parameter with another name."""
        return ContextExceeded(param, self.model, self.tokens, self.tokens_max, self.context_max, self._fault)


def _beyond_context(tokens: int, tokens_max: int, context_max: int) -> str:
    """In words by which programs of OpenAI's and of vLLM's API know that they must shorten the conversation."""
    length = f"This model's maximum context length is {context_max} tokens"
    if tokens >= context_max:
        about = "at least " if tokens > context_max else ""
        return f"{length}. However, the prompt has {about}{tokens}: shorten it to at most {tokens_max}"
    left = context_max - tokens
    remedy = f"shorten the prompt to at most {tokens_max}, or ask for at most {left}"
    return f"{length}. However, the prompt has {tokens}, which leaves {left} for the answer: {remedy}"


def bad_parameter(param: str, fault: str, code: str | None = None) -> ApiError:
    """400 that names the parameter; `fault` says what it must be."""
    return ApiError(400, f"{param}: {fault}", param=param, code=code)


def not_supported(param: str, what: str | None = None) -> ApiError:
    """400 for what OpenAI or vLLM know and we do not do yet."""
    return ApiError(400, f"{what or param}: not supported yet", param=param, code="unsupported_parameter")


def with_renamed_parameter(error: ApiError, names: Mapping[str, str], within: Mapping[str, str]) -> ApiError:
    """The error of a chat in another API's words: `names` are what that calls the chat's parameters, `within` what
    stands there for parts of the path below them."""
    param = error.param or ""
    outer = re.split(r"[.\[]", param)[0]
    if outer not in names:
        return error
    # messages of a chat are not those of the body one by one
    inner = "" if outer == "messages" else param[len(outer) :]
    for theirs, ours in within.items():
        inner = inner.replace(theirs, ours, 1)
    name = names[outer] + inner
    if isinstance(error, ContextExceeded):
        return error.under(name)
    message = error.message.replace(f"{param}: ", f"{name}: ", 1)
    return ApiError(error.status, message, type=error.type, param=name, code=error.code, headers=error.headers)


def too_large(limit: int) -> ApiError:
    """413."""
    return ApiError(413, f"the request body is larger than {limit} bytes", code="request_too_large")


def internal_error() -> ApiError:
    """500 that tells nothing of the inside; the log does, under the answer's request id."""
    message = "internal error; the server's log has it under this answer's x-request-id"
    return ApiError(500, message, type="server_error", code="internal_error")


def stopping() -> ApiError:
    """503 for requests that the end of this server cuts off."""
    headers = {"retry-after": str(RETRY_AFTER_S)}
    return ApiError(503, "this server is stopping: try again", type="server_error", code="unavailable", headers=headers)


def http_status_error(status: int, message: str, headers: dict[str, str] | None = None) -> ApiError:
    """An HTTP error that the framework found: unknown route, wrong method."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return ApiError(status, message, type=kind, headers=headers)


def to_api_error(error: ContrailError) -> ApiError:
    """The error answer for an error inside Contrail."""
    match error:
        case ApiError():
            return error
        case UnknownModel():
            return ApiError(404, str(error), param="model", code="model_not_found")
        case CallerError():
            return ApiError(400, str(error))
        case Unavailable():
            return _unavailable(error)
        case DeadlineExceeded() | GenerationFailed():
            late = isinstance(error, DeadlineExceeded)
            status, code = (504, "deadline_exceeded") if late else (500, "generation_failed")
            return ApiError(status, str(error), type="server_error", code=code)
        case _:
            return internal_error()


def _unavailable(error: Unavailable) -> ApiError:
    retry_after_s = error.retry_after_s if isinstance(error, NoWorkers) else RETRY_AFTER_S
    code = "overloaded" if isinstance(error, Overloaded) else "unavailable"
    headers = {"retry-after": str(retry_after_s)}
    if isinstance(error, RateLimited):
        return ApiError(429, str(error), type="rate_limit_error", code="rate_limit_exceeded", headers=headers)
    return ApiError(503, str(error), type="server_error", code=code, headers=headers)


OVERLOADED = 529
"""Anthropic's status for 503."""
log = logging.getLogger(__name__)


def report_error(error: ContrailError, request_id: str) -> ApiError:
    """The error answer for the error; a server fault is logged."""
    failure = to_api_error(error)
    if failure.status >= 500:
        log.warning("answered %d: %s", failure.status, error, extra={"request_id": request_id})
    return failure


def metric_outcome(failure: ApiError) -> str:
    """The word for it in the metrics."""
    if failure.status in {503, OVERLOADED}:
        return "unavailable"
    if failure.status == 504:
        return "deadline"
    return "error" if failure.status >= 500 else "rejected"


def redacted_traceback(error: BaseException) -> str:
    """The stack with the kinds of the error and of those that led to it, in Python's form, with their safe texts."""
    return "".join(_lines(error)).rstrip()


def _lines(error: BaseException) -> Iterator[str]:
    led = error.__cause__ if error.__cause__ is not None or error.__suppress_context__ else error.__context__
    if led is not None:
        yield from _lines(led)
        yield "\nwhich led to:\n\n"
    yield from traceback.format_tb(error.__traceback__)
    message = safe_message(error)
    yield f"{type(error).__module__}.{type(error).__qualname__}{f': {message}' if message else ''}\n"


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
"""Replacements of parts of their paths."""


class AnthropicError(ApiError):
    """An error in Anthropic's words and shape."""

    def __init__(self, error: ApiError, request_id: str) -> None:
        renamed = with_renamed_parameter(error, NAMES, WITHIN)
        message = _too_long(error) if isinstance(error, ContextExceeded) else renamed.message
        # Anthropic's programs wait for `retry-after`, and ask again
        status = OVERLOADED if renamed.status == 503 else renamed.status
        super().__init__(
            status, message, type=renamed.type, param=renamed.param, code=renamed.code, headers=renamed.headers
        )
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
