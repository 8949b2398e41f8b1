"""From the bytes of a body to a request that can be served, or to an error that names the parameter at fault."""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from api.openai.types.request_types import (
    BIASES_BYTES_MAX,
    BIASES_MAX,
    STOP_CHARS_MAX,
    STOP_MAX,
    TOKEN_LIST_MAX,
    WORDS_MAX,
    Bias,
    ChatRequest,
    CompletionRequest,
    Parameters,
    is_given,
    is_off,
)
from api.server.errors import ApiError, bad_parameter, not_supported
from api.server.json_limits import json_decoder

Request = TypeVar("Request", bound=msgspec.Struct)

UNSUPPORTED_CHAT = (
    "audio",
    "moderation",
    "web_search_options",
    "echo",
    "chat_template",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "return_prompt_text",
)
UNSUPPORTED_COMPLETION = ("suffix", "prompt_embeds")
FORMER = {
    "guided_json": 'give structured_outputs: {"json": …}, or response_format with a json_schema',
    "guided_regex": 'give structured_outputs: {"regex": …}',
    "guided_choice": 'give structured_outputs: {"choice": […]}',
    "guided_grammar": 'give structured_outputs: {"grammar": …}',
}
"""Names that vLLM has given up, and what to say instead: an answer that is not held to them would be wrong unseen."""
UNSUPPORTED = (
    *FORMER,
    "use_beam_search",
    "logprob_token_ids",
    "thinking_token_budget",
    "watermarking",
    "repetition_detection",
    "kv_transfer_params",
    "ec_transfer_params",
    "vllm_xargs",
)
"""Known parameters that must be off: null, false, or empty."""

