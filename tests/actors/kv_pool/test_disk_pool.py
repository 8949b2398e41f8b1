"""The disk of a vLLM worker in the index: its blocks are known, never more, and at once in the worker's next life."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from actors.kv_blocks.block_seal import DIGEST_BYTES
from actors.kv_blocks.catalog_records import RECORD_BYTES, tenant_digest
from actors.kv_blocks.pool_folder import CATALOG_FILE
from actors.kv_pool.pool_keeper import PoolKeeper
from actors.router.router import Router
from actors.worker.worker import Worker
from core.events import PoolLost, RequestRouted
from core.generation import GenerateRequest
from core.ids import WorkerId
from core.prompt import TOKEN_BYTES, Prompt, scope_bytes
from core.settings import RoutingSettings
from core.subjects import ROUTING, kv_stream
from projections.folds.state import NO_OVERLAP
from replay.recording.recording import Recording
from replay.verify.verify import verify
from tests.actors.engines.vllm.test_disk_tier import (
    BLOCKS,
    DEVICE_BLOCKS,
    HOST_BLOCKS,
    LENGTH,
    again,
    engine_over,
    quiet,
)
from tests.actors.engines.vllm.test_host_tier import SIZE
from tests.actors.world import KEY, NAMESPACE, World, collect, world
from tests.contracts.engine import prompt, request
from tests.fixtures.engines import RecordedEngine
from tests.fixtures.eventually import eventually
from tests.replay.recorded import archived

PROMPTS = 6
DISK_KEY = b"k" * 32
"""That of `engine_over`."""


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
    def engine(self) -> RecordedEngine:
        assert isinstance(self.worker.engine, RecordedEngine)
        return self.worker.engine

    @property
    def pool(self) -> PoolKeeper:
        assert isinstance(self.worker.pool, PoolKeeper)
        return self.worker.pool

    async def answer(self, asked: GenerateRequest) -> tuple[list[int], int]:
        """Tokens, and how many of the prompt's came from the cache."""
        tokens, outputs = await collect(self.router, again(asked), "tiny")
        cached = next(each.cached_tokens for each in outputs if each.cached_tokens is not None)
        return tokens, cached

    async def told(self, *, listed: bool = True) -> None:
        """The router knows all that the worker's engine holds, and its pool, if its folder is to be listed now."""
        await self.worker.engine.settle()
        if listed:
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


async def stored(served: Served, count: int = PROMPTS) -> list[tuple[GenerateRequest, list[int]]]:
    """Prompts with their cold answers, whose blocks lie on the disk alone."""
    asked = [request(prompt(LENGTH), 8) for _ in range(count)]
    cold = [(await served.answer(each))[0] for each in asked]
    await served.push_out()
    await served.told()
    return list(zip(asked, cold, strict=True))


def file_of(served: Served, asked: GenerateRequest, depth: int) -> Path:
    """The file of that block of the prompt, by the keeper's own catalogue."""
    block = Prompt(asked.tokens, SIZE, KEY.hash_seed, scope_bytes(asked.adapter, asked.cache_salt)).key(depth)
    (name,) = [name for name, entry in served.pool._entries.items() if entry.block == block]
    return served.folder / f"{name.hex()}.kv"


async def test_blocks_on_the_disk_alone_are_known(served: Served) -> None:
    """Predicted for each prompt that left device and host, and found."""
    for asked, tokens in await stored(served):
        assert served.levels(asked) == (0, 0, BLOCKS, BLOCKS)
        assert await served.answer(asked) == (tokens, BLOCKS * SIZE)
    routed = (await served.world.told(ROUTING, RequestRouted))[-PROMPTS:]
    assert [event.predicted_cached_tokens for event in routed] == [BLOCKS * SIZE] * PROMPTS


