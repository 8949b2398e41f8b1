"""A work queue as one process reaches it: its calls and what it is handed take the network.

What is handed to a process that died, or whose answer was lost, comes again when its time is over, as at the broker.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from streams.memory.memory_queue import MemoryDelivery, MemoryQueue

if TYPE_CHECKING:
    from tests.simulation.remote_log import RemoteLog


class RemoteDelivery:
    """See `streams.log.Delivery`."""

    def __init__(self, log: RemoteLog, source: MemoryDelivery) -> None:
        self.record = source.record
        self.number = source.number
        self._log = log
        self._source = source

    def __repr__(self) -> str:
        return f"<RemoteDelivery {self.record.stream}:{self.record.seq}, number {self.number}>"

    async def done(self) -> None:
        await self._log.there_and_back(self._source.done)

    async def working(self) -> None:
        await self._log.there_and_back(self._source.working)

    async def again(self, delay_s: float = 0.0) -> None:
        await self._log.there_and_back(lambda: self._source.again(delay_s))


class RemoteQueue:
    """One process's end; see `streams.log.Queue`."""

    def __init__(self, log: RemoteLog, source: MemoryQueue) -> None:
        self._log = log
        self._source = source

    def __repr__(self) -> str:
        return f"<RemoteQueue on {self._source!r}>"

    async def next(self, wait_s: float) -> RemoteDelivery | None:
        """As at the log, later; a message that was taken for a `next` that is cancelled goes back."""
        taken: list[MemoryDelivery] = []

        async def take() -> MemoryDelivery | None:
            found = await self._source.next(wait_s)
            taken.extend([] if found is None else [found])
            return found

        asked: list[asyncio.Task[Any]] = []
        try:
            found = await self._log.there_and_back(take, asked.append)
        except asyncio.CancelledError:
            self._log.at_the_log(self._handed_back(taken, asked))
            raise
        return None if found is None else RemoteDelivery(self._log, found)

    async def close(self) -> None:
        await self._log.at_the_log(self._source.close())

    async def _handed_back(self, taken: list[MemoryDelivery], asked: list[asyncio.Task[Any]]) -> None:
        """The log asks nothing more for that `next`."""
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await asyncio.gather(*(each.again() for each in taken), return_exceptions=True)
