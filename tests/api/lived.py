"""A small deployment that lives in the test's own loop: real log and registry, workers, a router, requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from actors.engines.simulated.simulated_engine import SimulatedEngine
from actors.router.router import Router, RouterOptions
from actors.worker.worker import Worker, WorkerOptions
from core.clock import SystemClock
from core.generation import GenerateRequest, Sampling
from core.ids import RequestId
from core.prompt import tokens_to_bytes
from core.settings import RoutingSettings
from tests.actors.world import FAST
from tests.api.deployed import Deployed
from tests.api.scripted import files
from tests.fixtures.eventually import eventually
from tests.output_stream import generate


class Lived:
    """One front end, `frontend-0`, and the workers `a` and `b`, which give a tokenizer away."""

    def __init__(self, router: Router, workers: list[Worker]) -> None:
        self.router = router
        self.workers = workers

    async def ask(self, name: str, tokens: list[int]) -> None:
        """A request of this id was answered, and the log knows all of it."""
        asked = GenerateRequest(
            id=RequestId(name), tokens=tokens_to_bytes(tokens), sampling=Sampling(max_tokens=4, temperature=0)
        )
        async for _ in generate(self.router, "tiny", asked):
            pass
        await eventually(
            lambda: not len(self.router.publisher.pending_events) and self.router.publisher.outbox.idle,
            "the log has it",
        )


@asynccontextmanager
async def lived(here: Deployed) -> AsyncIterator[Lived]:
    """It leaves nothing behind but its history."""
    namespace, clock, key = here.connection.namespace, SystemClock(), here.connection.key
    workers = []
    for name in "ab":
        worker = Worker(
            WorkerOptions(namespace=namespace, name=name),
            SimulatedEngine("tiny", FAST),
            here.log,
            here.registry,
            clock,
            key,
        )
        await worker.start({})
        worker._files = files()
        workers.append(worker)
    options = RouterOptions(namespace=namespace, name="frontend-0")
    router = Router(options, here.log, here.registry, clock, key, RoutingSettings(policy="kv"), lambda *_: None)
    await router.start({})
    await eventually(lambda: sum(card.workers for card in router.models()) == len(workers), "workers")
    try:
        yield Lived(router, workers)
    finally:
        await router.stop("test over")
        for worker in workers:
            await worker.stop("test over", drain=False)
