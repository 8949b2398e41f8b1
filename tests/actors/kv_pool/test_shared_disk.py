"""Two vLLM workers with one disk: a prompt that one computed is read by the other, also after the first is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from actors.kv_objects.write_credit import read_local
from actors.kv_pool.shared_pool import CLAIMS, SharedPool
from actors.router.router import Router
from actors.worker.worker import Worker
from core.events import RequestRouted
from core.generation import GenerateRequest
from core.ids import WorkerId, new_id
from core.prompt import Prompt, scope_bytes
from core.settings import RoutingSettings
from core.subjects import ROUTING
from projections.folds.state import NO_OVERLAP
from tests.actors.engines.vllm.test_disk_tier import BLOCKS, DEVICE_BLOCKS, LENGTH, again, engine_over
from tests.actors.engines.vllm.test_host_tier import SIZE
from tests.actors.world import KEY, World, collect, world
from tests.contracts.engine import answer_to, prompt, request
from tests.fixtures.engines import RecordedEngine
from tests.fixtures.eventually import eventually
from tests.fixtures.s3_server import S3Server

PROMPTS = 4


async def answer(router: Router, asked: GenerateRequest) -> tuple[list[int], int]:
    """Tokens, and how many of the prompt's came from the cache."""
    tokens, outputs = await collect(router, again(asked), "tiny")
    return tokens, next(each.cached_tokens for each in outputs if each.cached_tokens is not None)


def levels(router: Router, worker: Worker, asked: GenerateRequest) -> tuple[int, ...]:
    whole = Prompt(asked.tokens, SIZE, KEY.hash_seed, scope_bytes(asked.adapter, asked.cache_salt))
    return router.state.reported(whole).get(WorkerId(worker.current_publisher().id), NO_OVERLAP)


def pool_of(worker: Worker) -> SharedPool:
    assert isinstance(worker.pool, SharedPool)
    return worker.pool


async def kill(it: World, name: str) -> None:
    """Worker and engine are gone without a word; their leases run out."""
    worker = it.workers[name]
    pool = pool_of(worker)
    assert isinstance(worker.engine, RecordedEngine)
    for pid in worker.engine._processes.pids:
        os.kill(pid, signal.SIGKILL)
    if pool.keeper is not None:
        await pool.keeper.publisher.end()
    dead = await it.crash(name)
    it.store.expire(f"workers/{dead}")
    it.store.expire(f"{CLAIMS}{pool.id}")


@pytest.mark.parametrize("locality", ["local", "remote", "s3"])
async def test_the_other_worker_has_the_blocks_of_a_killed_one(
    tiny_checkpoint: Path, tmp_path: Path, locality: str, s3: S3Server
) -> None:
    """The first computes prompts, and is killed while it computes another one. The second keeps the pool then; it finds
    what is predicted, its texts are those of cold, and what it writes is announced, too."""
    local = tmp_path if locality != "local" else None
    objects = s3.place() if locality == "s3" else None
    on_disk = 0 if local else BLOCKS
    async with world() as it:
        first = await it.worker(
            "decode-0",
            engine=engine_over(tiny_checkpoint, tmp_path / "kv", writer=new_id(), local=local, objects=objects),
        )
        router = await it.router(settings=RoutingSettings(policy="kv"))
        await it.ready(router)
        if objects is not None:
            await eventually(lambda: read_local(first.engine._shared) > 0, "it may write")  # type: ignore[attr-defined]
        asked = [request(prompt(LENGTH), 8) for _ in range(PROMPTS)]
        cold = [(await answer(router, each))[0] for each in asked]
        for _ in range((DEVICE_BLOCKS + SIZE) // BLOCKS):
            await answer(router, request(prompt(LENGTH), 2))
        second = await it.worker(
            "decode-1",
            engine=engine_over(tiny_checkpoint, tmp_path / "kv", writer=new_id(), local=local, objects=objects),
        )
        await it.ready(router, workers=2)
        for each in asked:
            await eventually(lambda each=each: levels(router, second, each) == (0, 0, on_disk, BLOCKS), "known")  # type: ignore[misc]
        assert pool_of(first).keeper is not None

        under_way = asyncio.ensure_future(answer_to(first.engine, request(prompt(LENGTH), 400)))
        await eventually(lambda: first.engine.load().running > 0, "it computes")
        await kill(it, "decode-0")
        await asyncio.gather(under_way, return_exceptions=True)
        await eventually(lambda: pool_of(second).keeper is not None, "another keeper")
        for each in asked:
            await eventually(lambda each=each: levels(router, second, each) == (0, 0, on_disk, BLOCKS), "by it")  # type: ignore[misc]
        assert [await answer(router, each) for each in asked] == [(tokens, BLOCKS * SIZE) for tokens in cold]
        await eventually(lambda: router.publisher.outbox.idle, "decisions are in the log")
        routed = (await it.told(ROUTING, RequestRouted))[-PROMPTS:]
        assert [event.predicted_cached_tokens for event in routed] == [BLOCKS * SIZE] * PROMPTS
        new = request(prompt(LENGTH), 2)
        await answer(router, new)
        await eventually(lambda: levels(router, second, new)[-1] == BLOCKS, "its own are announced")
        keeper = pool_of(second).keeper
        assert keeper is not None
        await eventually(lambda: keeper.blocks >= (PROMPTS + 1) * BLOCKS, "in the pool, too")
