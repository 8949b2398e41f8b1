"""Two stock `vllm serve` behind one deployment, as engines of its workers."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from core.events import RequestFinished, RequestMigrated, RequestPrefilled, RequestRouted, WorkerJoined
from core.events.routing import CACHED_UNKNOWN
from tests.e2e.deployment import Running, contrail, up
from tests.fixtures.eventually import eventually
from tests.fixtures.fake_sglang_server import FakeSglangServer
from tests.fixtures.fake_vllm_server import BLOCK_SIZE, FakeVllmServer
from tests.fixtures.vllm_server import VllmServer

TALKS = 3
TURNS = 5
ANSWER_TOKENS = 16
ANSWER_TOKENS_LONG = 800
"""Of a stream that a server's end breaks off."""
STREAMS = 8
REJOIN_S = 2.0
"""From the server's first answer to its worker's joining."""
CHECKS_S = 2.0
"""For a server that was started again and never was away: a reading of its numbers, and a check of the watchdog."""


@asynccontextmanager
async def servers(model: Path) -> AsyncIterator[list[VllmServer]]:
    """Two that answer."""
    both = [VllmServer(model, "--enable-prompt-tokens-details") for _ in range(2)]
    try:
        for server in both:
            server.start()
        await asyncio.gather(*(server.ready() for server in both))
        yield both
    finally:
        for server in both:
            await asyncio.to_thread(server.close)


async def test_conversations_and_a_killed_server(tmp_path: Path, tiny_checkpoint: Path) -> None:
    """Follow-ups go where their prefix is, predicted equals cached, and text equals the server's own; streams outlive a
    server, and the worker of its next start joins by itself with an empty cache."""
    async with servers(tiny_checkpoint) as both:
        group = {"name": "gpu", "served_name": "tiny", "attach": {"urls": [server.url for server in both], "slots": 32}}
        file = tmp_path / "up.yaml"
        file.write_text(json.dumps({"version": 1, "workers": [group]}))
        async with up(tmp_path / "data", "-f", str(file)) as running:
            assert {part["name"] for part in running.run()["parts"] if part["kind"] == "worker"} == {"gpu-0", "gpu-1"}
            await _converse(running, both[0])
            await _outlive_a_server(running, both[0])
            assert contrail("replay", "verify", "--data", str(running.data)).returncode == 0


async def _converse(running: Running, server: VllmServer) -> None:
    talks: dict[int, list[dict[str, str]]] = {
        talk: [{"role": "user", "content": f"Talk {talk}: tell me of the number {7919 * (talk + 1)}, please. " * 6}]
        for talk in range(TALKS)
    }
    asked: dict[str, tuple[int, int]] = {}
    said: list[tuple[list[dict[str, str]], str]] = []

    async def say(talk: int, turn: int) -> None:
        messages = talks[talk]
        wanted: dict[str, Any] = {
            "model": "tiny", "messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": 0
        }  # fmt: skip
        raw = await running.openai.chat.completions.with_raw_response.create(**wanted)
        answer: Any = raw.parse()
        text = answer.choices[0].message.content or ""
        cached = answer.usage.prompt_tokens_details.cached_tokens
        assert (cached > 0) == (turn > 0)
        asked[raw.headers["x-request-id"]] = (talk, cached)
        said.append(([*messages], text))
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"Turn {turn}, go on."}]

    await asyncio.gather(*(say(talk, 0) for talk in talks))  # at once, so that both workers get some
    await running.assert_index_is_cache()
    for turn in range(1, TURNS):
        for talk in talks:
            await say(talk, turn)
        await running.assert_index_is_cache()
    for before, text in said:
        assert await asyncio.to_thread(_directly, server, before) == text
    routing = [event for event in await running.events("routing") if getattr(event, "request", None) in asked]
    routed = {event.request: event for event in routing if isinstance(event, RequestRouted)}
    finished = {event.request: event for event in routing if isinstance(event, RequestFinished)}
    first = [event for event in routing if isinstance(event, RequestPrefilled)]
    assert first
    for event in first:  # an answer that came as a whole has the count at once
        assert event.cached_tokens in {CACHED_UNKNOWN, asked[event.request][1]}
    for request, (_, cached) in asked.items():
        assert routed[request].predicted_cached_tokens == cached == finished[request].cached_tokens
    for talk in range(TALKS):
        assert len({routed[request].worker for request, (of, _) in asked.items() if of == talk}) == 1
    assert len({event.worker for event in routed.values()}) == 2
    explained = contrail("explain", next(reversed(asked)), "--data", str(running.data)).stdout
    assert "as predicted" in explained


