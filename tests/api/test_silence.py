"""What clients ask and what they are told stands in no log, no metric and no event."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import generate_latest

from actors.metrics.frontend_metrics import FrontendMetrics
from api.app import create_app
from api.process.logging_setup import JsonLines
from api.server.http_server import HttpServer
from api.server.limits import ApiSettings
from api.server.sockets import bind
from core.generation import Output
from core.ids import StreamSeq
from core.models import GenerationFailed
from core.prompt import tokens_to_bytes
from core.subjects import LOAD, ROUTING, kv_stream
from tests.actors.world import FAST, world
from tests.api.conftest import Api
from tests.api.raw import connected, request, say
from tests.api.scripted import Step, files, ids, spoken

MARK = "Zwölfboxkämpfer"
"""What is looked for; plain, as JSON and as a URL write it, and as tokens."""
MARKS = (MARK, json.dumps(MARK).strip('"'), "Zw%C3%B6lf", "boxk")
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASKED = [{"role": "user", "content": MARK}]
TOOL = {"type": "function", "function": {"name": "look", "description": MARK, "parameters": {MARK: MARK}}}
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": json.dumps({MARK: MARK})}}

BODIES: list[tuple[str, Any]] = [
    (CHAT, {"messages": ASKED}),
    (CHAT, {"messages": ASKED, "stream": True}),
    (CHAT, {"messages": [{"role": MARK, "content": MARK}]}),
    (CHAT, {"messages": ASKED, "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": MARK}}}),
    (CHAT, {"messages": [*ASKED, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": MARK}]}),
    (CHAT, {"messages": ASKED, "response_format": {"type": MARK}}),
    (CHAT, {"messages": ASKED, "response_format": {"type": "json_schema", "json_schema": {"name": MARK}}}),
    (CHAT, {"messages": ASKED, "chat_template_kwargs": {MARK: MARK}}),
    (CHAT, {"messages": ASKED, "stop": [MARK], "user": MARK, "cache_salt": MARK, "bad_words": [MARK]}),
    (CHAT, {"messages": ASKED, "temperature": MARK}),
    (CHAT, {"messages": [{"role": "user", "content": MARK * 200}]}),
    (CHAT, {"messages": ASKED, "model": MARK}),
    (CHAT, {"messages": ASKED, "structured_outputs": {"regex": f"({MARK}"}}),
    (COMPLETIONS, {"prompt": MARK, "echo": True, "logprobs": 2}),
    (COMPLETIONS, {"prompt": MARK, "suffix": MARK}),
    (COMPLETIONS, {"prompt": [*ids(MARK)], "n": 2}),
    ("/v1/responses", {"input": MARK, "instructions": MARK, "metadata": {"a": MARK}}),
    ("/v1/messages", {"messages": ASKED, "system": MARK, "max_tokens": 3}),
    ("/v1/messages/count_tokens", {"messages": ASKED}),
    ("/v1/embeddings", {"input": MARK}),
    ("/tokenize", {"prompt": MARK}),
    ("/detokenize", {"tokens": [*ids(MARK)]}),
]


@pytest.fixture
def everything(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Everything that any of our loggers says, and the server's."""
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger="uvicorn.error")
    return caplog


def silent(text: str) -> None:
    assert not any(mark in text for mark in MARKS), text


def log_lines(caplog: pytest.LogCaptureFixture) -> str:
    """All lines, as a process writes them; those of the client, which is in this process too, left out.

    So is the server's list of requests: it has no handler outside of tests, which is checked.
    """
    assert not logging.getLogger("uvicorn.access").propagate
    others = ("httpx", "httpcore", "openai", "uvicorn.access")
    ours = [record for record in caplog.records if not record.name.startswith(others)]
    return "\n".join(JsonLines().format(record) for record in ours)


FAILURES: tuple[Exception, ...] = (KeyError(MARK), UnicodeError(MARK), GenerationFailed("the worker broke off"))


async def hurt(api: Api) -> None:
    """All bodies, as they are, broken, half sent, with junk around them, and of failures before and after a token."""
    api.backend.script = spoken(MARK)
    for path, body in BODIES:
        await api.http.post(path, json={"model": "tiny", **body})
    for failure in FAILURES:
        scripts: list[list[Step]] = [[failure], [Output(tokens=ids(MARK)), failure]]
        for script in scripts:
            api.backend.script = script
            for path, body in BODIES[:2]:
                try:
                    await api.http.post(path, json={"model": "tiny", **body})
                except httpx.RemoteProtocolError:
                    assert len(script) > 1  # cut in the middle
    text = json.dumps({"model": "tiny", "prompt": MARK}, ensure_ascii=False).encode()
    for raw in (
        request(text[:-1]),
        request(text.replace("ö".encode(), b"\xff")),
        request(line=f"GET /{MARK}?q={MARK} HTTP/1.1"),
        request(line="GET /v1/models/Zw%C3%B6lfboxk HTTP/1.1"),
        request(text, f"x-request-id: {MARK}", f"x-contrail-tenant: {MARK}"),
        request(text, f"authorization: Bearer {MARK}", "traceparent: boxk"),
        MARK.encode() + b"\r\n\r\n",
    ):
        await say(api.server.address, raw)
    api.backend.script = [Output(tokens=ids(MARK)), asyncio.Event()]
    for cut in (len(request(text)) - 5, len(request(text))):
        async with connected(api.server.address) as (_, writer):
            writer.write(request(text)[:cut])
            await writer.drain()
            await asyncio.sleep(0.05)


async def test_logs_and_metrics_say_nothing_of_it(everything: pytest.LogCaptureFixture, api: Api) -> None:
    """At the level that says most, whatever goes wrong."""
    await hurt(api)
    silent(log_lines(everything))
    silent(generate_latest(api.metrics.registry).decode())
    assert "a request failed inside" in log_lines(everything)
    assert "builtins.KeyError" in log_lines(everything)


async def test_the_log_of_decisions_says_nothing_of_it(tmp_path: Path, everything: pytest.LogCaptureFixture) -> None:
    """Of a real router and worker: neither the text nor its tokens, in any stream."""
    for name, content in files().items():
        (tmp_path / name).write_bytes(content)
    settings = dataclasses.replace(FAST, model_path=str(tmp_path), vocab=300)
    async with world() as here:
        await here.worker("decode-0", "tiny", settings)
        router = await here.router()
        await here.ready(router)
        server = HttpServer(create_app(router, FrontendMetrics(), ApiSettings()), bind("127.0.0.1", 0))
        address = await server.start()
        async with httpx.AsyncClient(base_url=f"http://{address}", verify=False) as http:
            answers = [await http.post(path, json={"model": "tiny", "max_tokens": 4, **body}) for path, body in BODIES]
        await server.stop(grace_s=1)
        assert sum(answer.status_code == 200 for answer in answers) > 8
        await here.settled(router)
        streams = (ROUTING, LOAD, kv_stream(0))
        payloads = [record.payload for name in streams async for record in here.log.read(name, StreamSeq(1))]
    assert len(payloads) > 3
    for payload in payloads:
        silent(payload.decode("utf-8", "replace"))
        assert tokens_to_bytes(ids(MARK)) not in payload
    silent(log_lines(everything))
