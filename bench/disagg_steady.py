"""Some requests decode all the time while long prompts arrive: what each of the two does to the other."""

from __future__ import annotations

import asyncio
import random
import struct
import time
from collections.abc import Callable
from typing import NamedTuple

from actors.engines.engine import Engine
from actors.router.router import Router
from bench.disagg_client import Strain, Timed, ask, between, spread
from bench.disagg_trace import Fleet
from bench.disagg_world import World, world
from bench.figures import Figure
from core.generation import GenerateRequest, Sampling
from core.ids import RequestId
from core.settings import RoutingSettings

FIRST_TOKENS_S = 120.0
"""For all of the steady ones, and for what of the long ones is left at the end."""
SETTLED_S = 0.5
TOKEN_MIN, TOKEN_MAX = 300, 900
"""Ids of plain words in the built-in vocabulary."""
STEADY_TOKENS = 64
LONG_ANSWER = 8

MakeEngine = Callable[[str], Engine]
"""From `prefill`, `decode` or, of one that does both, nothing."""


class Mixture(NamedTuple):
    """The arriving requests."""

    streams: int
    """Requests that decode all the time."""
    stream_tokens: int
    """The longest that they may go on."""
    long_tokens: int
    """Of a long prompt; no two have a start in common."""
    every_s: float
    seconds: float


async def run(fleet: Fleet, make: MakeEngine, mixture: Mixture, routing: RoutingSettings) -> list[Figure]:
    """Figures of one fleet."""
    async with world(routing) as it:
        await _raise(it, fleet, make)
        router = await it.replica()
        what = f"{fleet}, {mixture.long_tokens} tokens every {mixture.every_s:g} s"
        return await _measured(what, router, mixture)


async def _raise(it: World, fleet: Fleet, make: MakeEngine) -> None:
    """Workers come one after the other: a process can start one real engine at a time."""
    for _ in range(fleet.prefill):
        await it.worker("prefill", make("prefill"))
    for _ in range(fleet.decode):
        await it.worker("decode", make("decode" if fleet.prefill else ""))


async def _measured(what: str, router: Router, mixture: Mixture) -> list[Figure]:
    dice = random.Random(mixture.long_tokens)
    await _alone(router, dice, mixture)  # work that an engine does once is done
    steady = [Timed(time.perf_counter(), STEADY_TOKENS) for _ in range(mixture.streams)]
    firsts = [asyncio.Event() for _ in steady]
    async with asyncio.TaskGroup() as group:
        reading = []
        for number, (timed, first) in enumerate(zip(steady, firsts, strict=True)):
            request = _request(f"steady-{number}", dice, STEADY_TOKENS, mixture.stream_tokens)
            reading.append(group.create_task(ask(router, request, timed, first)))
        async with asyncio.timeout(FIRST_TOKENS_S):
            await asyncio.gather(*(first.wait() for first in firsts))
        await asyncio.sleep(SETTLED_S)
        start_s = time.perf_counter()
        async with Strain.watched() as strain:
            long = await _arrive(group, router, mixture, dice)
        end_s = time.perf_counter()
        for task in reading:
            task.cancel()  # a group lets its tasks go quietly
    cut_short = sum(bool(one.ended_s) for one in steady)
    note = strain.note + (f", {cut_short} streams ended early" if cut_short else "")
    remote = sum(one.report is not None and one.report.outcome == "pulled" for one in long)
    return [
        *between(f"{what}: steady ones,", steady, (start_s, end_s), 1.0, note),
        *spread(
            f"{what}: long ones, to the first token,",
            [one.wait_s for one in long],
            ("mean", "p50", "max"),
            f"{len(long)} prompts, {remote} prefilled remotely",
        ),
    ]


async def _arrive(group: asyncio.TaskGroup, router: Router, mixture: Mixture, dice: random.Random) -> list[Timed]:
    """The long ones have come, at their times, and been answered."""
    long, tasks, began_s = [], [], time.perf_counter()
    for number in range(int(mixture.seconds / mixture.every_s)):
        due_s = began_s + (number + 0.5) * mixture.every_s
        request = _request(f"long-{number}", dice, mixture.long_tokens, LONG_ANSWER)
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        timed = Timed(time.perf_counter(), mixture.long_tokens)
        long.append(timed)
        tasks.append(group.create_task(ask(router, request, timed)))
    async with asyncio.timeout(FIRST_TOKENS_S):
        await asyncio.gather(*tasks)
    return long


async def _alone(router: Router, dice: random.Random, mixture: Mixture) -> None:
    for number in range(2):
        asked = _request(f"first-{number}", dice, mixture.long_tokens, LONG_ANSWER)
        await ask(router, asked, Timed(time.perf_counter(), mixture.long_tokens))


def _request(name: str, dice: random.Random, tokens: int, max_tokens: int) -> GenerateRequest:
    drawn = [dice.randrange(TOKEN_MIN, TOKEN_MAX) for _ in range(tokens)]
    sampling = Sampling(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    return GenerateRequest(id=RequestId(name), tokens=struct.pack(f"<{tokens}I", *drawn), sampling=sampling)
