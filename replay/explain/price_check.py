"""PriceCheck: the learned duration of a model's prefills, beside prefills of the log that nothing else delayed.

A decision that estimates times rests on a line over the tokens to be computed, which its replica has learned. A wrong
line stands in no error and in no gap: all decisions under it follow from the log. It shows only beside the prefills.

A prefill is a sample if its attempt was alone on its worker from its decision to its first token, by the log and by the
decision, and was expected to load no blocks from a slower tier. Its time is that of the worker's own record, or else
the time from the decision to the first token. On a fleet too busy for that, prefills are samples that had no other
prefill beside them, but answers under way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from statistics import median
from typing import NamedTuple

import msgspec

from core.errors import CallerError
from core.events import RequestFinished, RequestRouted
from core.events.request_stages import US_PER_TENTH, RequestStages
from core.ids import from_column
from core.settings import RoutingSettings
from projections.policy.prefill_time import MILLI, PrefillTime, PrefillTimeSample, median_sample, theil_sen
from replay.recording.recording import Recording
from replay.recording.request_history import NEVER, PLACES, RequestAttempt, RequestHistory
from replay.whatif.first_token_fit import group_medians
from replay.whatif.outcome import Outcome
from replay.whatif.scenario import Scenario
from replay.whatif.whatif import what_if

SAMPLES_MIN = 16
"""With fewer prefills nothing is said of the line."""
FACTOR_MAX = 2.0
"""An estimate may be so many times the time that the prefill took, and that time so many times the estimate …"""
APART_MIN_US = 10_000
"""… and farther apart only by less than this: the bound of what short prompts differ by from one time to another."""
COST_DECISIONS_MAX = 500
"""The newest decisions that are made again for the cost of a line: half a second, behind the messages before them."""
EARLIER_MAX = 5_000
"""Attempts before the range that are looked at for being under way still: the bound of the time that this takes. A
decision with more requests on its worker than these and later ones is no sample."""
US_PER_MS = 1000


class PriceCost(msgspec.Struct, frozen=True, kw_only=True):
    """The newest COST_DECISIONS_MAX decisions of the range, made again under the line that the samples show."""

    decisions: int
    """Those that could be made again, of all models."""
    changed: int
    """Decisions under a learned line of this model that fall otherwise."""
    ttft_recorded_ms: float
    """The mean time to first token of those with one."""
    ttft_change_ms: float
    """The estimated difference to that mean by the changed decisions: below 0 first tokens come sooner."""
    is_timed: bool
    """False if the recording shows no time of a token, so that the difference is not estimated."""


class PriceCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The learned lines of one model, beside its prefills."""

    model: str
    decisions: int
    """Those of the range that rest on a learned line."""
    samples: int
    alone: bool = True
    """False if so few prefills were alone on their worker that the samples had answers under way beside them."""
    tokens: float = 0.0
    """Computed by the sample in the middle; the next three are medians, too."""
    estimate_ms: float = 0.0
    """By the line of the sample's own decision, of the tokens that were computed."""
    actual_ms: float = 0.0
    factor: float = 1.0
    """Estimate over actual time."""
    apart_ms: float = 0.0
    """The difference of the two, without its sign; a median, too."""
    shown: PrefillTime | None = None
    """The line through the samples. None if longer prompts took no longer, and if the estimates are near."""
    beyond: int = 0
    """Decisions of a line that is beyond FACTOR_MAX and APART_MIN_US of `shown`, at all tokens of their prompt."""
    cost: PriceCost | None = None
    """None for a line that is in range, without `shown`, if no setting can have its price, and if it was not asked
    for."""

    @property
    def known(self) -> bool:
        """There are enough samples for a verdict."""
        return self.samples >= SAMPLES_MIN

    @property
    def near(self) -> bool:
        """The estimates of the samples are near the times that they took."""
        return not _are_far(self.factor, self.apart_ms * US_PER_MS)

    @property
    def in_range(self) -> bool:
        """Nothing is said against the line: there are too few samples, or the estimates are near, or those of whole
        prompts are for half of the decisions. A wrong base alone, as short prefills show it, is the same on all
        workers."""
        return not self.known or self.near or (self.shown is not None and 2 * self.beyond <= self.decisions)


def check_prices(
    recording: Recording, start: int = 1, end: int | None = None, *, costs: bool = True
) -> list[PriceCheck]:
    """One for each model with decisions under a learned line in messages of the routing stream from `start` up to `end`
    (not included), in the order of their names. Some 40 us a decision. With `costs`, the newest decisions are made
    again for a line out of its range, as fast as by `replay verify`. Corrupt if the file is damaged."""
    read = _read_range(recording, recording.requests, start, end)
    found = _judged_all(read)
    asked = [(at, _scenario(each.shown)) for at, each in enumerate(found) if not each.in_range]
    scenarios = [(at, scenario) for at, scenario in asked if scenario is not None]
    if scenarios and costs:
        newest = newest_seq(recording.requests, COST_DECISIONS_MAX, start, end)
        outcomes = what_if(recording, [scenario for _, scenario in scenarios], newest, end, worst=0)
        for (at, _), outcome in zip(scenarios, outcomes, strict=True):
            own = found[at]
            found[at] = msgspec.structs.replace(own, cost=_cost(outcome, own.model, read[own.model]))
    return found


