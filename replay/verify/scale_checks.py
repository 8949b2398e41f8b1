"""Scale checks: every decision on the size of the fleet made again, and every period of demand counted again.

1. A decision rests on the scale stream alone: on the events before it, and on the counts and the forecast in it.
   One that comes out equal is verified. One that comes out otherwise is a difference, unless the stream is known to
   lack messages before it, or a newer program decided: then it is not judged, with the reason.
2. Where models share devices, the decisions of one message are divided again: each target must follow from all of them.
3. A period's demand is counted again from the routing stream, up to the cursor that the period names. A count that
   began anew (`DemandRolled.since`) begins anew here. It is not judged where the routing stream is not here from there
   on, or lacks messages. The part of prefill workers is counted where they are sized.
4. On request, the simulations behind each answer of a judge are made again, from the decision that it was asked about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from core.codec import Message
from core.events import DemandRolled, ScaleDecided, ScaleSettingsChanged
from core.events.kv import DECODE
from core.events.scale import (
    JUDGE_VERSION,
    SCALE_VERSION,
    ScaleJudgement,
    fleet_of,
    model_and_role,
    model_of,
    on_fleet,
)
from core.ids import StreamSeq
from core.subjects import ROUTING, SCALE
from projections.scaling.fleet_decision import ModelNeed, divide_devices, need_of, within_budget
from projections.scaling.fleet_demand import FleetDemand
from projections.scaling.fleet_fold import FleetFold
from projections.scaling.judge_plan import JudgePlan, judge_plan
from projections.scaling.scale_decision import FleetCounts, ScaleInputs, decide_scale
from projections.scaling.scale_fold import ScaleFold
from projections.scaling.scale_rules import RULES
from replay.recording.recording import Recording
from streams.log import Record

DIFFERENCES_KEPT = 100
"""The first of them are kept, all are counted."""
ASKED_MS = 600_000
"""Most time between a decision and a judge's answer to it. A question waits until the next one of its model at most."""
CUT, VERSION = "cut", "version"
"""Reasons of no judgement: messages before it are not here; rules of a newer program."""


Judge = Callable[[JudgePlan], ScaleJudgement]


class ScaleDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A decision or a period that does not follow."""

    event: str
    """Its type."""
    seq: int
    """Of its message in the scale stream."""
    time_ms: int
    term: str
    """The first field that differs."""
    recorded: Any
    recomputed: Any


class JudgementCounts(msgspec.Struct, kw_only=True):
    """Answers of a judge, simulated again."""

    verified: int = 0
    different: int = 0
    not_judged: dict[str, int] = msgspec.field(default_factory=dict)
    """Reason to how many."""
    absent: dict[str, int] = msgspec.field(default_factory=dict)
    """Absences of the judge, by their reason: there is nothing to simulate again."""


class ScaleResult(msgspec.Struct, kw_only=True):
    """Findings on the scale stream."""

    decisions: int = 0
    verified: int = 0
    different: int = 0
    not_judged: dict[str, int] = msgspec.field(default_factory=dict)
    """Reason to how many."""
    periods: int = 0
    """Periods of demand …"""
    periods_verified: int = 0
    periods_different: int = 0
    periods_not_judged: int = 0
    judgements: JudgementCounts | None = None
    """None where the simulations were not made again."""
    differences: list[ScaleDifference] = msgspec.field(default_factory=list)
    """The first DIFFERENCES_KEPT of them."""

    @property
    def judgements_not_judged(self) -> int:
        """Answers of a judge that were not judged."""
        return 0 if self.judgements is None else sum(self.judgements.not_judged.values())

    @property
    def differ(self) -> int:
        """Decisions, periods and answers that do not follow."""
        judgements = 0 if self.judgements is None else self.judgements.different
        return self.different + self.periods_different + judgements


class ScaleVerdict(NamedTuple):
    """The result of making one decision again."""

    remade: ScaleDecided | None
    """None if it could not be made again."""
    reason: str
    """CUT or VERSION of a decision that is not judged; else empty."""

    def is_equal(self, event: ScaleDecided) -> bool:
        """The recorded decision follows from the events before it."""
        return not self.reason and self.remade == event


def recorded_inputs(fold: ScaleFold, event: ScaleDecided) -> ScaleInputs | None:
    """The inputs of the decision that comes next in the fold; None if the capacity before it is not here. A version of
    the rules that this program does not have gets the inputs of its newest one."""
    fleet = FleetCounts(event.ready, event.starting, event.overdue, event.draining)
    version = event.version if event.version in RULES else SCALE_VERSION
    answer = None if isinstance(event.judged, UnsetType) else event.judged
    return None if fold.capacity is None else fold.inputs(event.at_ms, fleet, event.forecast, version, answer)


class RecordedScaleDecision(NamedTuple):
    """A decision, and its inputs; None if the capacity before it is not here."""

    event: ScaleDecided
    inputs: ScaleInputs | None


def judge_scale(
    event: ScaleDecided,
    inputs: ScaleInputs | None,
    *,
    is_whole: bool,
    beside: Sequence[RecordedScaleDecision] = (),
) -> ScaleVerdict:
    """The decision made again; some 10 ms. `is_whole` is false if messages before it are missing: then a decision that
    comes out otherwise is not judged. `beside` has the other decisions of its message, which share devices with it."""
    if event.version not in RULES:
        return ScaleVerdict(None, VERSION)
    if inputs is None:
        return ScaleVerdict(None, CUT)
    remade = on_fleet(decide_scale(inputs), fleet_of(event))
    if event.budget is not UNSET:
        workers = _divided(RecordedScaleDecision(event, inputs), beside, event.budget)
        if workers is None:
            return ScaleVerdict(None, CUT)
        remade = within_budget(remade, workers, event.budget)
    return ScaleVerdict(remade, "" if is_whole or remade == event else CUT)


def _divided(own: RecordedScaleDecision, beside: Sequence[RecordedScaleDecision], budget: int) -> int | None:
    """The workers that the division of the devices leaves, by the recorded needs; None if the needs of one of the
    decisions are not here."""
    needs: list[ModelNeed] = []
    for event, inputs in (own, *beside):
        if event.sought is UNSET:
            continue
        if inputs is None:
            return None
        needs.append(need_of(fleet_of(event), event.sought, inputs))
    return divide_devices(needs, budget)[fleet_of(own.event)]


def differing_field(recorded: msgspec.Struct, remade: msgspec.Struct) -> str:
    """The first field in which the two differ. They must differ."""
    return next(name for name in recorded.__struct_fields__ if getattr(recorded, name) != getattr(remade, name))


def verify_scale(recording: Recording, judge: Judge | None = None) -> ScaleResult | None:
    """The findings on the whole scale stream; None of a recording without one. Some 10 ms per decision, and the time to
    decode the routing stream. With a `judge`, each of its answers is simulated again: some seconds for each."""
    if SCALE not in recording.archive.streams:
        return None
    return _ScaleVerifier(recording, judge).run()


class _ScaleVerifier:
    def __init__(self, recording: Recording, judge: Judge | None) -> None:
        archive = recording.archive
        self._recording = recording
        self._judge = judge
        self._asked: dict[tuple[str, int], RecordedScaleDecision] = {}
        """Decisions of the last ASKED_MS about which a judge may have been asked, by fleet and time."""
        self._result = ScaleResult(judgements=None if judge is None else JudgementCounts())
        self._fold = FleetFold()
        self._is_whole = archive.span(SCALE).begin == 1
        """No message of the scale stream is missing so far."""
        self._next_seq = archive.span(SCALE).begin
        self._next_routing = StreamSeq(1)
        """Of the routing stream; 0 if a message of it is missing."""
        self._demand: FleetDemand | None = None
        self._begun_at = 0
        """The message of the scale stream at which a count began anew, for all models."""
        self._requests: Iterator[tuple[Record, Message]] = iter(())
        self._next_request: tuple[Record, Message] | None = None
        self._routing = archive.span(ROUTING) if ROUTING in archive.streams else None
        if self._routing is not None and self._routing.begin == 1:
            self._requests = recording.messages(ROUTING)
        else:
            self._next_routing = StreamSeq(0)

    def run(self) -> ScaleResult:
        for record, message in self._recording.messages(SCALE):
            self._is_whole = self._is_whole and record.seq == self._next_seq
            self._next_seq = StreamSeq(record.seq + 1)
            decisions: list[RecordedScaleDecision] = []
            for event in message.events:
                match event:
                    case ScaleDecided():
                        fold = self._fold.of(fleet_of(event))
                        decisions.append(RecordedScaleDecision(event, recorded_inputs(fold, event)))
                    case DemandRolled():
                        self._check_period(record, event)
                    case ScaleSettingsChanged():
                        self._fold.apply(event)
                        self._change_bounds(fleet_of(event))
                        continue
                self._fold.apply(event)
            for number, each in enumerate(decisions):
                self._check_decision(record, each, (*decisions[:number], *decisions[number + 1 :]))
        return self._result

    def _check_decision(
        self, record: Record, it: RecordedScaleDecision, beside: Sequence[RecordedScaleDecision]
    ) -> None:
        result, event = self._result, it.event
        if self._judge is not None:
            self._check_judgement(record, it, self._judge)
        result.decisions += 1
        verdict = judge_scale(event, it.inputs, is_whole=self._is_whole, beside=beside)
        if verdict.remade is None or verdict.reason:
            result.not_judged[verdict.reason] = result.not_judged.get(verdict.reason, 0) + 1
        elif verdict.is_equal(event):
            result.verified += 1
        else:
            result.different += 1
            self._note(record, event, verdict.remade)

    def _check_judgement(self, record: Record, it: RecordedScaleDecision, judge: Judge) -> None:
        event, fleet, counts = it.event, fleet_of(it.event), self._result.judgements
        assert counts is not None
        recorded = event.judged
        if not isinstance(recorded, UnsetType) and recorded.absent:
            counts.absent[recorded.absent] = counts.absent.get(recorded.absent, 0) + 1
        elif not isinstance(recorded, UnsetType):
            remade, reason = self._judged_again(recorded, self._asked.get((fleet, recorded.asked_ms)), judge)
            if reason:
                counts.not_judged[reason] = counts.not_judged.get(reason, 0) + 1
            elif remade == recorded:
                counts.verified += 1
            else:
                counts.different += 1
                self._note(record, recorded, remade)
        self._asked[fleet, event.at_ms] = it
        while next(iter(self._asked))[1] < event.at_ms - ASKED_MS:
            del self._asked[next(iter(self._asked))]

    def _judged_again(
        self, recorded: ScaleJudgement, asked: RecordedScaleDecision | None, judge: Judge
    ) -> tuple[ScaleJudgement, str]:
        """The answer that follows, or the reason of no judgement."""
        none = replace(recorded, workers=(), digest="")
        if recorded.version != JUDGE_VERSION or (asked is not None and asked.event.version not in RULES):
            return none, VERSION
        plan = None if asked is None or asked.inputs is None else judge_plan(asked.inputs, asked.event)
        if plan is not None:
            found = judge(plan)
            return found, "" if self._is_whole or found == recorded else CUT
        return none, "" if self._is_whole else CUT

    def _check_period(self, record: Record, event: DemandRolled) -> None:
        result = self._result
        result.periods += 1
        epoch, last = event.cursor.get(ROUTING, (0, 0))
        known = self._routing
        is_here = known is not None and known.epoch == epoch and last <= known.last_seq
        if not is_here or not self._is_whole or self._demand is None or not self._demand.counts(model_of(event)):
            result.periods_not_judged += 1
            return
        if event.since is not UNSET and self._begun_at != record.seq:
            self._begun_at = record.seq
            self._begin_anew(event, epoch)
        self._count_up_to(last)
        if not self._next_routing:
            result.periods_not_judged += 1
            return
        remade = self._demand.roll(model_of(event), event.at_ms, event.period_s, event.cursor)
        remade = replace(remade, since=event.since)
        if remade == event:
            result.periods_verified += 1
        else:
            result.periods_different += 1
            self._note(record, event, remade)

    def _begin_anew(self, event: DemandRolled, epoch: int) -> None:
        """As `actors.planning.demand_reader` does. A planner that takes over may size prefill workers no more."""
        assert self._routing is not None
        assert event.since is not UNSET
        since, has_prefill = event.since, event.prefill_demand is not UNSET
        settings = {
            fleet: self._fold.of(fleet).settings
            for fleet in self._fold.fleets
            if has_prefill or model_and_role(fleet)[1] == DECODE
        }
        self._demand, self._next_request = FleetDemand(settings), None
        is_here = self._routing.begin <= since
        self._next_routing = StreamSeq(since if is_here else 0)
        self._requests = self._recording.messages(ROUTING, since) if is_here else iter(())
        rolled_epoch, rolled = self._fold.cursor.get(ROUTING, (0, 0))
        if rolled_epoch == epoch and since <= rolled + 1:
            self._count_up_to(rolled)
            self._demand.skip(self._fold.rolled_ms)

    def _change_bounds(self, fleet: str) -> None:
        settings = self._fold.of(fleet).settings
        if self._demand is None:
            self._demand = FleetDemand({fleet: settings})
        self._demand.use(fleet, settings)

    def _count_up_to(self, last: int) -> None:
        """The requests of all messages of the routing stream up to there are counted."""
        assert self._demand is not None
        while (found := self._next_request or next(self._requests, None)) is not None:
            record, message = found
            if record.seq > last:
                self._next_request = found
                return
            self._next_request = None
            self._next_routing = StreamSeq(record.seq + 1 if record.seq == self._next_routing else 0)
            for event in message.events:
                self._demand.apply(event)

    def _note(self, record: Record, event: msgspec.Struct, remade: msgspec.Struct) -> None:
        if len(self._result.differences) >= DIFFERENCES_KEPT:
            return
        term = differing_field(event, remade)
        self._result.differences.append(
            ScaleDifference(
                event=type(event).__name__,
                seq=record.seq,
                time_ms=record.time_ms,
                term=term,
                recorded=msgspec.to_builtins(getattr(event, term)),
                recomputed=msgspec.to_builtins(getattr(remade, term)),
            )
        )
