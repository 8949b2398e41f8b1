"""A stock data-parallel server on two ranks: each is an engine, with a cache of its own."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from actors.engines.attached.attached_engine import METRICS_EVERY_S, AttachedEngine
from actors.engines.attached.server_profile import ServerOptions
from actors.engines.engine import CacheChange
from actors.kv_cache.cache_mirror import CacheMirror
from tests.contracts.engine import HASH_SEED, answer_to, prompt, request
from tests.fixtures.vllm_server import BLOCK_SIZE, KV_BLOCKS, VllmServer

FLAGS = ("--data-parallel-size", "2", "--api-server-count", "1", "--enable-prompt-tokens-details")


async def test_two_ranks(tiny_checkpoint: Path) -> None:
    """A prompt is computed, cached and counted by the rank that was asked for it, and by no other."""
    server = VllmServer(tiny_checkpoint, *FLAGS)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, server.close)
        server.start()
        await server.ready()
        engines: list[AttachedEngine] = []
        told: list[list[CacheChange]] = [[], []]
        for rank in (0, 1):
            engine = AttachedEngine("tiny", ServerOptions(server.url, rank=rank))
            await engine.start(told[rank].append)
            stack.push_async_callback(engine.stop)
            engines.append(engine)
        assert {(engine.info.group, engine.info.capacity_blocks) for engine in engines} == {(server.url, KV_BLOCKS)}
        asked = prompt(3 * BLOCK_SIZE + 5)
        answers = [await answer_to(engines[rank], request(asked, 8)) for rank in (1, 0, 1)]
        assert [answer.cached_tokens for answer in answers] == [0, 0, 3 * BLOCK_SIZE]
        assert len({answer.tokens for answer in answers}) == 1
        for engine, changes in zip(engines, told, strict=True):
            await engine.settle()
            mirror = CacheMirror(BLOCK_SIZE, HASH_SEED)
            for change in changes:
                mirror.apply(change)
            assert mirror.reported == 1 + 3, "the trial's, and the prompt's"
        stream = engines[1].generate(request(asked, 2000))
        await anext(stream)
        await asyncio.sleep(2 * METRICS_EVERY_S)
        assert [engine.load().running for engine in engines] == [0, 1]
        await stream.aclose()  # type: ignore[attr-defined]