def check_newest_prices(recording: Recording, history: RequestHistory, decisions: int) -> list[PriceCheck]:
    """The same for the newest decisions, at most so many and those beside them in one message; without the costs. The
    history is one of the recording."""
    return _judged_all(_read_range(recording, history, newest_seq(history, decisions), None))


def newest_seq(history: RequestHistory, decisions: int, start: int = 1, end: int | None = None) -> int:
    """The message from which on the range has so many decisions, and those beside them in that message; `start` if it
    has none."""
    rows = history.span(start, end)[-decisions:]
    return history.columns["n"][rows[0]] // PLACES if rows else start


def _judged_all(read: dict[str, _LearnedRange]) -> list[PriceCheck]:
    return [_judged(model, learned) for model, learned in sorted(read.items())]


class _Sample(NamedTuple):
    """One prefill that nothing else delayed."""

    tokens: int
    us: int
    estimate_us: int


class _LearnedDecision(NamedTuple):
    """A decision under a learned line."""

    time: PrefillTime
    prompt_tokens: int


class _LearnedRange(NamedTuple):
    """The decisions of a model under learned lines, by message, request and attempt, and their samples."""

    decisions: dict[tuple[int, str, int], _LearnedDecision]
    alone: list[_Sample]
    beside_answers: list[_Sample]
    """Those that had no other prefill beside them, the ones alone included."""


class _Undisturbed(NamedTuple):
    """An attempt that had no other prefill on its worker from its decision to its first token."""

    attempt: RequestAttempt
    others: int
    """Attempts under way there, each with its first token: those of `RequestHistory.before`."""


def _read_range(recording: Recording, history: RequestHistory, start: int, end: int | None) -> dict[str, _LearnedRange]:
    """By model; the records of all decisions and of the ends of samples are read once."""
    undisturbed = {each.attempt.at: each for each in _undisturbed(history, start, end)}
    numbers = [history.columns["n"][row] for row in history.span(start, end)]
    ends = {each.attempt.ended_at for each in undisturbed.values() if each.attempt.ended_seq}
    stages: dict[int, RequestStages] = {}
    learned: dict[int, RequestRouted] = {}
    for number, event in recording.events({*numbers, *ends}):
        if isinstance(event, RequestRouted) and event.prefill_time:
            learned[number] = event
        elif isinstance(event, RequestFinished) and (known := RequestStages.of(event.stages)) is not None:
            stages[number] = known
    found: dict[str, _LearnedRange] = {}
    for number, routed in sorted(learned.items()):
        own = found.setdefault(routed.model, _LearnedRange({}, [], []))
        line = PrefillTime(*routed.prefill_time)
        key = number // PLACES, routed.request, routed.attempt
        own.decisions[key] = _LearnedDecision(line, routed.prompt_tokens)
        if number in undisturbed and not (routed.wait_us or routed.expects_load):
            attempt, others = undisturbed[number]
            if _active_at(routed) > others:
                continue  # one that the recording does not have
            for sample in _sample(attempt, line, stages.get(attempt.ended_at)):
                own.beside_answers.append(sample)
                if not others:
                    own.alone.append(sample)
    return found


def _undisturbed(history: RequestHistory, start: int, end: int | None) -> Iterator[_Undisturbed]:
    """The undisturbed attempts of the range with a first token: no earlier attempt of the last EARLIER_MAX was without
    one on their worker, and no other was routed there before theirs. O(n log n)."""
    numbers, workers = history.columns["n"], history.columns["worker"]
    firsts, ends = history.columns["prefilled_n"], history.columns["ended_n"]
    shown = history.span(start, end)
    computing: dict[int, int] = {}
    """By worker, the last first token of the attempts so far, or the end without one …"""
    under_way: dict[int, list[int]] = {}
    """… and the ends of those under way, as a heap."""
    last: dict[int, tuple[int, int]] = {}
    """By worker, the row of its last attempt, if nothing has disturbed that so far, and the others under way."""
    found: list[tuple[int, int]] = []
    for row in range(max(0, shown.start - EARLIER_MAX), shown.stop):
        worker, number = workers[row], numbers[row]
        earlier = last.pop(worker, None)
        if earlier is not None and firsts[earlier[0]] < number:
            found.append(earlier)
        there = under_way.setdefault(worker, [])
        while there and there[0] < number:
            heappop(there)
        if computing.get(worker, 0) < number and firsts[row]:
            last[worker] = row, len(there)
        computing[worker] = max(computing.get(worker, 0), firsts[row] or ends[row] or NEVER)
        heappush(there, ends[row] or NEVER)
    found += last.values()
    return (_Undisturbed(history.attempt(row), others) for row, others in sorted(found) if row in shown)


