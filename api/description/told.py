"""What answers look like: JSON schemas of the fields that are always there. There may be more."""

from __future__ import annotations

from typing import Any

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
