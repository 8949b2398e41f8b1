"""From the bytes of a body to a request that can be served, or to an error that names the parameter at fault."""

from __future__ import annotations

import re
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from api.openai.errors import ApiError, bad_parameter, not_supported
from api.openai.types import STOP_CHARS_MAX, STOP_MAX, ChatMessage, ChatRequest, CompletionRequest, Parameters

Request = TypeVar("Request", bound=Parameters)

UNSUPPORTED_CHAT = ("logprobs", "top_logprobs", "tools", "functions", "chat_template_kwargs")
UNSUPPORTED_COMPLETION = ("logprobs", "echo", "suffix")
UNSUPPORTED = ("logit_bias", "structured_outputs", "use_beam_search", "prompt_logprobs")
"""Known parameters that must be off: null, false, or empty."""

ROLES = ("system", "developer", "user", "assistant", "tool")

_PLACED = re.compile(r"(?P<text>.*) - at `\$\.(?P<path>.*)`", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")
_EXPECTED = re.compile(r"Expected `(?P<wanted>[^`]*)`, got `(?P<got>[^`]*)`$")
_WORDS = {
    "float": "a number",
    "int": "an integer",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}


def decode(decoder: msgspec.json.Decoder[Request], raw: bytes) -> Request:
    """The body as a request of the decoder's type, types and ranges checked; raises ApiError."""
    if not raw.strip():
        raise ApiError(400, "the request body is empty: send a JSON object")
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise _explained(str(error), decoder.type) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the request body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise ApiError(400, "the request body is not valid JSON: it is nested too deeply") from error


def _explained(text: str, kind: Any) -> ApiError:
    placed = _PLACED.fullmatch(text)
    path = placed["path"] if placed else ""
    if missing := _MISSING.search(text):
        param = f"{path}.{missing['name']}" if path else missing["name"]
        return bad_parameter(param, "is required")
    if not path:
        return ApiError(400, "the request body must be a JSON object")
    return bad_parameter(path, _fault(placed["text"] if placed else text, _range_of(kind, path)))


def _fault(text: str, allowed: str | None) -> str:
    if expected := _EXPECTED.match(text):
        wanted = [_WORDS[word] for word in expected["wanted"].split(" | ") if word in _WORDS]
        return f"must be {' or '.join(wanted)}, not {_WORDS.get(expected['got'], expected['got'])}"
    return f"must be {allowed}" if allowed else text


def _range_of(kind: Any, path: str) -> str | None:
    """The words for a field's range, from the type that the decoder checks."""
    for part in _flattened(get_type_hints(kind, include_extras=True).get(re.split(r"[.\[]", path)[0])):
        if isinstance(part, msgspec.Meta):
            return part.description
    return None


def _flattened(kind: Any) -> list[Any]:
    inner = get_args(kind)
    return (
        [leaf for part in inner for leaf in _flattened(part)] if inner else [kind, *getattr(kind, "__metadata__", ())]
    )


def check(request: Parameters) -> None:
    """Raises ApiError for what types and ranges alone do not say, and for what is known but not supported yet."""
    _check_supported(request)
    _check_stops(stop_strings(request))
    if request.stream_options is not None and not request.stream:
        raise bad_parameter("stream_options", "is allowed only with stream=true")
    match request:
        case ChatRequest():
            _check_messages(request.messages)
        case CompletionRequest() if not request.prompt:
            raise bad_parameter("prompt", "must not be empty")


def _check_supported(request: Parameters) -> None:
    own = UNSUPPORTED_CHAT if isinstance(request, ChatRequest) else UNSUPPORTED_COMPLETION
    for name in (*UNSUPPORTED, *own):
        if not _is_off(getattr(request, name)):
            raise not_supported(name)
    if (request.n or 1) > 1:
        raise not_supported("n", "n > 1 (several answers)")
    if isinstance(request, CompletionRequest) and (request.best_of or 1) > 1:
        raise not_supported("best_of", "best_of > 1")
    if not _is_off(request.response_format) and request.response_format != {"type": "text"}:
        raise not_supported("response_format", "a response_format other than {'type': 'text'}")


def _is_off(value: Any) -> bool:
    return value is None or value is False or value in ("", [], {})


def _check_stops(stops: list[str]) -> None:
    if len(stops) > STOP_MAX:
        raise bad_parameter("stop", f"must hold at most {STOP_MAX} strings, not {len(stops)}")
    for stop in stops:
        if not 0 < len(stop) <= STOP_CHARS_MAX:
            raise bad_parameter("stop", f"each string must have 1 to {STOP_CHARS_MAX} characters")


def _check_messages(messages: list[ChatMessage]) -> None:
    if not messages:
        raise bad_parameter("messages", "must hold at least one message")
    for place, message in enumerate(messages):
        _check_message(f"messages[{place}]", message)


def _check_message(place: str, message: ChatMessage) -> None:
    if message.role not in ROLES:
        raise bad_parameter(f"{place}.role", f"must be one of {', '.join(ROLES)}")
    if message.tool_calls:
        raise not_supported(f"{place}.tool_calls")
    match message.content:
        case None:
            raise bad_parameter(f"{place}.content", "must be a string or a list of text parts")
        case list(parts):
            for index, part in enumerate(parts):
                if part.type != "text":
                    raise not_supported(
                        f"{place}.content[{index}]", f"{place}.content[{index}]: content of type {part.type!r}"
                    )
                if part.text is None:
                    raise bad_parameter(f"{place}.content[{index}].text", "is required")


def stop_strings(request: Parameters) -> list[str]:
    """The request's stop strings, none, one or several."""
    match request.stop:
        case None:
            return []
        case str(stop):
            return [stop]
        case stops:
            return stops


def text_of(message: ChatMessage) -> str:
    """A checked message's text; several parts are joined by line ends, as vLLM's server does."""
    if isinstance(message.content, str):
        return message.content
    return "\n".join(part.text or "" for part in message.content or ())
