"""A short life of a disaggregated deployment, recorded: what happens to prompts in it, one request each."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec

from actors.router.router import Router
from actors.worker.worker import Worker
from core.events import RequestFinished
from core.subjects import JOBS, ROUTING
from replay.recording.recording import Recording
from streams.memory.memory_log import MemoryLog
from tests.actors.disagg.disagg import ROUTING_SETTINGS, decode, decode_role, disagg, linked, prefill, prefill_role
from tests.actors.disagg.faults import Site
from tests.actors.world import KEY, NAMESPACE, World, collect, request
from tests.fixtures.eventually import eventually
from tests.replay.recorded import recorded

WAIT_MS = 1200
SHORT, PULLED, PREFERRED, AGAIN, RECOMPUTED, WAITING = "short", "pulled", "preferred", "again", "recomputed", "waiting"
"""Ids of requests: a short prompt; a long one; one of which a prefill worker holds the start; one whose first prefill
worker died and whose second answered; one whose only prefill worker died; one whose decode worker died as it waited."""
LONG = list(range(100, 800))
SETTINGS = msgspec.structs.replace(ROUTING_SETTINGS, prefill_wait_max_ms=WAIT_MS)


async def run_of(path: Path, *, expired: bool = False) -> Recording:
    """All of it as an archive; `expired`: retention took the jobs stream but for its last message."""
    async with disagg() as it:
        for name in ("decode-0", "decode-1"):
            await decode(it, name, routing=SETTINGS)
        await prefill(it, "prefill-0")
        router = await it.router()
        await it.ready(router, 2)
        await _lived(it, router)
        await _stored(it, router)
        if expired:
            assert isinstance(it.log, MemoryLog)
            it.log.expire(JOBS, (await it.log.state(JOBS)).last_seq)
        return await recorded(it.log, NAMESPACE, KEY, path)


async def _lived(it: World, router: Router) -> None:
    site: Any = Site(it, None, random.Random(1))  # type: ignore[arg-type]  # nobody else asks
    await _linked(it, 1)
    await collect(router, request(range(20), id=SHORT))
    await collect(router, request(LONG, id=PULLED))
    await it.settled(router)
    await site.kill(_holder(it))
    await decode(it, "decode-2", routing=SETTINGS)
    await it.ready(router, 2)
    await _linked(it, 1)
    await collect(router, request([*LONG, *range(2000, 2600)], id=PREFERRED))
    await prefill(it, "prefill-1")
    await _linked(it, 2)
    asked = asyncio.create_task(collect(router, request(range(3000, 5500), id=AGAIN)))
    await site.kill(await _computing(it))
    await asked
    await _linked(it, 1)
    asked = asyncio.create_task(collect(router, request(range(6000, 8500), id=RECOMPUTED)))
    await site.kill(await _computing(it))
    await asked
    await prefill(it, "prefill-2")
    await _linked(it, 1)
    asked = asyncio.create_task(collect(router, request(range(9000, 11500), id=WAITING)))
    await _computing(it)
    await site.kill(
        next(name for name in site.names("decode") if decode_role(it.workers[name]).describe()["jobs_open"])
    )
    await asked


def _holder(it: World) -> str:
    """The decode worker whose cache has most."""
    caches = {name: worker.mirror for name, worker in it.workers.items() if name.startswith("decode")}
    return max(caches, key=lambda name: len(list(caches[name].held("device"))))  # type: ignore[union-attr]


async def _linked(it: World, prefillers: int) -> None:
    await linked([worker for name, worker in it.workers.items() if name.startswith("decode")], prefillers)


async def _computing(it: World) -> str:
    """The name of the prefill worker that computes."""
    found: list[str] = []

    def find() -> bool:
        workers = [(name, worker) for name, worker in it.workers.items() if name.startswith("prefill")]
        found[:] = [name for name, worker in workers if prefill_role(worker).execution.started]
        return bool(found)

    await eventually(find, "a prefill worker computes")
    return found[0]


async def _stored(it: World, router: Router) -> None:
    """The log has what everybody said."""
    await it.settled(router)
    ends = await it.told(ROUTING, RequestFinished)
    assert {event.request for event in ends} == {SHORT, PULLED, PREFERRED, AGAIN, RECOMPUTED, WAITING}
    await eventually(lambda: set(map(_id, it.workers.values())) >= router.state.jobs.parts.keys(), "the dead are known")
    boxes = [worker.publisher.jobs for worker in it.workers.values() if worker.publisher is not None]
    await eventually(lambda: all(box.idle for box in boxes), "the log has the jobs")


def _id(worker: Worker) -> str:
    assert worker.publisher is not None
    return worker.publisher.id
