"""BlockLeases: the blocks that a prefill worker keeps for others, each until it is released or its time is over."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from actors.engines.engine import BlockTransfer
from core.ids import WorkerId
from core.kv_transfer import KvBlocks


class BlockLease(NamedTuple):
    """Blocks of one job."""

    requester: WorkerId
    blocks: KvBlocks
    timer: asyncio.TimerHandle


class BlockLeases:
    """Leases by job. A lease that is not released ends when the engine's own time for it is over."""

    def __init__(self, transfer: BlockTransfer) -> None:
        self._transfer = transfer
        self._held: dict[str, BlockLease] = {}
        self._releasing: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<BlockLeases {len(self)} prompts>"

    def __len__(self) -> int:
        return len(self._held)

    def add(self, job: str, requester: WorkerId, blocks: KvBlocks) -> None:
        """They are held for this job from now on."""
        timer = asyncio.get_running_loop().call_later(self._transfer.keep_ms / 1000, self._held.pop, job, None)
        self._held[job] = BlockLease(requester, blocks, timer)

    def still_held(self, job: str) -> bool:
        """Whether they were held without a break until now."""
        lease = self._held.get(job)
        return lease is not None and self._transfer.still_held(lease.blocks)

    def release(self, job: str) -> None:
        """Nobody wants them any more, or who did has them."""
        lease = self._held.pop(job, None)
        if lease is None:
            return
        lease.timer.cancel()
        task = asyncio.create_task(self._transfer.release(lease.blocks), name=f"release {job}")
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    def release_all_of(self, requester: WorkerId) -> None:
        """Who asked for them is gone."""
        for job in [job for job, lease in self._held.items() if lease.requester == requester]:
            self.release(job)

    async def close(self) -> None:
        """Nothing is held any more."""
        for job in list(self._held):
            self.release(job)
        if self._releasing:
            await asyncio.wait(self._releasing)
