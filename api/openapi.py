"""The description of the API as OpenAPI 3.1, made of the types that the routes decode bodies with.

Answers are described by the fields that are always there; there may be more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

import msgspec
import orjson

from api.anthropic.messages_types import CountRequest, MessagesRequest
from api.openai.embeddings import EmbeddingRequest
from api.openai.request.request_metadata import DEADLINE_MS_MAX
from api.openai.tokenization import DetokenizeRequest, TokenizeRequest
from api.openai.types.request_types import ChatRequest, CompletionRequest
from api.responses.responses_types import ResponsesRequest
from api.server.errors import OVERLOADED
from core.generation import PRIORITY_MAX

Json = dict[str, Any]


def _object(**fields: Json) -> Json:
    return {"type": "object", "properties": fields, "required": list(fields)}


def _list(of: Json) -> Json:
    return {"type": "array", "items": of}


def _const(value: str) -> Json:
    return {"type": "string", "const": value}


TEXT_ = {"type": "string"}
WHOLE = {"type": "integer"}
COUNTED = {"type": "integer", "minimum": 0}
NULLABLE_TEXT = {"type": ["string", "null"]}
REASONS: Json = {"type": "object", "additionalProperties": TEXT_}

_USAGE = _object(prompt_tokens=COUNTED, completion_tokens=COUNTED, total_tokens=COUNTED)
_MESSAGE = _object(role=_const("assistant"), content=NULLABLE_TEXT)

CHAT = _object(
    id=TEXT_,
    object=_const("chat.completion"),
    created=WHOLE,
    model=TEXT_,
    choices=_list(_object(index=COUNTED, message=_MESSAGE, finish_reason=NULLABLE_TEXT)),
    usage=_USAGE,
)
COMPLETION = _object(
    id=TEXT_,
    object=_const("text_completion"),
    created=WHOLE,
    model=TEXT_,
    choices=_list(_object(index=COUNTED, text=TEXT_, finish_reason=NULLABLE_TEXT)),
    usage=_USAGE,
)
RESPONSE = _object(
    id=TEXT_,
    object=_const("response"),
    status=TEXT_,
    model=TEXT_,
    output=_list({"type": "object"}),
    usage=_object(input_tokens=COUNTED, output_tokens=COUNTED, total_tokens=COUNTED),
)
MESSAGE = _object(
    id=TEXT_,
    type=_const("message"),
    role=_const("assistant"),
    model=TEXT_,
    content=_list(_object(type=TEXT_)),
    stop_reason=NULLABLE_TEXT,
    usage=_object(input_tokens=COUNTED, output_tokens=COUNTED),
)
COUNT = _object(input_tokens=COUNTED)
EMBEDDINGS = _object(
    object=_const("list"),
    data=_list(_object(object=_const("embedding"), index=COUNTED, embedding={"type": ["array", "string"]})),
    model=TEXT_,
    usage=_object(prompt_tokens=COUNTED, total_tokens=COUNTED),
)
TOKENS = _object(count=COUNTED, max_model_len=COUNTED, tokens=_list(COUNTED))
TEXT = _object(prompt=TEXT_)
MODEL = _object(id=TEXT_, object=_const("model"), created=WHOLE, owned_by=TEXT_)
MODELS = _object(object=_const("list"), data=_list(MODEL))
VERSION = _object(version=TEXT_)
HEALTH = _object(ready={"type": "boolean"}, waiting_for=REASONS, degraded=REASONS)

ERROR = _object(error=_object(message=TEXT_, type=TEXT_, param=NULLABLE_TEXT, code=NULLABLE_TEXT))
ANTHROPIC_ERROR = _object(type=_const("error"), error=_object(type=TEXT_, message=TEXT_), request_id=TEXT_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method on one path."""

    path: str
    name: str
    """Unique operation id: generated clients use it as a name."""
    summary: str
    body: type[msgspec.Struct] | None = None
    """None: GET; else POST with this body."""
    example: Json | None = None
    answer: Json
    """The JSON schema of the answer that is not streamed."""
    streams: bool = False
    """True if `"stream": true` is answered with server-sent events."""
    generates: bool = False
    """True if a worker computes the answer: the headers of tenant, priority and deadline apply."""
    statuses: tuple[int, ...] = ()
    """Statuses of errors beside those that all operations have."""
    open: bool = False
    """True if it needs no API key."""

    @property
    def method(self) -> str:
        """HTTP method in lower case, as OpenAPI has it."""
        return "get" if self.body is None else "post"


_ASKED = [{"role": "user", "content": "Hello"}]
_GENERATES = (403, 404, 429, 503, 504)
_MESSAGES = (403, 404, 429, 504, OVERLOADED)

