"""At every moment, a block that the log has as stored in a pool has a file that can be read."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from actors.kv_blocks.block_file import ALLOCATION_BYTES
from actors.kv_blocks.block_seal import BlockSeal
from actors.kv_blocks.block_store import GOING, HEADROOM_SHARE, BlockStore
from actors.kv_blocks.disk_counts import DiskCounts
from actors.kv_blocks.keeper_lease import KeeperLease
from actors.kv_blocks.pool_folder import PoolFolder
from actors.kv_cache.cache_mirror import NamedBlock
from actors.kv_pool import pool_keeper
from core.clock import SystemClock
from streams.memory.memory_log import MemoryLog
from tests.actors.kv_blocks.test_pool_folder import KIND, name, shared_by
from tests.actors.kv_pool.test_pool_keeper import KV, WORKER, Kept

PAYLOAD_BYTES = 5000
FILE_BYTES = 2 * ALLOCATION_BYTES
PROMPTS, DEPTH = 12, 5
BLOCKS_MAX = 2 * HEADROOM_SHARE
STEPS = 120


class Disk:
    """One worker's disk: its engine's store and its keeper, over one log."""

    def __init__(self, folder: Path, log: MemoryLog) -> None:
        self.folder, self.log = folder, log
        self.counts = DiskCounts(folder.with_suffix(".counts"))
        self.tasks: list[asyncio.Task[None]] = []
        self.refused = set[int]()
        """Blocks that were damaged: those alone may be announced and not readable."""
        self.start()

    def start(self) -> None:
        """Engine and worker start, the worker's keeper after the engine's scan."""
        KeeperLease(shared_by(self.folder), SystemClock()).end()  # as the engine's folder of before is gone
        size = BLOCKS_MAX * FILE_BYTES
        clock = SystemClock()
        self.store = BlockStore(self.folder, size, BlockSeal(KIND), self.counts, shared_by(self.folder), clock)
        self.kept = Kept(self.folder, self.log)
        self.kept.keeper._set_keeper(WORKER)
        self.kept.keeper.publisher.start()

    async def crash(self) -> None:
        """Both are gone in the middle of what they do: the next ones know files alone. The log's last word on the
        source of before is void, as its worker is dead."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()
        await self.kept.stop()
        self.start()

    def refresh(self) -> None:
        """The keeper looks, while the engine goes on."""
        self.tasks = [task for task in self.tasks if not task.done()]
        self.tasks.append(asyncio.create_task(self.kept.keeper.refresh()))

    def put(self, prompt: int, depth: int) -> None:
        """The engine uses the first blocks of that prompt, and stores them."""
        numbers = [prompt * DEPTH + at + 1 for at in range(depth)]
        stamp = self.store.stamp_now()
        self.store.touch((name(number), stamp - at) for at, number in enumerate(numbers))
        parent = None
        for at, number in enumerate(numbers):
            self.kept.keeper.note([NamedBlock(number, 1000 + number, parent)])
            self.store.put(name(number), memoryview(bytes([number]) * PAYLOAD_BYTES), stamp - at)
            parent = 1000 + number
            assert self.store.used_bytes <= BLOCKS_MAX * FILE_BYTES

    def read(self, number: int) -> bool:
        into = bytearray(PAYLOAD_BYTES)
        loaded = self.store.load(name(number), memoryview(into))
        assert not loaded or into == bytes([number]) * PAYLOAD_BYTES
        return loaded

    async def check(self) -> int:
        """All that the log has as stored can be read, and is held, so that the engine asks for it. Returns its size."""
        announced = await self.folded()
        for block in announced - self.refused:
            number = block - 1000
            assert self.store.holds(name(number)), number
            assert any((self.folder / f"{name(number).hex()}{suffix}").exists() for suffix in (".kv", GOING)), number
        return len(announced)

    async def folded(self) -> set[int]:
        """Our hashes of the blocks that the log has as stored, also while no others can read it."""
        away, self.log.away = self.log.away, False
        try:
            return await self.kept.folded()
        finally:
            self.log.away = away

    def damage(self, fresh: random.Random) -> None:
        """A bit of a file is flipped, and the engine reads it."""
        prompt = fresh.randrange(PROMPTS)
        number = prompt * DEPTH + fresh.randrange(DEPTH) + 1
        file = self.folder / f"{name(number).hex()}.kv"
        if not file.exists():
            return
        raw = bytearray(file.read_bytes())
        raw[-1] ^= 1
        file.write_bytes(raw)
        self.refused.add(1000 + number)
        assert not self.read(number)


def watch_removals(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Blocks that the log has as stored while the keeper removes their files; it grows."""
    loop, real, early = asyncio.get_running_loop(), PoolFolder.remove_going, set[int]()
    numbers = {name(number): 1000 + number for number in range(1, PROMPTS * DEPTH + 1)}

    def remove_going(self: PoolFolder, names: Iterable[bytes]) -> int:
        removed = {numbers[each] for each in names}
        early.update(removed & asyncio.run_coroutine_threadsafe(disk.folded(), loop).result(5))
        return real(self, names)

    monkeypatch.setattr(PoolFolder, "remove_going", remove_going)
    return early


@pytest.mark.parametrize("seed", range(12))
async def test_what_the_log_has_can_be_read(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With evictions all the time, blocks that are used again while they go, a log that is away now and then, damaged
    files, and kills between any two awaits of the keeper."""
    monkeypatch.setattr(pool_keeper, "FOLD_S", 0.001)
    monkeypatch.setattr(pool_keeper, "ACKNOWLEDGED_S", 0.05)
    fresh = random.Random(seed)
    log = MemoryLog("test", SystemClock())
    await log.ensure([KV])
    folder = tmp_path / "blocks"
    folder.mkdir()
    disk = Disk(folder, log)
    early = watch_removals(disk, monkeypatch)
    announced = went = 0
    for _ in range(STEPS):
        act = fresh.random()
        if act < 0.55:
            disk.put(fresh.randrange(PROMPTS), fresh.randrange(1, DEPTH + 1))
        elif act < 0.85:
            disk.refresh()
            await asyncio.sleep(fresh.choice([0, 0.002, 0.02, 0.04]))
        elif act < 0.92:
            log.away = True
        elif act < 0.96:
            disk.damage(fresh)
        else:
            log.away = False
            await disk.crash()
        if log.away and fresh.random() < 0.3:
            log.away = False
            await asyncio.sleep(0.1)  # an outbox tries again
        announced += await disk.check()
        went += len(list(folder.glob(f"*{GOING}")))
        assert not early
    log.away = False
    await asyncio.gather(*disk.tasks)
    await disk.check()
    assert disk.counts["evictions_unannounced"] == 0
    assert min(announced, went, disk.counts["evictions"]) >= 3, "too little happened to show anything"
    await disk.kept.stop()
