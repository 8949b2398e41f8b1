"""A public conversation trace on simulated engines: some that do both against some that prefill and some that decode.

The constants describe Llama-3.1-8B in bf16 on one card of the H100's class. Its KV cache has 2 x 32 layers x 8 heads x
128 x 2 bytes = 128 KiB a token, 8 MiB a block of 64, moved at 25 GB/s. Engines compute prompts in passes of up to 8192
tokens, and decode a token of each other request in every pass, as vLLM does. So an engine that does both never stops
decoding for longer than one such pass, half a second.

The trace names a prompt's parts of 512 tokens; equal parts become equal tokens. Its times are rounded to 3 s, so
requests are spread over the 3 s that follow.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import struct
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from actors.engines.simulated.simulated_engine import SimulatedEngine, SimulatedSettings
from actors.router.router import Router
from bench.disagg_client import Strain, Timed, ask, between, spread
from bench.disagg_world import MODEL, World, world
from bench.figures import MICRO, Figure
from core.generation import GenerateRequest, Sampling
from core.ids import RequestId
from core.settings import RoutingSettings

PART_TOKENS = 512
"""Of the trace."""
ROUNDED_S = 3.0
SLOTS_AT_ONCE = 1
"""Jobs that a prefill worker takes at once if nothing else is said."""
SEED = 5
BLOCK_SIZE = 64
BLOCK_BYTES = BLOCK_SIZE * 131_072
LINK_BYTES_PER_S = 25e9
PREFILL_US_PER_TOKEN, DECODE_US_PER_STEP = 60, 15_000
CAPACITY_BLOCKS = 6_500
"""Some 54 GB of cache."""
CONTEXT_MAX = 131_072
SLOTS = 64
KEEP_MS, WAIT_MAX_MS = 30_000, 10_000
GB = 1e9


class Arrival(NamedTuple):
    """A request of the trace."""

    at_s: float
    tokens: bytes
    output_tokens: int


class Fleet(NamedTuple):
    """Numbers of engines by role."""

    decode: int
    prefill: int = 0
    slots: int = SLOTS_AT_ONCE
    """Jobs that a prefill worker takes at once."""

    def __str__(self) -> str:
        if not self.prefill:
            return f"{self.decode} aggregated"
        taken = "" if self.slots == SLOTS_AT_ONCE else f", {self.slots} jobs at a time"
        return f"{self.prefill} prefill + {self.decode} decode{taken}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A part of the trace, its speed-up, and the slow-down of time."""

    file: Path
    start_s: float
    warm_up_s: float
    """Arrivals before the time that is measured, in seconds of the engines, as all times here."""
    measured_s: float
    tail_s: float
    """Longest wait for the last first tokens, after that."""
    time_scale: float


def settings(time_scale: float, *, transfer: bool) -> SimulatedSettings:
    """Those of every engine here."""
    return SimulatedSettings(
        block_size=BLOCK_SIZE,
        capacity_blocks=CAPACITY_BLOCKS,
        context_max=CONTEXT_MAX,
        max_seqs=SLOTS,
        prefill_us_per_token=PREFILL_US_PER_TOKEN,
        decode_us_per_step=DECODE_US_PER_STEP,
        transfer_us_per_block=round(BLOCK_BYTES / LINK_BYTES_PER_S * MICRO),
        eos_every=0,
        time_scale=time_scale,
        transfer=transfer,
        keep_ms=round(KEEP_MS / time_scale),
        block_bytes=BLOCK_BYTES,
    )


def routing(time_scale: float) -> RoutingSettings:
    """The defaults; what is waited for on the clock is as much longer as the engines are slower."""
    return RoutingSettings(prefill_wait_max_ms=round(WAIT_MAX_MS / time_scale))


def arrivals(asked: Slice, speed_up: float) -> list[Arrival]:
    """The slice's requests, so many times as fast as they came."""
    until_s = asked.start_s + (asked.warm_up_s + asked.measured_s) * speed_up
    dice, found = random.Random(SEED), []
    with asked.file.open() as lines:
        for row in map(json.loads, lines):
            arrived_s = row["timestamp"] / 1000
            if not asked.start_s <= arrived_s < until_s:
                continue
            spread_s = arrived_s - asked.start_s + dice.random() * ROUNDED_S
            tokens = b"".join(struct.pack("<I", part) * PART_TOKENS for part in row["hash_ids"])
            found.append(Arrival(spread_s / speed_up, tokens[: 4 * row["input_length"]], row["output_length"]))
    if not found:
        sys.exit(f"--traces: {asked.file} has no request from {asked.start_s:g} to {until_s:g} s")
    return sorted(found)


async def run(fleet: Fleet, asked: Slice, speed_up: float) -> list[Figure]:
    """Figures of one fleet under one load."""
    scale, what = asked.time_scale, f"{fleet}, x{speed_up:g}"
    async with world(routing(scale), fleet.slots) as it:
        for role, count in (("prefill", fleet.prefill), ("decode", fleet.decode)):
            for _ in range(count):
                await it.worker(role, SimulatedEngine(MODEL, settings(scale, transfer=fleet.prefill > 0)))
        router = await it.replica()
        coming = arrivals(asked, speed_up)
        gc.collect()
        gc.freeze()  # what a process of one worker would not have to look through
        played = await _play(router, coming, asked)
        gc.unfreeze()
        return _figures(what, played, asked) + (_moved(what, it, played, scale) if fleet.prefill else [])


