"""Holds: the blocks that a prefill worker keeps for others, each until it is released or its time is over."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from actors.engines.engine import BlockTransfer
from core.ids import WorkerId
from core.kv_transfer import KvBlocks


class Hold(NamedTuple):
    """Blocks of one job."""

    requester: WorkerId
    blocks: KvBlocks
    timer: asyncio.TimerHandle


class Holds:
    """By job. What is not released goes when the engine's own time for it is over."""

    def __init__(self, transfer: BlockTransfer) -> None:
        self._transfer = transfer
        self._held: dict[str, Hold] = {}
        self._releasing: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Holds {len(self)} prompts>"

    def __len__(self) -> int:
        return len(self._held)

    def add(self, job: str, requester: WorkerId, blocks: KvBlocks) -> None:
        """They are held for this job from now on."""
        timer = asyncio.get_running_loop().call_later(self._transfer.keep_ms / 1000, self._held.pop, job, None)
        self._held[job] = Hold(requester, blocks, timer)

    def still_held(self, job: str) -> bool:
        """Whether they were held without a break until now."""
        hold = self._held.get(job)
        return hold is not None and self._transfer.still_held(hold.blocks)

    def release(self, job: str) -> None:
        """Nobody wants them any more, or who did has them."""
        hold = self._held.pop(job, None)
        if hold is None:
            return
        hold.timer.cancel()
        task = asyncio.create_task(self._transfer.release(hold.blocks), name=f"release {job}")
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    def release_all_of(self, requester: WorkerId) -> None:
        """Who asked for them is gone."""
        for job in [job for job, hold in self._held.items() if hold.requester == requester]:
            self.release(job)

    async def close(self) -> None:
        """Nothing is held any more."""
        for job in list(self._held):
            self.release(job)
        if self._releasing:
            await asyncio.wait(self._releasing)
