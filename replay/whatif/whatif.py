"""what_if: the recorded history decided again under other settings, without a worker, or with the log seen later.

Every scenario chooses at each recorded decision, with the recorded seed. Choices are weighed by the state of the log
at that moment. Caches and loads stay as recorded, since the log does not say what another choice would have evicted or
delayed. So another choice looks somewhat worse than it would have been: it finds only what the record's own choices
left in its cache. The closed loop (`replay.closed_loop.closed_loop`) runs the requests instead, caches and loads
included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from core.events.routing import CACHED_UNKNOWN
from core.ids import StreamName, WorkerId
from core.settings import APPROXIMATE
from projections.folds.kv_fold import Member
from projections.folds.state import NO_OVERLAP, State
from projections.policy.rules import RULES
from projections.policy.view import Candidate
from replay.playback.playback import Playback, RecordedDecision
from replay.recording.recording import RecordedFrame, Recording
from replay.recording.request_history import DECLINED, PLACES
from replay.verify.chain_proof import gaps_of
from replay.verify.evidence import Evidence
from replay.verify.judge import remake
from replay.whatif.first_token_fit import FirstTokenFit, first_token_fits
from replay.whatif.outcome import Outcome, blocks_of, by_name, evenness, expected_blocks
from replay.whatif.scenario import Scenario
from replay.whatif.scenario_run import MICRO, UNFITTED, CandidateView, JudgedDecision, ScenarioRun
from streams.log import Record


class LogDelay:
    """A `Delay` for a playback that goes forward; it never goes back, never ahead of what was recorded, and never
    before what the recording begins with. Each stream is read once."""

    def __init__(self, recording: Recording, delay_ms: int) -> None:
        self._recording = recording
        self._delay_ms = delay_ms
        self._streams: dict[str, _StreamPointer] = {}

    def __call__(self, frame: RecordedFrame, recorded: Mapping[str, tuple[int, int]]) -> Mapping[str, tuple[int, int]]:
        """The recorded cursor, held back."""
        until_ms = frame.time_ms - self._delay_ms
        return {stream: (epoch, min(seq, self._reached(stream, until_ms))) for stream, (epoch, seq) in recorded.items()}

    def _reached(self, stream: str, until_ms: int) -> int:
        pointer = self._streams.get(stream)
        if pointer is None:
            pointer = self._streams[stream] = _StreamPointer(self._recording, StreamName(stream))
        return pointer.move(until_ms)


class _StreamPointer:
    """The last message of a stream that stood in the log at a time."""

    def __init__(self, recording: Recording, stream: StreamName) -> None:
        self.seq = recording.start.get(stream, 0)
        self._records: Iterator[Record] = recording.archive.read(stream)
        self._next = next(self._records, None)

    def move(self, until_ms: int) -> int:
        while self._next is not None and self._next.time_ms <= until_ms:
            self.seq = self._next.seq
            self._next = next(self._records, None)
        return self.seq


Progress = Callable[[int, int], None]
"""Called with the decisions made again, and their total."""

WORST = 10


def what_if(
    recording: Recording,
    scenarios: Sequence[Scenario],
    start: int = 1,
    end: int | None = None,
    progress: Progress = lambda _done, _of: None,
    *,
    fitted: Mapping[str, FirstTokenFit] | None = None,
    worst: int = WORST,
    keep_changes: bool = True,
) -> list[Outcome]:
    """An outcome for each scenario, in their order, over the decisions in the routing stream from `start` up to `end`
    (not included). Scenarios that see the log equally late share one playback: each costs a decision more per recorded
    one. `fitted` are the models' times to first token, by default those of the whole recording; `worst` is the number
    of worst cases to name. CallerError for a worker that the recording does not know."""
    fitted = first_token_fits(recording.requests) if fitted is None else fitted
    return _WhatIfRun(recording, fitted, scenarios, worst, keep_changes).run(start, end, progress)


class _WhatIfRun:
    """All scenarios of one question, and what is the same for all of them."""

    def __init__(
        self,
        recording: Recording,
        fitted: Mapping[str, FirstTokenFit],
        scenarios: Sequence[Scenario],
        worst: int,
        keeps: bool,
    ) -> None:
        self._recording = recording
        self._history = recording.requests
        self._fitted = fitted
        self._runs = [
            ScenarioRun(each, fitted, _lives_of(recording, each.without), worst, keeps=keeps) for each in scenarios
        ]
        self._delays = [0, *sorted({each.delay_ms for each in scenarios} - {0})]
        self._lagged = {ms: LogDelay(recording, ms) for ms in self._delays if ms}
        self._asked: set[str] = set()
        """Models that requests were for."""
        self._serving: list[Member] = []
        self._models: dict[WorkerId, str] = {}
        """Of every worker that was there to answer requests."""
        self._requests: Counter[str] = Counter()
        self._policies: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()
        self._decisions = self._prompt_tokens = self._cached_tokens = 0
        self._first_ms = self._last_ms = 0
        self._real_tokens = self._real_cached = 0
        self._ttft_ms = self._answered = 0

    def run(self, start: int, end: int | None, progress: Progress) -> list[Outcome]:
        total = len(self._history.span(start, end))
        playback, decisions = self._recorded_decisions(start, end)
        evidence = Evidence(playback)
        for number, recorded_decisions in enumerate(decisions):
            progress(number, total)
            self._judge_decision(evidence, number, recorded_decisions)
        progress(total, total)
        refusals = (each for each in self._history.refusals if each.seq >= start and (end is None or each.seq < end))
        rejected = sum(not each.turned_away for each in refusals)
        return [self._outcome(run, rejected) for run in self._runs]

    def _recorded_decisions(
        self, start: int, end: int | None
    ) -> tuple[Playback, Iterator[tuple[RecordedDecision, ...]]]:
        """The playback of the record as it was, and each decision as it was, then as each delay shows it."""
        gaps = gaps_of(self._recording)
        playbacks = [
            Playback(self._recording, start, end, delay=self._lagged.get(ms), gaps=gaps) for ms in self._delays
        ]
        return playbacks[0], zip(*playbacks, strict=True)

    def _judge_decision(
        self, evidence: Evidence, number: int, recorded_decisions: tuple[RecordedDecision, ...]
    ) -> None:
        judged = self._judged(evidence, number, recorded_decisions[0])
        if judged is None:
            return
        self._note(judged)
        views = {0: judged.candidate_view}
        for ms, recorded_decision in zip(self._delays[1:], recorded_decisions[1:], strict=True):
            views[ms] = CandidateView(recorded_decision.view, _rows(recorded_decision))
        for run in self._runs:
            run.judge(judged, views[run.scenario.delay_ms])

    def _judged(self, evidence: Evidence, number: int, recorded_decision: RecordedDecision) -> JudgedDecision | None:
        """The recorded decision as a judged one. None, and counted, if the recording lacks its inputs, or its worker
        declined it."""
        event, view = recorded_decision.event, recorded_decision.view
        row = self._history.row(recorded_decision.seq * PLACES + recorded_decision.number)
        record = None if row is None else self._history.attempt(row)
        if record is not None and record.declined:  # it was decided on again, and that is judged
            self._left_out[DECLINED] += 1
            return None
        rows = _rows(recorded_decision) if recorded_decision.fault is None else []
        recorded = next((row for row in rows if row.worker == event.worker), None)
        doubts = evidence.known(recorded_decision)
        if recorded_decision.fault is not None:
            doubts = doubts or {"base": recorded_decision.fault.text}
        if event.decide_version not in RULES:
            doubts, recorded = {"version": ""}, None
        elif doubts and recorded is not None:
            again = remake(recorded_decision)
            if isinstance(again, str) or again.worker != event.worker:
                recorded = None
        if recorded is None or record is None or row is None:
            reason = ", ".join(sorted(doubts)) or "differs"
            self._left_out[reason if record is not None else "repeat"] += 1
            return None
        return JudgedDecision(
            number,
            recorded_decision,
            record,
            self._history.counted_until(row),
            CandidateView(view, rows),
            recorded,
            evenness(blocks_of(rows, event.model)),
        )

    def _note(self, judged: JudgedDecision) -> None:
        """The recorded side."""
        event, record = judged.recorded_decision.event, judged.record
        self._first_ms = self._first_ms or judged.recorded_decision.time_ms
        self._last_ms = judged.recorded_decision.time_ms
        self._decisions += 1
        self._note_workers(judged.recorded_decision.view.state)
        self._asked.add(event.model)
        self._requests[event.worker] += 1
        self._policies[event.policy] += 1
        self._prompt_tokens += event.prompt_tokens
        self._cached_tokens += expected_blocks(judged.recorded) * event.block_size
        if judged.answered:
            if record.cached_tokens != CACHED_UNKNOWN:
                self._real_tokens += event.prompt_tokens
                self._real_cached += record.cached_tokens
            if record.begun_ms < 0:  # else it goes on with an answer that had its first token before
                self._ttft_ms += record.ttft_ms
                self._answered += 1

    def _note_workers(self, state: State) -> None:
        serving = state.serving()
        if serving is not self._serving:  # somebody came or went
            self._serving = serving
            self._models.update({m.worker: m.joined.model for m in serving if m.joined is not None})

    def _outcome(self, run: ScenarioRun, rejected: int) -> Outcome:
        serving = sorted(worker for worker, model in self._models.items() if model in self._asked)
        before: dict[str, int] = {worker: self._requests[worker] for worker in serving}
        after: dict[str, int] = {worker: run.requests[worker] for worker in serving}
        left = {worker: count for worker, count in after.items() if worker not in run.without}
        names: dict[str, str] = {worker: self._recording.names.worker(worker) for worker in sorted(self._models)}
        served = self._decisions - run.refused
        ttft_ms = self._ttft_ms / self._answered if self._answered else 0.0
        return Outcome(
            scenario=run.scenario,
            decisions=self._decisions,
            changed=run.changed,
            refused=run.refused,
            astray=run.astray,
            unlearned=run.unlearned,
            left_out=dict(sorted(self._left_out.items())),
            rejected=rejected,
            first_ms=self._first_ms,
            last_ms=self._last_ms,
            prompt_tokens=self._prompt_tokens,
            hit_rate_recorded=_share(self._cached_tokens, self._prompt_tokens),
            hit_rate_new=_share(run.cached_tokens, run.tokens),
            hit_rate_real=_share(self._real_cached, self._real_tokens),
            regret_blocks=run.regret_blocks,
            regret_ms=run.regret_us / MICRO,
            ttft_recorded_ms=ttft_ms,
            ttft_new_ms=ttft_ms - run.regret_us / MICRO / served if served else ttft_ms,
            requests_recorded=before,
            requests_new=after,
            spread_recorded=run.recorded_even.spread(by_name(before, names).values()),
            spread_new=run.new_even.spread(by_name(left, names).values()),
            names=names,
            policies=dict(sorted(self._policies.items())),
            fitted={model: self._fitted.get(model, UNFITTED) for model in sorted(self._asked)},
            worst=run.worst.sorted,
            losses=run.losses.sorted,
            changes=run.changes,
            first_tokens=run.first_tokens,
            digest=run.digest,
        )


def _lives_of(recording: Recording, who: Sequence[str]) -> frozenset[WorkerId]:
    return frozenset().union(*(recording.names.workers_called(each) for each in who))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _rows(recorded_decision: RecordedDecision) -> list[Candidate]:
    """All workers, with what their caches held of the prompt as they reported it; of one that reports nothing, as the
    decision had it."""
    view, prompt, settings = recorded_decision.view, recorded_decision.request.prompt, recorded_decision.settings
    rows = view.candidates(prompt)
    if settings.policy != APPROXIMATE:
        return rows
    cached, held = view.cached(prompt, settings, recorded_decision.event.now_ms), view.state.index.blocks
    return [row if held(row.worker) else row._replace(overlap=cached.get(row.worker, NO_OVERLAP)) for row in rows]
