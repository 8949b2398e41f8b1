"""A planner in a fleet that carries out its orders, in virtual time: workers take their start-up time."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from actors.planning.planner import (
    CancelStart,
    DrainWorker,
    PeriodEnded,
    Planner,
    PlannerCommand,
    RecordEvent,
    StartWorker,
    WorkerReady,
)
from actors.planning.quiet_periods import QuietPeriods, is_at_rest
from core.events import ScaleDecided
from core.events.scale import NO_MODEL, DemandCell, ScaleEvent
from projections.scaling.forecast import ForeseenRates
from projections.scaling.scale_settings import ScaleSettings
from tests.projections.scaling.demands import CAPACITY, PERIOD_S, START_MS, rolled


class PlannerRun:
    """Feeds periods to a planner; `never` has the orders that never come."""

    def __init__(self, settings: ScaleSettings, ready: int = 1, never: Iterable[int] = ()) -> None:
        self.planner = Planner(settings, CAPACITY)
        self.events: list[ScaleEvent] = []
        self.fleet: list[int] = []
        """Ready workers after each period."""
        self.cancelled: list[int] = []
        self.ready = ready
        self.foreseen: ForeseenRates | None = None
        """Answer of a library's forecaster, in each period from here on."""
        self.settings = settings
        """From the next period on."""
        self._starting: dict[int, int] = {}
        """By order, the time when the worker comes."""
        self._never = set(never)
        self._periods = 0

    @property
    def decisions(self) -> list[ScaleDecided]:
        """All decisions so far."""
        return [event for event in self.events if isinstance(event, ScaleDecided)]

    @property
    def targets(self) -> list[int]:
        """Of all decisions so far."""
        return [each.target for each in self.decisions]

    def period(
        self, arrivals: int, cells: tuple[DemandCell, ...] | None = None, waiting: int = 0, missed: int = 0
    ) -> None:
        """One period more, with so many arrivals, of which so many `missed` the bounds of service."""
        self._periods += 1
        now_ms = START_MS + self._periods * PERIOD_S * 1000
        for start in [start for start, at_ms in self._starting.items() if at_ms <= now_ms]:
            self._feed(WorkerReady(start, self._starting.pop(start)))
            self.ready += 1
        demand = replace(rolled(self._periods, arrivals, cells, waiting), attained=arrivals - missed)
        self._feed(PeriodEnded(demand, self.ready, 0, settings=self.settings, foreseen=self.foreseen))
        self.fleet.append(self.ready)

    def quiet_period(self, quiet: QuietPeriods) -> None:
        """One period more without any request, which may be held back."""
        self._periods += 1
        demand, fold = rolled(self._periods, 0), self.planner.fold
        if not quiet.hold({NO_MODEL: demand}, rests=is_at_rest(fold, self.ready, self.planner.coming)):
            earlier = quiet.take({NO_MODEL: demand})
            self._feed(PeriodEnded(demand, self.ready, 0, earlier=earlier[NO_MODEL]))

    def _feed(self, event: PeriodEnded | WorkerReady) -> None:
        now_ms = START_MS + self._periods * PERIOD_S * 1000
        for command in self.planner.step(event, now_ms * 1000):
            self._execute(command, now_ms)

    def _execute(self, command: PlannerCommand, now_ms: int) -> None:
        match command:
            case RecordEvent(event):
                self.events.append(event)
            case StartWorker(start) if start not in self._never:
                self._starting[start] = now_ms + self.settings.startup_s * 1000
            case CancelStart(start):
                self.cancelled.append(start)
                self._starting.pop(start, None)
            case DrainWorker():
                self.ready -= 1


def turns(targets: Iterable[int]) -> int:
    """Changes of direction in a row of targets."""
    found, direction, before = 0, 0, None
    for target in targets:
        if before is not None and target != before:
            now = 1 if target > before else -1
            found, direction = found + (direction not in (0, now)), now
        before = target
    return found