LONGEST = {
    "allowed_token_ids": TOKEN_LIST_MAX,
    "stop_token_ids": TOKEN_LIST_MAX,
    "bad_words": WORDS_MAX,
}
"""Entries that each of these may have."""
_lists = attrgetter(*LONGEST)
_NONE = (None,) * 32
_UNSET = (msgspec.UNSET,) * 32
_REFUSED: dict[type[Parameters], tuple[tuple[str, ...], Callable[[Parameters], tuple[Any, ...]]]] = {
    kind: (names, attrgetter(*names))
    for kind, names in (
        (ChatRequest, (*UNSUPPORTED, *UNSUPPORTED_CHAT)),
        (CompletionRequest, (*UNSUPPORTED, *UNSUPPORTED_COMPLETION)),
    )
}
SERVICE_TIERS = ("auto", "default")
VERBOSITIES = ("low", "medium", "high")
"""None of them changes the prompt: no template knows them."""
TRUNCATION_SIDES = ("left", "right")
_PLACED = re.compile(r"(?P<text>.*) - at `\$\.(?P<path>.*)`", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")
_EXPECTED = re.compile(r"Expected `(?P<types>[^`]*)`, got `(?P<got>[^`]*)`$")
_WORDS = {
    "float": "a number",
    "int": "an integer",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}


def decode(decoder: msgspec.json.Decoder[Request], raw: bytes | bytearray) -> Request:
    """The body as a request of the decoder's type, types and ranges checked; raises ApiError.

    Takes some 20 ms for 16 MiB of text, and 50 for the most that a checked body may hold besides.
    """
    if not raw or raw.isspace():
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
    path = placed["path"].removesuffix("[...]") if placed else ""
    if missing := _MISSING.search(text):
        param = f"{path}.{missing['name']}" if path else missing["name"]
        return bad_parameter(param, "is required")
    if not path:
        return ApiError(400, "the request body must be a JSON object")
    return bad_parameter(path, _fault(placed["text"] if placed else text, _range_of(kind, path)))


def _fault(text: str, allowed: str | None) -> str:
    if expected := _EXPECTED.match(text):
        expected_types = [_WORDS[word] for word in expected["types"].split(" | ") if word in _WORDS]
        return f"must be {' or '.join(expected_types)}, not {_WORDS.get(expected['got'], expected['got'])}"
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
    """Raises ApiError for what types and ranges alone do not say, and for what is known and cannot be done.

    Messages and prompts are checked where they become tokens, tools and formats where these are read.
    """
    _check_supported(request)
    _check_stops(stop_strings(request))
    _check_lists(request)
    read_biases(request)
    if request.stream_options is not None and not request.stream:
        raise bad_parameter("stream_options", "is allowed only with stream=true")
    if request.prompt_logprobs is not None and request.stream:
        raise bad_parameter("prompt_logprobs", "is allowed only without stream")
    if request.truncation_side not in {None, *TRUNCATION_SIDES}:
        raise bad_parameter("truncation_side", f"must be one of {', '.join(TRUNCATION_SIDES)}")
    match request:
        case ChatRequest():
            _check_chat(request)
        case CompletionRequest():
            _check_completion(request)


def _check_supported(request: Parameters) -> None:
    names, given = _REFUSED[type(request)]
    values = given(request)
    if values == _UNSET[: len(values)]:
        return  # almost always, and much cheaper than to look at each
    for name, value in zip(names, values, strict=True):
        if is_off(value):
            continue
        if name in FORMER:
            raise bad_parameter(name, f"vLLM has given up this name: {FORMER[name]}", "unsupported_parameter")
        raise not_supported(name)


def _check_chat(request: ChatRequest) -> None:
    if request.max_tokens == 0:
        raise bad_parameter("max_tokens", "must be at least 1")
    if request.top_logprobs and not request.logprobs:
        raise bad_parameter("top_logprobs", "is allowed only with logprobs=true")
    if request.service_tier not in {None, *SERVICE_TIERS}:
        raise not_supported("service_tier", f"service_tier: one other than {' and '.join(SERVICE_TIERS)}")
    if request.verbosity not in {None, *VERBOSITIES}:
        raise bad_parameter("verbosity", f"must be one of {', '.join(VERBOSITIES)}")
    if request.modalities is not None and request.modalities != ["text"]:
        raise not_supported("modalities", "modalities other than ['text']")


def _check_completion(request: CompletionRequest) -> None:
    if request.max_tokens == 0 and not request.echo:
        raise bad_parameter("max_tokens", "must be at least 1, unless echo is true")
    if request.best_of is None:
        return
    if request.best_of < (request.n or 1):
        raise bad_parameter("best_of", f"must be at least n ({request.n or 1})")
    if request.stream and request.best_of > (request.n or 1):
        raise bad_parameter("best_of", "must be n with stream=true: the best are not known before all are over")


def _check_lists(request: Parameters) -> None:
    lists = _lists(request)
    if lists == _NONE[: len(lists)]:
        return
    for (name, longest), entries in zip(LONGEST.items(), lists, strict=True):
        if entries is not None and len(entries) > longest:
            raise bad_parameter(name, f"must hold at most {longest} entries, not {len(entries)}")
    if any(not 0 < len(word) <= STOP_CHARS_MAX for word in request.bad_words or ()):
        raise bad_parameter("bad_words", f"each must have 1 to {STOP_CHARS_MAX} characters")


class _Biases(msgspec.Struct, frozen=True):
    logit_bias: dict[str, Bias]


_BIASES = json_decoder(_Biases)


def read_biases(request: Parameters) -> dict[str, float]:
    """The request's `logit_bias` by token id as text, empty for none; ApiError if it holds anything else."""
    given = request.logit_bias
    if not isinstance(given, msgspec.Raw) or not is_given(given):
        return {}
    raw = bytes(given)
    if len(raw) > BIASES_BYTES_MAX:
        raise bad_parameter("logit_bias", f"must hold at most {BIASES_MAX} entries, and {BIASES_BYTES_MAX} bytes")
    biases = decode(_BIASES, b'{"logit_bias":%b}' % raw).logit_bias
    if len(biases) > BIASES_MAX:
        raise bad_parameter("logit_bias", f"must hold at most {BIASES_MAX} entries, not {len(biases)}")
    return biases


def _check_stops(stops: list[str]) -> None:
    if len(stops) > STOP_MAX:
        raise bad_parameter("stop", f"must hold at most {STOP_MAX} strings, not {len(stops)}")
    for stop in stops:
        if not 0 < len(stop) <= STOP_CHARS_MAX:
            raise bad_parameter("stop", f"each string must have 1 to {STOP_CHARS_MAX} characters")


def stop_strings(request: Parameters) -> list[str]:
    """The request's stop strings, none, one or several."""
    match request.stop:
        case None:
            return []
        case str(stop):
            return [stop]
        case stops:
            return stops
