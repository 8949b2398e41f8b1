"""The recorded demand decided again under other settings of the planner.

1. Events before the range are folded as they were recorded. From the range's start on, a scenario's own decisions take
   the place of the recorded ones, and its settings lie over the recorded ones.
2. The fleet is modelled (`VirtualFleet`): it carries out each decision.
3. Attainment is predicted, not measured: the queue model runs over each period with the workers that were ready at its
   start, at the rate of the last minute. A period counts by its arrivals.
4. Demand, waiting requests, sizes of requests and the speed of workers stay as recorded.
5. Of several models one is decided again, and of its decode and prefill workers those of one role. The others keep the
   devices that they had.

Equal recordings give equal results: nothing here asks a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from copy import deepcopy
from functools import partial
from typing import NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from core.errors import CallerError
from core.event_json import time_text
from core.events import Event, UnknownEvent
from core.events.kv import DECODE
from core.events.scale import (
    NO_MODEL,
    CapacityLearned,
    DemandRolled,
    ScaleApplied,
    ScaleDecided,
    ScaleEvent,
    ScaleSettingsChanged,
    fleet_of,
    model_of,
    on_fleet,
    prefill_part,
    role_of,
)
from projections.scaling.fleet_decision import within_budget
from projections.scaling.forecast import forecast
from projections.scaling.queue_model import MILLI
from projections.scaling.scale_decision import (
    BURST_BEFORE_S,
    FleetCounts,
    HitRates,
    ScaleInputs,
    decide_scale,
    queue_of,
    rate_over_m,
)
from projections.scaling.scale_fold import ScaleFold
from projections.scaling.scale_settings import LIBRARY_PREDICTORS, ScaleSettings
from replay.parallel import parallel_results
from replay.recording.moment import Moment
from replay.recording.scale_stream import NO_DECISION, ScalePlace, read_scale, scale_place
from replay.whatif.scale_figures import MeasuredService, ScaleFigures, ScaleWhatIf
from replay.whatif.scale_scenario import ScaleScenario
from replay.whatif.virtual_fleet import VirtualFleet
from streams.log import EventLog

DECISIONS_MAX = 200_000
"""Decisions of one question, which are kept in memory: eleven days of one each 5 s."""
PROGRESS_EVERY = 100
"""Decisions between two reports of progress."""
STARTUP = "startup_s"
RECORDED = "as it was recorded"
Progress = Callable[[int, int], None]
"""Gets how many are done, and how many there are."""
KeptEvent = DemandRolled | CapacityLearned | ScaleDecided | ScaleApplied | ScaleSettingsChanged


class ScaleRange(NamedTuple):
    """The events that all scenarios of a question have in common. It is copied to each process."""

    fold: ScaleFold
    """Of the events before the first decision."""
    events: list[KeptEvent]
    """From there on. Decisions have no candidates, and their budget is the number of devices that others leave."""
    decisions: int
    left_out: int
    """See `ScaleWhatIf`."""
    model: str = NO_MODEL
    """The one that is decided again, where there are several …"""
    role: str = DECODE
    """… and the role of its workers."""


async def read_range(
    log: EventLog,
    start: Moment | None,
    end: Moment | None,
    progress: Progress = lambda _done, _of: None,
    model: str | None = None,
    role: str = DECODE,
) -> ScaleRange:
    """The decisions on the model's workers of that role from `start` up to `end`, not included, and the fold of all
    their events before them. CallerError if there is no decision, or more than DECISIONS_MAX, or if there are several
    models and none is given."""
    places = [None if each is None else (await scale_place(log, each)).previous for each in (start, end)]
    since, until = places
    reader = _RangeReader(since, until, model, role)
    async with aclosing(read_scale(log, progress)) as messages:
        async for seq, events in messages:
            reader.add_message(seq, events)
            if reader.is_done:
                break
    return reader.found()


def what_if_scale(
    range_: ScaleRange,
    scenarios: Sequence[ScaleScenario],
    jobs: int,
    progress: Progress = lambda _done, _of: None,
) -> ScaleWhatIf:
    """The scenarios over the range, in `jobs` processes. Each decision takes some 5 ms of a core in each. CallerError
    if a scenario contradicts the recorded settings."""
    with parallel_results(partial(_figures, range_), [None, *scenarios], jobs, progress) as results:
        recorded, *found = results
    return _answer(range_, recorded, found)


class _RangeReader:
    """Folds the stream up to the range, and keeps the range's events."""

    def __init__(self, since: ScalePlace | None, until: ScalePlace | None, model: str | None, role: str) -> None:
        """The range has the decisions on workers of that role behind `since` that are not behind `until`."""
        self._role = role
        self._since, self._until = since, until
        self._chosen = self._model = model
        self._devices: dict[str, int] = {}
        """Of a worker, by fleet."""
        self._fold = ScaleFold()
        self._events: list[KeptEvent] = []
        self._decisions = self._left_out = 0
        self._first = ""
        self.is_done = False
        """The range is over."""

    def __repr__(self) -> str:
        return f"<_RangeReader, {self._decisions} decisions>"

    def add_message(self, seq: int, events: Sequence[Event | UnknownEvent]) -> None:
        """One message more. CallerError at more than DECISIONS_MAX decisions, and for two models if none is given."""
        for event in events:
            if not isinstance(event, ScaleEvent):
                continue
            model = model_of(event)
            if isinstance(event, CapacityLearned):
                self._devices[fleet_of(event)] = event.devices
            own = self._own(event)
            if own is None:
                continue
            if isinstance(own, ScaleDecided):
                if self._model is None:
                    self._model = model
                elif self._chosen is None and model != self._model:
                    names = sorted({self._model, model} - {NO_MODEL})
                    raise CallerError(f"the planner sizes several models: give --model, one of {', '.join(names)}")
            if self._model in {None, model}:
                self._add(seq, self._beside_others(own, events) if isinstance(own, ScaleDecided) else own)

    def _own(self, event: ScaleEvent) -> ScaleEvent | None:
        """The event as it is on workers of the role; None if it is on others alone."""
        if isinstance(event, DemandRolled):
            return event if self._role == DECODE else prefill_part(event)
        return event if role_of(event) == self._role else None

    def _beside_others(self, decided: ScaleDecided, events: Sequence[Event | UnknownEvent]) -> ScaleDecided:
        """The decision, with the devices that the other models of its message leave as its budget, if it has one."""
        if decided.budget is UNSET:
            return decided
        others = (each for each in events if isinstance(each, ScaleDecided) and fleet_of(each) != fleet_of(decided))
        taken = sum(each.target * self._devices.get(fleet_of(each), 1) for each in others)
        return replace(decided, budget=decided.budget - taken)

    def _add(self, seq: int, event: ScaleEvent) -> None:
        if isinstance(event, ScaleDecided):
            event = replace(event, candidates=())
            self._note_decision(seq, event)
        if self.is_done:
            return
        if not self._decisions:
            self._fold.apply(event)
        elif isinstance(event, KeptEvent):
            self._events.append(event)

    def found(self) -> ScaleRange:
        """The range. CallerError if it has no decision."""
        if self._decisions:
            model = self._model or NO_MODEL
            return ScaleRange(self._fold, self._events, self._decisions, self._left_out, model, self._role)
        if self._left_out:
            raise CallerError("no decision can be made again: the log lacks the settings, or the speed of a worker")
        first = self._first
        raise CallerError(f"no decision is in this range; the first one is of {first}" if first else NO_DECISION)

    def _note_decision(self, seq: int, event: ScaleDecided) -> None:
        self._first = self._first or f"{time_text(event.at_ms)} (scale:{seq})"
        self.is_done = self.is_done or (self._until is not None and self._until.is_before(seq, event))
        if self.is_done or (self._since is not None and not self._since.is_before(seq, event)):
            return
        if not self._decisions and (not self._fold.revision or self._fold.capacity is None):
            self._left_out += 1
            return
        self._decisions += 1
        if self._decisions > DECISIONS_MAX:
            raise CallerError(f"more than {DECISIONS_MAX:,} decisions are in this range: choose a shorter one")