class _Played(NamedTuple):
    """All requests of a run, when its measured time began and it was broken off, and how the process was."""

    requests: list[Timed]
    start_s: float
    over_s: float
    strain: Strain


async def _play(router: Router, coming: list[Arrival], asked: Slice) -> _Played:
    """All have come; what is not complete at the end of the measured time is broken off at its first token."""
    scale, began_s = asked.time_scale, time.perf_counter()
    requests: list[Timed] = []
    tasks, firsts = [], []
    async with Strain.watched(scale) as strain:
        for number, arrival in enumerate(coming):
            due_s = began_s + arrival.at_s / scale
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            timed, first = Timed(due_s, len(arrival.tokens) // 4), asyncio.Event()
            requests.append(timed)
            firsts.append(asyncio.create_task(first.wait()))
            tasks.append(asyncio.create_task(ask(router, _request(number, arrival), timed, first)))
        await asyncio.sleep(max(0.0, began_s + (asked.warm_up_s + asked.measured_s) / scale - time.perf_counter()))
    await asyncio.wait(firsts, timeout=asked.tail_s / scale)
    over_s = time.perf_counter()
    for task in (*tasks, *firsts):
        if task.done():
            task.result()  # an answer that failed ends the measurement
        task.cancel()
    await asyncio.gather(*tasks, *firsts, return_exceptions=True)
    return _Played(requests, began_s + asked.warm_up_s / scale, over_s, strain)


def _request(number: int, arrival: Arrival) -> GenerateRequest:
    sampling = Sampling(max_tokens=arrival.output_tokens, temperature=0, ignore_eos=True)
    return GenerateRequest(id=RequestId(f"r-{number}"), tokens=arrival.tokens, sampling=sampling)


def _figures(what: str, played: _Played, asked: Slice) -> list[Figure]:
    """In seconds of the engines."""
    scale, start_s, note = asked.time_scale, played.start_s, played.strain.note
    end_s = start_s + asked.measured_s / scale
    arrived = [one for one in played.requests if start_s <= one.arrived_s < end_s]
    ended = sum(start_s <= one.ended_s < end_s for one in played.requests)
    tokens = sum(start_s <= at < end_s for one in played.requests for at in one.tokens_s)
    unanswered = sum(not one.first_s for one in arrived)
    first_s = [((one.first_s or played.over_s) - one.arrived_s) * scale for one in arrived]
    first_note = note + (f"; {unanswered} had none yet and count with what they had waited" if unanswered else "")
    return [
        Figure(f"{what}: requests arrived", len(arrived) / asked.measured_s, "1/s", lower_is_better=False, note=note),
        Figure(f"{what}: answers complete", ended / asked.measured_s, "1/s", lower_is_better=False),
        Figure(f"{what}: output tokens", tokens / asked.measured_s, "1/s", lower_is_better=False),
        Figure(
            f"{what}: of the prompts from the cache", _cached(arrived) * 100, "%", lower_is_better=False,
            note="of the worker that decodes",
        ),
        *spread(f"{what}: to the first token,", first_s, ("mean", "p50", "p99"), first_note),
        *between(f"{what}:", played.requests, (start_s, end_s), scale, note),
    ]  # fmt: skip


def _cached(requests: list[Timed]) -> float:
    """A share of all prompt tokens. What was pulled is no part of it."""
    prompt = sum(one.prompt_tokens for one in requests)
    return sum(one.cached_tokens for one in requests) / max(prompt, 1)


def _moved(what: str, it: World, played: _Played, scale: float) -> list[Figure]:
    """The places where the run's prompts were computed."""
    reports = [one.report for one in played.requests if one.report is not None]
    outcomes = Counter(report.outcome for report in reports if report.remote)
    here = Counter(report.reason for report in reports if not report.remote)
    pulled = [report for report in reports if report.outcome == "pulled"]
    transfers = [worker.engine.transfer for worker in it.decoding]
    moved_bytes = sum(transfer.totals().bytes for transfer in transfers if transfer is not None)
    waits_s = [report.wait_ms / 1000 * scale for report in pulled]
    recomputed = {how: count for how, count in outcomes.items() if how != "pulled"}
    return [
        Figure(
            f"{what}: prefilled remotely", len(pulled), "requests", lower_is_better=False, note=f"of {len(reports)}"
        ),
        Figure(f"{what}: asked and recomputed", sum(recomputed.values()), "requests", note=_named(recomputed)),
        Figure(f"{what}: not asked for", sum(here.values()), "requests", note=_named(here)),
        Figure(f"{what}: moved", moved_bytes / GB, "GB", note="what a real engine's blocks would weigh"),
        *spread(f"{what}: asked to answered,", waits_s, ("mean", "p99")),
    ]


def _named(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
