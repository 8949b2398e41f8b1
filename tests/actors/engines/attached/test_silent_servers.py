"""Servers without cache events: their cache is assumed from what they were sent; servers of no known kind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer

from actors.engines.attached.attached_engine import AttachedEngine
from actors.engines.attached.server_profile import ServerOptions
from actors.engines.engine import CacheChange, CacheStored
from actors.kv_cache.cache_mirror import CacheMirror
from core.errors import CallerError, EngineDead
from core.generation import GenerateRequest, Sampling
from core.ids import RequestId, new_id
from core.prompt import Prompt, hashes_from_bytes, tokens_to_bytes
from tests.fixtures.fake_sglang_server import FakeSglangServer
from tests.fixtures.fake_vllm_server import BLOCK_SIZE, BLOCKS, CONTEXT, FakeVllmServer

SEED = 3
OPENAI = {"engine": "openai", "cache": "assumed", "cache_blocks": 50}


@pytest.fixture
async def server(tiny_checkpoint: Path) -> AsyncIterator[FakeVllmServer]:
    tokenizer = Tokenizer.from_file(str(tiny_checkpoint / "tokenizer.json"))
    server = FakeVllmServer(lambda text: tokenizer.encode(text, add_special_tokens=False).ids, str(tiny_checkpoint))
    await server.open()
    server.tell_events = False
    server.answers["/kv_event_sources"] = (200, b"{}")
    yield server
    await server.close()


def asked(tokens: list[int], max_tokens: int = 3, salt: str | None = None) -> GenerateRequest:
    sampling = Sampling(max_tokens=max_tokens)
    return GenerateRequest(id=RequestId(new_id()), tokens=tokens_to_bytes(tokens), sampling=sampling, cache_salt=salt)


async def refusal_of(server: FakeVllmServer, **options: Any) -> str:
    """The sentence with which an engine does not attach it."""
    engine = AttachedEngine("tiny", ServerOptions(server.url, **options))
    with pytest.raises(CallerError) as caught:
        await engine.start(lambda _: None)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def held(changes: list[CacheChange]) -> set[int]:
    mirror = CacheMirror(BLOCK_SIZE, SEED)
    for change in changes:
        mirror.apply(change)
    return set(mirror.held("device"))


def hashes(tokens: list[int]) -> set[int]:
    return set(hashes_from_bytes(Prompt(tokens_to_bytes(tokens), BLOCK_SIZE, SEED).hashes()))


async def test_a_vllm_server_without_events(server: FakeVllmServer) -> None:
    """Its cache is what it was sent: a prompt from its first token on, an answer from its last one on."""
    assert "or attach it with `cache: assumed`" in await refusal_of(server)
    changes: list[CacheChange] = []
    engine = AttachedEngine("tiny", ServerOptions(server.url, cache="assumed"))
    await engine.start(changes.append)
    assert (engine.info.engine, engine.info.assumed) == ("vllm 0.32.0, attached", True)
    assert (engine.info.block_size, engine.info.capacity_blocks) == (BLOCK_SIZE, BLOCKS)
    assert not changes, "the trial's block is of no use"
    prompt = [*range(40)]
    async with aclosing(engine.generate(asked(prompt, 24))) as outputs:  # type: ignore[type-var]
        await anext(outputs)
        assert held(changes) == hashes(prompt)
        async for _ in outputs:
            pass
    assert held(changes) == hashes([*range(63)]), "but for the last token, which would fill a block"
    async for _ in engine.generate(asked(prompt, 2, salt="own")):
        pass
    (salted,) = [change for change in changes if isinstance(change, CacheStored) and change.cache_salt]
    assert salted.cache_salt == "own"
    await engine.settle()
    await engine.check()
    server.restart()
    async with asyncio.timeout(5):
        while not engine._dead:
            await asyncio.sleep(0.05)
    with pytest.raises(EngineDead, match="started again"):
        await engine.check()
    await engine.stop()


async def test_an_older_vllm(server: FakeVllmServer) -> None:
    """One that does not know `/kv_event_sources` has one rank."""
    server.answers["/kv_event_sources"] = (404, b"{}")
    assert "or attach it with `cache: assumed`" in await refusal_of(server)
    engine = AttachedEngine("tiny", ServerOptions(server.url, cache="assumed"))
    await engine.start(lambda _: None)
    await engine.stop()
    assert (engine.info.group, engine.info.rank) == ("", None)


async def test_an_sglang_server_without_events(server: FakeVllmServer) -> None:
    """It does not show that it keeps salts apart, so these are refused."""
    silent = FakeSglangServer(server._tokenize, server.root)
    await silent.open()
    silent.info["kv_events"] = None
    changes: list[CacheChange] = []
    engine = AttachedEngine("tiny", ServerOptions(silent.url, cache="assumed"))
    await engine.start(changes.append)
    async for _ in engine.generate(asked([*range(40)])):
        pass
    assert held(changes) == hashes([*range(40)])
    with pytest.raises(CallerError, match="apart: leave cache_salt out"):
        await anext(engine.generate(asked([1], salt="own")))
    await engine.stop()
    await silent.close()


async def test_a_server_of_no_known_kind(server: FakeVllmServer) -> None:
    """Token ids both ways are enough; sizes are told, its requests are ours, and it lives while it serves its model."""
    for path in ("/version", "/metrics", "/tokenize", "/health"):
        server.answers[path] = (404, b"")
    model = {"id": "served", "object": "model", "owned_by": "somebody"}
    server.answers["/v1/models"] = (200, json.dumps({"data": [model]}).encode())
    assert "attach it with `engine: openai`" in await refusal_of(server)
    assert "give it, --context" in await refusal_of(server, **OPENAI)
    assert "--cache-blocks" in await refusal_of(server, **OPENAI | {"cache_blocks": 0, "context_max": CONTEXT})
    assert "`cache: assumed`" in await refusal_of(server, **OPENAI | {"cache": "reported", "context_max": CONTEXT})
    assert "--tokenizer" in await refusal_of(server, **OPENAI, context_max=CONTEXT)
    changes: list[CacheChange] = []
    options = ServerOptions(server.url, **OPENAI, context_max=CONTEXT, tokenizer=server.root, slots=1)  # type: ignore[arg-type]
    engine = AttachedEngine("tiny", options)
    await engine.start(changes.append)
    info = engine.info
    assert (info.engine, info.assumed, info.block_size) == ("openai somebody, attached", True, BLOCK_SIZE)
    assert (info.capacity_blocks, info.context_max) == (50, CONTEXT)
    assert "cache_salt" not in server.bodies[-1]
    server.token_delay_s = 0.05
    both = [engine.generate(asked([*range(40 + at)], 3)) for at in range(2)]
    for outputs in both:
        await anext(outputs)
    load = engine.load()
    assert (load.running, load.waiting, load.blocks_used, load.blocks_total) == (1, 1, 0, 50)
    for outputs in both:
        async for _ in outputs:
            pass
    assert hashes([*range(40)]) <= held(changes)
    with pytest.raises(CallerError, match="apart: leave cache_salt out"):
        await anext(engine.generate(asked([1], salt="own")))
    await engine.check()
    server.answers["/v1/models"] = (503, b"")
    with pytest.raises(EngineDead, match="GET /v1/models gives 503"):
        await engine.check()
    await engine.stop()


async def test_a_server_that_takes_or_gives_text_only(server: FakeVllmServer) -> None:
    """It is refused with that reason."""
    given = OPENAI | {"tokenizer": server.root}
    objection = {"error": {"message": "prompt: a string is wanted", "code": 400}}
    server.answers["/v1/completions"] = (400, json.dumps(objection).encode())
    assert "does not complete token ids: prompt: a string is wanted" in await refusal_of(server, **given)
    del server.answers["/v1/completions"]
    data = b'data: {"choices": [{"text": "a", "finish_reason": "length"}]}\n\n'
    server.raw = f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
    assert "answers in text, without the ids of its tokens" in await refusal_of(server, **given)


async def test_an_answer_that_is_broken_off(server: FakeVllmServer) -> None:
    """The prompt was computed, so it is taken to be cached; the answer is not."""
    changes: list[CacheChange] = []
    engine = AttachedEngine("tiny", ServerOptions(server.url, cache="assumed"))
    await engine.start(changes.append)
    server.token_delay_s = 0.01
    request = msgspec.structs.replace(asked([*range(32)], 100))
    async with aclosing(engine.generate(request)) as outputs:  # type: ignore[type-var]
        for _ in range(20):
            await anext(outputs)
    assert held(changes) == hashes([*range(32)])
    await engine.stop()