def _figures(range_: ScaleRange, scenario: ScaleScenario | None, progress: Progress) -> ScaleFigures:
    """Of the scenario; without one, of the fleet as it was recorded. Some 5 ms for each decision."""
    run, decisions = _FleetRun(range_, scenario), 0
    for event in range_.events:
        run.apply(event)
        decisions += isinstance(event, ScaleDecided)
        if decisions % PROGRESS_EVERY == 0:
            progress(decisions, range_.decisions)
    progress(range_.decisions, range_.decisions)
    return run.figures


class _FleetRun:
    """Follows a fleet over the range: a virtual one that decides under the scenario, or the recorded one."""

    def __init__(self, range_: ScaleRange, scenario: ScaleScenario | None) -> None:
        self.figures = (
            ScaleFigures(label=RECORDED, settings={})
            if scenario is None
            else ScaleFigures(label=scenario.label, settings=scenario.settings)
        )
        self._scenario = scenario
        self._fold = fold = deepcopy(range_.fold)
        self._fleet: VirtualFleet | None = None
        self._period: DemandRolled | None = None
        """The last one of the range."""
        self._before: ScaleDecided | None = None
        """The last recorded decision of the range …"""
        self._left = 0
        """… and the recorded workers that left by it."""
        assert fold.capacity is not None
        fold.settings, fold.capacity = self._settings(fold.settings), self._capacity(fold.capacity)

    def __repr__(self) -> str:
        return f"<_FleetRun, {self.figures.label}>"

    def apply(self, event: KeptEvent) -> None:
        """One event more, in the order of the log. CallerError if the scenario contradicts the recorded settings."""
        match event:
            case ScaleDecided():
                if self._scenario is None:
                    self._follow(event)
                else:
                    self._decide(event)
                self._before = event
            case DemandRolled():
                self._period = event
                self._fold.apply(event)
            case CapacityLearned():
                self._fold.apply(self._capacity(event))
            case ScaleSettingsChanged():
                changed = self._settings(ScaleSettings.parse(event.settings))
                self._fold.apply(replace(event, settings=changed.to_mapping()))
            case ScaleApplied() if self._scenario is None:
                self.figures.started += event.started
                self.figures.drained += event.drained
                self._left += event.drained

    def _settings(self, recorded: ScaleSettings) -> ScaleSettings:
        return recorded if self._scenario is None else self._scenario.over(recorded)

    def _capacity(self, learned: CapacityLearned) -> CapacityLearned:
        """With the scenario's start-up time, if it has one."""
        given = None if self._scenario is None else self._scenario.settings.get(STARTUP)
        return learned if given is None else replace(learned, startup_ms=given * MILLI)

    def _follow(self, event: ScaleDecided) -> None:
        fleet = FleetCounts(event.ready, event.starting, event.overdue, event.draining)
        if self._before is not None:
            inputs = self._fold.inputs(event.at_ms, fleet, event.forecast)
            self._end_period(sum(fleet), self._before.ready - self._left, self._before, inputs)
        self._left = 0
        self.figures.note_target(event)
        self._fold.apply(event)

    def _decide(self, event: ScaleDecided) -> None:
        """The decision at the time of the recorded one."""
        fold, now_ms = self._fold, event.at_ms
        assert fold.capacity is not None
        startup_ms = fold.capacity.startup_ms
        if self._fleet is None:
            self._fleet = VirtualFleet(event.ready, event.starting, now_ms, startup_ms)
        fleet = self._fleet
        workers, ready = fleet.workers, fleet.ready
        fleet.advance(now_ms)
        horizon_s = -(-startup_ms // MILLI) + fold.settings.period_s
        # a library's forecast is a recorded input, and cannot be made again here
        is_recorded = event.forecast.predictor == fold.settings.predictor in LIBRARY_PREDICTORS
        foreseen = event.forecast if is_recorded else forecast(fold.history, fold.settings, now_ms, horizon_s)
        inputs = fold.inputs(now_ms, FleetCounts(fleet.ready, fleet.starting), foreseen)
        if self._before is not None:
            self._end_period(workers, ready, self._before, inputs)
        decided = on_fleet(decide_scale(inputs), fleet_of(event))
        if event.budget is not UNSET:
            room = max(fold.settings.min, event.budget // max(1, fold.capacity.devices))
            decided = within_budget(decided, min(decided.target, room), event.budget)
        fold.apply(decided)
        fleet.resize(decided.target, now_ms, startup_ms)
        self.figures.note_target(decided)
        self.figures.started, self.figures.drained = fleet.started, fleet.drained

    def _end_period(self, workers: int, ready: int, before: ScaleDecided, inputs: ScaleInputs) -> None:
        """The last period had so many workers, of which so many were ready at its start. `before` is the recorded
        decision at its start: the recorded cache hits are those of its workers."""
        period = self._period
        if period is None:
            return
        self.figures.add_period(period.period_s, workers)
        model = queue_of(inputs)
        if not period.arrivals or not model.is_known:
            return
        attainment_bp = 0
        if ready:
            hits = HitRates(inputs.capacity.hits, inputs.cells, before.ready)
            rate_m = rate_over_m(inputs.demand, BURST_BEFORE_S)
            attainment_bp = model.predict(ready, rate_m, hits.of(ready), hits.now_bp).attainment_bp
        self.figures.add_prediction(period.arrivals, attainment_bp)


def _answer(range_: ScaleRange, recorded: ScaleFigures, scenarios: list[ScaleFigures]) -> ScaleWhatIf:
    decided = [event for event in range_.events if isinstance(event, ScaleDecided)]
    periods = [event for event in range_.events if isinstance(event, DemandRolled)]
    learned = [event for event in range_.events if isinstance(event, CapacityLearned)]
    assert range_.fold.capacity is not None
    startups_ms = [each.startup_ms for each in (range_.fold.capacity, *learned)]
    return ScaleWhatIf(
        decisions=range_.decisions,
        model=range_.model,
        first_ms=decided[0].at_ms,
        last_ms=decided[-1].at_ms,
        left_out=range_.left_out,
        startup_ms=(min(startups_ms), max(startups_ms)),
        measured=MeasuredService(
            arrivals=sum(each.arrivals for each in periods),
            ended=sum(each.ended for each in periods),
            attained=sum(each.attained for each in periods),
        ),
        recorded=recorded,
        scenarios=scenarios,
    )
