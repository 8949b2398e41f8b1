"""A disk that is full all the time, under load: what is predicted is never more than what is read."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio

from core.prompt import TOKEN_BYTES
from core.settings import RoutingSettings
from tests.actors.engines.vllm.test_disk_tier import engine_over
from tests.actors.engines.vllm.test_host_tier import BLOCK_BYTES, SIZE
from tests.actors.kv_pool.test_disk_pool import Served
from tests.actors.world import world
from tests.contracts.engine import prompt, request

DISK_BLOCKS = 240
"""Less than half of the prompts' blocks."""
ROUNDS, PROBES = 20, 3


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    folder = tmp_path_factory.mktemp("kv") / "decode-0"
    async with world() as it:
        size = DISK_BLOCKS * (BLOCK_BYTES + 4096)
        await it.worker("decode-0", engine=engine_over(tiny_checkpoint, folder, disk_bytes=size))
        router = await it.router(settings=RoutingSettings(policy="kv"))
        await it.ready(router)
        yield Served(it, router, folder)


async def test_predicted_is_never_more(served: Served) -> None:
    """The keeper lists the folder at its own times, files go between them, and prompts are asked at any moment. The
    bytes hold, and no file went before the log had its removal."""
    fresh, pooled, equal = random.Random(5), 0, 0
    trunks = [prompt(fresh.randrange(30, 70) * SIZE) for _ in range(14)]

    def cut() -> bytes:
        trunk = fresh.choice(trunks)
        return trunk[: TOKEN_BYTES * fresh.randrange(SIZE, len(trunk) // TOKEN_BYTES)]

    for _ in range(ROUNDS):
        asked = [request(cut() + prompt(fresh.randrange(SIZE)), 2) for _ in range(4)]
        await asyncio.gather(*(served.answer(each) for each in asked))
        for _ in range(PROBES):
            each = request(cut(), 2)
            await served.told(listed=False)
            _, host, disk, deepest = served.levels(each)
            _, real = await served.answer(each)
            assert disk == deepest
            assert disk * SIZE <= real
            pooled, equal = pooled + (disk > host), equal + (disk * SIZE == real)
        assert bytes_of(served.folder) <= DISK_BLOCKS * (BLOCK_BYTES + 4096)
    counts = served.engine.disk_counts()
    assert counts["evictions"] > DISK_BLOCKS // 4
    assert (counts["evictions_unannounced"], counts["stuck"]) == (0, 0)
    assert pooled >= 5
    assert equal >= ROUNDS


def bytes_of(folder: Path) -> int:
    """Of all files of blocks, also of those that go or are written."""
    found = 0
    for file in folder.iterdir():
        if file.suffix in {".kv", ".going", ".new"}:
            with suppress(FileNotFoundError):  # it went, or has its other name: then it is missed
                found += file.stat().st_size
    return found
