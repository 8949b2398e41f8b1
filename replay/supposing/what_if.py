"""What if: the recorded history decided again under other settings, without a worker, or with the log seen later.

Every scenario is asked what it would have chosen at each recorded decision, with the recorded seed. What is weighed
is what stood in the log at that moment. What each scenario put elsewhere loads other workers from then on
(`replay.supposing.supposed`); caches stay as recorded, since nobody knows what an engine would have evicted. So
another choice looks somewhat worse than it would have been: it finds only what the record's own choices left in its
cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from core.ids import WorkerId
from core.settings import APPROXIMATE
from core.subjects import ROUTING
from projections.folds.kv_fold import Member
from projections.folds.state import State
from projections.policy.decide import decide
from projections.policy.view import NO_OVERLAP, Candidate
from replay.playback import Playback, Situation
from replay.proof import lacks_of
from replay.recording import Recording
from replay.supposing.lagged import Lagged
from replay.supposing.lives import Lives
from replay.supposing.outcome import Outcome, blocks_of, by_name, evenness
from replay.supposing.regret import expected_blocks
from replay.supposing.scenario import Scenario
from replay.supposing.supposed import Sight
from replay.supposing.trial import MICRO, UNFITTED, Judged, Trial

Progress = Callable[[int, int], None]
"""Told decisions made again, and how many there are to make."""

WORST = 10
DECLINED = "declined"
"""Decisions that their workers declined are left out under this."""
FORGET_EVERY = 64
"""Decisions between two looks at which requests no view shows any more."""


def what_if(
    recording: Recording,
    scenarios: Sequence[Scenario],
    start: int = 1,
    end: int | None = None,
    progress: Progress = lambda _done, _of: None,
    *,
    lives: Lives | None = None,
    worst: int = WORST,
    keep_changes: bool = True,
) -> list[Outcome]:
    """An outcome for each scenario, in their order, over the decisions whose message stands in the routing stream
    from `start` up to `end` (not included).

    Scenarios that see the log equally late share one playback: each costs a decision more per recorded one. `lives`
    is `Lives.of(recording)`, for whoever asks again and again; `worst` says how many of the worst cases are named.
    CallerError for a worker that the recording does not know.
    """
    return _WhatIf(recording, lives or Lives.of(recording), scenarios, worst, keep_changes).run(start, end, progress)


class _WhatIf:
    """All scenarios of one question, and what is the same for all of them."""

    def __init__(
        self, recording: Recording, lives: Lives, scenarios: Sequence[Scenario], worst: int, keeps: bool
    ) -> None:
        self._recording = recording
        self._lives = lives
        self._trials = [
            Trial(each, lives.fitted, _lives_of(recording, each.without), worst, keeps=keeps) for each in scenarios
        ]
        self._delays = [0, *sorted({each.delay_ms for each in scenarios} - {0})]
        self._lagged = {ms: Lagged(recording, ms) for ms in self._delays if ms}
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
        total = self._lives.between(start, end)
        for number, situations in enumerate(self._situations(start, end)):
            progress(number, total)
            self._take(number, situations)
        progress(total, total)
        return [self._outcome(trial, self._lives.rejected_between(start, end)) for trial in self._trials]

    def _situations(self, start: int, end: int | None) -> Iterator[tuple[Situation, ...]]:
        """Each decision as it was, then as each delay shows it."""
        lacks = lacks_of(self._recording)
        playbacks = [
            Playback(self._recording, start, end, delay=self._lagged.get(ms), lacks=lacks) for ms in self._delays
        ]
        return zip(*playbacks, strict=True)

    def _take(self, number: int, situations: tuple[Situation, ...]) -> None:
        judged = self._judged(number, situations[0])
        if judged is None:
            return
        self._note(judged)
        sights = {0: judged.sight}
        for ms, situation in zip(self._delays[1:], situations[1:], strict=True):
            rows = _rows(situation)
            sights[ms] = Sight(situation.view, rows, situation.replica, judged.life.at)
        for trial in self._trials:
            trial.take(judged, sights[trial.scenario.delay_ms])
            if number % FORGET_EVERY == 0:
                ms = trial.scenario.delay_ms
                shown = min(judged.life.lowest, self._lagged[ms].reached(ROUTING)) if ms else judged.life.lowest
                trial.forget(shown)

    def _judged(self, number: int, situation: Situation) -> Judged | None:
        """None, and counted, if the recording does not show what it rested on, or nothing came of it."""
        event, view = situation.event, situation.view
        life = self._lives.of_attempt(situation.seq, event)
        if life is not None and life.declined:  # it was decided on again, and that is judged
            self._left_out[DECLINED] += 1
            return None
        rows = _rows(situation)
        recorded = next((row for row in rows if row.worker == event.worker), None)
        if situation.doubts and recorded is not None:
            again = decide(view, situation.request, situation.settings, event.now_ms, event.seed)
            if again.worker != event.worker:
                recorded = None
        if recorded is None or life is None:
            reason = ", ".join(sorted(situation.doubts)) or "differs"
            self._left_out[reason if life is not None else "repeat"] += 1
            return None
        sight = Sight(view, rows, situation.replica, life.at)
        return Judged(number, situation, life, sight, recorded, evenness(blocks_of(rows, event.model)))

    def _note(self, judged: Judged) -> None:
        """The recorded side."""
        event, life = judged.situation.event, judged.life
        self._first_ms = self._first_ms or judged.situation.time_ms
        self._last_ms = judged.situation.time_ms
        self._decisions += 1
        self._note_workers(judged.situation.view.state)
        self._asked.add(event.model)
        self._requests[event.worker] += 1
        self._policies[event.policy] += 1
        self._prompt_tokens += event.prompt_tokens
        self._cached_tokens += expected_blocks(judged.recorded) * event.block_size
        if life.ttft_ms >= 0:
            self._real_tokens += event.prompt_tokens
            self._real_cached += life.cached_tokens
            self._ttft_ms += life.ttft_ms
            self._answered += 1

    def _note_workers(self, state: State) -> None:
        serving = state.serving()
        if serving is not self._serving:  # somebody came or went
            self._serving = serving
            self._models.update({m.worker: m.joined.model for m in serving if m.joined is not None})

    def _outcome(self, trial: Trial, rejected: int) -> Outcome:
        serving = sorted(worker for worker, model in self._models.items() if model in self._asked)
        before: dict[str, int] = {worker: self._requests[worker] for worker in serving}
        after: dict[str, int] = {worker: trial.requests[worker] for worker in serving}
        left = {worker: count for worker, count in after.items() if worker not in trial.without}
        names: dict[str, str] = {worker: self._recording.names.worker(worker) for worker in sorted(self._models)}
        served = self._decisions - trial.refused
        ttft_ms = self._ttft_ms / self._answered if self._answered else 0.0
        return Outcome(
            scenario=trial.scenario,
            decisions=self._decisions,
            changed=trial.changed,
            refused=trial.refused,
            astray=trial.astray,
            unlearned=trial.unlearned,
            left_out=dict(sorted(self._left_out.items())),
            rejected=rejected,
            first_ms=self._first_ms,
            last_ms=self._last_ms,
            prompt_tokens=self._prompt_tokens,
            hit_rate_recorded=_share(self._cached_tokens, self._prompt_tokens),
            hit_rate_new=_share(trial.cached_tokens, trial.tokens),
            hit_rate_real=_share(self._real_cached, self._real_tokens),
            regret_blocks=trial.regret_blocks,
            regret_ms=trial.regret_us / MICRO,
            ttft_recorded_ms=ttft_ms,
            ttft_new_ms=ttft_ms - trial.regret_us / MICRO / served if served else ttft_ms,
            requests_recorded=before,
            requests_new=after,
            spread_recorded=trial.recorded_even.spread(by_name(before, names).values()),
            spread_new=trial.new_even.spread(by_name(left, names).values()),
            names=names,
            policies=dict(sorted(self._policies.items())),
            fitted={model: self._lives.fitted.get(model, UNFITTED) for model in sorted(self._asked)},
            worst=trial.worst.sorted,
            losses=trial.losses.sorted,
            changes=trial.changes,
            digest=trial.digest,
        )


def _lives_of(recording: Recording, who: Sequence[str]) -> frozenset[WorkerId]:
    return frozenset().union(*(recording.names.workers_called(each) for each in who))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _rows(situation: Situation) -> list[Candidate]:
    """All workers, with what their caches held of the prompt as they reported it; of one that reports nothing, as the
    decision had it."""
    view, prompt, settings = situation.view, situation.request.prompt, situation.settings
    rows = view.candidates(prompt)
    if settings.policy != APPROXIMATE:
        return rows
    cached, held = view.cached(prompt, settings, situation.event.now_ms), view.state.index.blocks
    return [row if held(row.worker) else row._replace(overlap=cached.get(row.worker, NO_OVERLAP)) for row in rows]
