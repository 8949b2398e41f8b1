"""The description of the API as OpenAPI 3.1, made of the types that the routes decode bodies with."""

from __future__ import annotations

from functools import cache
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

import msgspec
import orjson

from api.description import told
from api.description.surface import SURFACE, Operation
from api.openai.refusal import OVERLOADED
from api.openai.requests.headers import DEADLINE_MS_MAX, PRIORITY_MAX

Json = dict[str, Any]

REFERENCE = "#/components/schemas/{name}"
GENERAL = """OpenAI's API, vLLM's extras, and Anthropic's messages, over any number of workers.

Fields that nobody knows are ignored; a known one that cannot be had is refused with 400. Every answer has the header
`x-request-id`, the client's own if it sent one of letters, digits, dots, underscores and hyphens. Without a file of
keys no key is asked for. Models that cannot generate, or cannot embed, refuse what they cannot do.
"""
ALWAYS = (400, 401, 413)
"""Statuses of errors that every route that takes a body may have."""
HEADERS: tuple[tuple[str, str, Json], ...] = (
    ("x-contrail-tenant", "Who asks; of the key, if keys are asked for.", {"pattern": "^[A-Za-z0-9._-]{1,64}$"}),
    ("x-contrail-priority", "Lower is served first.", {"minimum": -PRIORITY_MAX, "maximum": PRIORITY_MAX}),
    ("x-contrail-deadline-ms", "How long the client waits.", {"minimum": 1, "maximum": DEADLINE_MS_MAX}),
    ("x-session-id", "The conversation; else as programs name it.", {"pattern": "^[!-~]{1,256}$"}),
    ("traceparent", "W3C's trace context; one that is none is ignored.", {}),
)


@cache
def description() -> bytes:
    """The whole description as JSON; made once, in some 50 ms."""
    return orjson.dumps(document())


def document() -> Json:
    """The whole description."""
    bodies = {operation.body for operation in SURFACE if operation.body is not None}
    ordered = sorted(bodies, key=lambda body: body.__name__)
    references, schemas = msgspec.json.schema_components(ordered, ref_template=REFERENCE)
    by_body = dict(zip(ordered, references, strict=True))
    schemas |= {"Error": told.ERROR, "AnthropicError": told.ANTHROPIC_ERROR}
    paths: Json = {}
    for operation in SURFACE:
        reference = by_body[operation.body] if operation.body is not None else None
        paths.setdefault(operation.path, {})[operation.method] = _described(operation, reference)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Contrail", "version": version("contrail"), "description": GENERAL},
        "paths": paths,
        "components": {"schemas": _plain(schemas), "securitySchemes": _LOCKS},
    }


_LOCKS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def _described(operation: Operation, body: Json | None) -> Json:
    found: Json = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": _parameters(operation),
        "responses": _responses(operation),
        "security": [] if operation.open else [{"bearer": []}, {"header": []}, {}],
    }
    if body is not None:
        content = {"application/json": {"schema": body, "example": operation.example}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _parameters(operation: Operation) -> list[Json]:
    found: list[Json] = []
    if "{model}" in operation.path:
        found.append({"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}})
    if operation.generates:
        for name, text, bounds in HEADERS:
            schema = {"type": "integer" if "minimum" in bounds else "string", **bounds}
            found.append({"name": name, "in": "header", "description": text, "schema": schema})
    return found


def _responses(operation: Operation) -> Json:
    content: Json = {"application/json": {"schema": operation.answer}}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    found: Json = {"200": {"description": "The answer.", "content": content}}
    if operation.path == "/health":
        found["503"] = {"description": "Not yet.", "content": content}
    error = "AnthropicError" if operation.path.startswith("/v1/messages") else "Error"
    always = ALWAYS if operation.body is not None else () if operation.open else (401,)
    for status in sorted({*always, *operation.statuses}):
        shown = {"application/json": {"schema": {"$ref": REFERENCE.format(name=error)}}}
        found[str(status)] = {"description": _phrase(status), "content": shown}
    return found


def _phrase(status: int) -> str:
    return "Overloaded" if status == OVERLOADED else HTTPStatus(status).phrase


def _plain(value: Any) -> Any:
    """Patterns as JSON Schema writes them: Python's end of a text is its end of all lines."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.removesuffix(r"\Z") + "$" if isinstance(value, str) and value.endswith(r"\Z") else value
