"""The live run of a part of a trace: real processes, requests sent when they came, what a client sees of each."""

from __future__ import annotations

import asyncio
import gc
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import uvloop

from bench.deployed import Deployed, deployed
from bench.disagg_client import Strain, part
from bench.slice_part import MODEL, US_PER_S, Part, engine_args
from bench.spent import Spent
from bench.streamed import Streamed, ask, completion
from replay.simulate.report import ServedRequest, SimulationReport, report
from replay.simulate.workload import Arrival

LEAD_S = 1.0
"""Between the last answer of the warm-up and the first request."""
WARM_TOKENS = 8
"""Less than a block: caches stay empty."""


class Live(NamedTuple):
    """Results of a run."""

    report: SimulationReport
    failures: list[str]
    cores: dict[str, float]
    """Processor time per second, by kind of process; the client's is that of all runs at that time."""
    machine: float
    """The part of the machine's processor time that anybody had, others than us included."""
    late_p99_ms: float
    """Largest delay of the client's sending."""
    strain: Strain
    """Of the client's loop."""
    reading_ms: float
    """In the front end until the worker is chosen, the median: reading, hashing, holding."""


def lives(asked: Part, workers: int, policies: Sequence[Mapping[str, Any]]) -> list[Live]:
    """The part has been sent to a deployment for each policy, all at the same time, with empty caches, and answered."""
    group = {"name": "decode", "model": MODEL, "count": workers, "engine": "simulated", "engine_args": engine_args()}
    with ExitStack() as stack:
        running = [stack.enter_context(deployed({"workers": [group], "routing": policy})) for policy in policies]
        return uvloop.run(_all(running, asked, workers))


async def _all(running: Sequence[Deployed], asked: Part, workers: int) -> list[Live]:
    for deployment in running:
        await _warm(deployment.port, workers)
    gc.collect()
    gc.freeze()
    found = await asyncio.gather(*(_one(deployment, asked, workers) for deployment in running))
    gc.unfreeze()
    return found


async def _one(deployment: Deployed, asked: Part, workers: int) -> Live:
    before = Spent.by_now(deployment)
    async with Strain.watched() as strain:
        start_s, answers = await play(deployment.port, asked)
    after = Spent.by_now(deployment)
    return Live(
        report=report(served(asked.arrivals, answers, start_s), workers),
        failures=[it.failure or f"status {it.status}" for it in answers if not it.complete],
        cores=after.cores_since(before),
        machine=after.busy_since(before),
        late_p99_ms=part(_late_ms(asked.arrivals, answers, start_s), 0.99),
        strain=strain,
        reading_ms=part([it.queue_ms for it in answers], 0.5),
    )


async def _warm(port: int, workers: int) -> None:
    """Each part has answered something."""
    for number in range(2 * workers):
        tokens = [300 + number] * WARM_TOKENS
        await ask(port, completion(MODEL, tokens, 4), f"warm-{number}")
    await asyncio.sleep(LEAD_S)


async def play(port: int, asked: Part) -> tuple[float, list[Streamed]]:
    """All requests sent at their times and answered, in their order; and when the first second began."""
    start_s = time.perf_counter()
    tasks = list[asyncio.Task[Streamed]]()
    for arrival, body in zip(asked.arrivals, asked.bodies, strict=True):
        due_s = start_s + arrival.at_us / US_PER_S
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        tasks.append(asyncio.create_task(ask(port, body, arrival.id)))
    return start_s, list(await asyncio.gather(*tasks))


def served(arrivals: list[Arrival], answers: list[Streamed], start_s: float) -> list[ServedRequest]:
    """The answers as a simulation tells them, so that the same report is made of them. They count from when the request
    should have been sent."""

    def us(at_s: float) -> int:
        return round((at_s - start_s) * US_PER_S)

    return [
        ServedRequest(
            id=arrival.id,
            arrival_us=arrival.at_us,
            routed_us=us(it.sent_s) + round(it.queue_ms * 1000),
            first_us=us(it.first_s) if it.complete else -1,
            end_us=us(it.end_s) if it.complete else us(it.sent_s),
            worker=_place(it.worker) if it.complete else -1,
            replica=0,
            prompt_tokens=it.prompt_tokens or arrival.prompt_tokens,
            cached_tokens=it.cached_tokens,
            predicted_tokens=0,
            output_tokens=it.output_tokens,
        )
        for arrival, it in zip(arrivals, answers, strict=True)
    ]


def _place(worker: str) -> int:
    """The number at the end of its name."""
    found = re.search(r"\d+$", worker)
    assert found, f"a worker without a number: {worker!r}"
    return int(found.group())


def _late_ms(arrivals: list[Arrival], answers: list[Streamed], start_s: float) -> list[float]:
    return [
        (it.sent_s - start_s - arrival.at_us / US_PER_S) * 1000 for arrival, it in zip(arrivals, answers, strict=True)
    ]
