"""LoadReporter: what a worker's engine is busy with, told to the log on change and as a heartbeat."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from actors.engines.engine import Engine
from actors.membership.worker_publisher import WorkerPublisher
from actors.worker.load_meter import LoadMeter
from core.events import LoadReported
from projections.folds.load_fold import TURNOVER_STEPS
from streams.broker_clock import BrokerClock

REPORT_EVERY_MS = 250
"""Load reports come this often at most …"""
REPORT_IDLE_MS = 2000
"""… and this often at least."""
RATE_WINDOW_MS = 120_000
"""The reuse rate is a mean over so long: a talk stays on its worker for minutes, and pauses between its turns."""
RATE_EVERY_MS = 2000
"""It changes this often at most, so that it makes no report of its own."""
MS_PER_S = 1000
TURNOVER_WINDOW_MS = 1_200_000
"""The turnover counts so long: a talk pauses for minutes between its turns."""
TURNOVER_EVERY_MS = 20_000
"""Its sums are noted this often at most, so that they are few."""


class ReuseRate:
    """Prompt tokens a second over the last RATE_WINDOW_MS that the cache had, less twice those that it had not, and 0
    at least: of talks nearly all counts, of prompts that only begin alike nothing. By sums that grow; they count as 0
    before their start."""

    def __init__(self) -> None:
        self.tokens_per_s = 0
        self._sums: deque[tuple[int, int, int]] = deque(maxlen=RATE_WINDOW_MS // RATE_EVERY_MS + 1)
        """When sums were noted, in milliseconds, all prompt tokens and the cached ones; RATE_EVERY_MS apart at
        least."""

    def __repr__(self) -> str:
        return f"<ReuseRate {self.tokens_per_s}/s>"

    def note(self, now_ms: int, prompt_tokens: int, cached_tokens: int) -> int:
        """The rate, with so many tokens in all by now. O(1)."""
        sums = self._sums
        if sums and now_ms - sums[-1][0] < RATE_EVERY_MS:
            return self.tokens_per_s
        sums.append((now_ms, prompt_tokens, cached_tokens))
        while now_ms - sums[0][0] > RATE_WINDOW_MS:
            sums.popleft()
        _, prompt_before, cached_before = sums[0]
        prompt, cached = prompt_tokens - prompt_before, cached_tokens - cached_before
        self.tokens_per_s = max(0, 3 * cached - 2 * prompt) * MS_PER_S // RATE_WINDOW_MS
        return self.tokens_per_s


class Turnover:
    """The part of a device's cache that prompts of the last TURNOVER_WINDOW_MS filled, in TURNOVER_STEPS, and the whole
    of it at most: from then on, what lies there is pushed out sooner than talks come back. By a sum that grows from 0;
    tokens that stood in the cache fill nothing."""

    def __init__(self) -> None:
        self._sums: deque[tuple[int, int]] = deque([(0, 0)])
        """When the sum was noted, in milliseconds, and the computed prompt tokens by then; TURNOVER_EVERY_MS apart at
        least."""

    def __repr__(self) -> str:
        return f"<Turnover of {len(self._sums)} sums>"

    def note(self, now_ms: int, computed_tokens: int, capacity_tokens: int) -> int:
        """The turnover, with so many computed tokens in all by now; 0 for a cache of unknown size. O(1), but for sums
        that grow old."""
        sums = self._sums
        while len(sums) > 1 and now_ms - sums[1][0] >= TURNOVER_WINDOW_MS:
            sums.popleft()
        if now_ms - sums[-1][0] >= TURNOVER_EVERY_MS:
            sums.append((now_ms, computed_tokens))
        if capacity_tokens < 1:
            return 0
        return min(TURNOVER_STEPS, max(0, computed_tokens - sums[0][1]) * TURNOVER_STEPS // capacity_tokens)


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
        self._reuse_rate = ReuseRate()
        self._turnover = Turnover()
        self._load_meter = LoadMeter(engine.info.tier_loads)
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
        now = self._clock.monotonic_ms()
        prompt_tokens, cached_tokens = totals.get("prompt_tokens", 0), totals.get("cached_tokens", 0)
        report = LoadReported(
            running=load.running,
            waiting=load.waiting,
            blocks_used=load.blocks_used,
            blocks_total=load.blocks_total,
            draining=self._draining(),
            kv_n=publisher.kv.n_acked,
            kv_head=publisher.kv.head,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            blocks_unindexed=totals.get("blocks_unindexed", 0),
            reuse_rate=self._reuse_rate.note(now, prompt_tokens, cached_tokens),
            load_times=self._load_meter.note(now),
            turnover=self._turnover.note(
                now, prompt_tokens - cached_tokens, load.blocks_total * self._engine.info.block_size
            ),
        )
        due = report != self._last or now - self._reported_ms >= REPORT_IDLE_MS
        offset_ms = self._clock.noted_offset_ms
        if due and publisher.report(replace(report, clock_offset_ms=offset_ms) if offset_ms else report):
            self._last, self._reported_ms = report, now
