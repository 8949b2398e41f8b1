"""ScaleFold: the inputs of a decision, folded from the scale stream.

The counts of the fleet and the forecast stand in the decision itself.
"""

from __future__ import annotations

from collections import deque

from msgspec import UNSET

from core.events import Event, UnknownEvent
from core.events.scale import (
    SCALE_VERSION,
    CapacityLearned,
    DemandRolled,
    ScaleDecided,
    ScaleForecast,
    ScaleJudgement,
    ScaleSettingsChanged,
    WorkerStarting,
)
from projections.scaling.forecast import RateHistory
from projections.scaling.queue_model import ALL_BP, ARRIVALS_S, MILLI
from projections.scaling.recent_sizes import RecentSizes, SizesEvent
from projections.scaling.scale_decision import BUDGET, FleetCounts, RequiredWorkers, ScaleInputs
from projections.scaling.scale_rules import RULES
from projections.scaling.scale_settings import ScaleSettings

KEPT_S = ARRIVALS_S[1]
"""Periods that are kept whole."""
GAP_PERIODS = 3
"""Between two decisions that are further apart, some are missing: the window for shrinking begins anew."""
SURPLUS_S = 3_600
"""A surplus or a lack of requests within the bounds fades: after so many seconds about a third of it counts."""
REGRET_S = 3_600
"""A fall of the target that is taken back within this time is remembered for as long."""


class ScaleFold:
    """See the module's text. Memory is bounded by KEPT_S, the requests and seconds whose sizes RULES read, the window
    for shrinking, and RateHistory."""

    def __init__(self) -> None:
        self.settings = ScaleSettings()
        self.revision = 0
        self.settings_stated = 0
        """The value of `periods` where the stream last has the settings …"""
        self.capacity: CapacityLearned | None = None
        self.capacity_stated = 0
        """… and where it last has the capacity."""
        self.history = RateHistory()
        self.periods = 0
        """Periods of the whole stream. Decisions have the number, so that a stream without its start has it, too."""
        self.starts = 0
        """Workers that were ordered."""
        self.last: ScaleDecided | None = None
        self.judged: ScaleJudgement | None = None
        """The last answer of the judge; None before the first one."""
        self._demand: deque[DemandRolled] = deque()
        self._sizes = {rules.sized: RecentSizes(*rules.sized) for rules in RULES.values()}
        """By the requests and seconds that a version of the rules reads."""
        self._arrived_ms = 0
        self._required: deque[RequiredWorkers] = deque()
        self._fell: RequiredWorkers | None = None
        """The last fall of the target that was not taken back: its time, and the target before it."""
        self._regretted: RequiredWorkers | None = None
        """The last one that was: the time when it was taken back, and the target that it should have kept."""
        self._surplus_bp = 0
        """Of the inputs."""
        self._since_ms = -1
        """Decisions are known from here on, without a gap."""

    def __repr__(self) -> str:
        return f"<ScaleFold of {self.periods} periods>"

    @property
    def cursor(self) -> dict[str, tuple[int, int]]:
        """The position that the next period counts from; empty before the first one."""
        return self._demand[-1].cursor if self._demand else {}

    @property
    def rolled_ms(self) -> int:
        """The end of the last period; 0 before the first one."""
        return self._demand[-1].at_ms if self._demand else 0

    def apply(self, event: Event | UnknownEvent) -> None:
        """The event is folded. O(1)."""
        match event:
            case DemandRolled():
                self._apply_demand(event)
            case CapacityLearned():
                self.capacity, self.capacity_stated = event, self.periods
            case ScaleDecided():
                self._apply_decision(event)
            case ScaleSettingsChanged():
                self.settings, self.revision = ScaleSettings.parse(event.settings), event.revision
                self.settings_stated = self.periods
            case WorkerStarting():
                self.starts = event.start

    def inputs(
        self,
        at_ms: int,
        fleet: FleetCounts,
        forecast: ScaleForecast,
        version: int = SCALE_VERSION,
        answer: ScaleJudgement | None = None,
    ) -> ScaleInputs:
        """Inputs of a decision at that time, by that version of the rules. The capacity must be known. `answer` is the
        judge's since the decision before."""
        assert self.capacity is not None
        window_ms = self.settings.down_window_s * MILLI
        return ScaleInputs(
            at_ms=at_ms,
            demand=tuple(self._demand),
            cells=self._sizes[RULES[version].sized].cells,
            arrived_ms=self._arrived_ms,
            periods=self.periods,
            surplus_bp=self._surplus_bp,
            capacity=self.capacity,
            settings=self.settings,
            revision=self.revision,
            fleet=fleet,
            forecast=forecast,
            required=tuple(each for each in self._required if each.at_ms > at_ms - window_ms),
            regretted=self._regretted_at(at_ms),
            is_window_full=0 <= self._since_ms <= at_ms - window_ms and not self._is_gap(at_ms),
            target=fleet.ready + fleet.starting if self.last is None else self.last.target,
            version=version,
            answer=answer,
            judged=self.judged,
        )

    def _apply_demand(self, event: DemandRolled) -> None:
        if event.arrivals or not self._arrived_ms:
            self._arrived_ms = event.at_ms
        self.periods += 1
        self.history.add(event)
        self._surplus_bp += event.attained * ALL_BP - event.ended * self.settings.attainment_bp
        self._surplus_bp -= self._surplus_bp * event.period_s // SURPLUS_S
        self._demand.append(event)
        while self._demand[0].at_ms <= event.at_ms - KEPT_S * MILLI:
            self._demand.popleft()
        if event.cells:
            ended = SizesEvent.of(event.at_ms, event.cells)
            for sizes in self._sizes.values():
                sizes.add(ended)

    def _is_gap(self, at_ms: int) -> bool:
        """True if decisions are missing between the last one and that time."""
        last = self.last
        return last is not None and at_ms - last.at_ms > GAP_PERIODS * self.settings.period_s * MILLI

    def _regretted_at(self, at_ms: int) -> int:
        regretted = self._regretted
        return regretted.workers if regretted is not None and at_ms - regretted.at_ms < REGRET_S * MILLI else 0

    def _apply_decision(self, event: ScaleDecided) -> None:
        last, at_ms = self.last, event.at_ms
        self.periods = event.periods
        if last is None or self._is_gap(at_ms):
            self._since_ms = at_ms
            self._required.clear()
        if last is not None:
            self._note_turn(last.target, event)
        self.last = event
        if event.judged is not UNSET and not event.judged.absent:
            self.judged = event.judged
        self.history.note(at_ms, event.forecast)
        self._required.append(RequiredWorkers(at_ms, event.required))
        while self._required and self._required[0].at_ms <= at_ms - self.settings.down_window_s * MILLI:
            self._since_ms = self._required.popleft().at_ms

    def _note_turn(self, before: int, event: ScaleDecided) -> None:
        if event.target < before and event.bound == BUDGET:
            self._fell = None  # its demand did not fall, so it has nothing to regret
        elif event.target < before:
            self._fell = RequiredWorkers(event.at_ms, before)
        elif event.target > before and self._fell is not None:
            if event.at_ms - self._fell.at_ms < REGRET_S * MILLI:
                self._regretted = RequiredWorkers(event.at_ms, min(event.target, self._fell.workers))
            self._fell = None
