"""Planner: the machine that sizes a fleet. It rolls demand, decides, and orders starts and drains.

The machine folds its own events as it makes them: its decisions rest on the stream, on the counts of the fleet and on a
forecast, which stand in the decision. Its shell appends each event before it executes the command that follows, so no
order precedes its decision. Orders under way and observed starts are the machine's own; a successor does not have them,
and is told how many workers are still to come.

Prefill workers that are sized beside decode workers have a planner of their own, with their part of the demand. Its
demand is in the event of the decode workers' planner, so it records none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from statistics import median_low
from typing import NamedTuple

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from actors.planning.fleet_target import FleetAcknowledgement
from core.events.kv import DECODE, PREFILL
from core.events.scale import (
    LEARNED,
    MEASURED,
    NO_MODEL,
    CapacityLearned,
    DemandRolled,
    HitRate,
    ScaleApplied,
    ScaleDecided,
    ScaleEvent,
    ScaleFailed,
    ScaleJudgement,
    ScaleSettingsChanged,
    WorkerStarting,
    fleet_key,
    on_fleet,
    prefill_part,
)
from core.machine import Tick
from projections.scaling.forecast import ForeseenRates, forecast
from projections.scaling.judge_plan import JudgePlan, judge_plan
from projections.scaling.queue_model import ALL_BP
from projections.scaling.scale_decision import FleetCounts, ScaleInputs, decide_scale
from projections.scaling.scale_fold import ScaleFold
from projections.scaling.scale_settings import ON, ScaleSettings

OVERDUE_MAX = 16
"""Overdue orders at once; one more cancels the oldest of them."""
GONE_MS = 45_000
"""A surplus of workers that stays for so long shows that workers of overdue orders are gone. It is longer than a drain
by default. An idle fleet still reaches its least workers within a minute behind the window for shrinking."""
STARTS_KEPT = 64
"""Observed starts of which the 95th percentile is taken."""
START_PERCENTILE = 95
OVERDUE_FACTOR = 2
"""A worker is overdue after so many times the learned start-up time …"""
OVERDUE_MORE_MS = 10_000
"""… and so much more."""
LEARN_EVERY_MS = 60_000
"""Time between two looks at hit rates, start-up times and speeds."""
RESTATE_PERIODS = 720
"""Settings and capacity that stay stand in the stream again after so many periods, an hour of the default ones: the log
drops its oldest messages, and a recording may begin anywhere."""
JUDGE_EVERY_MS = 60_000
"""Least time between two questions to a judge."""
HIT_TOKENS_MAX = 20_000_000
"""Prompt tokens that a hit rate remembers at most: older ones fade."""
TRANSFER_PERIODS = 720
"""Periods with transfers of which the median is taken, an hour of the default ones."""


class PeriodEnded(NamedTuple):
    """A period's demand is rolled."""

    rolled: DemandRolled
    ready: int
    draining: int
    speed: CapacityLearned | None = None
    """A worker's speed as the ends of requests show it; None if it is not learned from these, or nothing is known."""
    settings: ScaleSettings | None = None
    """The settings from here on, this period's decision included; None if they stay."""
    acts: bool = True
    """False if the decision is advice: then nothing is ordered, and no order is recorded."""
    acknowledged: FleetAcknowledgement | None = None
    """A hand's answer to a target of this planner; None if there is none since the period before."""
    foreseen: ForeseenRates | None = None
    """The newest answer of another library's forecaster; None if there is none."""
    earlier: tuple[DemandRolled, ...] = ()
    """Periods before it that were held back, oldest first (`actors.planning.quiet_periods`)."""
    answer: ScaleJudgement | None = None
    """The judge's answer or absence since the period before; None if there is none."""


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


class AskJudge(NamedTuple):
    """Simulate beside the loop. The answer is for a period to come, and may never come."""

    plan: JudgePlan


PlannerCommand = RecordEvent | StartWorker | CancelStart | DrainWorker | AskJudge


