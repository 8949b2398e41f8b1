"""ScaleFold: the inputs of a decision, folded from the scale stream.

The counts of the fleet and the forecast stand in the decision itself.
"""

from __future__ import annotations

from collections import deque

from msgspec.structs import astuple

from core.events import Event, UnknownEvent
from core.events.scale import (
    CapacityLearned,
    DemandCell,
    DemandRolled,
    ScaleApplied,
    ScaleDecided,
    ScaleForecast,
    ScaleSettingsChanged,
    WorkerStarting,
)
from projections.scaling.forecast import RateHistory
from projections.scaling.queue_model import ARRIVALS_S, MILLI
from projections.scaling.scale_decision import FleetCounts, RequiredWorkers, ScaleInputs
from projections.scaling.scale_settings import ScaleSettings

KEPT_S = ARRIVALS_S[1]
"""Periods that are kept whole."""
SIZED_REQUESTS = 4096
"""Sizes are those of the last so many requests, and of the others of their event."""


class _Sizes:
    """Sums over the cells of the last SIZED_REQUESTS, by class."""

    def __init__(self) -> None:
        self._kept: deque[tuple[DemandCell, ...]] = deque()
        """Of each event."""
        self._requests = 0
        self._sums: dict[tuple[int, int], list[int]] = {}

    @property
    def cells(self) -> tuple[DemandCell, ...]:
        """Each class once, in their order."""
        return tuple(DemandCell(*key, *sums) for key, sums in sorted(self._sums.items()))

    def add(self, cells: tuple[DemandCell, ...]) -> None:
        """One event more; the oldest ones beyond the bound count no more. O(cells)."""
        self._kept.append(cells)
        self._count(cells, 1)
        while self._requests - sum(cell.count for cell in self._kept[0]) >= SIZED_REQUESTS:
            self._count(self._kept.popleft(), -1)

    def _count(self, cells: tuple[DemandCell, ...], sign: int) -> None:
        for uncached_class, output_class, *values in map(astuple, cells):
            key = uncached_class, output_class
            sums = self._sums.setdefault(key, [0, 0, 0, 0])
            self._requests += sign * values[0]
            for place, value in enumerate(values):
                sums[place] += sign * value
            if not sums[0]:
                del self._sums[key]


class ScaleFold:
    """See the module's text. Memory is bounded by KEPT_S, SIZED_REQUESTS, the window for shrinking and RateHistory."""

    def __init__(self) -> None:
        self.settings = ScaleSettings()
        self.revision = 0
        self.capacity: CapacityLearned | None = None
        self.history = RateHistory()
        self.periods = 0
        self.starts = 0
        """Workers that were ordered."""
        self.last: ScaleDecided | None = None
        self.applied: ScaleApplied | None = None
        self._demand: deque[DemandRolled] = deque()
        self._sizes = _Sizes()
        self._arrived_ms = 0
        self._required: deque[RequiredWorkers] = deque()
        self._since_ms = -1
        """Time of the first decision."""

    def __repr__(self) -> str:
        return f"<ScaleFold of {self.periods} periods>"

    @property
    def cursor(self) -> dict[str, tuple[int, int]]:
        """The position that the next period counts from; empty before the first one."""
        return self._demand[-1].cursor if self._demand else {}

    def apply(self, event: Event | UnknownEvent) -> None:
        """The event is folded. O(1)."""
        match event:
            case DemandRolled():
                self._apply_demand(event)
            case CapacityLearned():
                self.capacity = event
            case ScaleDecided():
                self._apply_decision(event)
            case ScaleSettingsChanged():
                self.settings, self.revision = ScaleSettings.parse(event.settings), event.revision
            case WorkerStarting():
                self.starts = event.start
            case ScaleApplied():
                self.applied = event

    def inputs(self, at_ms: int, fleet: FleetCounts, forecast: ScaleForecast) -> ScaleInputs:
        """Inputs of a decision at that time. The capacity must be known."""
        assert self.capacity is not None
        window_ms = self.settings.down_window_s * MILLI
        return ScaleInputs(
            at_ms=at_ms,
            demand=tuple(self._demand),
            cells=self._sizes.cells,
            arrived_ms=self._arrived_ms,
            periods=self.periods,
            capacity=self.capacity,
            settings=self.settings,
            revision=self.revision,
            fleet=fleet,
            forecast=forecast,
            required=tuple(each for each in self._required if each.at_ms > at_ms - window_ms),
            is_window_full=0 <= self._since_ms <= at_ms - window_ms,
            target=fleet.ready + fleet.starting if self.last is None else self.last.target,
        )

    def _apply_demand(self, event: DemandRolled) -> None:
        if event.arrivals or not self._arrived_ms:
            self._arrived_ms = event.at_ms
        self.periods += 1
        self.history.add(event)
        self._demand.append(event)
        while self._demand[0].at_ms <= event.at_ms - KEPT_S * MILLI:
            self._demand.popleft()
        if event.cells:
            self._sizes.add(event.cells)

    def _apply_decision(self, event: ScaleDecided) -> None:
        self.last = event
        if self._since_ms < 0:
            self._since_ms = event.at_ms
        self.history.note(event.at_ms, event.forecast)
        self._required.append(RequiredWorkers(event.at_ms, event.required))
        while self._required[0].at_ms <= event.at_ms - self.settings.down_window_s * MILLI:
            self._required.popleft()
