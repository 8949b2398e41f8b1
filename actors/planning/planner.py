"""Planner: the machine that sizes a fleet. It rolls demand, decides, and orders starts and drains.

The machine folds its own events as it makes them: its decisions rest on the stream, on the counts of the fleet and on a
forecast, which stand in the decision. Its shell appends each event before it executes the command that follows, so no
order precedes its decision. Orders under way and observed starts are the machine's own; a successor does not have them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from core.events.scale import (
    CapacityLearned,
    DemandRolled,
    HitRate,
    ScaleApplied,
    ScaleDecided,
    ScaleEvent,
    ScaleFailed,
    ScaleSettingsChanged,
    WorkerStarting,
)
from core.machine import Tick
from projections.scaling.forecast import forecast
from projections.scaling.queue_model import ALL_BP
from projections.scaling.scale_decision import FleetCounts, decide_scale
from projections.scaling.scale_fold import ScaleFold
from projections.scaling.scale_settings import ScaleSettings

OVERDUE_MAX = 16
"""Overdue orders at once; one more cancels the oldest of them."""
STARTS_KEPT = 64
"""Observed starts of which the 95th percentile is taken."""
START_PERCENTILE = 95
OVERDUE_FACTOR = 2
"""A worker is overdue after so many times the learned start-up time …"""
OVERDUE_MORE_MS = 10_000
"""… and so much more."""
LEARN_EVERY_MS = 60_000
"""Time between two looks at hit rates and start-up times."""
HIT_TOKENS_MAX = 20_000_000
"""Prompt tokens that a hit rate remembers at most: older ones fade."""


class PeriodEnded(NamedTuple):
    """A period's demand is rolled."""

    rolled: DemandRolled
    ready: int
    draining: int


class WorkerReady(NamedTuple):
    """An ordered worker serves."""

    start: int
    at_ms: int


PlannerEvent = PeriodEnded | WorkerReady


class RecordEvent(NamedTuple):
    """Append the event to the stream, and go on when it is acknowledged."""

    event: ScaleEvent


class StartWorker(NamedTuple):
    """Start a worker."""

    start: int
    """Number of the order."""


class CancelStart(NamedTuple):
    """End a worker that is starting: it is no longer required, or it is one of too many that do not come."""

    start: int


class DrainWorker(NamedTuple):
    """Let one ready worker leave with hand-over."""


PlannerCommand = RecordEvent | StartWorker | CancelStart | DrainWorker


