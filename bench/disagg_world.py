"""A deployment in this process for `bench.disagg`: real nats-server, real TCP, a registry in memory.

Each worker and the replica has a connection to the broker of its own, as it would in a process of its own. All of
them share one event loop: what that costs is measured beside the figures (`bench.disagg_client.Strain`).
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from actors.disagg.decode_role import DecodeRole
from actors.engines.engine import Engine
from actors.router.router import Router, RouterOptions
from actors.worker.worker import Worker, WorkerOptions
from core.clock import SystemClock
from core.keys import DeploymentKey
from core.settings import RoutingSettings
from core.subjects import JOBS, LOAD, ROUTING, kv_stream
from streams.embedded.embedded_nats import EmbeddedNats
from streams.jetstream.jetstream_log import JetStreamLog
from streams.memory.memory_registry import MemoryRegistry, MemoryRegistryStore
from streams.topology import Topology

NAMESPACE = "bench"
MODEL = "bench"
KEY = DeploymentKey(bytes(32))
TOPOLOGY = Topology(max_bytes=4 * 10**9)
READY_S = 60.0
POLL_S = 0.02


class World:
    """Workers and at most one replica over one log; made by `world`."""

    def __init__(
        self, server: EmbeddedNats, stack: AsyncExitStack, routing: RoutingSettings, prefill_slots: int
    ) -> None:
        self.server = server
        self.workers: list[Worker] = []
        self.routing = routing
        self.prefill_slots = prefill_slots
        self._stack = stack
        self._clock = SystemClock()
        self._store = MemoryRegistryStore()

    def __repr__(self) -> str:
        return f"<World of {len(self.workers)} workers>"

    @property
    def decoding(self) -> list[Worker]:
        """Those that serve requests."""
        return [worker for worker in self.workers if worker.options.role == "decode"]

    async def log(self) -> JetStreamLog:
        """One more connection to the broker."""
        log = await JetStreamLog.connect([self.server.url], NAMESPACE, TOPOLOGY, self.server.credentials)
        self._stack.push_async_callback(log.close)
        return log

    async def worker(self, role: str, engine: Engine) -> Worker:
        """One more worker, at work."""
        name = f"{role}-{len(self.workers)}"
        options = WorkerOptions(
            namespace=NAMESPACE, name=name, role=role, routing=self.routing, prefill_slots=self.prefill_slots
        )
        made = Worker(options, engine, await self.log(), MemoryRegistry(self._store), self._clock, KEY)
        await made.start({})
        self._stack.push_async_callback(made.stop, "measured", drain=False)
        self.workers.append(made)
        return made

    async def replica(self) -> Router:
        """The replica, once it can use every decode worker and each of these every prefill worker."""
        options = RouterOptions(namespace=NAMESPACE, name="frontend")
        registry = MemoryRegistry(self._store)
        made = Router(options, await self.log(), registry, self._clock, KEY, self.routing, lambda *_: None)
        await made.start({})
        self._stack.push_async_callback(made.stop, "measured")
        await self.linked()
        await until(lambda: made.ready()[0] and sum(card.workers for card in made.models()) == len(self.decoding))
        return made

    async def linked(self) -> None:
        """Every decode worker can ask every prefill worker."""
        prefilling = len(self.workers) - len(self.decoding)
        sides = [worker.role for worker in self.decoding]
        await until(
            lambda: all(len(s.describe()["prefill_workers"]) == prefilling for s in sides if isinstance(s, DecodeRole))
        )


@asynccontextmanager
async def world(routing: RoutingSettings, prefill_slots: int = 1) -> AsyncIterator[World]:
    """One that leaves nothing behind."""
    async with AsyncExitStack() as stack:
        server = EmbeddedNats(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        await server.start()
        stack.push_async_callback(server.stop)
        made = World(server, stack, routing, prefill_slots)
        await (await made.log()).ensure([kv_stream(0), LOAD, ROUTING, JOBS])
        yield made


async def until(holds: Callable[[], bool]) -> None:
    """Returns when it does; TimeoutError if that takes too long."""
    async with asyncio.timeout(READY_S):
        while not holds():  # noqa: ASYNC110  # many conditions, none with an event
            await asyncio.sleep(POLL_S)
