"""What an answer's text must be: a format that the request asks for, or calls of its tools."""

from __future__ import annotations

from typing import Any

from api.openai.requests.formats import format_of, schema_text
from api.openai.requests.types import ChatRequest, CompletionRequest
from api.openai.templates.messages import Tool
from api.openai.tools.offer import NAMED, REQUIRED, Offer, offer_of
from api.server.errors import bad_parameter
from core.generation import Guided

ANY_OBJECT: dict[str, Any] = {"type": "object", "properties": {}}
"""The arguments of a tool that says nothing of them."""


def guided_of(request: ChatRequest | CompletionRequest) -> Guided | None:
    """The request's own rule for the text, None almost always; ApiError for one that cannot be kept.

    Calls that the request insists on come before a format of the answer, as vLLM has it; where the model may choose,
    the format holds, and calls are found only if they keep it.
    """
    asked = request.response_format is not None or request.structured_outputs is not None
    guided = format_of(request.response_format, request.structured_outputs) if asked else None
    if not isinstance(request, ChatRequest) or (request.tools is None and request.tool_choice is None):
        return guided
    offer = offer_of(request)
    if offer is None or offer.choice not in (REQUIRED, NAMED):
        return guided
    if request.structured_outputs is not None:
        raise bad_parameter("structured_outputs", "cannot be given with a tool_choice that insists on a call")
    return Guided(json_schema=schema_text(_schema(offer), "tools"))


def _schema(offer: Offer) -> dict[str, Any]:
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


def _definitions(offer: Offer) -> dict[str, Any]:
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
