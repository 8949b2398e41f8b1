"""Structured outputs: the format of an answer that the request asks for, or JSON of the calls that it insists on.

Formats are OpenAI's `response_format` and vLLM's `structured_outputs`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET

from api.openai.types.request_types import (
    ChatRequest,
    CompletionRequest,
    ResponseFormat,
    StructuredOutputs,
    Tool,
    Undecoded,
    is_given,
)
from api.parsers.tool_choice import NAMED, REQUIRED, ToolOffer, read_tool_offer
from api.server.errors import bad_parameter, not_supported
from api.server.json_limits import UNTYPED
from core.generation import Guided

SCHEMA_BYTES_MAX = 256 * 1024
"""Longest schema, grammar, or regular expression, and all choices together; an engine compiles them."""
SCHEMA_DEPTH_MAX = 64
"""Objects and lists within each other; vLLM's bound too."""
BLANK_PER_BYTE_MAX = 8
"""A schema may be so many times longer with blanks and line breaks than without."""
CHOICES_MAX = 1024


def format_of(asked: ResponseFormat | None, structured: StructuredOutputs | None) -> Guided | None:
    """The format that the two fields ask for, None if none. ApiError if both do, or if a format cannot be kept."""
    guided = None if asked is None else _of_response_format(asked)
    if structured is None:
        return guided
    if guided is not None:
        raise bad_parameter("structured_outputs", "cannot be given with a response_format: choose one")
    return _of_structured(structured)


def _of_response_format(asked: ResponseFormat) -> Guided | None:
    match asked.type:
        case "text":
            return None
        case "json_object":
            return Guided(json_object=True)
        case "json_schema":
            schema = UNSET if asked.json_schema is None else asked.json_schema.schema
            if not is_given(schema):
                missing = "response_format.json_schema" + (".schema" if asked.json_schema else "")
                raise bad_parameter(missing, "is required with type 'json_schema'")
            place = "response_format.json_schema.schema"
            return Guided(json_schema=schema_text(_read(schema, place), place))
    raise bad_parameter("response_format.type", "must be 'text', 'json_object' or 'json_schema'")


def _of_structured(asked: StructuredOutputs) -> Guided:
    if is_given(asked.structural_tag):
        raise not_supported("structured_outputs.structural_tag")
    given = ["json"] if is_given(asked.json) else []
    given += [name for name in ("regex", "choice", "grammar") if getattr(asked, name) is not None]
    given += ["json_object"] if asked.json_object else []
    if len(given) != 1:
        which = f"not {' and '.join(given)}" if given else "none is given"
        raise bad_parameter(
            "structured_outputs", f"must hold exactly one of json, regex, choice, grammar, json_object: {which}"
        )
    return _guided(asked, given[0])


def _guided(asked: StructuredOutputs, name: str) -> Guided:
    place = f"structured_outputs.{name}"
    match name:
        case "json":
            return Guided(json_schema=schema_text(_decoded(_read(asked.json, place), place), place))
        case "regex":
            return Guided(regex=_bounded(asked.regex or "", place))
        case "choice":
            return Guided(choices=_choices(asked.choice or [], place))
        case "grammar":
            return Guided(grammar=_bounded(asked.grammar or "", place))
    return Guided(json_object=True)


def _read(schema: Undecoded, place: str) -> Any:
    """The values of a schema; ApiError if it is longer than an engine would be given."""
    raw = bytes(schema) if isinstance(schema, msgspec.Raw) else b"null"
    if len(raw) > SCHEMA_BYTES_MAX:
        if len(raw) <= BLANK_PER_BYTE_MAX * SCHEMA_BYTES_MAX:
            raw = msgspec.json.format(raw, indent=-1)
        if len(raw) > SCHEMA_BYTES_MAX:
            raise bad_parameter(place, f"is longer than {SCHEMA_BYTES_MAX} bytes")
    return _json(raw, place)


def _json(text: str | bytes, place: str) -> Any:
    try:
        return UNTYPED.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise bad_parameter(place, f"is not JSON: {error}") from error


def _decoded(schema: Any, place: str) -> Any:
    return _json(_bounded(schema, place), place) if isinstance(schema, str) else schema


