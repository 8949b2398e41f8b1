"""The page of the API at /docs: every route with its fields, its headers and a request as a command.

It is made of the description at /openapi.json, has no script, and loads nothing from elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from html import escape
from typing import Any

import orjson

from api.openapi import openapi_json

Json = dict[str, Any]

HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
BASE, MODEL = "{{BASE}}", "{{MODEL}}"
"""Marks in the page for the server's address and a model; they need no escape in HTML, JSON or a shell."""
EXAMPLE_MODEL = "tiny"
"""The model in the examples of the description."""
ANY_HOST = "127.0.0.1:8000"
_HOST = re.compile(r"[A-Za-z0-9.\-]{1,253}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")
_PLAIN = re.compile(r"[A-Za-z0-9._/:@+\-]+")
STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
summary { cursor: pointer; padding: .4rem 0 }
summary b { display: inline-block; min-width: 3.2rem }
details { border-top: 1px solid #8886 }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 }
td, th { text-align: left; padding: .15rem .8rem .15rem 0; vertical-align: top; overflow-wrap: anywhere }
pre { padding: .7rem; background: #8882; white-space: pre-wrap; overflow-wrap: anywhere }
code, pre { font-family: ui-monospace, monospace; font-size: .9em }
"""


def docs_page(scheme: str, host: str, model: str | None, *, keyed: bool) -> str:
    """The page as HTML. Its commands go to this host, or to ANY_HOST if the text is none, and name this model, or
    EXAMPLE_MODEL if a shell or HTML would read its name otherwise.
    The first page of a process costs some 60 ms, later ones a copy."""
    base = f"{scheme}://{host if _HOST.fullmatch(host) else ANY_HOST}"
    named = model if model is not None and _PLAIN.fullmatch(model) else EXAMPLE_MODEL
    return _page(keyed).replace(BASE, base).replace(MODEL, named)


@cache
def _page(keyed: bool) -> str:
    described = orjson.loads(openapi_json())
    info = described["info"]
    routes = [
        _route(path, method, operation, described["components"]["schemas"], keyed=keyed)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]
    paragraphs = [f"<p>{escape(text)}</p>" for text in info["description"].strip().split("\n\n")]
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(info['title'])} API</title><style>{STYLE}</style></head><body>",
            f"<h1>{escape(info['title'])} API <small>{escape(info['version'])}</small></h1>",
            *paragraphs,
            '<p>The same for programs: <a href="/openapi.json">/openapi.json</a>.</p>',
            *routes,
            "</body></html>",
        )
    )


def _route(path: str, method: str, operation: Json, schemas: Json, *, keyed: bool) -> str:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    parts = [f"<pre>{_command(path, operation, content, keyed=keyed)}</pre>"]
    if content is not None:
        parts.append(_table("body", ("field", "type", "must be given"), _fields(content["schema"], schemas)))
    parameters = [
        (each["name"], each["in"], _type(each["schema"], schemas), each.get("description", ""))
        for each in operation["parameters"]
    ]
    if parameters:
        parts.append(_table("parameters", ("name", "in", "type", "meaning"), parameters))
    answers = [(status, answer["description"]) for status, answer in operation["responses"].items()]
    parts.append(_table("answers", ("status", "meaning"), answers))
    head = f"<b>{method.upper()}</b> <code>{escape(path)}</code> &ensp;{escape(operation['summary'])}"
    return f'<details id="{escape(operation["operationId"])}"><summary>{head}</summary>{"".join(parts)}</details>'


def _command(path: str, operation: Json, content: Json | None, *, keyed: bool) -> str:
    words = [f"curl {BASE}{path.replace('{model}', MODEL)}"]
    if keyed and operation["security"]:
        words.append("-H 'Authorization: Bearer KEY'")
    if content is not None:
        example = {**content["example"], "model": MODEL}
        words += ["-H 'Content-Type: application/json'", f"-d '{json.dumps(example)}'"]
    return escape(" ".join(words), quote=False)


def _fields(schema: Json, schemas: Json) -> Iterator[tuple[str, ...]]:
    """Name, type and need of each field of a body, the needed ones first."""
    body = _resolved(schema, schemas)
    needed = set(body.get("required", ()))
    for name, field in sorted(body["properties"].items(), key=lambda item: item[0] not in needed):
        yield name, _type(field, schemas), "yes" if name in needed else ""


def _type(schema: Json, schemas: Json) -> str:
    """The type of a value in a few words, with its bounds."""
    schema = _resolved(schema, schemas)
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(each, schemas) for each in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return " or ".join(json.dumps(each) for each in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any")
    name = " or ".join(kind) if isinstance(kind, list) else str(kind)
    if name == "array" and isinstance(schema.get("items"), dict):
        name = f"array of {_resolved(schema['items'], schemas).get('type', 'values')}"
    low, high = schema.get("minimum"), schema.get("maximum")
    above = schema.get("exclusiveMinimum")
    bounds = (("from", low), ("above", above), ("to", high))
    return " ".join([name, *(f"{word} {bound}" for word, bound in bounds if bound is not None)])


def _resolved(schema: Json, schemas: Json) -> Json:
    while "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    return schema


def _table(caption: str, heads: tuple[str, ...], rows: Any) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(each))}</td>' for each in row)}</tr>" for row in rows)
    return f"<table aria-label={caption}><tr>{head}</tr>{body}</table>"
