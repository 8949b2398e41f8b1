"""LoadReporter: what a worker's engine is busy with, told to the log on change and as a heartbeat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from actors.engines.engine import Engine
from actors.membership.worker_publisher import WorkerPublisher
from core.events import LoadReported
from streams.broker_clock import BrokerClock

REPORT_EVERY_MS = 250
"""Load reports come this often at most …"""
REPORT_IDLE_MS = 2000
"""… and this often at least."""


class LoadReporter:
    """`totals` counts what a report sums up: prompt_tokens, cached_tokens, blocks_unindexed."""

    def __init__(
        self,
        engine: Engine,
        clock: BrokerClock,
        *,
        publisher: Callable[[], WorkerPublisher],
        draining: Callable[[], bool],
        totals: Callable[[], dict[str, int]],
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._publisher = publisher
        self._draining = draining
        self._totals = totals
        self._reported_ms = -REPORT_IDLE_MS
        self._last: LoadReported | None = None

    async def run(self) -> None:
        """Reports again and again, for ever."""
        while True:
            self.report()
            await asyncio.sleep(REPORT_EVERY_MS / 1000)

    def report(self) -> None:
        """The log hears of the load, if it is news or due and the report before this is not waiting any more."""
        publisher, load, totals = self._publisher(), self._engine.load(), self._totals()
        report = LoadReported(
            running=load.running,
            waiting=load.waiting,
            blocks_used=load.blocks_used,
            blocks_total=load.blocks_total,
            draining=self._draining(),
            kv_n=publisher.kv.n_acked,
            kv_head=publisher.kv.head,
            prompt_tokens=totals.get("prompt_tokens", 0),
            cached_tokens=totals.get("cached_tokens", 0),
            blocks_unindexed=totals.get("blocks_unindexed", 0),
        )
        now = self._clock.monotonic_ms()
        due = report != self._last or now - self._reported_ms >= REPORT_IDLE_MS
        offset_ms = self._clock.noted_offset_ms
        if due and publisher.report(replace(report, clock_offset_ms=offset_ms) if offset_ms else report):
            self._last, self._reported_ms = report, now