def _directly(server: VllmServer, messages: list[dict[str, str]]) -> str:
    """The server's own answer, under a salt of its own: it leaves nothing that a talk could use."""
    body = {
        "model": "tiny", "messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": 0, "cache_salt": "directly"
    }  # fmt: skip
    request = urllib.request.Request(
        f"{server.url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return str(found["choices"][0]["message"]["content"])


async def _outlive_a_server(running: Running, server: VllmServer) -> None:
    async def ask(number: int) -> str:
        stream = await running.openai.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": f"Stream {number}, count."}],
            max_tokens=ANSWER_TOKENS_LONG, temperature=0, stream=True, extra_body={"ignore_eos": True},
        )  # fmt: skip
        text = ""
        async for chunk in stream:
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
            if text:
                begun.add(number)
        return text

    begun: set[int] = set()
    whole = await asyncio.gather(*map(ask, range(STREAMS)))
    before = running.part("gpu-0")["id"]
    begun.clear()
    streams = [asyncio.create_task(ask(number)) for number in range(STREAMS)]
    await eventually(lambda: len(begun) == STREAMS, "text of each")
    assert running.state("gpu-0")["requests"]
    await asyncio.to_thread(server.kill)
    assert await asyncio.gather(*streams) == whole
    migrated = [event for event in await running.events("routing") if isinstance(event, RequestMigrated)]
    assert migrated
    server.start()
    await server.ready()
    answered = time.monotonic()
    await eventually(lambda: running.part("gpu-0").get("id") not in {None, before}, "the new worker", 30)
    assert time.monotonic() - answered < REJOIN_S
    await eventually(lambda: running.state("gpu-0")["blocks"] == 1, "its trial alone")
    joined = [event for event in await running.events("kv_0") if isinstance(event, WorkerJoined)]
    assert [event.name for event in joined].count("gpu-0") == 2
    assert await asyncio.gather(*map(ask, range(STREAMS))) == whole
    await running.assert_index_is_cache()


async def test_a_server_that_was_started_again_is_another_worker(tmp_path: Path, tiny_checkpoint: Path) -> None:
    """The process of its worker stays; the worker has another id and an empty cache. A server that cannot be attached
    is named in one sentence. Beside it servers of other kinds are served."""
    tokenizer = Tokenizer.from_file(str(tiny_checkpoint / "tokenizer.json"))

    def tokenize(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    server, sglang = (kind(tokenize, str(tiny_checkpoint)) for kind in (FakeVllmServer, FakeSglangServer))
    silent = FakeVllmServer(tokenize, str(tiny_checkpoint))
    silent.tell_events = False
    for each in (server, sglang, silent):
        await each.open()
    openai = {"urls": [silent.url], "engine": "openai", "cache": "assumed", "cache_blocks": 20}
    groups = [
        {"name": "gpu", "served_name": "tiny", "attach": {"urls": [server.url]}},
        {"name": "sgl", "served_name": "tiny-sgl", "attach": {"urls": [sglang.url]}},
        {"name": "any", "served_name": "tiny-any", "attach": openai},
    ]
    file = tmp_path / "up.yaml"
    file.write_text(json.dumps({"version": 1, "workers": groups}))
    try:
        async with up(tmp_path / "data", "-f", str(file)) as running:
            before = running.part("gpu-0")
            await running.openai.completions.create(model="tiny", prompt="one " * 60, max_tokens=3)
            await eventually(lambda: running.state("gpu-0")["blocks"] > 1, "its blocks")
            server.restart(2.5)
            begun = time.monotonic()
            await eventually(lambda: running.part("gpu-0")["id"] != before["id"], "the new worker", 30)
            assert time.monotonic() - begun < REJOIN_S + CHECKS_S
            assert running.part("gpu-0")["pid"] == before["pid"]
            await eventually(lambda: running.state("gpu-0")["blocks"] == 1, "its trial alone")
            await running.openai.completions.create(model="tiny", prompt="one " * 60, max_tokens=3)
            await eventually(lambda: running.state("gpu-0")["blocks"] > 1, "its blocks")
            await running.assert_index_is_cache()
            joined = [event for event in await running.events("kv_0") if isinstance(event, WorkerJoined)]
            assert sorted(event.name for event in joined) == ["any-0", "gpu-0", "gpu-0", "sgl-0"]
            assert {event.engine for event in joined if event.assumed is True} == {"openai vllm, attached"}
            await _serve_other_kinds(running)
            server.answers["/kv_event_sources"] = (200, b"{}")
            words = ("attach", "--data", str(running.data), "--model", "tiny", "--url", server.url, "--name", "gpu-9")
            refused = await asyncio.to_thread(contrail, *words)
            assert refused.returncode != 0
            assert "tells no cache events: start it with --kv-events-config '{" in refused.stderr.splitlines()[-1]
    finally:
        for each in (server, sglang, silent):
            await each.close()


async def _serve_other_kinds(running: Running) -> None:
    """Each answers, its second answer is predicted to find the first one's blocks, and the decisions verify."""
    for model in ("tiny-sgl", "tiny-any"):
        asked = []
        for _ in range(2):
            raw = await running.openai.completions.with_raw_response.create(
                model=model, prompt="two " * 60, max_tokens=3
            )
            asked.append(raw.headers["x-request-id"])
            await running.assert_index_is_cache()
        routing = [event for event in await running.events("routing") if getattr(event, "request", None) == asked[1]]
        (routed,) = [event for event in routing if isinstance(event, RequestRouted)]
        (finished,) = [event for event in routing if isinstance(event, RequestFinished)]
        assert routed.predicted_cached_tokens >= 3 * BLOCK_SIZE
        if model == "tiny-sgl":
            assert finished.cached_tokens == routed.predicted_cached_tokens
    assert contrail("replay", "verify", "--data", str(running.data)).returncode == 0
    assert "cache assumed" in contrail("replay", "at", asked[1], "--data", str(running.data)).stdout
