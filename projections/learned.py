"""Learned: how long prefills of each model last, from the first tokens of requests that had nothing to wait for.

Samples are kept in classes by the tokens computed, each twice as wide as the one before, the newest few of each. The
line goes through the classes' medians with the median of all slopes between two of them (Theil and Sen), so that some
slow requests among many change nothing. Integers throughout: the same samples in the same order give the same line
anywhere. What was learned is an input of the decision that uses it, and stands in its record.
"""

from __future__ import annotations

from collections import deque
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


class _Model:
    """What is known of one model's prefills."""

    def __init__(self) -> None:
        self.noted = 0
        self.time: PrefillTime | None = None
        self._classes: dict[int, deque[Sample]] = {}
        self._middles: dict[int, Sample] = {}
        self._changed: set[int] = set()
        """Classes with samples that their middles do not have yet."""

    def note(self, sample: Sample) -> None:
        """It counts with the next look at the line."""
        of = sample.tokens.bit_length()
        self._classes.setdefault(of, deque(maxlen=KEPT)).append(sample)
        self._changed.add(of)
        self.noted += 1

    def refit(self) -> None:
        """The time is that of all samples. O(samples of the classes that changed + classes^2)."""
        for of in sorted(self._changed):
            if len(self._classes[of]) >= CLASS_MIN:
                self._middles[of] = _middle(list(self._classes[of]))
        self._changed.clear()
        found = line(sorted(self._middles.values()))
        if found is not None:
            self.time = found


class Learned:
    """See the module's text. Memory is bounded by the models, at some 20 classes each."""

    def __init__(self) -> None:
        self._models: dict[str, _Model] = {}

    def __repr__(self) -> str:
        times = {name: model.time for name, model in self._models.items()}
        return f"<Learned {times}>"

    def note(self, model: str, tokens: int, us: int) -> None:
        """A first token came that long after its request was sent to a worker without outstanding prefills, which had
        to compute so many tokens for it. 1 us, and some 20 us with each REFIT_EVERY-th."""
        if tokens < 1 or us < 0:
            return  # a report that cannot be
        known = self._models.get(model)
        if known is None:
            known = self._models[model] = _Model()
        known.note(Sample(tokens, us))
        if known.noted >= SAMPLES_MIN and not known.noted % REFIT_EVERY:
            known.refit()

    def time(self, model: str) -> PrefillTime | None:
        """What was learned of the model; None until there is enough."""
        known = self._models.get(model)
        return None if known is None else known.time


def line(middles: list[Sample]) -> PrefillTime | None:
    """The one through these classes' medians; None if there are none. Neither number is below 0; from one class alone
    the price of a token is all of it."""
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