class Planner:
    """See the module's text."""

    def __init__(
        self,
        settings: ScaleSettings,
        profile: CapacityLearned | None,
        fold: ScaleFold | None = None,
        *,
        coming: int = 0,
        now_ms: int = 0,
        has_hand: bool = False,
        model: str = NO_MODEL,
        role: str = DECODE,
    ) -> None:
        """`profile` is the capacity until something is learned; without one nothing is decided until then. A measured
        one that the stream knows already does not take the place of what was learned since. A successor has the `fold`
        of the stream so far, in which `coming` of the orders are not ready at `now_ms`. With `has_hand` a decision is
        recorded as applied when a hand acknowledges it, else with its orders. All events name the `model`, unless it is
        NO_MODEL, and the role of prefill workers."""
        self.fleet = fleet_key(model, role)
        """The key of its fleet (`core.events.scale.fleet_key`)."""
        self._role = role
        self.fold = ScaleFold() if fold is None else fold
        self._first = _first_events(self.fold, settings, profile)
        newest = self.fold.starts
        self._pending: dict[int, int] = dict.fromkeys(range(max(1, newest - coming + 1), newest + 1), now_ms)
        """Orders that are not ready, with the time when they were given."""
        self._overdue: dict[int, None] = {}
        """Those of them that should have come long ago, in the order in which that was noticed."""
        self._surplus_ms: int | None = None
        """The first of the last decisions that all let workers drain beside overdue orders; None without one."""
        self._took_ms: deque[int] = deque(maxlen=STARTS_KEPT)
        known = self.fold.capacity
        self._hits: dict[int, tuple[int, int]] = {
            each.workers: (each.prompt_tokens, each.share_bp * each.prompt_tokens // ALL_BP)
            for each in (() if known is None else known.hits)
        }
        """By ready workers: prompt tokens, and those of them that were cached."""
        self._transfers_us: deque[int] = deque(maxlen=TRANSFER_PERIODS)
        """Of prefill workers: mean time of each period's transfers."""
        self._learned_ms = self._asked_ms = 0
        self._inputs: ScaleInputs | None = None
        """Of the decision to come, or of the last one."""
        self._has_hand = has_hand
        self._started = self._drained = 0
        """Orders since the last one that was recorded as applied."""

    def __repr__(self) -> str:
        return f"<Planner, {self.fold!r}, {len(self._pending)} workers start>"

    @property
    def coming(self) -> int:
        """Workers that were ordered and are not ready."""
        return len(self._pending)

    def oldest_orders(self, count: int) -> list[int]:
        """Numbers of the orders that workers which appear are taken for, so many at most: of those that are not ready,
        the ones that were given first, and overdue ones behind all others.

        The worker of an overdue order has most likely died, and its replacement is the one that appears. If that were
        taken for the overdue one, the order of the replacement would stay, and the fleet would end a worker for it.
        """
        return list(islice((*self._hopeful, *self._overdue), count))

    @property
    def _hopeful(self) -> list[int]:
        """Orders that are neither ready nor overdue, oldest first."""
        return [start for start in self._pending if start not in self._overdue]

    @property
    def horizon_s(self) -> int | None:
        """The time that a forecast looks ahead: a start and a period; None while no capacity is known."""
        capacity = self.fold.capacity
        return None if capacity is None else -(-capacity.startup_ms // 1000) + self.fold.settings.period_s

    @property
    def due_us(self) -> int | None:
        """Nothing is due by time: the shell ends each period."""
        return None

    def step(self, event: PlannerEvent | Tick, _now_us: int) -> Sequence[PlannerCommand]:
        """Events to append, and orders behind the events that name them. A decision takes some milliseconds."""
        commands: list[PlannerCommand] = []
        self.begin(commands)
        match event:
            case PeriodEnded():
                inputs = self.end_period(event, commands)
                if inputs is not None:
                    self.conclude(decide_scale(inputs), event.acts, commands)
            case WorkerReady(start, at_ms):
                ordered_ms = self._pending.pop(start, None)
                self._overdue.pop(start, None)
                if ordered_ms is not None:
                    self._took_ms.append(at_ms - ordered_ms)
            case Tick():
                pass
        return commands

    def begin(self, commands: list[PlannerCommand]) -> None:
        """The events before the first period are recorded: settings and profile."""
        while self._first:
            self._record(self._first.pop(0), commands)

    def _record(self, event: ScaleEvent, commands: list[PlannerCommand]) -> None:
        if isinstance(event, DemandRolled) and self._role == PREFILL:
            self.fold.apply(self._own(event))
            return
        event = on_fleet(event, self.fleet)
        self.fold.apply(event)
        commands.append(RecordEvent(event))

    def _own(self, rolled: DemandRolled) -> DemandRolled:
        """The demand as it is on workers of this role."""
        part = prefill_part(rolled) if self._role == PREFILL else rolled
        assert part is not None, "the demand does not name the part of prefill workers"
        return part

    def end_period(self, ended: PeriodEnded, commands: list[PlannerCommand]) -> ScaleInputs | None:
        """All that stands before the decision is recorded; its inputs, or None while no capacity is known."""
        rolled, fold = ended.rolled, self.fold
        now_ms = rolled.at_ms
        for each in (*ended.earlier, rolled):
            self._record(each, commands)
        if ended.settings is not None and ended.settings != fold.settings:
            self._record(_changed_settings(fold, ended.settings), commands)
        elif fold.periods - fold.settings_stated >= RESTATE_PERIODS:
            self._record(_stated_settings(fold.revision, fold.settings), commands)
        if ended.acknowledged is not None:
            self._on_acknowledged(ended.acknowledged, now_ms, commands)
        self._note_hits(self._own(rolled), ended.ready)
        self._note_transfers(rolled)
        if fold.capacity is None or now_ms - self._learned_ms >= LEARN_EVERY_MS:
            self._learned_ms = now_ms
            learned = self._learned(ended.speed, now_ms)
            if learned is not None:
                self._record(learned, commands)
        if fold.capacity is None:
            return None
        if fold.periods - fold.capacity_stated >= RESTATE_PERIODS:
            self._record(fold.capacity, commands)
        self._note_overdue(now_ms, commands)
        assert self.horizon_s is not None
        fleet = FleetCounts(ended.ready, len(self._pending) - len(self._overdue), len(self._overdue), ended.draining)
        foreseen = forecast(fold.history, fold.settings, now_ms, self.horizon_s, ended.foreseen)
        answer = ended.answer if fold.settings.judge == ON else None
        self._inputs = fold.inputs(now_ms, fleet, foreseen, answer=answer)
        return self._inputs

    def conclude(self, decided: ScaleDecided, acts: bool, commands: list[PlannerCommand]) -> None:
        """The decision on the inputs of this period is recorded, and carried out if the planner `acts`."""
        self._record(decided, commands)
        if acts:
            fleet = FleetCounts(decided.ready, decided.starting, decided.overdue, decided.draining)
            self._apply(decided, fleet, commands)
        if self.fold.settings.judge == ON and decided.at_ms - self._asked_ms >= JUDGE_EVERY_MS:
            assert self._inputs is not None
            plan = judge_plan(self._inputs, decided)
            if plan is not None:
                self._asked_ms = decided.at_ms
                commands.append(AskJudge(plan))

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
        for start in self._needless(decided.at_ms, missing):
            del self._pending[start]
            self._overdue.pop(start, None)
            orders.append(CancelStart(start))
        drained = max(0, -missing - fleet.starting)
        orders += [DrainWorker()] * drained
        commands += orders
        self._started, self._drained = self._started + max(0, missing), self._drained + drained
        if orders and not self._has_hand:
            self._record_applied(decided.at_ms, decided.target, UNSET, commands)

    def _needless(self, at_ms: int, missing: int) -> list[int]:
        """Orders to cancel: of those that start the newest ones, and overdue ones whose workers count as gone.

        The order to the hand has room for overdue workers. A hand that has ended one of these, and not the one that
        serves in its place, keeps a worker too many: so a surplus that stays gives overdue orders up.
        """
        hopeful = self._hopeful
        if -missing <= len(hopeful) or not self._overdue:
            self._surplus_ms = None
        elif self._surplus_ms is None:
            self._surplus_ms = at_ms
        gone: list[int] = []
        if self._surplus_ms is not None and at_ms - self._surplus_ms >= GONE_MS:
            gone, self._surplus_ms = list(self._overdue), None
        return [*gone, *reversed(hopeful[max(0, len(hopeful) + missing) :] if missing < 0 else [])]

    def _on_acknowledged(self, answer: FleetAcknowledgement, at_ms: int, commands: list[PlannerCommand]) -> None:
        if answer.error:
            self._record(ScaleFailed(at_ms=at_ms, reason=answer.error, decision=answer.decision), commands)
        else:
            self._record_applied(at_ms, answer.workers, answer.decision, commands)

    def _record_applied(
        self, at_ms: int, workers: int, decision: int | UnsetType, commands: list[PlannerCommand]
    ) -> None:
        applied = ScaleApplied(
            at_ms=at_ms, target=workers, started=self._started, drained=self._drained, decision=decision
        )
        self._started = self._drained = 0
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

    def _note_transfers(self, rolled: DemandRolled) -> None:
        demand = rolled.prefill_demand
        if demand is not UNSET and self._role == PREFILL and demand.pulled:
            self._transfers_us.append(demand.transfer_ms * 1000 // demand.pulled)

    def _learned(self, speed: CapacityLearned | None, now_ms: int) -> CapacityLearned | None:
        """The capacity with all that was observed; None if that changes nothing, or no speed is known."""
        before = self.fold.capacity
        if before is None and speed is not None:
            before = replace(speed, startup_ms=self.fold.settings.startup_s * 1000)
        if before is None:
            return None
        known = before if speed is None else replace(speed, startup_ms=before.startup_ms, hits=before.hits)
        took_ms = sorted(self._took_ms)
        startup_ms = took_ms[-(-len(took_ms) * START_PERCENTILE // 100) - 1] if took_ms else known.startup_ms
        hits = tuple(
            HitRate(workers, cached * ALL_BP // prompt, prompt)
            for workers, (prompt, cached) in sorted(self._hits.items())
        )
        # In a burst prompts wait for slots of decode workers behind the transfer. No prefill worker shortens that, and
        # in a mean it would stay long afterwards.
        transfer_us = median_low(self._transfers_us) if self._transfers_us else before.transfer_us
        found = replace(
            known,
            startup_ms=startup_ms,
            hits=hits,
            at_ms=now_ms,
            starts=len(took_ms) or before.starts,
            model=before.model,
            role=before.role,
            transfer_us=transfer_us,
        )
        return None if self.fold.capacity == replace(found, at_ms=before.at_ms, starts=before.starts) else found


def _first_events(fold: ScaleFold, settings: ScaleSettings, profile: CapacityLearned | None) -> list[ScaleEvent]:
    """The events before the first period: settings and profile, where the stream has others, or none."""
    found: list[ScaleEvent] = []
    if not fold.revision or fold.settings != settings:
        found.append(_changed_settings(fold, settings))
    known = fold.capacity
    if profile is None:
        return found
    if known is None:
        found.append(replace(profile, startup_ms=settings.startup_s * 1000))
    elif _is_new(profile, known):
        found.append(
            replace(
                profile,
                startup_ms=known.startup_ms,
                hits=known.hits,
                starts=known.starts,
                transfer_us=known.transfer_us,
            )
        )
    return found


def _is_new(profile: CapacityLearned, known: CapacityLearned) -> bool:
    """The profile takes the place of the capacity that the stream has."""
    if profile.origin == MEASURED:
        return known.profile != profile.profile
    return known.origin == LEARNED or _speed(known) != _speed(profile)


def _changed_settings(fold: ScaleFold, settings: ScaleSettings) -> ScaleSettingsChanged:
    return _stated_settings(fold.revision + 1, settings)


def _stated_settings(revision: int, settings: ScaleSettings) -> ScaleSettingsChanged:
    return ScaleSettingsChanged(revision=revision, settings=settings.to_mapping())


def _speed(capacity: CapacityLearned) -> CapacityLearned:
    """The capacity without what is learned beside the speed."""
    return replace(capacity, at_ms=0, startup_ms=0, starts=0, hits=(), model=UNSET, role=UNSET, transfer_us=UNSET)