def _choices(choices: list[str], place: str) -> tuple[str, ...]:
    if not 0 < len(choices) <= CHOICES_MAX or not all(choices):
        raise bad_parameter(place, f"must hold 1 to {CHOICES_MAX} strings, none of them empty")
    _bounded("".join(choices), place)
    return tuple(choices)


def _bounded(text: str, place: str) -> str:
    if not text:
        raise bad_parameter(place, "must not be empty")
    if len(text) > SCHEMA_BYTES_MAX or len(text.encode("utf-8", "surrogatepass")) > SCHEMA_BYTES_MAX:
        raise bad_parameter(place, f"is longer than {SCHEMA_BYTES_MAX} bytes")
    return text


def schema_text(schema: Any, place: str) -> str:
    """A JSON schema as JSON text, bounds checked; ApiError names the place in the body."""
    if not isinstance(schema, (dict, bool)):
        raise bad_parameter(place, "must be a JSON schema: an object")
    check_depth(schema, place)
    encoded = msgspec.json.encode(schema)
    if len(encoded) > SCHEMA_BYTES_MAX:
        raise bad_parameter(place, f"is longer than {SCHEMA_BYTES_MAX} bytes")
    return encoded.decode()


def check_depth(schema: Any, place: str) -> None:
    """Raises ApiError, which names the place in the body, for a schema that is nested too deeply."""
    level = [schema]
    for _ in range(SCHEMA_DEPTH_MAX + 1):
        if not (level := [child for node in level for child in _inside(node)]):
            return
    raise bad_parameter(place, f"nests objects and lists deeper than {SCHEMA_DEPTH_MAX} levels")


def _inside(node: Any) -> Iterable[Any]:
    return node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()


ANY_OBJECT: dict[str, Any] = {"type": "object", "properties": {}}
"""The arguments of a tool that says nothing of them."""


def read_guided(request: ChatRequest | CompletionRequest) -> Guided | None:
    """The request's own rule for the text, None almost always; ApiError for one that cannot be kept.

    Calls that the request insists on come before a format of the answer, as vLLM has it; where the model may choose,
    the format holds, and calls are found only if they keep it.
    """
    asked = request.response_format is not None or request.structured_outputs is not None
    guided = format_of(request.response_format, request.structured_outputs) if asked else None
    if not isinstance(request, ChatRequest) or (request.tools is None and request.tool_choice is None):
        return guided
    offer = read_tool_offer(request)
    if offer is None or offer.choice not in (REQUIRED, NAMED):
        return guided
    if request.structured_outputs is not None:
        raise bad_parameter("structured_outputs", "cannot be given with a tool_choice that insists on a call")
    return Guided(json_schema=schema_text(_schema(offer), "tools"))


def _schema(offer: ToolOffer) -> dict[str, Any]:
    if offer.choice == NAMED:
        return next(_arguments(tool) for tool in offer.tools if tool.function.name == offer.name)
    schema: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": {"type": "object", "anyOf": [_call(tool) for tool in offer.tools]},
    }
    if offer.single:
        schema["maxItems"] = 1
    if definitions := _definitions(offer):
        schema["$defs"] = definitions
    return schema


def _arguments(tool: Tool) -> dict[str, Any]:
    return tool.function.parameters or ANY_OBJECT


def _call(tool: Tool) -> dict[str, Any]:
    parameters = {key: value for key, value in _arguments(tool).items() if key != "$defs"}
    return {
        "properties": {"name": {"type": "string", "enum": [tool.function.name]}, "parameters": parameters},
        "required": ["name", "parameters"],
    }


def _definitions(offer: ToolOffer) -> dict[str, Any]:
    """Of all tools, where references into the whole schema find them."""
    found: dict[str, Any] = {}
    for index, tool in enumerate(offer.tools):
        own = _arguments(tool).get("$defs") or {}
        place = f"tools[{index}].function.parameters.$defs"
        if not isinstance(own, dict):
            raise bad_parameter(place, "must be an object")
        for name, schema in own.items():
            if found.setdefault(name, schema) != schema:
                raise bad_parameter(place, f"another tool defines {name!r} in another way: rename one")
    return found
