"""Adapters (LoRA) of a stock `vllm serve`, asked through a worker that is attached to it; its decisions are proved."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from actors.engines.attached.attached_engine import AttachedEngine
from actors.engines.attached.server_profile import ServerOptions
from actors.metrics.frontend_metrics import FrontendMetrics
from api.app import create_app
from api.auth.access_policy import AccessPolicy
from api.openai.adapter_routes import OperatorAccess
from api.server.http_server import HttpServer
from api.server.limits import ApiSettings
from api.server.sockets import bind
from core.events import RequestFinished, RequestRouted
from core.subjects import ROUTING
from tests.actors.world import world
from tests.api.test_adapters import TOKEN, cached, holders, proved
from tests.fixtures.engines import make_adapter
from tests.fixtures.eventually import eventually
from tests.fixtures.vllm_server import BLOCK_SIZE, VllmServer

import httpx  # isort: skip

RUNTIME = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
PROMPT = "Tell me of the tides, of the moon and of the shore. " * 4
ANSWER = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "ignore_eos": True}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(tiny_checkpoint: Path) -> AsyncIterator[VllmServer]:
    """One that takes adapters while it serves."""
    flags = "--enable-prompt-tokens-details", "--enable-lora", "--max-loras", "2"
    server = VllmServer(tiny_checkpoint, *flags, variables=RUNTIME)
    try:
        server.start()
        await server.ready()
        yield server
    finally:
        await asyncio.to_thread(server.close)


def directly(server: VllmServer, model: str) -> str:
    """The server's own answer, under a salt of its own: it leaves nothing that others could use."""
    body = json.dumps({"model": model, **ANSWER, "cache_salt": "directly"}).encode()
    sent = urllib.request.Request(f"{server.url}/v1/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(sent, timeout=60) as answer:
        return text_of(json.load(answer))


def text_of(answer: dict[str, Any]) -> str:
    """Without the rest of a character that is not whole, which the server leaves out."""
    return str(answer["choices"][0]["text"]).rstrip("\ufffd")


def names(server: VllmServer) -> set[str]:
    with urllib.request.urlopen(f"{server.url}/v1/models", timeout=60) as answer:
        return {each["id"] for each in json.load(answer)["data"]}


async def test_two_adapters_beside_plain_requests(server: VllmServer, tmp_path: Path) -> None:
    """Each has the server's own text, and finds its own blocks alone, as predicted. One is loaded by an operator, its
    weights are replaced, and it is unloaded. The server has none when the worker has ended."""
    law = str(make_adapter(tmp_path / "law", 1))
    sql = str(make_adapter(tmp_path / "sql", 2))
    engine = AttachedEngine("tiny", ServerOptions(server.url, slots=32), {"law": law})
    async with world() as it:
        worker = await it.worker("gpu-0", engine=engine)
        router = await it.router()
        await it.ready(router)
        app = create_app(
            router, FrontendMetrics(), ApiSettings(), policy=AccessPolicy(keyring=None),
            operators=OperatorAccess(router, "secret"),
        )  # fmt: skip
        http_server = HttpServer(app, bind("127.0.0.1", 0))
        async with httpx.AsyncClient(base_url=f"http://{await http_server.start()}", headers=TOKEN, timeout=60) as http:

            async def ask(model: str) -> dict[str, Any]:
                answer = await http.post("/v1/completions", json={"model": model, **ANSWER})
                assert answer.status_code == 200, answer.text
                await it.settled(router)
                await engine.settle()
                found: dict[str, Any] = answer.json()
                return found

            async def change(what: str, **body: str) -> dict[str, Any]:
                answer = await http.post(f"/v1/{what}_lora_adapter", json={"lora_name": "sql", **body})
                assert answer.status_code == 200, answer.text
                found: dict[str, Any] = answer.json()
                return found

            loaded = (await change("load", lora_path=sql))["workers"]["gpu-0"]
            ids = {"tiny": "tiny", "sql": loaded, "law": await holders(router, "law", 1)}
            assert names(server) == {*ids.values()}
            texts: dict[str, str] = {}
            for again in (False, True):
                for model, own in ids.items():
                    answer = await ask(model)
                    text = text_of(answer)
                    assert texts.setdefault(model, text) == text
                    assert text == await asyncio.to_thread(directly, server, own), model
                    blocks = answer["usage"]["prompt_tokens"] // BLOCK_SIZE * BLOCK_SIZE
                    assert cached(answer) == (blocks if again else 0), model
            assert len({*texts.values()}) == 3
            for refused in (ids["sql"], "alpha"):
                assert (await http.post("/v1/completions", json={"model": refused, **ANSWER})).status_code == 404
            make_adapter(tmp_path / "sql", 3)
            replaced = (await change("load", lora_path=sql))["workers"]["gpu-0"]
            assert replaced != loaded
            await eventually(lambda: names(server) == {"tiny", replaced, ids["law"]}, "the old one is gone")
            answer = await ask("sql")
            assert cached(answer) == 0
            assert text_of(answer) == await asyncio.to_thread(directly, server, replaced)
            assert text_of(answer) not in texts.values()
            await change("unload")
            await eventually(lambda: [each.name for each in router.card("tiny").adapters] == ["law"], "none")
            assert (await http.post("/v1/completions", json={"model": "sql", **ANSWER})).status_code == 404
            fault = await http.post("/v1/load_lora_adapter", json={"lora_name": "no", "lora_path": str(tmp_path)})
            assert "is no adapter: it has no file of weights" in fault.json()["error"]["message"]
        await http_server.stop(grace_s=1)
        routed = {event.request: event for event in await it.told(ROUTING, RequestRouted)}
        ended = [event for event in await it.told(ROUTING, RequestFinished) if event.request in routed]
        assert len(ended) == 7
        for event in ended:
            assert event.cached_tokens == routed[event.request].predicted_cached_tokens
        assert (await proved(it, tmp_path)).verified == 7
        assert worker.describe()["adapters"] == [ids["law"]]
    assert await asyncio.to_thread(names, server) == {"tiny"}


async def test_killed_and_started_again(server: VllmServer, tmp_path: Path) -> None:
    """The next start has the adapters before it serves here; its text is the same, from an empty cache."""
    engine = AttachedEngine("tiny", ServerOptions(server.url), {"law": str(make_adapter(tmp_path / "law", 1))})
    await engine.start(lambda _: None)
    assert engine.adapters is not None
    (copy,) = engine.adapters.served()
    before = await asyncio.to_thread(directly, server, copy.id)
    server.kill()
    await engine.stop()
    server.start()
    await server.ready()
    assert names(server) == {"tiny"}
    after = engine.successor()
    await after.start(lambda _: None)
    assert names(server) == {"tiny", copy.id}
    assert await asyncio.to_thread(directly, server, copy.id) == before
    await after.stop()
