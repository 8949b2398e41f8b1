"""ScenarioRun: one scenario, decided decision by decision beside the record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import xxhash

from core.ids import WorkerId
from core.prompt import Prompt
from core.settings import APPROXIMATE, RoutingSettings
from projections.folds.state import NO_OVERLAP
from projections.policy.cost import ESTIMATING_POLICIES
from projections.policy.decide import Decision, decide
from projections.policy.view import Candidate, View
from replay.playback.playback import RecordedDecision
from replay.recording.request_history import NEVER, RequestAttempt
from replay.whatif.first_token_fit import FirstTokenFit
from replay.whatif.outcome import DecisionChange, Evenness, Regret, WorstChanges, blocks_of, evenness, regret
from replay.whatif.scenario import Scenario

_encode = msgspec.msgpack.Encoder().encode
MICRO = 1000
"""Of a millisecond: sums of regret are whole microseconds, so that they are the same anywhere."""


UNFITTED = FirstTokenFit()
AS_IN_ROWS: Mapping[WorkerId, tuple[int, ...]] = MappingProxyType({})
"""The rows of a view say all that is known of caches."""


class CandidateView(NamedTuple):
    """A view, and the candidates in it for one request."""

    view: View
    rows: list[Candidate]


class ScenarioView(View):
    """A view with other candidates and another count of decisions."""

    _rows: list[Candidate]
    _fewer: int

    @staticmethod
    def of(view: View, rows: list[Candidate], fewer: int) -> ScenarioView:
        """`rows` by id; `fewer` decisions than the view has were made for the model."""
        found = ScenarioView(*view)
        found._rows, found._fewer = rows, fewer
        return found

    def routed(self, model: str) -> int:
        return super().routed(model) - self._fewer

    def cached(
        self, prompt: Prompt, settings: RoutingSettings, now_ms: int, *, pools: bool = True
    ) -> Mapping[WorkerId, tuple[int, ...]]:
        """As the rows have it; under `approximate`, by the workers that the record's requests went to."""
        return super().cached(prompt, settings, now_ms, pools=pools) if settings.policy == APPROXIMATE else AS_IN_ROWS

    def candidates(self, _prompt: Prompt, cached: Mapping[WorkerId, tuple[int, ...]] | None = None) -> list[Candidate]:
        if cached is None or cached is AS_IN_ROWS:
            return self._rows
        return [row._replace(overlap=cached.get(row.worker, NO_OVERLAP)) for row in self._rows]


class JudgedDecision(NamedTuple):
    """One recorded decision that can be judged."""

    number: int
    recorded_decision: RecordedDecision
    record: RequestAttempt
    counted_until: int
    """The number of the event from which on no fold counts the attempt; 0 for none."""
    candidate_view: CandidateView
    """State of the log at the decision."""
    recorded: Candidate
    """The recorded choice in it."""
    even: tuple[float, float] | None
    """Evenness of active blocks."""

    @property
    def answered(self) -> bool:
        """Its first token came while it was counted."""
        return 0 < self.record.prefilled_at < (self.counted_until or NEVER)


