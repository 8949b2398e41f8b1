"""A disaggregated deployment in one process: memory log and registry, real TCP, simulated engines that move blocks."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from actors.disagg.decode_role import DecodeRole
from actors.disagg.prefill_role import PrefillRole
from actors.engines.simulated.simulated_engine import SimulatedEngine, SimulatedSettings
from actors.worker.worker import Worker
from core.generation import GenerateRequest, Output
from core.ids import StreamName
from core.settings import RoutingSettings
from core.subjects import JOBS
from streams.log import EventLog
from tests.actors.world import World, world
from tests.fixtures.eventually import eventually

BLOCK = 16
SMALL = SimulatedSettings(
    prefill_us_per_token=20,
    decode_us_per_step=200,
    eos_every=0,
    block_size=BLOCK,
    capacity_blocks=512,
    transfer=True,
    transfer_us_per_block=5,
)
ROUTING_SETTINGS = RoutingSettings(
    policy="kv", remote_prefill_min_tokens=64, prefill_queue_max=8, prefill_wait_max_ms=5000
)


async def decode(it: World, name: str, settings: SimulatedSettings = SMALL, **options: Any) -> Worker:
    """A decode worker that may ask others."""
    return await it.worker(name, settings=settings, **{"routing": ROUTING_SETTINGS, **options})


async def prefill(it: World, name: str, settings: SimulatedSettings = SMALL, **options: Any) -> Worker:
    """A prefill worker."""
    return await it.worker(name, settings=settings, role="prefill", **options)


def decode_role(worker: Worker) -> DecodeRole:
    assert isinstance(worker.role, DecodeRole)
    return worker.role


def prefill_role(worker: Worker) -> PrefillRole:
    assert isinstance(worker.role, PrefillRole)
    return worker.role


async def linked(decoders: list[Worker], prefillers: int) -> None:
    """Every decode worker can ask that many prefill workers."""
    await eventually(lambda: {able(worker) for worker in decoders} == {prefillers}, "prefill workers")


def able(worker: Worker) -> int:
    """How many prefill workers this decode worker can ask."""
    return len(decode_role(worker).describe()["prefill_workers"])


async def alone(asked: GenerateRequest, settings: SimulatedSettings = SMALL) -> list[int]:
    """What an engine without any help answers."""
    engine = SimulatedEngine("sim", dataclasses.replace(settings, transfer=False))
    await engine.start(lambda _: None)
    try:
        return [token async for output in engine.generate(asked) for token in output.tokens]
    finally:
        await engine.stop()


async def told(outputs: AsyncIterator[Output]) -> list[int]:
    """All tokens."""
    return [token async for output in outputs for token in output.tokens]


async def at_rest(workers: list[Worker]) -> None:
    """No block is in use or held, no job is open."""

    def is_quiet() -> bool:
        for worker in workers:
            transfer = worker.engine.transfer
            assert transfer is not None
            if worker.engine.load().blocks_used or transfer.totals().held:
                return False
            described = worker.role.describe()
            if described.get("jobs_open") or described.get("jobs_under_way") or described.get("prompts_held"):
                return False
        return True

    await eventually(is_quiet, "engines idle")


@asynccontextmanager
async def disagg(log: EventLog | None = None) -> AsyncIterator[World]:
    """A world whose log has the jobs stream."""
    async with world(log) as it:
        await it.log.ensure([StreamName(JOBS)])
        yield it