class Planner:
    """See the module's text."""

    def __init__(self, settings: ScaleSettings, profile: CapacityLearned) -> None:
        """`profile` is the capacity until something is learned."""
        self.fold = ScaleFold()
        self._first: list[ScaleEvent] = [
            ScaleSettingsChanged(revision=1, settings=settings.to_mapping()),
            replace(profile, startup_ms=settings.startup_s * 1000),
        ]
        self._pending: dict[int, int] = {}
        """Orders that are not ready, with the time when they were given."""
        self._overdue: dict[int, None] = {}
        """Those of them that should have come long ago, in the order in which that was noticed."""
        self._took_ms: deque[int] = deque(maxlen=STARTS_KEPT)
        self._hits: dict[int, tuple[int, int]] = {}
        """By ready workers: prompt tokens, and those of them that were cached."""
        self._learned_ms = 0

    def __repr__(self) -> str:
        return f"<Planner, {self.fold!r}, {len(self._pending)} workers start>"

    @property
    def due_us(self) -> int | None:
        """Nothing is due by time: the shell ends each period."""
        return None

    def step(self, event: PlannerEvent | Tick, _now_us: int) -> Sequence[PlannerCommand]:
        """Events to append, and orders behind the events that name them. A decision takes some milliseconds."""
        commands: list[PlannerCommand] = []
        while self._first:
            self._record(self._first.pop(0), commands)
        match event:
            case PeriodEnded():
                self._on_period(event, commands)
            case WorkerReady(start, at_ms):
                ordered_ms = self._pending.pop(start, None)
                self._overdue.pop(start, None)
                if ordered_ms is not None:
                    self._took_ms.append(at_ms - ordered_ms)
            case Tick():
                pass
        return commands

    def _record(self, event: ScaleEvent, commands: list[PlannerCommand]) -> None:
        self.fold.apply(event)
        commands.append(RecordEvent(event))

    def _on_period(self, ended: PeriodEnded, commands: list[PlannerCommand]) -> None:
        rolled, fold = ended.rolled, self.fold
        now_ms = rolled.at_ms
        self._record(rolled, commands)
        self._note_hits(rolled, ended.ready)
        assert fold.capacity is not None
        if now_ms - self._learned_ms >= LEARN_EVERY_MS:
            self._learned_ms = now_ms
            learned = self._learned(fold.capacity, now_ms)
            if learned is not None:
                self._record(learned, commands)
        self._note_overdue(now_ms, commands)
        horizon_s = -(-fold.capacity.startup_ms // 1000) + fold.settings.period_s
        fleet = FleetCounts(ended.ready, len(self._pending) - len(self._overdue), len(self._overdue), ended.draining)
        foreseen = forecast(fold.history, fold.settings, now_ms, horizon_s)
        decided = decide_scale(fold.inputs(now_ms, fleet, foreseen))
        self._record(decided, commands)
        self._apply(decided, fleet, commands)

    def _note_overdue(self, now_ms: int, commands: list[PlannerCommand]) -> None:
        """Workers that should have come long ago count no more; each is reported once, and serves if it comes."""
        assert self.fold.capacity is not None
        late_ms = OVERDUE_FACTOR * self.fold.capacity.startup_ms + OVERDUE_MORE_MS
        for start, ordered_ms in self._pending.items():
            if now_ms - ordered_ms > late_ms and start not in self._overdue:
                self._overdue[start] = None
                self._record(ScaleFailed(at_ms=now_ms, reason="it does not come", start=start), commands)
        while len(self._overdue) > OVERDUE_MAX:
            oldest = next(iter(self._overdue))
            del self._overdue[oldest], self._pending[oldest]
            commands.append(CancelStart(oldest))

    def _apply(self, decided: ScaleDecided, fleet: FleetCounts, commands: list[PlannerCommand]) -> None:
        """Orders that make the fleet what was decided. The newest starts are cancelled before workers drain."""
        missing = decided.target - fleet.ready - fleet.starting
        orders: list[PlannerCommand] = []
        for _ in range(missing):
            start = self.fold.starts + 1
            self._pending[start] = decided.at_ms
            self._record(WorkerStarting(at_ms=decided.at_ms, start=start), commands)
            orders.append(StartWorker(start))
        hopeful = [start for start in self._pending if start not in self._overdue]
        for start in reversed(hopeful[max(0, len(hopeful) + missing) :] if missing < 0 else []):
            del self._pending[start]
            orders.append(CancelStart(start))
        drained = max(0, -missing - fleet.starting)
        orders += [DrainWorker()] * drained
        commands += orders
        if orders:
            applied = ScaleApplied(at_ms=decided.at_ms, target=decided.target, started=max(0, missing), drained=drained)
            self._record(applied, commands)

    def _note_hits(self, rolled: DemandRolled, ready: int) -> None:
        prompt = sum(cell.prompt_tokens for cell in rolled.cells)
        cached = prompt - sum(cell.uncached_tokens for cell in rolled.cells)
        before_prompt, before_cached = self._hits.get(ready, (0, 0))
        prompt, cached = prompt + before_prompt, cached + before_cached
        if prompt > HIT_TOKENS_MAX:
            prompt, cached = HIT_TOKENS_MAX, cached * HIT_TOKENS_MAX // prompt
        if prompt:
            self._hits[ready] = prompt, cached

    def _learned(self, known: CapacityLearned, now_ms: int) -> CapacityLearned | None:
        """The capacity with all that was observed; None if that changes nothing."""
        took_ms = sorted(self._took_ms)
        startup_ms = took_ms[-(-len(took_ms) * START_PERCENTILE // 100) - 1] if took_ms else known.startup_ms
        hits = tuple(
            HitRate(workers, cached * ALL_BP // prompt, prompt)
            for workers, (prompt, cached) in sorted(self._hits.items())
        )
        if (startup_ms, hits) == (known.startup_ms, known.hits):
            return None
        return replace(known, startup_ms=startup_ms, hits=hits, at_ms=now_ms, starts=len(took_ms))
