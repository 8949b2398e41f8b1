"""Streams that wait for long: they are pinged in the words of their API, and begin with that."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import anthropic
import httpx
import openai
import pytest

from actors.metrics.frontend_metrics import FrontendMetrics
from api.app import create_app
from api.auth.access_policy import AccessPolicy
from api.server.http_server import HttpServer
from api.server.limits import ApiSettings
from api.server.sockets import bind
from core.models import Overloaded
from tests.api.conftest import Api
from tests.api.scripted import ScriptedBackend, spoken

PING_S = 0.03
PAUSE_S = 10 * PING_S
MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "tiny", "messages": MESSAGES},
    "/v1/chat/completions?n": {"model": "tiny", "messages": MESSAGES, "n": 2},
    "/v1/completions": {"model": "tiny", "prompt": "hi"},
    "/v1/responses": {"model": "tiny", "input": "hi"},
    "/v1/messages": {"model": "tiny", "max_tokens": 9, "messages": MESSAGES},
}
PINGS = {"/v1/messages": 'event: ping\ndata: {"type":"ping"}', "/v1/responses": "event: keepalive\n"}
"""Beside those that are comments."""


@pytest.fixture(params=[False, True], ids=["direct", "behind CORS"])
def behind_cors(request: pytest.FixtureRequest) -> bool:
    """There every piece takes ASGI's way."""
    found: bool = request.param
    return found


@pytest.fixture
async def pinged(behind_cors: bool) -> AsyncIterator[Api]:
    """An API that pings soon."""
    async with api_that_pings(PING_S, behind_cors) as api:
        yield api


@asynccontextmanager
async def api_that_pings(ping_s: float, behind_cors: bool) -> AsyncIterator[Api]:
    """An API that pings after that pause."""
    backend, metrics = ScriptedBackend(), FrontendMetrics()
    policy = AccessPolicy(cors=("http://elsewhere",) if behind_cors else ())
    server = HttpServer(create_app(backend, metrics, ApiSettings(ping_s=ping_s), policy=policy), bind("127.0.0.1", 0))
    url = f"http://{await server.start()}"
    headers = {"origin": "http://elsewhere"} if behind_cors else {}
    async with (
        httpx.AsyncClient(base_url=url, verify=False, headers=headers) as http,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, default_headers=headers) as client,
    ):
        yield Api(backend, metrics, server, http, client)
    await server.stop(grace_s=1)


def held(backend: ScriptedBackend, *then: Any) -> None:
    """Each answer waits that long at first, and once more behind its first word."""

    async def later(event: asyncio.Event) -> None:
        await asyncio.sleep(PAUSE_S)
        event.set()

    first = asyncio.Event()
    backend.script = [first, *then]
    backend.tasks = asyncio.create_task(later(first))  # type: ignore[attr-defined]


async def streamed(api: Api, path: str) -> list[str]:
    """The events of the answer, comments included."""
    answer = await api.http.post(path.partition("?")[0], json={**BODIES[path], "stream": True})
    assert answer.status_code == 200, answer.text
    return [event for event in answer.text.split("\n\n") if event]


def is_ping(path: str, event: str) -> bool:
    return event.startswith(PINGS.get(path, ": ping"))


@pytest.mark.parametrize("path", BODIES)
async def test_a_stream_that_waits_is_pinged(pinged: Api, path: str) -> None:
    """Before its first token, behind its opening; what comes otherwise is the same."""
    await pinged.http.post(path.partition("?")[0], json=BODIES[path])
    plain = await streamed(pinged, path)
    assert not any(is_ping(path, event) for event in plain)
    held(pinged.backend, *spoken("hello"))
    events = await streamed(pinged, path)
    pings = [at for at, event in enumerate(events) if is_ping(path, event)]
    assert 2 <= len(pings) <= 10
    others = [event for event in events if not is_ping(path, event)]
    assert [_kind(event) for event in others] == [_kind(event) for event in plain]
    opening = {"/v1/responses": 2, "/v1/completions": 0, "/v1/chat/completions?n": 2}.get(path, 1)
    assert pings[0] == opening, "what opens the stream comes first"
    assert pings == list(range(opening, opening + len(pings))), "and nothing else before its first token"


def _kind(event: str) -> Any:
    data = event.partition("data: ")[2]
    if data == "[DONE]":
        return data
    said = json.loads(data)
    return said.get("type"), [choice["delta" if "delta" in choice else "text"] for choice in said.get("choices", ())]


@pytest.mark.parametrize("path", BODIES)
async def test_an_error_behind_a_ping_ends_the_stream(pinged: Api, path: str) -> None:
    """In that API's words: its status has left."""
    held(pinged.backend, Overloaded("too much waits"))
    *_, last = await streamed(pinged, path)
    assert "too much waits" in last
    assert {"/v1/messages": "event: error", "/v1/responses": "event: response.failed"}.get(path, "data: ") in last


@pytest.mark.parametrize("path", BODIES)
async def test_tokens_that_flow_are_not_pinged(behind_cors: bool, path: str) -> None:
    """Though the whole takes longer than the pause that would be: a machine may stand still for most of that."""
    async with api_that_pings(10 * PING_S, behind_cors) as api:
        gates = [asyncio.Event() for _ in range(12)]

        async def open_all() -> None:
            for each in gates:
                await asyncio.sleep(PING_S)
                each.set()

        api.backend.script = [it for each in gates for it in (each, spoken("hello")[1])] + spoken("end")[1:]
        opening = asyncio.create_task(open_all())
        events = await streamed(api, path)
        await opening
        assert not any(is_ping(path, event) for event in events)


async def test_clients_read_past_pings(pinged: Api) -> None:
    """OpenAI's and Anthropic's own."""
    held(pinged.backend, *spoken("hello"))
    chat: Any = await pinged.client.chat.completions.create(model="tiny", messages=cast(Any, MESSAGES), stream=True)
    assert "".join([part.choices[0].delta.content or "" async for part in chat]) == "hello"
    held(pinged.backend, *spoken("hello"))
    async with pinged.client.responses.stream(model="tiny", input="hi") as response:
        assert (await response.get_final_response()).output_text == "hello"
    held(pinged.backend, *spoken("hello"))
    url = str(pinged.http.base_url)
    async with (
        anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client,
        client.messages.stream(model="tiny", max_tokens=9, messages=MESSAGES) as message,  # type: ignore[arg-type]
    ):
        assert await message.get_final_text() == "hello"


async def test_a_hang_up_in_a_pause_ends_the_generation(pinged: Api) -> None:
    """Pings change nothing of that."""
    pinged.backend.script = [asyncio.Event()]
    for number, path in enumerate(BODIES):
        async with pinged.http.stream("POST", path.partition("?")[0], json={**BODIES[path], "stream": True}) as answer:
            async for piece in answer.aiter_text():
                assert piece
                break
        await pinged.backend.until_closed(number + 1)
