"""Fits the speed of the recorded engines, as the two lines that a simulated engine goes by.

    a pass with prompts: base + so much per token computed;    a decode step: base + so much per token decoded so far

Prefills that had a worker to themselves give the first line, if there are enough of them. Else prefills count that
waited for no other prompt, less the decode steps in them; else all, each from the first token of the one before.
Answers give the second line: their time less others' prefills meanwhile, per step. The longer half of the answers
counts, since the record has whole milliseconds. Either line needs the other, so both are fitted again and again.

A line is fitted so that some slow samples among many do not change it. Samples are put into classes of about equal size
by x. The slope is the median of all slopes between the medians of two classes (Theil and Sen); the base is the median
of the rest. The same samples give the same line in any order, on any machine: medians are values that occurred.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations, pairwise
from typing import NamedTuple

import msgspec

from replay.simulate.recorded_requests import UNKNOWN_TIME, AttemptTiming

CLASSES_MAX = 12
CLASS_MIN = 5
"""Samples of a class, at least."""


class TimeSample(NamedTuple):
    """One measured time, and what it is of."""

    x: float
    us: float


class LinearFit(NamedTuple):
    """`base_us + per_us * x`."""

    base_us: float = 0.0
    per_us: float = 0.0

    def us(self, x: float) -> float:
        """The time that it gives."""
        return self.base_us + self.per_us * x


def fit_line(points: Iterable[TimeSample]) -> LinearFit:
    """The line through CLASS_MIN points or more; neither number is below 0. If the points are all of the same, its
    slope is 0. O(n log n)."""
    ordered = sorted(points)
    middles = [_middle(each) for each in _classes(ordered)]
    slopes = [(then.us - first.us) / (then.x - first.x) for first, then in combinations(middles, 2) if then.x > first.x]
    per_us = max(0.0, median(slopes)) if slopes else 0.0
    return LinearFit(max(0.0, median(each.us - per_us * each.x for each in ordered)), per_us)


def median(values: Iterable[float]) -> float:
    """The lower one of two in the middle."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def _classes(ordered: list[TimeSample]) -> list[list[TimeSample]]:
    count = max(1, min(CLASSES_MAX, len(ordered) // CLASS_MIN))
    edges = [len(ordered) * at // count for at in range(count + 1)]
    return [ordered[low:high] for low, high in pairwise(edges)]


def _middle(points: list[TimeSample]) -> TimeSample:
    return TimeSample(median(each.x for each in points), median(each.us for each in points))


US_PER_MS = 1000
HALF_MS_US = 500
"""The record has whole milliseconds, the rest cut off: that is what it lacks in the mean."""
ALONE, UNQUEUED, QUEUED = range(3)
ENDLESS_MS = 1 << 53


class PrefillSample(NamedTuple):
    """From when its worker could begin with a prompt to the first token."""

    kind: int
    """ALONE: the worker had nothing else. UNQUEUED: it had answers to go on with, but no other prompt. QUEUED: it had
    other prompts; then the time runs from the first token of the one before."""
    tokens: int
    """That were computed."""
    us: int
    context: int
    """Tokens of prompts and answers that were decoded meanwhile."""


class DecodeSample(NamedTuple):
    """From the first token to the last."""

    steps: int
    us: int
    context: float
    """Tokens of prompts and answers that were decoded there at once, in the mean."""
    prefills: tuple[tuple[int, int], ...]
    """Others' prompts that were computed meanwhile: tokens, and the microseconds from the start of this stretch to
    their first token."""


class EngineSamples(NamedTuple):
    """Of all workers."""

    prefills: list[PrefillSample]
    answers: list[DecodeSample]


def engine_samples(timings: Iterable[AttemptTiming]) -> EngineSamples:
    """Those of first attempts and of later ones alike; O(timings x those that overlap)."""
    by_worker: dict[str, list[AttemptTiming]] = {}
    for timing in timings:
        by_worker.setdefault(timing.worker, []).append(timing)
    found = EngineSamples([], [])
    for _, each in sorted(by_worker.items()):
        each.sort(key=lambda timing: timing.sent_ms)
        for timing, others in _with_others(each):
            if timing.first_ms != UNKNOWN_TIME:
                found.prefills.extend(_prefill(timing, others))
                found.answers.extend(_answer(timing, others))
    return found


def _with_others(timings: list[AttemptTiming]) -> Iterator[tuple[AttemptTiming, list[AttemptTiming]]]:
    """Each with those that were there at the same time, by when they were sent."""
    earlier: list[AttemptTiming] = []
    for place, timing in enumerate(timings):
        earlier = [each for each in earlier if _end_ms(each) > timing.sent_ms]
        later = []
        for each in timings[place + 1 :]:
            if each.sent_ms >= _end_ms(timing):
                break
            later.append(each)
        yield timing, earlier + later
        earlier.append(timing)


def _prefill(timing: AttemptTiming, others: list[AttemptTiming]) -> Iterator[PrefillSample]:
    there = [each for each in others if each.sent_ms < timing.first_ms]
    prompts = [each for each in there if _computed_ms(each) > timing.sent_ms]
    context = sum(_context(each) for each in there if _computed_ms(each) <= timing.sent_ms)
    before = [each.first_ms for each in prompts if each.first_ms != UNKNOWN_TIME and each.first_ms <= timing.first_ms]
    begin_ms = max([timing.sent_ms, *before])
    kind = QUEUED if prompts else UNQUEUED if there else ALONE
    us = (timing.first_ms - begin_ms) * US_PER_MS + (HALF_MS_US if begin_ms == timing.sent_ms else 0)
    if us > 0 and timing.computed_tokens > 0:  # else it was computed together with the one before
        yield PrefillSample(kind, timing.computed_tokens, us, context)


def _answer(timing: AttemptTiming, others: list[AttemptTiming]) -> Iterator[DecodeSample]:
    took_ms, steps = timing.end_ms - timing.first_ms, timing.output_tokens - 1
    if timing.end_ms == UNKNOWN_TIME or took_ms <= 0 or steps < 1:
        return
    together = float(_context(timing))
    prefills = []
    for each in others:
        if each.first_ms == UNKNOWN_TIME:
            continue
        shared_ms = min(_end_ms(each), timing.end_ms) - max(each.first_ms, timing.first_ms)
        together += _context(each) * max(0, shared_ms) / took_ms
        if timing.first_ms < each.first_ms <= timing.end_ms:
            prefills.append((each.computed_tokens, (each.first_ms - timing.first_ms) * US_PER_MS))
    yield DecodeSample(steps, took_ms * US_PER_MS, together, tuple(prefills))


def _context(timing: AttemptTiming) -> int:
    """Its tokens half way through its answer."""
    return timing.prompt_tokens + timing.output_tokens // 2


def _computed_ms(timing: AttemptTiming) -> int:
    """Until when its prompt occupied the worker."""
    return timing.first_ms if timing.first_ms != UNKNOWN_TIME else _end_ms(timing)


def _end_ms(timing: AttemptTiming) -> int:
    return timing.end_ms if timing.end_ms != UNKNOWN_TIME else ENDLESS_MS


SAMPLES_MIN = 16
"""With fewer nothing is fitted."""
ROUNDS = 8
"""Of fitting; each halves what is left at least."""
KINDS = {
    ALONE: "that had a worker to themselves",
    UNQUEUED: "that waited for no other prompt",
    QUEUED: "that waited for others, too",
}


class EngineSpeeds(msgspec.Struct, frozen=True, kw_only=True):
    """Times of the recorded engines, as the two lines of a simulated engine."""

    prefill_us_per_pass: float = 0.0
    prefill_us_per_token: float = 0.0
    prefill_samples: int = 0
    """First tokens; 0 if there were too few."""
    prefill_of: str = ""
    """Which first tokens."""
    prefill_error_ms: float = 0.0
    """Half of them lie within so much of the line."""
    decode_us_per_step: float = 0.0
    decode_us_per_context_token: float = 0.0
    decode_samples: int = 0
    """Answers; 0 if there were too few."""


def fit_speeds(found: EngineSamples, pass_tokens: int) -> EngineSpeeds:
    """Speeds fitted to these samples, of engines that compute up to so many tokens in a pass; O(n log n)."""
    prefills, answers = _best(found.prefills), _longer(found.answers)
    prefill, decode = LinearFit(), LinearFit()
    for _ in range(ROUNDS):
        if prefills:
            prefill = _prefill_line(prefills, prefill, decode, pass_tokens)
        if answers:
            decode = fit_line(TimeSample(each.context, _step_us(each, prefill, pass_tokens)) for each in answers)
    errors = [
        abs(_alone_us(each, decode, pass_tokens) - prefill_us(prefill, each.tokens, pass_tokens)) for each in prefills
    ]
    return EngineSpeeds(
        prefill_us_per_pass=prefill.base_us,
        prefill_us_per_token=prefill.per_us,
        prefill_samples=len(prefills),
        prefill_of=KINDS[max(each.kind for each in prefills)] if prefills else "",
        prefill_error_ms=median(errors) / 1000 if errors else 0.0,
        decode_us_per_step=decode.base_us,
        decode_us_per_context_token=decode.per_us,
        decode_samples=len(answers),
    )


def prefill_us(prefill: LinearFit, tokens: int, pass_tokens: int) -> float:
    """Time that so many tokens take when the engine computes nothing else."""
    return prefill.base_us * _passes(tokens, pass_tokens) + prefill.per_us * tokens


def _best(prefills: list[PrefillSample]) -> list[PrefillSample]:
    """The plainest kind of which there are enough, and all that are plainer."""
    for kind in sorted(KINDS):
        found = [each for each in prefills if each.kind <= kind]
        if len(found) >= SAMPLES_MIN:
            return found
    return []


def _longer(answers: list[DecodeSample]) -> list[DecodeSample]:
    if len(answers) < SAMPLES_MIN:
        return []
    least = median(each.steps for each in answers)
    return [each for each in answers if each.steps >= least]


def _prefill_line(prefills: list[PrefillSample], before: LinearFit, decode: LinearFit, pass_tokens: int) -> LinearFit:
    """One more round: what further passes cost by the line before is taken off, so that the slope is of tokens."""
    points = [
        TimeSample(
            each.tokens,
            _alone_us(each, decode, pass_tokens) - before.base_us * (_passes(each.tokens, pass_tokens) - 1),
        )
        for each in prefills
    ]
    found = fit_line(points)
    if found.per_us:
        return found
    return LinearFit(0.0, found.base_us / median(each.x for each in points))  # all alike: a token costs its share


def _alone_us(prefill: PrefillSample, decode: LinearFit, pass_tokens: int) -> float:
    """Less the decode steps in it: one in each pass, and half of the one that was under way when it was sent."""
    if not prefill.context:
        return prefill.us
    under_way = 0.5 if prefill.kind < QUEUED else 0.0
    return prefill.us - decode.us(prefill.context) * (_passes(prefill.tokens, pass_tokens) + under_way)


def _step_us(answer: DecodeSample, prefill: LinearFit, pass_tokens: int) -> float:
    others_us = sum(min(prefill_us(prefill, tokens, pass_tokens), until_us) for tokens, until_us in answer.prefills)
    return max(0.0, answer.us - others_us) / answer.steps


def _passes(tokens: int, pass_tokens: int) -> int:
    return -(-tokens // pass_tokens)
