"""An attached engine against a small server that speaks as TensorRT-LLM does: facts, requests, events, refusals."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from actors.engines.attached import attached_engine, trtllm_profile
from actors.engines.attached.attached_engine import AttachedEngine
from actors.engines.attached.server_profile import ServerOptions
from actors.engines.engine import CacheChange, CacheGap
from actors.kv_cache.cache_mirror import CacheMirror
from core.errors import CallerError, EngineDead
from core.generation import GenerateRequest, Guided, Output, Sampling
from core.ids import RequestId, new_id
from core.models import GenerationFailed
from core.prompt import Prompt, hashes_from_bytes, tokens_to_bytes
from tests.fixtures.eventually import eventually
from tests.fixtures.fake_trtllm_server import EVENTS_PATH, FakeTrtllmServer
from tests.fixtures.fake_vllm_server import BLOCK_SIZE, BLOCKS, CONTEXT

SEED = 3


@pytest.fixture
async def server(tiny_checkpoint: Path) -> AsyncIterator[FakeTrtllmServer]:
    server = FakeTrtllmServer(lambda _: [], str(tiny_checkpoint))
    await server.open()
    yield server
    await server.close()


def options_for(server: FakeTrtllmServer, **options: Any) -> ServerOptions:
    sizes: dict[str, Any] = {
        "context_max": CONTEXT,
        "block_size": BLOCK_SIZE,
        "cache_blocks": BLOCKS,
        "tokenizer": server.root,
    }
    return ServerOptions(server.url, **sizes | options)


@pytest.fixture
async def changes() -> list[CacheChange]:
    return []


@pytest.fixture
async def engine(server: FakeTrtllmServer, changes: list[CacheChange]) -> AsyncIterator[AttachedEngine]:
    engine = AttachedEngine("tiny", options_for(server, slots=8))
    await engine.start(changes.append)
    yield engine
    await engine.stop()


def asked(tokens: list[int], max_tokens: int = 3, salt: str | None = None, **sampling: Any) -> GenerateRequest:
    return GenerateRequest(
        id=RequestId(new_id()),
        tokens=tokens_to_bytes(tokens),
        sampling=Sampling(max_tokens=max_tokens, **sampling),
        cache_salt=salt,
    )


async def outputs_of(engine: AttachedEngine, request: GenerateRequest) -> list[Output]:
    return [output async for output in engine.generate(request)]


async def refusal_of(server: FakeTrtllmServer, **options: Any) -> str:
    """The sentence with which an engine does not attach it."""
    engine = AttachedEngine("tiny", options_for(server, **options))
    with pytest.raises(CallerError) as caught:
        await engine.start(lambda _: None)
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_serves(engine: AttachedEngine) -> None:
    """The kind is found by asking; token ids go both ways, and cached tokens come at the end. Its load is ours."""
    info = engine.info
    assert (info.engine, info.assumed) == ("tensorrt_llm 1.3.0, attached", False)
    assert (info.block_size, info.capacity_blocks, info.context_max) == (BLOCK_SIZE, BLOCKS, CONTEXT)
    for cached in (0, 32):
        outputs = await outputs_of(engine, asked([*range(40)], 4))
        assert [output.tokens for output in outputs] == [(40,), (41,), (42,), (43,)]
        assert [output.finish for output in outputs] == [None, None, None, "length"]
        assert [output.cached_tokens for output in outputs] == [None, None, None, cached]
    async with aclosing(engine.generate(asked([1, 2], 9))) as outputs_now:  # type: ignore[type-var]
        await anext(outputs_now)
        assert (engine.load().running, engine.load().waiting) == (1, 0)
    await engine.check()


async def test_the_mirror_follows_the_cache(
    engine: AttachedEngine, server: FakeTrtllmServer, changes: list[CacheChange]
) -> None:
    """Over requests with evictions, answers included, the mirror holds the prefixes that the server held; predicted
    tokens are those that the server counts."""
    server.capacity = 24
    mirror, fresh, applied = CacheMirror(BLOCK_SIZE, SEED), random.Random(3), 0
    trunks = [[fresh.randrange(200) for _ in range(fresh.randrange(2, 6) * BLOCK_SIZE)] for _ in range(4)]
    for _ in range(8):
        tokens = fresh.choice(trunks) + [fresh.randrange(200) for _ in range(20)]
        prompt = Prompt(tokens_to_bytes(tokens), BLOCK_SIZE, SEED)
        predicted = mirror.overlap(prompt) * BLOCK_SIZE
        outputs = await outputs_of(engine, asked(tokens, 20))
        assert outputs[-1].cached_tokens == predicted
        await engine.settle()
        for change in changes[applied:]:
            mirror.apply(change)
        applied = len(changes)
        expected = {
            Prompt(tokens_to_bytes(prefix), BLOCK_SIZE, SEED).key(len(prefix) // BLOCK_SIZE)
            for _, prefix in server.held
        }
        assert set(mirror.held("device")) == expected
    assert (mirror.strangers, mirror.gaps) == (0, 0)


async def test_everything_of_a_request_is_sent(server: FakeTrtllmServer, engine: AttachedEngine) -> None:
    """Each sampling parameter goes by its name there, the defaults, too; no field that it does not know."""
    request = asked(
        [8, 9], 2, temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, seed=3, stop_token_ids=(1, 2), ignore_eos=True,
        min_tokens=1, presence_penalty=0.2, frequency_penalty=0.3, repetition_penalty=1.1, logit_bias=((4, 1.5),),
        guided=Guided(regex="a+"),
    )  # fmt: skip
    await outputs_of(engine, request)
    assert server.bodies[-1] == {
        "model": "served", "prompt": [8, 9], "stream": True, "stream_options": {"include_usage": True},
        "detokenize": False, "max_tokens": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 3,
        "stop_token_ids": [1, 2], "ignore_eos": True, "min_tokens": 1, "presence_penalty": 0.2,
        "frequency_penalty": 0.3, "repetition_penalty": 1.1, "logit_bias": {"4": 1.5},
        "response_format": {"type": "regex", "regex": "a+"},
    }  # fmt: skip
    guides = {
        Guided(json_schema='{"type": "object"}'): {"type": "json_schema", "json_schema": {"type": "object"}},
        Guided(json_object=True): {"type": "json_object"},
        Guided(grammar="root ::= a"): {"type": "ebnf", "ebnf": "root ::= a"},
    }
    for guided, expected in guides.items():
        await outputs_of(engine, asked([8, 9], guided=guided))
        assert server.bodies[-1]["response_format"] == expected
    for wrong in (
        {"bad_words": ("a",)},
        {"allowed_token_ids": (1,)},
        {"guided": Guided(choices=("a", "b"))},
        {"logprobs": 0},
    ):
        with pytest.raises(CallerError, match="TensorRT-LLM"):
            await outputs_of(engine, asked([8, 9], **wrong))


async def test_what_cannot_be_told_apart(engine: AttachedEngine) -> None:
    """A salt and an adapter are refused: blocks under both look like plain ones."""
    with pytest.raises(CallerError, match="apart: leave cache_salt out"):
        await outputs_of(engine, asked([1, 2], salt="one"))
    request = GenerateRequest(
        id=RequestId("a"), tokens=tokens_to_bytes([1]), sampling=Sampling(max_tokens=1), adapter="a@1"
    )
    with pytest.raises(CallerError, match="does not tell blocks of adapters apart"):
        await outputs_of(engine, request)


async def test_refused_servers(server: FakeTrtllmServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that are not given, no events, another size of blocks, an older server, several groups of layers."""
    assert "give it, --context" in await refusal_of(server, context_max=0)
    assert "give it, --cache-blocks" in await refusal_of(server, cache_blocks=0)
    assert "--tokenizer" in await refusal_of(server, tokenizer="")
    assert "no data-parallel rank 1" in await refusal_of(server, rank=1)
    server.answers[EVENTS_PATH] = (500, b"")
    assert "event_buffer_max_size: 65536" in await refusal_of(server)
    del server.answers[EVENTS_PATH]
    monkeypatch.setattr(attached_engine, "TRIAL_EVENTS_S", 0.3)
    assert "its blocks have 32 tokens (--block-size)" in await refusal_of(server, block_size=32)
    tell = server._tell

    def tell_of_two_windows(data: dict[str, Any]) -> None:
        for window in (512, 128):
            server.event_fields["window_size"] = window
            tell(data)

    monkeypatch.setattr(server, "_tell", tell_of_two_windows)
    assert "several kinds of attention" in await refusal_of(server)
    monkeypatch.setattr(trtllm_profile, "ANSWER_MAX_S", 0.0)
    assert "take a newer one" in await refusal_of(server)


