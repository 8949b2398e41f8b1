"""ScaleExplainer: folds the scale stream up to a moment, and explains the decision that was in force then.

A decision rests on all events of the stream before it, so the stream is read from its start: some 50 us a message. The
decision itself is made again once.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing
from typing import NamedTuple

from actors.planning.planner import OVERDUE_FACTOR, OVERDUE_MORE_MS
from core.errors import CallerError
from core.event_json import time_text
from core.events import Event, UnknownEvent
from core.events.kv import DECODE, PREFILL
from core.events.scale import (
    NO_MODEL,
    CapacityLearned,
    DemandRolled,
    ScaleApplied,
    ScaleDecided,
    ScaleFailed,
    WorkerStarting,
    fleet_key,
    fleet_of,
    model_and_role,
    model_of,
)
from projections.scaling.fleet_fold import FleetFold
from projections.scaling.scale_decision import ScaleInputs
from projections.scaling.scale_settings import ScaleSettings
from replay.explain.scale_explanation import DIFFERENT, EQUAL, NOT_JUDGED, ScaleExplanation, ScaleOutcome, ScaleWindow
from replay.explain.scale_sentences import outcome_sentences, scale_reason, verdict_sentence
from replay.recording.moment import Moment
from replay.recording.scale_stream import NO_DECISION, Progress, ScalePlace, read_scale, scale_place
from replay.verify.scale_checks import RecordedScaleDecision, differing_field, judge_scale, recorded_inputs
from streams.log import EventLog


class _FoundDecision(NamedTuple):
    """A decision, with all that stood before it."""

    seq: int
    decided: ScaleDecided
    demand: DemandRolled | None
    capacity: CapacityLearned | None
    settings: ScaleSettings | None
    inputs: ScaleInputs | None
    is_whole: bool
    """No message before it is missing."""
    outcome: ScaleOutcome
    beside: list[RecordedScaleDecision]
    """The decisions on other fleets in its message."""


class ScaleExplainer:
    """See the module's text. Memory is that of a `ScaleFold` for each fleet."""

    def __init__(self, place: ScalePlace | None, model: str | None = None, role: str | None = None) -> None:
        """The newest decision up to the place is explained, or the newest of all. With a model, that on the model; of
        several models at one time the first one in the log. With a role, that on workers of the role."""
        self._place = place
        is_any = model is None and role is None
        self._chosen = None if is_any else fleet_key(model or NO_MODEL, role or DECODE)
        self._fold = FleetFold()
        self._next_seq = 1
        self._is_whole = True
        self._demand: dict[str, DemandRolled] = {}
        """The newest period of each model."""
        self._found: _FoundDecision | None = None
        self._later: ScaleDecided | None = None
        """The newest decision behind the place."""
        self._others: list[RecordedScaleDecision] = []
        """Decisions on models that are not asked for, in the present message."""
        self.first = ""
        """Time and place of the first decision that was read, as text; empty for none."""

    def __repr__(self) -> str:
        return f"<ScaleExplainer, {self._fold!r}>"

    @property
    def is_done(self) -> bool:
        """No later message changes the explanation."""
        if self._later is None or self._found is None:
            return self._later is not None
        found = self._found
        startup_ms = 0 if found.capacity is None else found.capacity.startup_ms
        noticed_ms = (
            OVERDUE_FACTOR * startup_ms
            + OVERDUE_MORE_MS
            + 2 * self._fold.of(fleet_of(found.decided)).settings.period_s * 1000
        )
        return self._later.at_ms - found.decided.at_ms > noticed_ms

    @property
    def models(self) -> list[str]:
        """The models of the stream so far; empty of a planner that sizes one."""
        return sorted({model for model, _ in map(model_and_role, self._fold.fleets) if model})

    @property
    def sizes_prefill(self) -> bool:
        """The stream so far has a fleet of prefill workers."""
        return any(role == PREFILL for _, role in map(model_and_role, self._fold.fleets))

    def add(self, seq: int, events: Iterable[Event | UnknownEvent]) -> None:
        """One message more. O(events), and for each decision O(periods that the fold keeps)."""
        self._is_whole = self._is_whole and seq == self._next_seq
        self._next_seq = seq + 1
        self._others = []
        for event in events:
            match event:
                case ScaleDecided():
                    self._add_decision(seq, event)
                case DemandRolled():
                    self._demand[model_of(event)] = event
                case WorkerStarting() | ScaleApplied() | ScaleFailed():
                    self._add_outcome(event)
            self._fold.apply(event)

    def explanation(self) -> ScaleExplanation | None:
        """Of the newest decision up to the place; None if there is none. It is made again: some 10 ms."""
        if self._found is None:
            return None
        seq, decided, demand, capacity, settings, inputs, is_whole, outcome, beside = self._found
        verdict = judge_scale(decided, inputs, is_whole=is_whole, beside=beside)
        is_equal = verdict.is_equal(decided)
        differs = None if is_equal or verdict.reason else verdict.remade
        window = None if inputs is None else _window(inputs)
        reason = scale_reason(decided, settings or ScaleSettings(), window)
        return ScaleExplanation(
            seq=seq,
            time=time_text(decided.at_ms),
            summary=[reason, *outcome_sentences(decided, outcome), verdict_sentence(decided, verdict)],
            verdict=EQUAL if is_equal else NOT_JUDGED if verdict.reason else DIFFERENT,
            reason=verdict.reason if differs is None else differing_field(decided, differs),
            remade=differs,
            decided=decided,
            demand=demand,
            capacity=capacity,
            settings=None if settings is None else settings.to_mapping(),
            window=window,
            outcome=outcome,
        )

    def _add_decision(self, seq: int, event: ScaleDecided) -> None:
        fleet, fold = fleet_of(event), self._fold.of(fleet_of(event))
        if self._is_beside(seq, fleet):
            assert self._found is not None
            self._found.beside.append(RecordedScaleDecision(event, recorded_inputs(fold, event)))
            return
        if self._chosen is not None and fleet != self._chosen:
            self._others.append(RecordedScaleDecision(event, recorded_inputs(fold, event)))
            return
        self.first = self.first or f"{time_text(event.at_ms)} (scale:{seq})"
        is_behind = self._place is not None and self._place.is_before(seq, event)
        if self._later is None and not is_behind:
            self._found = _FoundDecision(
                seq=seq,
                decided=event,
                demand=self._demand.get(model_of(event)),
                capacity=fold.capacity,
                settings=fold.settings if fold.revision else None,
                inputs=recorded_inputs(fold, event),
                is_whole=self._is_whole,
                outcome=ScaleOutcome(),
                beside=self._others,
            )
            return
        if self._found is not None and fleet_of(self._found.decided) != fleet:
            return
        self._later = event
        if self._found is None:
            return
        decided, outcome = self._found.decided, self._found.outcome
        if outcome.changed_ms is None and event.target != decided.target:
            outcome.changed_ms, outcome.changed_to = event.at_ms, event.target
        if outcome.changed_ms is None and outcome.reached_ms is None and event.ready == decided.target:
            outcome.reached_ms = event.at_ms

    def _is_beside(self, seq: int, fleet: str) -> bool:
        """A decision on that fleet in that message stands beside the one that was found."""
        found = self._found
        return found is not None and found.seq == seq and fleet_of(found.decided) != fleet

    def _add_outcome(self, event: WorkerStarting | ScaleApplied | ScaleFailed) -> None:
        if self._found is None or fleet_of(event) != fleet_of(self._found.decided):
            return
        outcome, is_own = self._found.outcome, self._later is None
        match event:
            case WorkerStarting(start=start) if is_own:
                outcome.orders.append(start)
            case ScaleApplied() if is_own:
                outcome.applied = event
            case ScaleFailed(start=start) if start in outcome.orders or (is_own and not start):
                outcome.failures.append(event)


