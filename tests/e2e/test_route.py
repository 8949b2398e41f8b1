"""A proxy that routes by `/v1/route` and sends requests to attached servers itself, in front of two replicas."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from tokenizers import Tokenizer

from core.events import RequestFinished, RequestPrefilled, RequestRouted
from core.events.routing import CACHED_UNKNOWN, EXPIRED
from tests.e2e.deployment import Running, contrail, up
from tests.fixtures.eventually import eventually
from tests.fixtures.fake_vllm_server import FakeVllmServer

TOKEN = "secret-of-the-proxy"
EXPIRES_S = 5
BLOCK = 16
TALKS, TURNS = 2, 3
CONNECTIONS_MAX = 64
"""Until one of them is accepted by the other replica."""
HEADERS = {"x-contrail-route-token": TOKEN, "x-original-uri": "/v1/completions"}


class Proxy:
    """Everything goes over one connection, and so to one replica."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def route(self, body: dict[str, Any], query: str = "") -> dict[str, Any]:
        answer = await self._http.post(f"/v1/route{query}", json=body, headers=HEADERS)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def report(self, name: str, what: str, **body: Any) -> int:
        answer = await self._http.post(f"/v1/route/{name}/{what}", json=body, headers=HEADERS)
        return answer.status_code

    async def serve(self, body: dict[str, Any], told: dict[str, Any]) -> None:
        """As a proxy does it: the body is sent as it is where it was routed, and reported."""
        status = 0
        async with self._http.stream("POST", f"{told['worker']['url']}/v1/completions", json=body) as answer:
            async for _ in answer.aiter_lines():
                if not status:
                    status = await self.report(told["id"], "first-token")
        assert status == 200
        ended = await self.report(
            told["id"], "end", outcome="length", output_tokens=body["max_tokens"], cached_tokens=BLOCK
        )
        assert ended == 200


@asynccontextmanager
async def attached(model: Path) -> AsyncIterator[list[FakeVllmServer]]:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    both = [
        FakeVllmServer(lambda text: tokenizer.encode(text, add_special_tokens=False).ids, str(model)) for _ in range(2)
    ]
    for server in both:
        await server.open()
    try:
        yield both
    finally:
        for server in both:
            await server.close()


async def test_a_proxy_routes_and_reports(tmp_path: Path, tiny_checkpoint: Path) -> None:
    """Follow-ups go where their prefix is. Each decision is recorded and verified; what is not reported expires."""
    token = tmp_path / "route-token"
    token.write_text(TOKEN)
    async with attached(tiny_checkpoint) as both:
        group = {"name": "gpu", "served_name": "tiny", "attach": {"urls": [server.url for server in both]}}
        frontend = {"replicas": 2, "route": {"token_file": str(token), "expires_after": f"{EXPIRES_S}s"}}
        file = tmp_path / "up.yaml"
        file.write_text(json.dumps({"version": 1, "frontend": frontend, "workers": [group]}))
        async with (
            up(tmp_path / "data", "-f", str(file)) as running,
            httpx.AsyncClient(base_url=running.url, timeout=30) as http,
        ):
            proxy = Proxy(http)
            served = await _converse(running, proxy, [server.url for server in both])
            before = len(await _routed(running))
            dry = await proxy.route({"model": "tiny", "prompt": [7] * 40, "max_tokens": 2}, "?dry=true")
            assert dry["worker"]["url"] in {server.url for server in both}
            expired = await _expire(running, proxy)
            assert len(await _routed(running)) == before + 1  # none of the dry one
            await _explain(running, served, expired)


