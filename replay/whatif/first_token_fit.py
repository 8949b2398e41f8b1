"""FirstTokenFit: the time to first token, as a line over the tokens that an engine computes before it.

    ttft_ms = base_ms + per_token_ms * (tokens of the prompt computed + prefill tokens queued before it)

The time counts from when the request was sent to its worker. Samples in order of their tokens are cut into groups of
equal size. The line goes through the groups' medians, with the median of all slopes between two of them
(`theil_sen`). So some slow requests among many change nothing, and the same samples give the same line in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

import msgspec

from projections.policy.prefill_time import PrefillTimeSample, median_sample, theil_sen
from replay.recording.request_history import NEVER, PLACES, RequestHistory

SAMPLES_MIN = 16
"""With fewer first tokens nothing is estimated."""
GROUP_MIN = 5
"""Samples per group, at least."""
GROUPS_MAX = 32
EXPLAINED_MIN = 0.2
"""An estimate that explains less is called a poor one."""
US_PER_MS = 1000
MILLI = 1000


class FirstTokenFit(msgspec.Struct, frozen=True, kw_only=True):
    """The line, and how well it fits; nothing is estimated if the slope is 0."""

    base_ms: float = 0.0
    per_token_ms: float = 0.0
    samples: int = 0
    error_ms: float = 0.0
    """Half of the samples lie within so much of the line."""
    explained: float = 0.0
    """The share of the samples' distance from their median that the line removes: 1 is all of it."""

    @property
    def usable(self) -> bool:
        """A difference in milliseconds can be estimated."""
        return self.per_token_ms > 0

    @property
    def poor(self) -> bool:
        """The line explains so little that blocks are the better measure."""
        return not self.usable or self.explained < EXPLAINED_MIN

    def ms(self, tokens: int) -> float:
        """The time that computing so many more tokens before the first token adds."""
        return self.per_token_ms * tokens


def fit_first_tokens(samples: Sequence[PrefillTimeSample]) -> FirstTokenFit:
    """The line through the samples; O(n log n), the same for the same samples in any order."""
    ordered = sorted(samples)
    if len(ordered) < SAMPLES_MIN:
        return FirstTokenFit(samples=len(ordered))
    middles = group_medians(ordered)
    line = theil_sen(middles) if middles[0].tokens < middles[-1].tokens else None
    if line is None:
        return FirstTokenFit(samples=len(ordered))
    errors = [abs(each.us - line.us(each.tokens)) for each in ordered]
    middle = median(each.us for each in ordered)
    spread = sum(abs(each.us - middle) for each in ordered)
    return FirstTokenFit(
        base_ms=line.base_us / US_PER_MS,
        per_token_ms=line.per_token_m / MILLI / US_PER_MS,
        samples=len(ordered),
        error_ms=median(errors) / US_PER_MS,
        explained=max(0.0, 1 - sum(errors) / spread) if spread else 0.0,
    )


def group_medians(ordered: Sequence[PrefillTimeSample]) -> list[PrefillTimeSample]:
    """The median of each group of the samples, which are in order of their tokens; at least GROUP_MIN are given."""
    groups = min(GROUPS_MAX, len(ordered) // GROUP_MIN)
    edges = [len(ordered) * at // groups for at in range(groups + 1)]
    return [median_sample(list(ordered[low:high])) for low, high in pairwise(edges)]


def first_token_fits(history: RequestHistory, start: int = 1, end: int | None = None) -> dict[str, FirstTokenFit]:
    """By model, the line through the first tokens of the attempts with messages in the routing stream from `start` up
    to `end` (not included): engines of two models take different times. O(n log n)."""
    behind = NEVER if end is None else end * PLACES
    changes: list[tuple[int, int, int]] = []
    answered: list[int] = []
    numbers, firsts = history.columns["n"], history.columns["prefilled_n"]
    for row in history.span(start, end):
        number, first, ended = numbers[row], firsts[row], history.counted_until(row)
        counted = 0 < first < min(ended or NEVER, behind)
        if ended != number:  # else no fold counts it at all
            changes += [(number, 1, row), (first if counted else ended or NEVER, -1, row)]
        if counted and not history.columns["attempt"][row]:  # a later one's time has in it the time before it
            answered.append(row)
    queued = _queued_before(history, sorted(changes))
    samples: dict[str, list[PrefillTimeSample]] = {}
    for attempt, row in ((history.attempt(row), row) for row in answered):
        tokens = attempt.prompt_tokens - attempt.reused_tokens + queued[row]
        sent_us = max(0, attempt.ttft_ms - attempt.before_ms) * US_PER_MS
        samples.setdefault(attempt.model, []).append(PrefillTimeSample(tokens, sent_us))
    return {model: fit_first_tokens(each) for model, each in sorted(samples.items())}


def _queued_before(history: RequestHistory, changes: list[tuple[int, int, int]]) -> dict[int, int]:
    """By row, the prefill tokens in flight on the worker of the attempt when it was routed there. A change is an
    event's number, 1 for the start of a prefill and -1 for its end, and the row."""
    workers, tokens = history.columns["worker"], history.columns["prefill_tokens"]
    queued: Counter[int] = Counter()
    before: dict[int, int] = {}
    for _, sign, row in changes:
        if sign > 0:
            before[row] = queued[workers[row]]
        queued[workers[row]] += sign * tokens[row]
    return before
