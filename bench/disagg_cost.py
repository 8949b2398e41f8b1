"""Overhead of one remote prefill, beside computing and moving: engines here do both in no time.

Requests go straight into one decode worker, one after the other, with one idle prefill worker beside it. The CPU is
that of this process, which is both workers with their parts of the log, less what they take when nothing happens; the
same requests with prompts computed by the decode worker itself are what it is compared with.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from statistics import median
from typing import NamedTuple, cast

from actors.engines.simulated.simulated_engine import SimulatedEngine, SimulatedSettings
from actors.transport.frames import Generate
from bench.disagg_client import MS_PER_S, part
from bench.disagg_world import MODEL, World, world
from bench.figures import MICRO, Figure
from core.codec import decode_message
from core.events.jobs import PrefillStarted
from core.generation import GenerateRequest, Hint, Output, PrefillReport, Sampling
from core.ids import RequestId, StreamSeq
from core.settings import RoutingSettings
from core.subjects import JOBS

PROMPT_TOKENS = (1024, 8192)
SETTINGS = SimulatedSettings(
    prefill_us_per_token=0,
    decode_us_per_step=1,
    transfer_us_per_block=0,
    eos_every=0,
    block_size=64,
    capacity_blocks=2048,
    context_max=16_384,
    transfer=True,
)
NEVER = RoutingSettings(remote_prefill_min_tokens=1_000_000)
ALWAYS = RoutingSettings(remote_prefill_min_tokens=512)
PAUSE_S = 0.01
"""Between one answer and the next request: the prefill worker is idle again."""
IDLE_S = 3.0
WARM_UP = 20
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Used(NamedTuple):
    """CPU seconds of this process and of the broker."""

    ours: float
    broker: float

    def since(self, before: Used) -> Used:
        """The overhead."""
        return Used(self.ours - before.ours, self.broker - before.broker)


class Cost(NamedTuple):
    """Of each request, of a run of one kind."""

    ours_us: float
    broker_us: float
    first_s: list[float]
    reports: list[PrefillReport]
    offered: int
    """Count of jobs that were assigned by an offer, not from the queue."""


async def run(tokens: int, jobs: int, idle_s: float) -> list[Figure]:
    """Figures of prompts of that length; what is taken when nothing happens is measured for so long."""
    here = await _kind(tokens, jobs, idle_s, NEVER, offer=False)
    what = f"{tokens} tokens"
    found = [
        Figure(f"{what}, prefilled here: CPU of both workers", here.ours_us, "us", note="per request"),
        Figure(f"{what}, prefilled here: CPU of the broker", here.broker_us, "us"),
        *_waits(f"{what}, prefilled here: to the first token,", here.first_s),
    ]
    for name, offer in (("through the queue", False), ("by direct offer", True)):
        found += _compared(f"{what}, {name}", await _kind(tokens, jobs, idle_s, ALWAYS, offer=offer), here)
    return found


def _compared(what: str, remote: Cost, here: Cost) -> list[Figure]:
    pulled = sum(report.outcome == "pulled" for report in remote.reports)
    note = f"{pulled} of {len(remote.reports)} pulled, {remote.offered} taken by an offer"
    waits_ms = [report.wait_ms for report in remote.reports]
    return [
        Figure(f"{what}: CPU of both workers", remote.ours_us, "us", note=note),
        Figure(f"{what}: CPU of the broker", remote.broker_us, "us"),
        *_waits(f"{what}: to the first token,", remote.first_s),
        Figure(f"{what}: asked to answered, p50", median(waits_ms), "ms", note="counted in whole ones"),
        Figure(f"{what}: CPU of both workers on top", remote.ours_us - here.ours_us, "us"),
        Figure(f"{what}: CPU of the broker on top", remote.broker_us - here.broker_us, "us"),
    ]


def _waits(what: str, first_s: list[float]) -> list[Figure]:
    return [Figure(f"{what} {name}", part(first_s, at) * MS_PER_S, "ms") for name, at in (("p50", 0.5), ("p90", 0.9))]


async def _kind(tokens: int, jobs: int, idle_s: float, routing: RoutingSettings, *, offer: bool) -> Cost:
    async with world(routing) as it:
        prefill = await it.worker("prefill", SimulatedEngine(MODEL, SETTINGS))
        await it.worker("decode", SimulatedEngine(MODEL, SETTINGS))
        await it.linked()
        prefer = prefill.current_publisher().id if offer else ""
        await _requests(it, tokens, range(WARM_UP), prefer)
        idle_began_s, before = time.perf_counter(), used(it)
        await asyncio.sleep(idle_s)
        idle, idle_wall_s = used(it).since(before), time.perf_counter() - idle_began_s
        began_s, before = time.perf_counter(), used(it)
        first_s, reports = await _requests(it, tokens, range(WARM_UP, WARM_UP + jobs), prefer)
        spent, idle_part = used(it).since(before), (time.perf_counter() - began_s) / idle_wall_s
        return Cost(
            (spent.ours - idle.ours * idle_part) / jobs * MICRO,
            (spent.broker - idle.broker * idle_part) / jobs * MICRO,
            first_s,
            reports,
            await _offered(it) - (WARM_UP if offer else 0),
        )


async def _requests(it: World, tokens: int, numbers: range, prefer: str) -> tuple[list[float], list[PrefillReport]]:
    """One after the other; seconds to each one's first token, and what the decode worker said of it."""
    side = it.decoding[0].role
    waits_s, reports = [], []
    for number in numbers:
        raw = struct.pack("<I", number + 1) + struct.pack("<I", tokens) * (tokens - 1)
        sampling = Sampling(max_tokens=1, temperature=0, ignore_eos=True)
        request = GenerateRequest(id=RequestId(f"job-{number}"), tokens=raw, sampling=sampling)
        frame = Generate(stream=number, model=MODEL, request=request, hint=Hint(prefer=prefer))
        began_s = time.perf_counter()
        async with aclosing(cast(AsyncGenerator[Output, None], side.generate(frame))) as outputs:
            async for output in outputs:
                waits_s.append(time.perf_counter() - began_s)
                assert output.prefill is not None
                reports.append(output.prefill)
        await asyncio.sleep(PAUSE_S)
    return waits_s, reports


async def _offered(it: World) -> int:
    """Jobs of which the log says that their worker began without a message of the queue."""
    log = await it.log()
    events = [e async for record in log.read(JOBS, StreamSeq(1)) for e in decode_message(record.payload).events]
    return sum(isinstance(event, PrefillStarted) and event.delivery == 0 for event in events)


def used(it: World) -> Used:
    """CPU until now."""
    fields = Path(f"/proc/{it.server.pid}/stat").read_text().rpartition(")")[2].split()
    return Used(time.process_time(), (int(fields[11]) + int(fields[12])) / TICKS_PER_S)
