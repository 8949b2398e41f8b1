"""ScaleExplainer: folds the scale stream up to a moment, and explains the decision that was in force then.

A decision rests on all events of the stream before it, so the stream is read from its start: some 50 us a message. The
decision itself is made again once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from actors.planning.planner import OVERDUE_FACTOR, OVERDUE_MORE_MS
from core.codec import decode_message
from core.errors import CallerError, Corrupt
from core.event_json import time_text
from core.events import Event, UnknownEvent
from core.events.scale import CapacityLearned, DemandRolled, ScaleApplied, ScaleDecided, ScaleFailed, WorkerStarting
from core.subjects import SCALE
from projections.scaling.scale_decision import ScaleInputs
from projections.scaling.scale_fold import ScaleFold
from projections.scaling.scale_settings import ScaleSettings
from replay.explain.scale_explanation import DIFFERENT, EQUAL, NOT_JUDGED, ScaleExplanation, ScaleOutcome, ScaleWindow
from replay.explain.scale_sentences import outcome_sentences, scale_reason, verdict_sentence
from replay.recording.moment import AtCursor, AtRequest, AtSequence, AtTime, Moment, find_request
from replay.verify.scale_checks import differing_field, judge_scale, recorded_inputs
from streams.log import EventLog

NO_STREAM = "the log has no stream of a planner; `planner: {mode: advise}` in the deployment's file starts one"
NO_DECISION = "no decision yet: the speed of a worker is not known, or no planner leads"
PROGRESS_EVERY = 1_000
"""Messages between two reports of progress."""
Progress = Callable[[int, int], None]
"""Gets how many messages are read, and how many there are."""


class ScalePlace(NamedTuple):
    """The newest decision up to this time and up to this message is meant; None is open."""

    time_ms: int | None = None
    seq: int | None = None


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


class ScaleExplainer:
    """See the module's text. Memory is that of one `ScaleFold`."""

    def __init__(self, place: ScalePlace) -> None:
        self._place = place
        self._fold = ScaleFold()
        self._next_seq = 1
        self._is_whole = True
        self._demand: DemandRolled | None = None
        self._found: _FoundDecision | None = None
        self._later: ScaleDecided | None = None
        """The newest decision behind the place."""
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
        noticed_ms = OVERDUE_FACTOR * startup_ms + OVERDUE_MORE_MS + 2 * self._fold.settings.period_s * 1000
        return self._later.at_ms - found.decided.at_ms > noticed_ms

    def add(self, seq: int, events: Iterable[Event | UnknownEvent]) -> None:
        """One message more. O(events), and for each decision O(periods that the fold keeps)."""
        self._is_whole = self._is_whole and seq == self._next_seq
        self._next_seq = seq + 1
        for event in events:
            match event:
                case ScaleDecided():
                    self._add_decision(seq, event)
                case DemandRolled():
                    self._demand = event
                case WorkerStarting() | ScaleApplied() | ScaleFailed():
                    self._add_outcome(event)
            self._fold.apply(event)

    def explanation(self) -> ScaleExplanation | None:
        """Of the newest decision up to the place; None if there is none. It is made again: some 10 ms."""
        if self._found is None:
            return None
        seq, decided, demand, capacity, settings, inputs, is_whole, outcome = self._found
        verdict = judge_scale(decided, inputs, is_whole=is_whole)
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
        self.first = self.first or f"{time_text(event.at_ms)} (scale:{seq})"
        until_ms, until_seq = self._place
        is_behind = (until_ms is not None and event.at_ms > until_ms) or (until_seq is not None and seq > until_seq)
        if self._later is None and not is_behind:
            fold = self._fold
            self._found = _FoundDecision(
                seq=seq,
                decided=event,
                demand=self._demand,
                capacity=fold.capacity,
                settings=fold.settings if fold.revision else None,
                inputs=recorded_inputs(fold, event),
                is_whole=self._is_whole,
                outcome=ScaleOutcome(),
            )
            return
        self._later = event
        if self._found is None:
            return
        decided, outcome = self._found.decided, self._found.outcome
        if outcome.changed_ms is None and event.target != decided.target:
            outcome.changed_ms, outcome.changed_to = event.at_ms, event.target
        if outcome.changed_ms is None and outcome.reached_ms is None and event.ready == decided.target:
            outcome.reached_ms = event.at_ms

    def _add_outcome(self, event: WorkerStarting | ScaleApplied | ScaleFailed) -> None:
        if self._found is None:
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
    log: EventLog, moment: Moment | None, progress: Progress = lambda _done, _of: None
) -> ScaleExplanation:
    """The newest decision at the moment, or of all; the decision of `scale:N` is that of the message, or the one before
    it. CallerError says what there is if no decision was made by then, or the log does not know the moment."""
    if SCALE not in await log.streams():
        raise CallerError(NO_STREAM)
    place = await _place(log, moment)
    state = await log.state(SCALE)
    explainer = ScaleExplainer(place)
    async for record in log.read(SCALE, state.first_seq):
        try:
            message = decode_message(record.payload)
        except Corrupt:
            continue  # the decisions behind it are judged as behind a gap
        explainer.add(record.seq, message.events)
        if record.seq % PROGRESS_EVERY == 0:
            progress(record.seq - state.first_seq, state.messages)
        if explainer.is_done:
            break
    progress(1, 1)
    found = explainer.explanation()
    if found is not None:
        return found
    raise CallerError(
        f"no decision was made by then; the first one is of {explainer.first}" if explainer.first else NO_DECISION
    )


async def _place(log: EventLog, moment: Moment | None) -> ScalePlace:
    match moment:
        case None:
            return ScalePlace()
        case AtTime(time_ms):
            return ScalePlace(time_ms)
        case AtRequest(request):
            return ScalePlace((await find_request(log, request)).record.time_ms)
        case AtSequence(stream, seq):
            named = {stream: seq}
        case AtCursor(seqs):
            named = dict(seqs)
    times = []
    for stream, seq in named.items():
        record = await log.at(stream, seq) if stream in await log.streams() else None
        if record is None:
            raise CallerError(f"{stream}:{seq} is not in the log{await _extent(log)}")
        times.append(record.time_ms)
    return ScalePlace(seq=named[SCALE]) if SCALE in named else ScalePlace(max(times))


async def _extent(log: EventLog) -> str:
    state = await log.state(SCALE)
    return f"; of the planner's stream it has scale:{state.first_seq} to scale:{state.last_seq}"