def _window(inputs: ScaleInputs) -> ScaleWindow:
    return ScaleWindow(
        required=max((each.workers for each in inputs.required), default=0),
        is_full=inputs.is_window_full,
        regretted=inputs.regretted,
    )


async def explain_scale(
    log: EventLog,
    moment: Moment | None,
    progress: Progress = lambda _done, _of: None,
    model: str | None = None,
    role: str | None = None,
) -> ScaleExplanation:
    """The newest decision at the moment, or of all; the decision of `scale:N` is that of the message, or the one before
    it. With a model, the decision on the model, and with a role that on workers of the role. CallerError says what
    there is if no decision was made by then, or the log does not know the moment."""
    explainer = ScaleExplainer(None if moment is None else await scale_place(log, moment), model, role)
    async with aclosing(read_scale(log, progress)) as messages:
        async for seq, events in messages:
            explainer.add(seq, events)
            if explainer.is_done:
                break
    found, first = explainer.explanation(), explainer.first
    if found is None and model is not None and model not in explainer.models:
        there = f"there are {', '.join(explainer.models)}" if explainer.models else "it sizes one, and names none"
        raise CallerError(f"the planner sizes no model {model!r}: {there}")
    if found is None and role == PREFILL and not explainer.sizes_prefill:
        raise CallerError("the planner sizes no prefill workers: leave --role out")
    if found is None:
        raise CallerError(f"no decision was made by then; the first one is of {first}" if first else NO_DECISION)
    return found
