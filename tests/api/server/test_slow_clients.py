"""Clients that send half, too slowly, or are gone: over the real API, and nothing of them is left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from actors.metrics.frontend_metrics import FrontendMetrics
from api.app import create_app
from api.server.http_server import HttpServer
from api.server.limits import ApiSettings, HttpLimits
from api.server.sockets import bind
from core.generation import Output
from tests.api.conftest import Api
from tests.api.raw import connected, heard, request
from tests.api.scripted import ScriptedBackend, ids
from tests.fixtures.eventually import eventually

MANY = 40
BODY = json.dumps({"model": "tiny", "prompt": "hi"}).encode()
STREAM = json.dumps({"model": "tiny", "prompt": "hi", "stream": True}).encode()


async def nothing_left(api: Api, tasks: int) -> None:
    """No connection, no generation, no task more than there were."""
    await eventually(lambda: not api.server.connections, "the end of all connections")
    await eventually(lambda: api.backend.closed == len(api.backend.requests), "the end of all generations")
    await eventually(lambda: len(asyncio.all_tasks()) <= tasks, "the end of all tasks")


@pytest.mark.parametrize("abort", [False, True])
async def test_half_a_request_and_gone(api: Api, abort: bool) -> None:
    """In the head, at its end, in the body: no worker hears of it."""
    tasks = len(asyncio.all_tasks())
    raw = request(BODY)
    for number in range(MANY):
        async with connected(api.server.address) as (_, writer):
            writer.write(raw[: 1 + number * (len(raw) - 2) // MANY])
            await writer.drain()
            if abort:
                writer.transport.abort()
    await nothing_left(api, tasks)
    assert not api.backend.requests


@pytest.mark.parametrize("body", [BODY, STREAM], ids=["whole", "stream"])
async def test_gone_while_it_is_answered(api: Api, body: bytes) -> None:
    """Every generation is closed, streamed or not, and counted as the client's doing."""
    tasks = len(asyncio.all_tasks())
    api.backend.script = [Output(tokens=ids("a")), asyncio.Event()]
    for number in range(MANY):
        async with connected(api.server.address) as (reader, writer):
            writer.write(request(body))
            await api.backend.until_asked(number + 1)
            if body is STREAM:
                await reader.readuntil(b"data: ")
            writer.transport.abort()
    await nothing_left(api, tasks)
    assert len(api.backend.requests) == MANY
    await api.counted("tiny", "abort", MANY)


async def test_gone_before_the_queue_of_its_requests_is_done(api: Api) -> None:
    """Those that waited on the connection for the one before are forgotten with it."""
    tasks = len(asyncio.all_tasks())
    api.backend.script = [Output(tokens=ids("a")), asyncio.Event()]
    async with connected(api.server.address) as (_, writer):
        writer.write(request(STREAM) * 5)
        await api.backend.until_asked()
    await nothing_left(api, tasks)
    assert len(api.backend.requests) == 1


@pytest.fixture
async def impatient(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[ScriptedBackend, HttpServer]]:
    """An API that waits for nobody."""
    monkeypatch.setattr("api.server.http_server.TICK_S", 0.02)
    backend = ScriptedBackend()
    limits = HttpLimits(head_timeout_s=0.1, body_timeout_s=0.1, body_bytes_per_s_min=1 << 20)
    app = create_app(backend, FrontendMetrics(), ApiSettings())
    server = HttpServer(app, bind("127.0.0.1", 0), limits=limits)
    await server.start()
    yield backend, server
    await server.stop(grace_s=1)


@pytest.mark.parametrize("size", [20, len(request(BODY)) - 1], ids=["head", "body"])
async def test_too_slow(impatient: tuple[ScriptedBackend, HttpServer], size: int) -> None:
    """408 in OpenAI's shape and the connection closes; no worker hears of it."""
    backend, server = impatient
    async with connected(server.address) as (reader, writer):
        writer.write(request(BODY)[:size])
        said = await heard(reader)
    assert (said.statuses, said.closed) == ([408], True)
    assert said.errors[0]["type"] == "invalid_request_error"
    assert not backend.requests
    await eventually(lambda: not server.connections, "the end of the connection")
