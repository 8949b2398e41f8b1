"""The registry as one process reaches it, and the leases that the world takes from the dead and the silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from core.errors import Unavailable
from streams.memory.memory_registry import MemoryRegistry
from streams.registry import Change
from tests.simulation.loop import Process, VirtualLoop
from tests.simulation.network import Network

ANSWER_TIMEOUT_S = 1.0


class RemoteRegistry:
    """One process's `Registry`. What it is told comes in its own context, in order, a little later."""

    def __init__(
        self, inner: MemoryRegistry, process: Process, host: Process, network: Network, loop: VirtualLoop
    ) -> None:
        self.inner = inner
        self._process = process
        self._host = host
        self._network = network
        self._loop = loop
        self._told_s = 0.0

    def __repr__(self) -> str:
        return f"<RemoteRegistry of {self._process.name}, {self.inner!r}>"

    async def register(self, key: str, value: bytes) -> None:
        await self._ask(self.inner.register(key, value))

    async def unregister(self, key: str) -> None:
        await self._ask(self.inner.unregister(key))

    async def claim(self, key: str, value: bytes) -> int | None:
        found: int | None = await self._ask(self.inner.claim(key, value))
        return found

    async def put(self, key: str, value: bytes) -> int:
        revision: int = await self._ask(self.inner.put(key, value))
        return revision

    async def get(self, prefix: str) -> list[Change]:
        found: list[Change] = await self._ask(self.inner.get(prefix))
        return found

    async def watch(
        self, prefix: str, on_change: Callable[[Change], None], on_health: Callable[[bool], None] | None = None
    ) -> None:
        health = None if on_health is None else partial(self._tell, on_health)
        await self._ask(self.inner.watch(prefix, partial(self._tell, on_change), health))

    async def close(self) -> None:
        await self._ask(self.inner.close())

    async def _ask(self, what: Coroutine[Any, Any, Any]) -> Any:
        """Done at the registry, whatever becomes of who asked."""
        done = self._loop.create_task(what, context=self._host.context)
        try:
            answer = await asyncio.shield(done)
        except Unavailable:
            await asyncio.sleep(ANSWER_TIMEOUT_S)
            raise
        await asyncio.sleep(self._network.delay_s())
        return answer

    def _tell(self, hear: Callable[..., None], what: object) -> None:
        self._told_s = max(self._told_s, self._network.now_s + self._network.delay_s())
        self._network.later(self._told_s, self._process, hear, what)