async def _converse(running: Running, proxy: Proxy, urls: list[str]) -> list[str]:
    """The ids of all that was served."""
    prompts = {talk: [100 * talk + 5] * 5 * BLOCK for talk in range(TALKS)}
    found: list[str] = []
    worker: dict[int, str] = {}
    for turn in range(TURNS):
        bodies = {
            talk: {"model": "tiny", "prompt": prompt, "max_tokens": 3, "stream": True}
            for talk, prompt in prompts.items()
        }
        routed = {talk: await proxy.route(body) for talk, body in bodies.items()}  # both are in flight at once
        for talk, prompt in prompts.items():
            told = routed[talk]
            await proxy.serve(bodies[talk], told)
            assert told["worker"]["url"] in urls
            assert (told["predicted_cached_tokens"] > 0) == (turn > 0), told
            assert worker.setdefault(talk, told["worker"]["id"]) == told["worker"]["id"]
            found.append(told["id"])
            blocks = len(prompt) // BLOCK * BLOCK
            follow_up = {"model": "tiny", "prompt": prompt, "max_tokens": 3}

            async def is_seen(body: dict[str, Any] = follow_up, least: int = blocks - BLOCK) -> bool:
                return bool((await proxy.route(body, "?dry=true"))["predicted_cached_tokens"] >= least)

            async with asyncio.timeout(30):
                while not await is_seen():  # the server's cache events come through the log
                    await asyncio.sleep(0.05)
            prompts[talk] = [*prompt, *([100 * talk + turn + 6] * BLOCK)]
    assert len(set(worker.values())) == 2, "the second one sees the first in flight"
    return found


async def _routed(running: Running) -> list[RequestRouted]:
    return [event for event in await running.events("routing") if isinstance(event, RequestRouted)]


async def _expire(running: Running, proxy: Proxy) -> str:
    """A reservation of which nothing is reported; it is over in the log, and in flight nowhere."""
    told = await proxy.route({"model": "tiny", "prompt": [9] * 40, "max_tokens": 2})
    assert told["expires_after_s"] == EXPIRES_S
    await _report_to_another(running, told["id"])
    assert running.state(told["frontend"])["reservations"] == {"open": 1, "expired": 0}
    await eventually(lambda: running.state(told["frontend"])["reservations"]["expired"] == 1, "it expires", 30)
    await eventually(lambda: not any(running.state(f"frontend-{number}")["in_flight"] for number in range(2)), "rest")
    assert await proxy.report(told["id"], "end", outcome="stop") == 404
    return str(told["id"])


async def _report_to_another(running: Running, name: str) -> None:
    """The other replica says that it does not know the id. The report has more cached tokens than the prompt, so that
    the one that does know it takes nothing from it either."""
    for _ in range(CONNECTIONS_MAX):
        async with httpx.AsyncClient(base_url=running.url, timeout=30) as http:
            wrong = {"cached_tokens": 10**6}
            answer = await http.post(f"/v1/route/{name}/first-token", json=wrong, headers=HEADERS)
            if answer.status_code == 404:
                assert "another front end" in answer.json()["error"]["message"]
                return
            assert answer.status_code == 400, answer.text
    raise AssertionError(f"none of {CONNECTIONS_MAX} connections was accepted by the other replica")


async def _explain(running: Running, served: list[str], expired: str) -> None:
    """The ends are those that were reported, and every decision is made again."""

    async def has_all() -> bool:
        found = await running.events("routing")
        return len([event for event in found if isinstance(event, RequestFinished)]) == len(served) + 1

    async with asyncio.timeout(30):
        while not await has_all():
            await asyncio.sleep(0.2)
    events = await running.events("routing")
    ends = {event.request: event for event in events if isinstance(event, RequestFinished)}
    firsts = {event.request: event for event in events if isinstance(event, RequestPrefilled)}
    assert [(ends[name].outcome, ends[name].output_tokens, ends[name].cached_tokens) for name in served] == [
        ("length", 3, BLOCK)
    ] * len(served)
    assert [firsts[name].cached_tokens for name in served] == [CACHED_UNKNOWN] * len(served)
    assert (ends[expired].outcome, ends[expired].cached_tokens, expired in firsts) == (EXPIRED, CACHED_UNKNOWN, False)
    data = ("--data", str(running.data))
    verified: subprocess.CompletedProcess[str] = await asyncio.to_thread(contrail, "replay", "verify", "--json", *data)
    found = json.loads(verified.stdout)
    assert (found["verified"], found["different"], found["holds"]) == (len(served) + 1, 0, True)
    text = (await asyncio.to_thread(contrail, "explain", expired, *data)).stdout
    assert "expired (reserved) after" in text, text
    listed = await asyncio.to_thread(contrail, "explain", "--outcome", EXPIRED, *data)
    assert expired in listed.stdout
