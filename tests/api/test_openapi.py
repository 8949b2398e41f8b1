"""The description of the API agrees with the API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from fastapi import FastAPI
from starlette.routing import Route

from actors.metrics.frontend_metrics import FrontendMetrics
from api.app import framework, post_routes
from api.openapi import SURFACE, Operation
from api.openapi import document as made_document
from api.server.limits import ApiSettings
from core.clock import SystemClock
from core.generation import Output
from tests.api.conftest import Api
from tests.api.guarded import Guarded, made
from tests.api.raw import request, say
from tests.api.scripted import ScriptedBackend, spoken

document = cache(made_document)
BY_NAME = {operation.name: operation for operation in SURFACE}


def routes(app: FastAPI) -> Iterator[tuple[str, str]]:
    """Every path with each of its methods, as the description writes them."""
    waiting: list[Any] = list(app.router.routes)
    while waiting:
        route = waiting.pop()
        if isinstance(route, Route) or hasattr(route, "methods"):
            path = route.path.replace(":path}", "}")
            yield from ((path, method.lower()) for method in route.methods or ())
        else:
            waiting += getattr(route, "routes", None) or route.original_router.routes


def test_every_route_is_described_and_no_other() -> None:
    """By path and method; HEAD is GET without its body."""
    backend = ScriptedBackend()
    direct, further = post_routes(backend, FrontendMetrics(), ApiSettings(), SystemClock())
    app = framework(backend, {**direct, **further})
    served = {found for found in routes(app) if found[1] != "head"} - {("/docs", "get")}
    described = {(path, method) for path, methods in document()["paths"].items() for method in methods}
    assert served == described
    assert len(BY_NAME) == len(SURFACE)


def resolved(schema: Any) -> dict[str, Any]:
    """The schema with all that it refers to."""
    return {**schema, "components": document()["components"]}


def schema_of(operation: Operation, status: int) -> dict[str, Any]:
    described = document()["paths"][operation.path][operation.method]["responses"]
    assert str(status) in described, f"{operation.name} says nothing of {status}"
    return resolved(described[str(status)]["content"]["application/json"]["schema"])


@pytest.mark.parametrize("name", [name for name, operation in BY_NAME.items() if operation.example])
async def test_examples_are_answered_as_described(api: Api, name: str) -> None:
    """Each example fits its own schema, is served, and the answer fits the schema of answers; streamed too."""
    operation = BY_NAME[name]
    described = document()["paths"][operation.path]["post"]["requestBody"]["content"]["application/json"]
    jsonschema.validate(operation.example, resolved(described["schema"]))
    api.backend.script = [Output(embedding=bytes(8), finish="stop")] if "embed" in operation.path else spoken("hello")
    answer = await api.http.post(operation.path, json=operation.example)
    assert answer.status_code == 200, answer.text
    jsonschema.validate(answer.json(), schema_of(operation, 200))
    if operation.streams:
        answer = await api.http.post(operation.path, json={**(operation.example or {}), "stream": True})
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.status_code == 200


@pytest.mark.parametrize("name", [name for name, operation in BY_NAME.items() if operation.example])
async def test_errors_are_as_described(api: Api, name: str) -> None:
    """A body that is none, a model that is none, too long a body: the statuses stand there, with their shape."""
    operation = BY_NAME[name]
    answers = [
        await api.http.post(operation.path, content=b"{"),
        await api.http.post(operation.path, json={**(operation.example or {}), "model": "nobody"}),
    ]
    said = await say(
        api.server.address, request(b"", "content-length: 999999999", line=f"POST {operation.path} HTTP/1.1")
    )
    assert [answer.status_code for answer in answers] + said.statuses == [400, 404, 413]
    for answer in answers:
        jsonschema.validate(answer.json(), schema_of(operation, answer.status_code))
    jsonschema.validate(json.loads(said.raw.partition(b"\r\n\r\n")[2]), schema_of(operation, 413))


async def test_what_needs_a_key_is_described(api: Api, tmp_path: Path) -> None:
    """401 stands there, and in that shape, of all that is not open; what is read and unknown is 404."""
    made(tmp_path / "keys")
    async with Guarded(tmp_path / "keys").served() as http:
        for operation in SURFACE:
            answer = await http.request(operation.method, operation.path.replace("{model}", "nobody"))
            assert (answer.status_code == 401) is not operation.open
            jsonschema.validate(answer.json(), schema_of(operation, answer.status_code))
    unknown = await api.http.get("/v1/models/nobody")
    jsonschema.validate(unknown.json(), schema_of(BY_NAME["retrieveModel"], 404))


async def test_it_is_served_to_everybody_and_stands_alone(api: Api) -> None:
    """Nothing in it refers to what is not in it."""
    answer = await api.http.get("/openapi.json")
    assert answer.json() == document()
    references = {part.split('"')[0] for part in answer.text.split('"$ref":"#/components/schemas/')[1:]}
    assert references <= set(document()["components"]["schemas"])
    assert r"\\Z" not in answer.text