SURFACE = (
    Operation(
        path="/v1/chat/completions",
        name="createChatCompletion",
        summary="Answer a chat; OpenAI's API with vLLM's extras.",
        body=ChatRequest,
        example={"model": "tiny", "messages": _ASKED, "max_tokens": 16},
        answer=CHAT,
        streams=True,
        generates=True,
        statuses=_GENERATES,
    ),
    Operation(
        path="/v1/completions",
        name="createCompletion",
        summary="Go on with a text or with tokens; OpenAI's API with vLLM's extras.",
        body=CompletionRequest,
        example={"model": "tiny", "prompt": "Once upon a time", "max_tokens": 16},
        answer=COMPLETION,
        streams=True,
        generates=True,
        statuses=_GENERATES,
    ),
    Operation(
        path="/v1/responses",
        name="createResponse",
        summary="Answer an input; OpenAI's Responses API, nothing stored.",
        body=ResponsesRequest,
        example={"model": "tiny", "input": "Hello", "max_output_tokens": 16},
        answer=RESPONSE,
        streams=True,
        generates=True,
        statuses=_GENERATES,
    ),
    Operation(
        path="/v1/messages",
        name="createMessage",
        summary="Answer a chat; Anthropic's API, errors in its shape.",
        body=MessagesRequest,
        example={"model": "tiny", "messages": _ASKED, "max_tokens": 16},
        answer=MESSAGE,
        streams=True,
        generates=True,
        statuses=_MESSAGES,
    ),
    Operation(
        path="/v1/messages/count_tokens",
        name="countMessageTokens",
        summary="Count the tokens of a chat; Anthropic's API.",
        body=CountRequest,
        example={"model": "tiny", "messages": _ASKED},
        answer=COUNT,
        statuses=(404, OVERLOADED),
    ),
    Operation(
        path="/v1/embeddings",
        name="createEmbedding",
        summary="Embed texts, of a model that can; OpenAI's API.",
        body=EmbeddingRequest,
        example={"model": "tiny", "input": ["Hello", "world"]},
        answer=EMBEDDINGS,
        generates=True,
        statuses=_GENERATES,
    ),
    Operation(
        path="/tokenize",
        name="tokenize",
        summary="The tokens of a text or a chat; vLLM's API.",
        body=TokenizeRequest,
        example={"model": "tiny", "prompt": "Hello"},
        answer=TOKENS,
        statuses=(404, 503),
    ),
    Operation(
        path="/detokenize",
        name="detokenize",
        summary="The text of tokens; vLLM's API.",
        body=DetokenizeRequest,
        example={"model": "tiny", "tokens": [1, 2, 3]},
        answer=TEXT,
        statuses=(404, 503),
    ),
    Operation(path="/v1/models", name="listModels", summary="The models that are served.", answer=MODELS),
    Operation(
        path="/v1/models/{model}",
        name="retrieveModel",
        summary="One model; slashes in its name may stand as they are.",
        answer=MODEL,
        statuses=(404, 503),
    ),
    Operation(path="/version", name="showVersion", summary="The version of Contrail.", answer=VERSION),
    Operation(
        path="/health",
        name="showHealth",
        summary="Whether requests are served; 503, in the same shape, if not.",
        answer=HEALTH,
        open=True,
    ),
    Operation(
        path="/openapi.json", name="showDescription", summary="This description.", answer={"type": "object"}, open=True
    ),
)
"""All operations but the page at /docs and those of the debugging page, which are for people."""


REFERENCE = "#/components/schemas/{name}"
GENERAL = """OpenAI's API, vLLM's extras, and Anthropic's messages, over any number of workers.

Fields that nobody knows are ignored; a known one that cannot be had is refused with 400. Every answer has the header
`x-request-id`, the client's own if it sent one of letters, digits, dots, underscores and hyphens. Without a file of
keys no key is asked for. Models that cannot generate, or cannot embed, refuse what they cannot do.
"""
ALWAYS = (400, 401, 413)
"""Statuses of errors that every operation with a body may have."""
HEADERS: tuple[tuple[str, str, Json], ...] = (
    ("x-contrail-tenant", "Who asks; of the key, if keys are asked for.", {"pattern": "^[A-Za-z0-9._-]{1,64}$"}),
    (
        "x-contrail-priority",
        "Among the tenant's requests, lower is served first; within the allowance of the key, if keys are asked for.",
        {"minimum": -PRIORITY_MAX, "maximum": PRIORITY_MAX},
    ),
    ("x-contrail-deadline-ms", "How long the client waits.", {"minimum": 1, "maximum": DEADLINE_MS_MAX}),
    ("x-session-id", "The conversation; else as programs name it.", {"pattern": "^[!-~]{1,256}$"}),
    ("traceparent", "W3C's trace context; one that is none is ignored.", {}),
)


@cache
def openapi_json() -> bytes:
    """The whole description as JSON; made once, in some 50 ms."""
    return orjson.dumps(document())


def document() -> Json:
    """The whole description."""
    bodies = {operation.body for operation in SURFACE if operation.body is not None}
    ordered = sorted(bodies, key=lambda body: body.__name__)
    references, schemas = msgspec.json.schema_components(ordered, ref_template=REFERENCE)
    by_body = dict(zip(ordered, references, strict=True))
    schemas |= {"Error": ERROR, "AnthropicError": ANTHROPIC_ERROR}
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
    """The value with patterns in the form of JSON Schema: `$` in place of Python's end of the text."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.removesuffix(r"\Z") + "$" if isinstance(value, str) and value.endswith(r"\Z") else value