async def test_events_that_are_lost(
    server: FakeTrtllmServer, engine: AttachedEngine, changes: list[CacheChange]
) -> None:
    """A number that is missing, and an answer that does not arrive, forget the cache; blocks to come are learned."""

    def gaps() -> list[str]:
        return [change.detail for change in changes if isinstance(change, CacheGap)]

    server.drop_events(2)
    await server.insert([*range(BLOCK_SIZE)])
    await eventually(lambda: any("dropped, or read by others" in gap for gap in gaps()), "the gap")
    mirror = CacheMirror(BLOCK_SIZE, SEED)
    for change in changes:
        mirror.apply(change)
    assert set(mirror.held("device")) == set(
        hashes_from_bytes(Prompt(tokens_to_bytes([*range(BLOCK_SIZE)]), BLOCK_SIZE, SEED).hashes())
    )
    server.broken = True
    await eventually(lambda: any("may have been lost" in gap for gap in gaps()), "the gap")
    server.broken = False
    await engine.settle()
    assert len(gaps()) == 2
    await engine.check()


async def test_a_new_start(server: FakeTrtllmServer, engine: AttachedEngine) -> None:
    """Numbers that return end the engine; its successor has an empty cache."""
    await engine.check()
    server.restart()
    await server.insert([*range(BLOCK_SIZE)])

    async def dead() -> str:
        try:
            await engine.check()
        except EngineDead as error:
            return str(error)
        return ""

    async with asyncio.timeout(5):
        while not (reason := await dead()):
            await asyncio.sleep(0.01)
    assert "started again" in reason
    await engine.stop()
    found: list[CacheChange] = []
    successor = engine.successor()
    await successor.start(found.append)
    assert len(found) == 1, "the trial's block"
    await successor.stop()


async def test_refused_requests(server: FakeTrtllmServer, engine: AttachedEngine) -> None:
    """Its objections are passed on, in both of its forms."""
    for body, sentence in (
        ({"object": "error", "message": "too long", "type": "BadRequestError", "code": 400}, "too long"),
        ({"error": "1 validation error"}, "1 validation error"),
    ):
        server.answers["/v1/completions"] = (400, json.dumps(body).encode())
        with pytest.raises(CallerError, match=sentence):
            await outputs_of(engine, asked([1, 2]))
    server.answers["/v1/completions"] = (500, b"melted")
    with pytest.raises(GenerationFailed, match="status 500"):
        await outputs_of(engine, asked([1, 2]))


async def test_an_assumed_cache(server: FakeTrtllmServer) -> None:
    """Its events are never asked for."""
    engine = AttachedEngine("tiny", options_for(server, cache="assumed"))
    changes: list[CacheChange] = []
    await engine.start(changes.append)
    await outputs_of(engine, asked([*range(40)]))
    assert (engine.info.assumed, len(changes)) == (True, 1)
    assert not any(EVENTS_PATH in line for line in server.asked)
    await engine.stop()
