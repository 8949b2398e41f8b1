"""PrefillTimeModel: the duration of each model's prefills, learned from first tokens of requests without a wait, and
without blocks to load from a slower tier.

Samples are kept in classes by the tokens computed, each twice as wide as the one before, the newest few of each, for
AGE_MAX_US: else classes that nothing fills any more would keep the prices of a burst for ever. The line goes through
the classes' medians with the median of all slopes between two of them (Theil and Sen), so that some slow requests among
many change nothing. Integers throughout: the same samples at the same times give the same line anywhere. What was
learned is an input of the decision that uses it, and stands in its record.

A line with next to no cost per token is not learned: under it cached tokens would not count. Prefills that seem equally
long give such lines, because something other than computing made them last. The line that was learned before stays, or
the default.
"""

from __future__ import annotations

from collections import deque
from itertools import combinations
from typing import NamedTuple

from core.settings import RoutingSettings

MILLI = 1000


class PrefillTime(NamedTuple):
    """Expected duration of a prefill as a line over the tokens that it computes."""

    base_us: int
    per_token_m: int
    """Thousandths of a microsecond."""

    @staticmethod
    def of(settings: RoutingSettings, learned: PrefillTime | None) -> PrefillTime:
        """As the settings have it; if they leave it to what was learned, that, or the default until something was."""
        if settings.prefill_us_per_token_m:
            return PrefillTime(settings.prefill_base_us, settings.prefill_us_per_token_m)
        return DEFAULT_TIME if learned is None else learned

    def us(self, tokens: int) -> int:
        """Of so many tokens."""
        return self.base_us + self.per_token_m * tokens // MILLI

    def through(self, sample: PrefillTimeSample) -> PrefillTime | None:
        """The line of this form through that point; None if there is none."""
        before_us = self.us(sample.tokens)
        if not before_us:
            return None
        found = PrefillTime(self.base_us * sample.us // before_us, self.per_token_m * sample.us // before_us)
        return found if found.per_token_m else None


DEFAULT_TIME = PrefillTime(8_000, 20_500)
"""Until something was learned: an 8B model on an A100."""


SAMPLES_KEPT = 31
"""Samples of one class: older ones go."""
AGE_MAX_US = 300 * 1_000_000
"""Older samples do not count."""
CLASS_MIN = 5
"""A class with fewer samples has no say."""
SAMPLES_MIN = 16
"""With fewer samples in all nothing is learned yet."""
REFIT_EVERY = 8
"""Samples of a model between two looks at the line."""
WHOLE_CONTEXT = 131_072
"""Tokens of the prompt by which lines are compared. A bound and not the model's own context: a line is judged without
the model's card, alike in every replica and simulation. In a short context the base would hide what a token costs."""
SOUND_SHARE = 20
"""The tokens of a whole context cost at least this part of what the line that is known says: a twentieth."""
REFUSED_MAX = 8
"""Bound of refusals in a row by comparison with the learned line. The next line is compared with the default alone:
prompts of some ten tokens can teach a price of a token that is hundreds of times too high."""


class PrefillTimeSample(NamedTuple):
    """One first token."""

    tokens: int
    """Of the prompt that were computed."""
    us: int


class _ModelSamples:
    """Samples and line of one model."""

    def __init__(self) -> None:
        self.noted = 0
        self.time: PrefillTime | None = None
        self._refused = 0
        """Looks in a row."""
        self._classes: dict[int, deque[tuple[int, PrefillTimeSample]]] = {}
        """By bits of the tokens: samples with their times, oldest first."""
        self._middles: dict[int, PrefillTimeSample] = {}
        self._known: set[int] = set()
        """Classes that had a middle once."""
        self._changed: set[int] = set()
        """Classes with samples that their middles do not have yet."""

    def note(self, sample: PrefillTimeSample, at_us: int) -> None:
        """It counts with the next look at the line."""
        of = sample.tokens.bit_length()
        self._classes.setdefault(of, deque(maxlen=SAMPLES_KEPT)).append((at_us, sample))
        self._changed.add(of)
        self.noted += 1

    def refit(self, now_us: int) -> None:
        """The time is that of all samples that count, if that is sound. One class tells no slope: where the others have
        grown too old, the line keeps its form. O(samples of the classes that changed + classes^2)."""
        self._forget_older(now_us - AGE_MAX_US)
        for of in sorted(self._changed):
            if len(self._classes[of]) >= CLASS_MIN:
                self._middles[of] = median_sample([sample for _, sample in self._classes[of]])
            else:
                self._middles.pop(of, None)
        self._changed.clear()
        self._known |= self._middles.keys()
        middles = sorted(self._middles.values())
        if not middles:
            return
        is_left = len(middles) == 1 and len(self._known) > 1
        found = theil_sen(middles) if self.time is None or not is_left else self.time.through(middles[0])
        if found is None or not self._sound(found):
            self._refused += 1
        else:
            self.time = found
            # one class tells no slope: the next line is not held to it
            self._refused = 0 if len(middles) > 1 else REFUSED_MAX

    def _forget_older(self, than_us: int) -> None:
        for of, kept in self._classes.items():
            while kept and kept[0][0] < than_us:
                kept.popleft()
                self._changed.add(of)

    def _sound(self, found: PrefillTime) -> bool:
        """True if a token costs enough beside the default, and beside the line that was learned before."""
        known = [DEFAULT_TIME] if self.time is None or self._refused >= REFUSED_MAX else [DEFAULT_TIME, self.time]
        tokens_us = found.per_token_m * WHOLE_CONTEXT // MILLI
        return all(tokens_us * SOUND_SHARE >= each.us(WHOLE_CONTEXT) for each in known)


class PrefillTimeModel:
    """See the module's text. Memory is bounded by the models, at some 20 classes each."""

    def __init__(self) -> None:
        self._models: dict[str, _ModelSamples] = {}

    def __repr__(self) -> str:
        times = {name: model.time for name, model in self._models.items()}
        return f"<PrefillTimeModel {times}>"

    def note(self, model: str, tokens: int, us: int, now_us: int) -> None:
        """A first token came that long after its request was sent to a worker without outstanding prefills, which had
        to compute so many tokens for it. `now_us` does not go back. 1 us, and some 20 us with each REFIT_EVERY-th."""
        if tokens < 1 or us < 0:
            return  # a report that cannot be
        known = self._models.get(model)
        if known is None:
            known = self._models[model] = _ModelSamples()
        known.note(PrefillTimeSample(tokens, us), now_us)
        if known.noted >= SAMPLES_MIN and not known.noted % REFIT_EVERY:
            known.refit(now_us)

    def time(self, model: str) -> PrefillTime | None:
        """The newest sound line of the model; None until there is one. Its tokens cost at least a twentieth of what the
        default says."""
        known = self._models.get(model)
        return None if known is None else known.time


def theil_sen(middles: list[PrefillTimeSample]) -> PrefillTime | None:
    """The one through these classes' medians; None if there are none, or if longer prompts took no longer. From one
    class alone the price of a token is all of it."""
    if not middles:
        return None
    slopes = [
        (above.us - below.us) * MILLI // (above.tokens - below.tokens)
        for below, above in combinations(middles, 2)
        if above.tokens > below.tokens
    ]
    if not slopes:
        (tokens, us), *_ = middles
        return PrefillTime(0, us * MILLI // tokens) if us * MILLI >= tokens else None
    per_token_m = _median(slopes)
    if per_token_m < 1:
        return None
    base_us = _median([us - per_token_m * tokens // MILLI for tokens, us in middles])
    return PrefillTime(max(0, base_us), per_token_m)


def median_sample(samples: list[PrefillTimeSample]) -> PrefillTimeSample:
    return PrefillTimeSample(_median([sample.tokens for sample in samples]), _median([sample.us for sample in samples]))


def _median(numbers: list[int]) -> int:
    """The lower one of two in the middle."""
    return sorted(numbers)[(len(numbers) - 1) // 2]
