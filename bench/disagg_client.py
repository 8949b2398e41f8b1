"""Clients for `bench.disagg`: what a request's reader sees, token by token, and how strained this process was."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Self

from actors.router.router import Router
from bench.disagg_world import MODEL
from bench.figures import Figure
from core.generation import GenerateRequest, Output, PrefillReport

STALL_MS = 200
"""A reader sees it when an answer stands still for so long."""
PROBE_S = 0.005
BUSY_MAX = 0.7
"""A loop that computes for a larger part of its time is what is measured, and no longer the deployment."""
LATE_MAX_MS = 5.0
"""So is one that one time in a hundred is later than this by its own work."""
LATE_BY_OTHERS_MAX_MS = 10.0
"""One that is later than this because others have the cores says little about tails."""
MS_PER_S = 1000


@dataclass(slots=True)
class Timed:
    """One request as its reader saw it. Times are of `time.perf_counter`: the loop counts whole milliseconds."""

    arrived_s: float
    prompt_tokens: int
    first_s: float = 0.0
    ended_s: float = 0.0
    """0 unless its answer is complete."""
    tokens_s: array[float] = field(default_factory=lambda: array("d"))
    """When each output came, one entry per token."""
    cached_tokens: int = 0
    report: PrefillReport | None = None

    @property
    def wait_s(self) -> float:
        """To the first token."""
        return self.first_s - self.arrived_s

    def gaps_s(self, start_s: float, end_s: float) -> list[float]:
        """Between one token and the next, of those in this time. Tokens that come together have a gap of nothing."""
        times = [at for at in self.tokens_s if start_s <= at < end_s]
        return [after - before for before, after in pairwise(times)]


class TimedConsumer:
    """Notes in `timed` when each output of one answer came; `first` is set with the first token."""

    def __init__(self, timed: Timed, first: asyncio.Event | None) -> None:
        self._timed = timed
        self._first = first

    def __repr__(self) -> str:
        return f"<TimedConsumer {self._timed!r}>"

    def on_output(self, output: Output) -> bool:
        """Always wants more."""
        now_s, timed = time.perf_counter(), self._timed
        if output.tokens and not timed.first_s:
            timed.first_s = now_s
            if self._first is not None:
                self._first.set()
        timed.tokens_s.extend([now_s] * len(output.tokens))
        timed.cached_tokens = output.cached_tokens or timed.cached_tokens
        timed.report = output.prefill or timed.report
        if output.finish is not None:
            timed.ended_s = now_s
        return True

    def outcome(self) -> str | None:
        """None: the answer's end is the engine's."""
        return None

    def on_routed(self, worker_name: str) -> None:
        """The worker does not matter here."""

    def intake(self) -> None:
        """Its requests come from no client."""


async def ask(router: Router, asked: GenerateRequest, timed: Timed, first: asyncio.Event | None = None) -> None:
    """The answer has been read to its end."""
    await router.run(MODEL, asked, TimedConsumer(timed, first))


class Strain:
    """The busy share of this process, and the lateness of its loop."""

    def __init__(self, time_scale: float) -> None:
        self.busy = 0.0
        self.late_ms: list[float] = []
        self.own_ms: list[float] = []
        """The part of it in which this loop computed something else."""
        self._time_scale = time_scale

    @classmethod
    @asynccontextmanager
    async def watched(cls, time_scale: float = 1.0) -> AsyncIterator[Self]:
        """Measured until the end of the block; lateness in milliseconds of engines of that time scale."""
        made = cls(time_scale)
        task = asyncio.create_task(made._probe())
        began_s, cpu_s = time.perf_counter(), time.thread_time()
        try:
            yield made
        finally:
            made.busy = (time.thread_time() - cpu_s) / (time.perf_counter() - began_s)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    @property
    def note(self) -> str:
        """For people: first what makes the figures doubtful."""
        late_ms, own_ms = part(self.late_ms, 0.99), part(self.own_ms, 0.99)
        warning = "MACHINE BUSY: " if late_ms > LATE_BY_OTHERS_MAX_MS else ""
        if self.busy > BUSY_MAX or own_ms > LATE_MAX_MS:
            warning = "LOOP SATURATED: "
        return f"{warning}loop {self.busy:.0%} busy, late p99 {late_ms:.1f} ms, by its own work {own_ms:.1f}"

    async def _probe(self) -> None:
        while True:
            due_s, cpu_s = time.perf_counter() + PROBE_S, time.thread_time()
            await asyncio.sleep(PROBE_S)
            late_s = max(0.0, time.perf_counter() - due_s)
            own_s = min(late_s, time.thread_time() - cpu_s)
            self.late_ms.append(late_s * MS_PER_S * self._time_scale)
            self.own_ms.append(own_s * MS_PER_S * self._time_scale)


def part(values: list[float], share: float) -> float:
    """The value below which this share of them lies; 0 of none."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def spread(what: str, values_s: list[float], parts: tuple[str, ...], note: str = "") -> list[Figure]:
    """Figures in milliseconds: `mean`, `p50`, `p99`, `p99.9`, `max`."""
    made = {
        "mean": sum(values_s) / max(len(values_s), 1),
        "p50": part(values_s, 0.5),
        "p99": part(values_s, 0.99),
        "p99.9": part(values_s, 0.999),
        "max": max(values_s, default=0.0),
    }
    return [Figure(f"{what} {name}", made[name] * MS_PER_S, "ms", note=note) for name in parts]


def between(what: str, requests: list[Timed], time_s: tuple[float, float], scale: float, note: str) -> list[Figure]:
    """Gaps between tokens within that time, in seconds of engines of that time scale."""
    by_request = [[gap * scale for gap in one.gaps_s(*time_s)] for one in requests]
    worst_s = [max(gaps) for gaps in by_request if gaps]
    stalled = sum(gap * MS_PER_S >= STALL_MS for gap in worst_s) / max(len(worst_s), 1)
    gaps_s = [gap for gaps in by_request for gap in gaps]
    return [
        *spread(f"{what} between tokens,", gaps_s, ("mean", "p50", "p99", "p99.9", "max"), note),
        Figure(f"{what} answers that stood still for {STALL_MS} ms", stalled * 100, "%"),
    ]
