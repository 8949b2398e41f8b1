"""A whole deployment in one process: memory log, memory registry, real TCP, simulated engines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, TypeVar
from zlib import crc32

from actors.engines.engine import Engine
from actors.engines.simulated.simulated_engine import SimulatedEngine, SimulatedSettings
from actors.router.router import Router, RouterOptions
from actors.worker.worker import Worker, WorkerOptions
from core.clock import Clock, SystemClock
from core.codec import decode_message
from core.events import ReplicaLost, WorkerLost
from core.generation import GenerateRequest, Output, Sampling
from core.ids import LOST_SUFFIX, ReplicaId, RequestId, StreamName, StreamSeq, WorkerId
from core.keys import DeploymentKey
from core.prompt import tokens_to_bytes
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING, kv_stream, subject
from streams.log import EventLog
from streams.memory.memory_log import MemoryLog
from streams.memory.memory_registry import MemoryRegistry, MemoryRegistryStore
from tests.fixtures.eventually import eventually
from tests.output_stream import generate

NAMESPACE = "test"
KEY = DeploymentKey(bytes(32))
FAST = SimulatedSettings(
    prefill_us_per_token=1, decode_us_per_step=200, eos_every=0, block_size=16, capacity_blocks=256
)
LEASE_MS = 300
Told = TypeVar("Told")


def request(tokens: Iterable[int], max_tokens: int = 8, id: str = "", **options: object) -> GenerateRequest:
    """A greedy request."""
    raw = tokens_to_bytes(tokens)
    name = RequestId(id or f"r-{crc32(raw):x}-{next(_numbers)}")
    return GenerateRequest(id=name, tokens=raw, sampling=Sampling(max_tokens=max_tokens, temperature=0), **options)  # type: ignore[arg-type]


_numbers = count()


class World:
    """Workers and routers of one key over one log and one registry."""

    def __init__(self, log: EventLog | None = None, clock: Clock | None = None, key: DeploymentKey = KEY) -> None:
        self.key = key
        self.clock = clock or SystemClock()
        self.log: EventLog = log or MemoryLog(NAMESPACE, self.clock)
        self.store = MemoryRegistryStore()
        self.workers: dict[str, Worker] = {}
        self.routers: dict[str, Router] = {}
        self.registries: dict[str, MemoryRegistry] = {}
        """Each part's own way to the registry, by the part's name."""

    def registry(self, name: str) -> MemoryRegistry:
        return self.registries.setdefault(name, MemoryRegistry(self.store))

    async def worker(
        self,
        name: str,
        model: str = "sim",
        settings: SimulatedSettings = FAST,
        engine: Engine | None = None,
        **options: Any,
    ) -> Worker:
        worker = Worker(
            WorkerOptions(namespace=NAMESPACE, name=name, **options),
            engine or SimulatedEngine(model, settings),
            self.log,
            self.registry(name),
            self.clock,
            self.key,
        )
        await worker.start({})
        self.workers[name] = worker
        return worker

    async def router(self, name: str = "frontend-0", settings: RoutingSettings | None = None, **options: Any) -> Router:
        known = RouterOptions(namespace=NAMESPACE, name=name, **{"lease_ms": LEASE_MS, **options})
        router = Router(
            known, self.log, self.registry(name), self.clock, self.key, settings or RoutingSettings(), lambda *_: None
        )
        await router.start({})
        self.routers[name] = router
        return router

    async def settled(self, router: Router) -> None:
        """The router's view of every live worker is the worker's own mirror."""

        def agree() -> bool:
            for worker in self.workers.values():
                assert worker.publisher is not None
                assert worker.mirror is not None
                held = router.state.index.held(WorkerId(worker.publisher.id))
                if held != set(worker.mirror.held("device")) or not worker.publisher.kv.idle:
                    return False
            return not len(router.publisher.pending_events) and router.publisher.outbox.idle

        await eventually(agree, "index and caches agree")

    async def ready(self, router: Router, workers: int = 1) -> None:
        """The router has folded the log and can use that many workers."""
        await eventually(
            lambda: router.ready()[0] and sum(card.workers for card in router.models()) == workers,
            f"{workers} workers: {router.ready()}",
        )

    async def crash(self, name: str) -> WorkerId:
        """The worker is gone without a word, as by kill -9; its registration stays. Returns its id."""
        worker = self.workers.pop(name)
        assert worker.publisher is not None
        for task in worker._tasks:
            task.cancel()
        await worker.publisher.end()
        await worker.port.close()
        await worker.engine.stop()
        return worker.publisher.id

    async def crash_router(self, name: str) -> ReplicaId:
        """The same for a replica."""
        router = self.routers.pop(name)
        for task in router._tasks:
            task.cancel()
        await router.publisher.end()
        await router.fleet.close()
        await router.runner.stop()
        return router.publisher.id

    async def write_off(self, router: Router, stream: StreamName, who: str) -> None:
        """The router has written the end of a worker or replica that lives, between two words of it."""
        end = ReplicaLost(by="x", reason="test") if stream == ROUTING else WorkerLost(by="x", reason="test")
        for _ in range(1000):
            await router.liveness_monitor.loss_log.append(stream, who, end)
            last = await self.log.last(stream, subject(NAMESPACE, stream, who))
            if last is not None and decode_message(last.payload).source == who + LOST_SUFFIX:
                return
        raise AssertionError(f"{who} is never silent")

    async def told(self, stream: StreamName, kind: type[Told]) -> list[Told]:
        """Every event of that kind in the stream, in order."""
        records = [record async for record in self.log.read(stream, StreamSeq(1))]
        events = (event for record in records for event in decode_message(record.payload).events)
        return [event for event in events if isinstance(event, kind)]

    async def stop(self) -> None:
        for router in self.routers.values():
            await router.stop("test over")
        for worker in self.workers.values():
            await worker.stop("test over", drain=False)


@asynccontextmanager
async def world(
    log: EventLog | None = None, clock: Clock | None = None, key: DeploymentKey = KEY
) -> AsyncIterator[World]:
    """A world that leaves nothing behind."""
    it = World(log, clock, key)
    await it.log.ensure([kv_stream(0), LOAD, ROUTING])
    try:
        yield it
    finally:
        await it.stop()


class Discarding:
    """Takes an answer of which nothing is read."""

    def on_output(self, output: Output) -> bool:
        return True

    def outcome(self) -> str | None:
        return None

    def on_routed(self, worker_name: str) -> None:
        pass

    def intake(self) -> None:
        pass


async def collect(router: Router, asked: GenerateRequest, model: str = "sim") -> tuple[list[int], list[Output]]:
    """All tokens of a generation, and its outputs."""
    outputs = [output async for output in generate(router, model, asked)]
    return [token for output in outputs for token in output.tokens], outputs
