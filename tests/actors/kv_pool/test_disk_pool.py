"""The disk of a vLLM worker in the index: its blocks are known, never more, and at once in the worker's next life."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from actors.kv_pool.pool_keeper import PoolKeeper
from actors.router.router import Router
from actors.worker.worker import Worker
from core.generation import GenerateRequest
from core.ids import WorkerId
from core.prompt import Prompt, scope_bytes
from core.settings import RoutingSettings
from projections.folds.state import NO_OVERLAP
from tests.actors.engines.vllm.test_disk_tier import BLOCKS, DEVICE_BLOCKS, LENGTH, again, engine_over
from tests.actors.engines.vllm.test_host_tier import SIZE
from tests.actors.world import KEY, World, collect, world
from tests.contracts.engine import prompt, request
from tests.fixtures.eventually import eventually

PROMPTS = 6


@dataclass
class Served:
    """A worker with a disk, and a router."""

    world: World
    router: Router
    folder: Path

    @property
    def worker(self) -> Worker:
        return self.world.workers["decode-0"]

    @property
    def pool(self) -> PoolKeeper:
        assert self.worker.pool is not None
        return self.worker.pool

    async def answer(self, asked: GenerateRequest) -> tuple[list[int], int]:
        """Tokens, and how many of the prompt's came from the cache."""
        tokens, outputs = await collect(self.router, again(asked), "tiny")
        cached = next(each.cached_tokens for each in outputs if each.cached_tokens is not None)
        return tokens, cached

    async def told(self) -> None:
        """The router knows all that the worker's engine and its pool hold."""
        await self.worker.engine.settle()
        await self.pool.refresh()
        await eventually(
            lambda: self.worker.current_publisher().kv.idle and self.pool.publisher.outbox.idle, "all is in the log"
        )
        state, publisher, pool = self.router.state, self.worker.current_publisher(), self.pool.publisher

        def folded() -> bool:
            parts = {source: part for kv in state.kv.values() for source, part in kv.members.items()}
            said = ((WorkerId(publisher.id), publisher.kv), (WorkerId(pool.id), pool.outbox))
            return all(who in parts and parts[who].chain.n_next >= outbox.n_acked for who, outbox in said)

        await eventually(folded, "the router has folded it")

    async def push_out(self) -> None:
        """Neither device nor host has anything of before."""
        for _ in range((DEVICE_BLOCKS + SIZE) // BLOCKS):
            await self.answer(request(prompt(LENGTH), 2))

    def levels(self, asked: GenerateRequest) -> tuple[int, ...]:
        """Blocks of the prompt on the worker, by the router's state."""
        whole = Prompt(asked.tokens, SIZE, KEY.hash_seed, scope_bytes(asked.adapter, asked.cache_salt))
        worker = WorkerId(self.worker.current_publisher().id)
        return self.router.state.reported(whole).get(worker, NO_OVERLAP)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    folder = tmp_path_factory.mktemp("kv") / "decode-0"
    async with world() as it:
        await it.worker("decode-0", engine=engine_over(tiny_checkpoint, folder))
        router = await it.router(settings=RoutingSettings(policy="kv"))
        await it.ready(router)
        yield Served(it, router, folder)


async def test_what_lies_on_the_disk_alone_is_known(served: Served) -> None:
    """Predicted for each prompt that left device and host, and found."""
    asked = [request(prompt(LENGTH), 8) for _ in range(PROMPTS)]
    cold = [(await served.answer(each))[0] for each in asked]
    await served.push_out()
    await served.told()
    for each, tokens in zip(asked, cold, strict=True):
        assert served.levels(each) == (0, 0, BLOCKS, BLOCKS)
        assert await served.answer(each) == (tokens, BLOCKS * SIZE)
