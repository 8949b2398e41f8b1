"""How long first tokens take, by what was computed for them and what was queued before them."""

from __future__ import annotations

import random

import pytest

from replay.whatif.first_token_fit import SAMPLES_MIN, FirstTokenFit, FirstTokenSample, fit_first_tokens


def samples(count: int, per_token: float, per_queued: float, seed: int = 1) -> list[FirstTokenSample]:
    """First tokens of an engine that takes exactly so long."""
    dice = random.Random(seed)
    found = []
    for _ in range(count):
        computed, queued = dice.randrange(2000), dice.choice([0, 0, dice.randrange(3000)])
        found.append(FirstTokenSample(computed, queued, round(20 + per_token * computed + per_queued * queued)))
    return found


def test_the_line_is_found() -> None:
    line = fit_first_tokens(samples(400, 0.25, 0.1))
    assert line.per_token_ms == pytest.approx(0.25, rel=0.02)
    assert line.per_queued_ms == pytest.approx(0.1, rel=0.05)
    assert line.base_ms == pytest.approx(20, abs=5)
    assert line.explained > 0.97
    assert line.error_ms < 5
    assert not line.poor
    assert line.ms(1000, -1000) == pytest.approx(150, rel=0.05)


def test_a_few_slow_ones_move_nothing() -> None:
    """One in ten takes a minute; the line is nearly the same."""
    clean = samples(400, 0.25, 0.1)
    spoilt = [each._replace(ttft_ms=60_000) if at % 10 == 0 else each for at, each in enumerate(clean)]
    line = fit_first_tokens(spoilt)
    assert line.per_token_ms == pytest.approx(0.25, rel=0.15)
    assert line.per_queued_ms == pytest.approx(0.1, rel=0.15)


def test_the_same_samples_give_the_same_line_in_any_order() -> None:
    ordered = samples(300, 0.3, 0.2)
    shuffled = list(ordered)
    random.Random(7).shuffle(shuffled)
    assert fit_first_tokens(shuffled) == fit_first_tokens(ordered)


def test_what_cannot_be_told_is_not_told() -> None:
    """Too few samples, or none that differ, give no estimate; no slope is below 0."""
    few = fit_first_tokens(samples(SAMPLES_MIN - 1, 0.3, 0.2))
    assert few == FirstTokenFit(samples=SAMPLES_MIN - 1)
    assert not few.usable
    assert few.poor
    assert not fit_first_tokens([FirstTokenSample(100, 0, 30)] * 50).usable
    falling = fit_first_tokens([FirstTokenSample(number, 0, 1000 - number) for number in range(100)])
    assert (falling.per_token_ms, falling.usable) == (0.0, False)


def test_noise_is_a_poor_estimate() -> None:
    dice = random.Random(3)
    line = fit_first_tokens(
        [FirstTokenSample(dice.randrange(2000), dice.randrange(2000), dice.randrange(500)) for _ in range(300)]
    )
    assert line.poor


def test_without_queues_a_queued_token_costs_as_a_computed_one() -> None:
    line = fit_first_tokens([FirstTokenSample(number, 0, 10 + 2 * number) for number in range(100)])
    assert line.per_token_ms == line.per_queued_ms == pytest.approx(2)
    assert "queues" in line.assumed