def _active_at(event: RequestRouted) -> int:
    """Requests that the decision knew on the chosen worker, those from before the recording included; 0 if the record
    does not have that worker's terms."""
    candidates = from_column(event.candidates)
    return event.columns["active_requests"][candidates.index(event.worker)] if event.worker in candidates else 0


def _sample(attempt: RequestAttempt, line: PrefillTime, stages: RequestStages | None) -> Iterator[_Sample]:
    """The sample of an undisturbed attempt; none if another worker computed its prompt, and none of a time that may
    have had another cause. A time that was rounded to 0 counts as the shortest one."""
    tokens = attempt.prompt_tokens - attempt.cached_tokens
    if attempt.remote or attempt.cached_tokens < 0 or tokens < 1 or attempt.begun_ms >= 0:
        return
    if stages is not None:
        us = stages.prefill * US_PER_TENTH if stages.remote <= 0 else -1
    else:
        is_first = not (attempt.attempt or attempt.queued_seq or attempt.held_seq)
        us = (attempt.ttft_ms - attempt.before_ms) * US_PER_MS if is_first else -1
    if us >= 0:
        yield _Sample(tokens, max(us, US_PER_TENTH), line.us(tokens))


def _judged(model: str, learned: _LearnedRange) -> PriceCheck:
    """The check without its cost."""
    decisions, alone = learned.decisions, len(learned.alone) >= SAMPLES_MIN
    samples = learned.alone if alone else learned.beside_answers
    if len(samples) < SAMPLES_MIN:
        return PriceCheck(model=model, decisions=len(decisions), samples=len(samples), alone=False)
    found = PriceCheck(
        model=model,
        decisions=len(decisions),
        samples=len(samples),
        alone=alone,
        tokens=float(median(each.tokens for each in samples)),
        estimate_ms=median(each.estimate_us for each in samples) / US_PER_MS,
        actual_ms=median(each.us for each in samples) / US_PER_MS,
        factor=float(median(each.estimate_us / each.us for each in samples)),
        apart_ms=median(abs(each.estimate_us - each.us) for each in samples) / US_PER_MS,
    )
    if found.near:
        return found
    shown = line_of([PrefillTimeSample(each.tokens, each.us) for each in samples])
    beyond = 0 if shown is None else sum(_is_beyond(each, shown) for each in decisions.values())
    return msgspec.structs.replace(found, shown=shown, beyond=beyond)


def line_of(samples: Sequence[PrefillTimeSample]) -> PrefillTime | None:
    """The line through the samples, by the medians of groups of them; None if longer prompts took no longer. From
    prompts of one length the price of a token is all of it."""
    middles = group_medians(sorted(samples))
    if middles[0].tokens == middles[-1].tokens:
        middles = [median_sample(list(samples))]
    return theil_sen(middles)


def _is_beyond(decision: _LearnedDecision, shown: PrefillTime) -> bool:
    own, true = decision.time.us(decision.prompt_tokens), shown.us(decision.prompt_tokens)
    return _are_far(own / max(1, true), abs(own - true))


def _are_far(factor: float, apart_us: float) -> bool:
    return not 1 / FACTOR_MAX <= factor <= FACTOR_MAX and apart_us > APART_MIN_US


def _scenario(shown: PrefillTime | None) -> Scenario | None:
    settings = None if shown is None else price_settings(shown)
    return None if settings is None else Scenario.parse(settings)


def price_settings(line: PrefillTime) -> dict[str, int | float] | None:
    """The line, as `contrail settings set` takes it; None if it is beyond the bounds of settings."""
    settings: dict[str, int | float] = {
        "prefill_us_per_token": line.per_token_m / MILLI, "prefill_base_us": line.base_us,
    }  # fmt: skip
    try:
        RoutingSettings.parse(settings)
    except CallerError:
        return None
    return settings


def _cost(outcome: Outcome, model: str, learned: _LearnedRange) -> PriceCost:
    """Settings hold for all models: only the changes of this one count."""
    own = [each for each in outcome.changes if (each.seq, each.request, each.attempt) in learned.decisions]
    served = outcome.decisions - outcome.refused
    return PriceCost(
        decisions=outcome.decisions,
        changed=len(own),
        ttft_recorded_ms=outcome.ttft_recorded_ms,
        ttft_change_ms=-_total(each.regret_ms for each in own) / served if served else 0.0,
        is_timed=model in outcome.fitted and outcome.fitted[model].usable,
    )


def _total(values: Iterable[float]) -> float:
    """In whole microseconds, so that the order cannot matter."""
    return sum(round(each * US_PER_MS) for each in values) / US_PER_MS
