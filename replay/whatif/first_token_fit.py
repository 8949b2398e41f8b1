"""FirstTokenFit: the time to first token by the tokens computed for it and the tokens queued before it.

    ttft_ms = base_ms + per_token_ms * tokens computed + per_queued_ms * prefill tokens queued on the worker

The time counts from when the request was sent to its worker. Requests are put into cells of about equal size by both
numbers, and the line goes through the cells' medians where their absolute distance from it is least (by least squares,
weighted again and again). So some slow requests among many change nothing, and the same samples give the same line
anywhere: they are sorted, and sums are exact (`fsum`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import fsum, isqrt
from statistics import median
from typing import NamedTuple

import msgspec

from replay.recording.request_history import NEVER, PLACES, RequestHistory

SAMPLES_MIN = 16
"""With fewer first tokens nothing is estimated."""
CELL_MIN = 5
"""Samples per cell, at least."""
CELLS_MAX = 16
"""Cells by each of the two numbers, at most."""
ROUNDS = 40
"""Of least squares; what is left to gain after so many is nothing that counts."""
SAME = 1e-6
"""Two numbers that differ no more from one another, as a share, cannot be told apart."""
EXPLAINED_MIN = 0.2
"""An estimate that explains less is called a poor one."""


class FirstTokenSample(NamedTuple):
    """One first token."""

    computed: int
    """Tokens of the prompt that the engine computed."""
    queued: int
    """Prefill tokens in flight on the worker when the request was routed there."""
    ttft_ms: int
    """From when it was sent there."""


class FirstTokenFit(msgspec.Struct, frozen=True, kw_only=True):
    """The line, and how well it fits; nothing is estimated if both slopes are 0."""

    base_ms: float = 0.0
    per_token_ms: float = 0.0
    per_queued_ms: float = 0.0
    samples: int = 0
    error_ms: float = 0.0
    """Half of the samples lie within so much of the line."""
    explained: float = 0.0
    """The share of the samples' distance from their median that the line takes away: 1 is all of it."""
    assumed: str = ""
    """What the samples did not tell, and what was taken instead."""

    @property
    def usable(self) -> bool:
        """Whether a difference in milliseconds can be estimated at all."""
        return self.per_token_ms > 0 or self.per_queued_ms > 0

    @property
    def poor(self) -> bool:
        """Whether the line explains so little that blocks are the better measure."""
        return not self.usable or self.explained < EXPLAINED_MIN

    def ms(self, computed: int, queued: int) -> float:
        """How much longer a first token takes with so many more tokens to compute, and queued before them."""
        return self.per_token_ms * computed + self.per_queued_ms * queued


def fit_first_tokens(samples: Sequence[FirstTokenSample]) -> FirstTokenFit:
    """The line through the samples; O(n log n), the same for the same samples in any order."""
    ordered = sorted(samples)
    if len(ordered) < SAMPLES_MIN:
        return FirstTokenFit(samples=len(ordered))
    per_token, per_queued, assumed = _line(_cells(ordered))
    rests = [each.ttft_ms - per_token * each.computed - per_queued * each.queued for each in ordered]
    base = median(rests)
    middle = median(each.ttft_ms for each in ordered)
    errors = [abs(rest - base) for rest in rests]
    spread = fsum(abs(each.ttft_ms - middle) for each in ordered)
    return FirstTokenFit(
        base_ms=base,
        per_token_ms=per_token,
        per_queued_ms=per_queued,
        samples=len(ordered),
        error_ms=median(errors),
        explained=max(0.0, 1 - fsum(errors) / spread) if spread else 0.0,
        assumed=assumed,
    )


def first_token_fits(history: RequestHistory, start: int = 1, end: int | None = None) -> dict[str, FirstTokenFit]:
    """By model, the line through the first tokens of the attempts whose messages stand in the routing stream from
    `start` up to `end` (not included): engines of two models take different times. O(n log n)."""
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
    samples: dict[str, list[FirstTokenSample]] = {}
    for attempt, row in ((history.attempt(row), row) for row in answered):
        sent_ms = max(0, attempt.ttft_ms - attempt.before_ms)
        sample = FirstTokenSample(attempt.prompt_tokens - attempt.cached_tokens, queued[row], sent_ms)
        samples.setdefault(attempt.model, []).append(sample)
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


class _Cell(NamedTuple):
    weight: float
    computed: float
    queued: float
    ttft_ms: float


class _Slopes(NamedTuple):
    per_token: float
    per_queued: float
    assumed: str


def _cells(ordered: list[FirstTokenSample]) -> list[_Cell]:
    parts = min(CELLS_MAX, isqrt(len(ordered) // CELL_MIN))
    cells = [cell for column in _split(ordered, parts) for cell in _split(sorted(column, key=_by_queue), parts)]
    return [_Cell(len(cell), *(float(median(values)) for values in zip(*cell, strict=True))) for cell in cells]


def _by_queue(sample: FirstTokenSample) -> int:
    return sample.queued


def _split(ordered: list[FirstTokenSample], parts: int) -> list[list[FirstTokenSample]]:
    """As many parts of about equal size, in order."""
    edges = [len(ordered) * at // parts for at in range(parts + 1)]
    return [ordered[low:high] for low, high in pairwise(edges)]


def _line(cells: list[_Cell]) -> _Slopes:
    """The slopes from which the cells are least away in all: those that are far away weigh less each time."""
    weighted = cells
    for _ in range(ROUNDS):
        found = _least_squares(weighted)
        rests = [cell.ttft_ms - found.per_token * cell.computed - found.per_queued * cell.queued for cell in cells]
        base = median(rests)
        weighted = [
            cell._replace(weight=cell.weight / max(1.0, abs(rest - base)))  # a millisecond is as good as none
            for cell, rest in zip(cells, rests, strict=True)
        ]
    return found


def _least_squares(cells: list[_Cell]) -> _Slopes:
    """Both slopes, none below 0, and what had to be assumed."""
    weight = fsum(cell.weight for cell in cells)
    x_mean = fsum(cell.weight * cell.computed for cell in cells) / weight
    q_mean = fsum(cell.weight * cell.queued for cell in cells) / weight
    y_mean = fsum(cell.weight * cell.ttft_ms for cell in cells) / weight
    off = [(c.weight, c.computed - x_mean, c.queued - q_mean, c.ttft_ms - y_mean) for c in cells]
    xx, qq = fsum(w * x * x for w, x, _, _ in off), fsum(w * q * q for w, _, q, _ in off)
    xq = fsum(w * x * q for w, x, q, _ in off)
    xy, qy = fsum(w * x * y for w, x, _, y in off), fsum(w * q * y for w, _, q, y in off)
    alone_x, alone_q = max(0.0, xy / xx) if xx else 0.0, max(0.0, qy / qq) if qq else 0.0
    both = xx * qq - xq * xq
    if both > SAME * xx * qq:
        per_token, per_queued = (xy * qq - qy * xq) / both, (qy * xx - xy * xq) / both
        if per_token >= 0 and per_queued >= 0:
            return _Slopes(per_token, per_queued, "")
        if per_token < 0:
            return _Slopes(0.0, alone_q, "more tokens to compute took no longer in this record")
        return _Slopes(alone_x, 0.0, "a longer queue took no longer in this record")
    if xx >= qq:
        return _Slopes(alone_x, alone_x, "queues hardly differ here: a queued token is taken to cost as a computed one")
    return _Slopes(alone_q, alone_q, "prompts hardly differ here: a computed token is taken to cost as a queued one")