class ScenarioRun:
    """See the module's text."""

    def __init__(
        self,
        scenario: Scenario,
        fitted: Mapping[str, FirstTokenFit],
        without: Collection[WorkerId],
        worst: int,
        *,
        keeps: bool,
    ) -> None:
        """`fitted` is by model; `without` are the lives of the workers that the scenario is without; `worst` and
        `losses` hold so many at most; `keeps` says whether every change and first token
        is kept."""
        self.scenario = scenario
        self.without = without
        self.changes: list[DecisionChange] = []
        self.first_tokens: list[tuple[int, float]] = []
        self.changed = self.refused = self.astray = self.unlearned = 0
        self.cached_tokens = self.tokens = 0
        """Expected on the new choices, and the prompt tokens of those that were not refused."""
        self.regret_blocks = self.regret_us = 0
        self.requests: Counter[str] = Counter()
        self.worst, self.losses = WorstChanges(worst, 1), WorstChanges(worst, -1)
        self.recorded_even, self.new_even = Evenness(), Evenness()
        self.fitted = fitted
        self._keeps = keeps
        self._settings: dict[RoutingSettings, RoutingSettings] = {}
        self._fewer: Counter[tuple[str, str]] = Counter()
        """Decisions that were not made, by replica and model: it takes its turns without them."""
        self._digest = xxhash.xxh3_64()

    def __repr__(self) -> str:
        return f"<ScenarioRun {self.scenario.label!r}: {self.changed} changed>"

    @property
    def digest(self) -> str:
        """Of all that was decided so far."""
        return self._digest.hexdigest()

    def judge(self, judged: JudgedDecision, seen: CandidateView) -> None:
        """The decision is made under the scenario on the view `seen`, and weighed by the state of the log."""
        recorded_decision, event = judged.recorded_decision, judged.recorded_decision.event
        rows = self._remaining(judged.candidate_view)
        seen_rows = rows if seen is judged.candidate_view else self._remaining(seen)
        decision = self._decide(recorded_decision, seen.view, seen_rows)
        found = Regret(0, 0.0, 0)
        if decision.worker is None:
            self.refused += 1
            self._fewer[recorded_decision.replica, event.model] += 1
        else:
            new = next((row for row in rows if row.worker == decision.worker), None)
            self.astray += new is None
            found = regret(event, judged.recorded, new, self.fitted.get(event.model, UNFITTED))
            self.requests[decision.worker] += 1
            self.tokens += event.prompt_tokens
            if self._keeps and judged.answered and judged.record.begun_ms < 0:
                self.first_tokens.append((judged.record.ttft_ms, max(0.0, judged.record.ttft_ms - found.ms)))
        self.cached_tokens += found.cached_new
        self.regret_blocks += found.blocks
        self.regret_us += round(found.ms * MICRO)
        even = evenness(blocks_of(rows, event.model))
        if judged.even is not None and even is not None:
            self.recorded_even.note(judged.even)
            self.new_even.note(even)
        self._note(judged, decision.worker or WorkerId(""), found)

    def _remaining(self, seen: CandidateView) -> list[Candidate]:
        return [row for row in seen.rows if row.worker not in self.without] if self.without else seen.rows

    def _decide(self, recorded_decision: RecordedDecision, seen: View, rows: list[Candidate]) -> Decision:
        event = recorded_decision.event
        settings = self._settings.get(recorded_decision.settings)
        if settings is None:
            given = {**recorded_decision.settings.to_mapping(), **self.scenario.settings}
            settings = self._settings[recorded_decision.settings] = RoutingSettings.parse(given)
        estimates = settings.policy in ESTIMATING_POLICIES and not settings.prefill_us_per_token_m
        self.unlearned += estimates and event.policy not in ESTIMATING_POLICIES
        view = ScenarioView.of(seen, rows, self._fewer[recorded_decision.replica, event.model])
        request, version = recorded_decision.request, event.decide_version
        return decide(view, request, settings, event.now_ms, event.seed, version=version)

    def _note(self, judged: JudgedDecision, worker: WorkerId, found: Regret) -> None:
        recorded_decision, event = judged.recorded_decision, judged.recorded_decision.event
        self._digest.update(
            _encode((recorded_decision.seq, event.request, worker, found.blocks, round(found.ms * MICRO)))
        )
        if worker == event.worker:
            return
        self.changed += 1
        change = DecisionChange(
            seq=recorded_decision.seq,
            request=event.request,
            attempt=event.attempt,
            time_ms=recorded_decision.time_ms,
            recorded_worker=event.worker,
            new_worker=worker,
            regret_blocks=found.blocks,
            regret_ms=round(found.ms * MICRO) / MICRO,
            prompt_tokens=event.prompt_tokens,
        )
        if self._keeps:
            self.changes.append(change)
        self.worst.note(change, judged.number)
        self.losses.note(change, judged.number)
