"""Learned: how long prefills of each model last, from the first tokens of requests that had nothing to wait for.

Samples are kept in classes by the tokens computed, each twice as wide as the one before, the newest few of each. The
line goes through the classes' medians with the median of all slopes between two of them (Theil and Sen), so that some
slow requests among many change nothing. Integers throughout: the same samples in the same order give the same line
anywhere. What was learned is an input of the decision that uses it, and stands in its record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import combinations
from typing import NamedTuple

from projections.backlog import MILLI, PrefillTime

KEPT = 31
"""Samples of one class: older ones go."""
CLASS_MIN = 5
"""A class with fewer samples has no say."""
SAMPLES_MIN = 16
"""With fewer samples in all nothing is learned yet."""
REFIT_EVERY = 8
"""Samples of a model between two looks at the line."""


class Sample(NamedTuple):
    """One first token."""

    tokens: int
    """Of the prompt that were computed."""
    us: int


class Learned:
    """See the module's text. Memory is bounded by the models, at some 20 classes each."""

    def __init__(self) -> None:
        self._classes: dict[str, dict[int, deque[Sample]]] = {}
        self._times: dict[str, PrefillTime] = {}
        self._noted: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<Learned {self._times}>"

    def note(self, model: str, tokens: int, us: int) -> None:
        """A first token came that long after its request was sent to a worker without outstanding prefills, which had
        to compute so many tokens for it. 0.5 us, and 100 us with each REFIT_EVERY-th."""
        if tokens < 1 or us < 0:
            return  # a report that cannot be
        classes = self._classes.setdefault(model, {})
        classes.setdefault(tokens.bit_length(), deque(maxlen=KEPT)).append(Sample(tokens, us))
        noted = self._noted[model] = self._noted.get(model, 0) + 1
        if noted >= SAMPLES_MIN and noted % REFIT_EVERY == 0:
            found = fitted(classes.values())
            if found is not None:
                self._times[model] = found

    def time(self, model: str) -> PrefillTime | None:
        """What was learned of the model; None until there is enough."""
        return self._times.get(model)


def fitted(classes: Iterable[Iterable[Sample]]) -> PrefillTime | None:
    """The line through the classes' medians; None if no class has CLASS_MIN samples. Neither number is below 0; from
    one class alone the price of a token is all of it."""
    kept = [list(each) for each in classes]
    middles = sorted(_middle(samples) for samples in kept if len(samples) >= CLASS_MIN)
    if not middles:
        return None
    slopes = [
        (above.us - below.us) * MILLI // (above.tokens - below.tokens)
        for below, above in combinations(middles, 2)
        if above.tokens > below.tokens
    ]
    if not slopes:
        (tokens, us), *_ = middles
        return PrefillTime(0, us * MILLI // tokens)
    per_token_m = max(0, _median(slopes))
    base_us = _median([us - per_token_m * tokens // MILLI for tokens, us in middles])
    return PrefillTime(max(0, base_us), per_token_m)


def _middle(samples: list[Sample]) -> Sample:
    return Sample(_median([sample.tokens for sample in samples]), _median([sample.us for sample in samples]))


def _median(numbers: list[int]) -> int:
    """The lower one of two in the middle."""
    return sorted(numbers)[(len(numbers) - 1) // 2]
