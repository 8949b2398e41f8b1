"""The time to first token, by the tokens that are computed before it."""

from __future__ import annotations

import random

import pytest

from projections.policy.prefill_time import PrefillTimeSample
from replay.whatif.first_token_fit import SAMPLES_MIN, FirstTokenFit, fit_first_tokens


def samples(count: int, per_token_us: int, seed: int = 1) -> list[PrefillTimeSample]:
    """First tokens of an engine that takes exactly so long."""
    dice = random.Random(seed)
    drawn = [dice.randrange(5000) for _ in range(count)]
    return [PrefillTimeSample(tokens, 20_000 + per_token_us * tokens) for tokens in drawn]


def test_the_line_is_found() -> None:
    line = fit_first_tokens(samples(400, 250))
    assert (line.base_ms, line.per_token_ms, line.explained, line.error_ms) == (20, 0.25, 1, 0)
    assert not line.poor
    assert line.ms(1000) == 250


def test_a_few_slow_ones_move_nothing() -> None:
    """One in ten takes a minute; the line is nearly the same."""
    clean = samples(400, 250)
    spoilt = [each._replace(us=60_000_000) if at % 10 == 0 else each for at, each in enumerate(clean)]
    assert fit_first_tokens(spoilt).per_token_ms == pytest.approx(0.25, rel=0.05)


def test_the_same_samples_give_the_same_line_in_any_order() -> None:
    ordered = samples(300, 300)
    shuffled = list(ordered)
    random.Random(7).shuffle(shuffled)
    assert fit_first_tokens(shuffled) == fit_first_tokens(ordered)


def test_what_cannot_be_told_is_not_told() -> None:
    """Too few samples, or none that differ, give no estimate; no slope is below 0."""
    few = fit_first_tokens(samples(SAMPLES_MIN - 1, 300))
    assert few == FirstTokenFit(samples=SAMPLES_MIN - 1)
    assert not few.usable
    assert few.poor
    assert not fit_first_tokens([PrefillTimeSample(100, 30_000)] * 50).usable
    assert not fit_first_tokens([PrefillTimeSample(number, 1_000_000 - number) for number in range(100)]).usable


def test_noise_is_a_poor_estimate() -> None:
    dice = random.Random(3)
    assert fit_first_tokens([PrefillTimeSample(dice.randrange(2000), dice.randrange(500_000)) for _ in range(300)]).poor