async def test_predicted_is_never_more(served: Served) -> None:
    """With all tiers in use, prompts in parallel and evictions from device and host all the time."""
    fresh, equal, pooled = random.Random(21), 0, 0
    trunks = [prompt(fresh.randrange(10, 80) * SIZE) for _ in range(12)]

    def cut() -> bytes:
        trunk = fresh.choice(trunks)
        return trunk[: TOKEN_BYTES * fresh.randrange(SIZE, len(trunk) // TOKEN_BYTES)]

    for _ in range(6):
        asked = [request(cut() + prompt(fresh.randrange(SIZE)), fresh.randrange(2, 24)) for _ in range(4)]
        await asyncio.gather(*(served.answer(each) for each in asked))
        for _ in range(3):
            each = request(cut(), 2)
            await served.told()
            device, host, disk, deepest = served.levels(each)
            _, real = await served.answer(each)
            assert device <= host <= disk == deepest
            assert disk * SIZE <= real
            equal, pooled = equal + (disk * SIZE == real), pooled + (disk > host)
    assert pooled, "nothing came from the disk alone"
    assert equal >= 12


async def test_no_more_than_the_host_takes(served: Served) -> None:
    """A prompt on the disk that is longer than half of the host: so much is predicted, and found."""
    longer = request(prompt((HOST_BLOCKS - 10) * SIZE + 5), 8)
    for part in range(30, HOST_BLOCKS, 30):  # in parts, as no more than half of the host is written at once
        await served.answer(request(longer.tokens[: TOKEN_BYTES * part * SIZE]))
        await quiet(served.engine)
    tokens, _ = await served.answer(longer)
    await served.push_out()
    await served.told()
    assert served.levels(longer)[2] == HOST_BLOCKS // 2
    assert await served.answer(longer) == (tokens, HOST_BLOCKS // 2 * SIZE)


async def test_scopes_share_nothing(served: Served) -> None:
    """The same tokens under another salt, and without one."""
    tokens = prompt(LENGTH)
    salted = request(tokens, 8, cache_salt="a tenant's")
    cold, _ = await served.answer(salted)
    await served.push_out()
    await served.told()
    for other in (request(tokens, 8), request(tokens, 8, cache_salt="another's")):
        assert served.levels(other) == (0,) * 4
    assert served.levels(salted) == (0, 0, BLOCKS, BLOCKS)
    assert await served.answer(salted) == (cold, BLOCKS * SIZE)


async def test_one_tenants_blocks_are_erased(served: Served, tmp_path: Path) -> None:
    """While another one's prompts are answered. Its texts are those of cold afterwards, and its blocks are stored
    again; the other one's blocks are found. No decision rests on a block that was erased."""
    asked = {tenant: [request(prompt(LENGTH), 8, cache_salt=f"{tenant}:") for _ in range(2)] for tenant in ("a", "b")}
    cold = {tenant: [(await served.answer(each))[0] for each in asked[tenant]] for tenant in asked}
    await served.push_out()
    await served.told()
    digest = tenant_digest(DISK_KEY, "a")
    assert {each.tenant: each.blocks for each in await served.pool.tenants()}[digest] == 2 * BLOCKS
    answering = asyncio.gather(*(served.answer(each) for each in asked["b"]))
    erased = await served.pool.erase(digest, unknown=True)
    answers = await answering
    assert (erased.blocks, erased.failed, erased.left) == (2 * BLOCKS, 0, 0)
    assert answers == [(tokens, BLOCKS * SIZE) for tokens in cold["b"]]
    assert digest not in {each.tenant for each in await served.pool.tenants()}
    await served.told()
    assert served.levels(asked["a"][0]) == (0,) * 4
    assert [await served.answer(each) for each in asked["a"]] == [(tokens, 0) for tokens in cold["a"]]
    routed = (await served.world.told(ROUTING, RequestRouted))[-2:]
    assert [event.predicted_cached_tokens for event in routed] == [0, 0]
    await served.push_out()
    await served.told()
    for each in (*asked["a"], *asked["b"]):
        assert served.levels(each) == (0, 0, BLOCKS, BLOCKS)
    assert [await served.answer(each) for each in asked["a"]] == [(tokens, BLOCKS * SIZE) for tokens in cold["a"]]
    await served.told()
    path = await archived(served.world.log, NAMESPACE, KEY, tmp_path / "log")
    with Recording.open(path, KEY) as recording:
        found = verify(recording)
    assert (found.holds, found.different) == (True, 0)


async def test_a_file_that_goes_takes_those_behind_it_along(served: Served) -> None:
    """Removed by hand, and refused by the engine for a flipped bit, which only reading shows."""
    (gone, cold), (flipped, cold_too) = await stored(served, 2)
    file_of(served, gone, 4).unlink()
    damaged = file_of(served, flipped, 7)
    content = bytearray(damaged.read_bytes())
    content[-100] ^= 1
    damaged.write_bytes(content)
    await served.told()
    assert served.levels(gone) == (0, 0, 3, 3)
    assert served.levels(flipped) == (0, 0, BLOCKS, BLOCKS)
    assert await served.answer(gone) == (cold, 3 * SIZE)
    assert await served.answer(flipped) == (cold_too, 6 * SIZE)
    await served.push_out()
    await served.told()
    for each, tokens in ((gone, cold), (flipped, cold_too)):  # both were computed and written again
        assert served.levels(each) == (0, 0, BLOCKS, BLOCKS)
        assert await served.answer(each) == (tokens, BLOCKS * SIZE)


async def test_the_next_life_has_them_at_once(served: Served, tiny_checkpoint: Path) -> None:
    """Engine and worker are killed; the next worker has another id. Nothing was asked of it. Of a prompt whose records
    are damaged it knows nothing; the blocks that its engine finds are known again."""
    *found, (damaged, cold) = await stored(served, 3)
    files = [file_of(served, damaged, depth) for depth in range(1, BLOCKS + 1)]
    it, before = served.world, served.worker.current_publisher().id
    await kill(served)
    assert damage_records(served.folder / CATALOG_FILE, files) >= BLOCKS
    await it.worker("decode-0", engine=engine_over(tiny_checkpoint, served.folder))
    await it.ready(served.router)
    assert served.worker.current_publisher().id != before
    for asked, tokens in found:
        await eventually(lambda asked=asked: served.levels(asked) == (0, 0, BLOCKS, BLOCKS), "known")  # type: ignore[misc]
        assert await served.answer(asked) == (tokens, BLOCKS * SIZE)
    await eventually(lambda: len(served.router.state.pools()) == 1, "the end of the pool's source before")
    assert len(await it.told(kv_stream(0), PoolLost)) == 1
    await served.told()
    assert served.levels(damaged) == (0,) * 4
    assert await served.answer(damaged) == (cold, BLOCKS * SIZE)
    await served.push_out()
    await served.told()
    assert served.levels(damaged) == (0, 0, BLOCKS, BLOCKS)


async def kill(served: Served) -> None:
    """The worker is gone without a word, and its engine with it."""
    it = served.world
    for pid in served.engine._processes.pids:
        os.kill(pid, signal.SIGKILL)
    await served.pool.publisher.end()
    dead = await it.crash("decode-0")
    it.store.expire(f"workers/{dead}")


def damage_records(catalog: Path, files: list[Path]) -> int:
    """One bit of each record of these files is another; returns the number of records."""
    names, content = {bytes.fromhex(file.stem) for file in files}, bytearray(catalog.read_bytes())
    places = [at for at in range(0, len(content), RECORD_BYTES) if bytes(content[at : at + DIGEST_BYTES]) in names]
    for at in places:
        content[at + RECORD_BYTES - 1] ^= 1
    catalog.write_bytes(content)
    return len(places)
