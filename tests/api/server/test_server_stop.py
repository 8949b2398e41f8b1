"""The end of a server as its clients see it: nothing is reset that could be answered."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from actors.metrics.frontend_metrics import FrontendMetrics
from api.app import create_app
from api.server.http_server import HttpServer
from api.server.limits import ApiSettings, HttpLimits
from api.server.sockets import bind
from core.generation import Output
from tests.api.scripted import ScriptedBackend, ids
from tests.api.server.front import GET, Client, served
from tests.fixtures.eventually import eventually

HELD = b"GET /held HTTP/1.1\r\nhost: a\r\n\r\n"
LINGER = HttpLimits(idle_linger_s=0.3)


async def test_an_idle_connection_is_answered_once_more() -> None:
    """What comes within the linger is served and told that the connection closes; nobody new is let in."""
    async with served(LINGER) as site:
        used, unused = await site.client(GET), await site.client()
        assert "connection" not in (await used.answer()).headers
        stopping = asyncio.create_task(site.server.stop(5.0))
        await asyncio.sleep(0.1)
        with pytest.raises(ConnectionRefusedError):
            await site.client()
        for client in (used, unused):
            client.writer.write(GET)
            answer = await client.answer()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert await client.closed()
        await stopping


async def test_idle_connections_do_not_hold_up_the_end() -> None:
    """After the linger they are closed in order, and the server is done long before its grace is over."""
    async with served(LINGER) as site:
        client = await site.client(GET)
        await client.answer()
        async with asyncio.timeout(5):
            await site.server.stop(60.0)
        assert await client.closed()


async def test_answers_under_way_are_whole() -> None:
    """A stream and a plain answer go on, the last one says that the connection closes; pipelined ones come too."""
    async with served(LINGER) as site:
        stream = await site.client(b"GET /stream HTTP/1.1\r\nhost: a\r\n\r\n")
        plain, several = await site.client(HELD), await site.client(HELD + GET)
        half = await site.client(GET[:9])
        await eventually(lambda: site.app.asked == 3, "requests under way")
        stopping = asyncio.create_task(site.server.stop(5.0))
        await asyncio.sleep(0.5)
        assert not stopping.done()
        half.writer.write(GET[9:])
        assert (await half.answer()).headers["connection"] == "close"
        site.app.go.set()
        assert (await stream.answer()).body == b"one two"
        assert (await plain.answer()).headers["connection"] == "close"
        assert "connection" not in (await several.answer()).headers
        assert (await several.answer()).headers["connection"] == "close"
        await stopping


async def test_what_waits_in_the_queue_is_served() -> None:
    """Connections that the kernel took before the server could are not lost when it stops."""
    async with served(LINGER) as site:
        address = site.server.address
        opened = [await asyncio.open_connection(*address) for _ in range(3)]
        await asyncio.sleep(0)
        stopping = asyncio.create_task(site.server.stop(5.0))
        for reader, writer in opened:
            writer.write(GET)
            assert (await Client(reader, writer).answer()).status == 200
            writer.close()
        await stopping


async def test_what_cannot_finish_is_told() -> None:
    """After the grace a stream ends with an error event, a plain request with 503 that says when to come again."""
    backend = ScriptedBackend()
    backend.script = [Output(tokens=ids("half")), asyncio.Event()]
    server = HttpServer(create_app(backend, FrontendMetrics(), ApiSettings()), bind("127.0.0.1", 0))
    await server.start()
    async with httpx.AsyncClient(base_url=f"http://{server.address}", verify=False) as http:
        body = {"model": "tiny", "prompt": "hi"}
        asked = [http.post("/v1/completions", json=body | {"stream": stream}) for stream in (True, False)]
        answers = [asyncio.create_task(each) for each in asked]
        await eventually(lambda: len(backend.requests) == 2, "requests under way")
        await server.stop(0.1)
        stream, plain = await asyncio.gather(*answers)
    assert json.loads(stream.text.strip().split("\n\n")[-1].removeprefix("data: "))["error"]["code"] == "unavailable"
    assert "[DONE]" not in stream.text
    assert (plain.status_code, plain.headers["retry-after"]) == (503, "1")
    assert plain.headers["connection"] == "close"
