"""The time of prefills, learned from first tokens: exact on a line, unmoved by some that were slow, bounded."""

from __future__ import annotations

import random

import pytest

from projections.backlog import PrefillTime
from projections.learned import CLASS_MIN, KEPT, REFIT_EVERY, SAMPLES_MIN, Learned, Sample, fitted

LINE = PrefillTime(9000, 18_250)


def samples(count: int, seed: int = 1) -> list[Sample]:
    """On the line, in whole milliseconds, as first tokens are told."""
    dice = random.Random(seed)
    return [
        Sample(tokens, LINE.us(tokens) // 1000 * 1000) for tokens in (dice.randint(1, 16_000) for _ in range(count))
    ]


def learned(given: list[Sample], model: str = "tiny") -> Learned:
    found = Learned()
    for tokens, us in given:
        found.note(model, tokens, us)
    return found


def near(time: PrefillTime | None, tolerance: float) -> bool:
    """Within that share at prompts of all lengths."""
    assert time is not None
    return all(abs(time.us(n) - LINE.us(n)) <= tolerance * LINE.us(n) for n in (1, 100, 1000, 5000, 16_000))


@pytest.mark.parametrize("seed", range(5))
def test_a_line_is_found(seed: int) -> None:
    """Within a few per cent, for all that times are whole milliseconds."""
    assert near(learned(samples(400, seed)).time("tiny"), 0.1)


def test_slow_ones_among_many_change_little() -> None:
    """Every fifth took ten times as long."""
    given = [s._replace(us=s.us * 10) if at % 5 == 0 else s for at, s in enumerate(samples(600))]
    assert near(learned(given).time("tiny"), 0.15)


def test_what_changed_is_learned_anew() -> None:
    """When every class has been filled again nothing is left of the old line."""
    dice, found = random.Random(2), Learned()
    for slower in (1, 3):
        for _ in range(20 * KEPT):
            tokens = 2 ** dice.randint(6, 13) + dice.randint(0, 30)
            found.note("tiny", tokens, slower * LINE.us(tokens))
    time = found.time("tiny")
    assert time is not None
    assert time.us(1000) == pytest.approx(3 * LINE.us(1000), rel=0.05)


def test_nothing_is_learned_of_too_little() -> None:
    """Not before SAMPLES_MIN, nor of classes with fewer than CLASS_MIN, nor of reports that cannot be."""
    given = [Sample(1000, 30_000)] * SAMPLES_MIN
    assert learned(given[:-1]).time("tiny") is None
    assert learned(given).time("tiny") == PrefillTime(0, 30_000)
    assert learned([Sample(0, 5)] * 100 + [Sample(5, -1)] * 100).time("tiny") is None
    assert fitted([given[: CLASS_MIN - 1]]) is None
    assert fitted([given[:CLASS_MIN]]) == PrefillTime(0, 30_000)
    assert REFIT_EVERY <= SAMPLES_MIN


def test_neither_number_is_below_0() -> None:
    """Longer prompts that were faster, and short ones that took no time."""
    fast = [Sample(8000, 10_000)] * CLASS_MIN
    assert fitted([[Sample(100, 50_000)] * CLASS_MIN, fast]) == PrefillTime(10_000, 0)
    found = fitted([[Sample(4000, 0)] * CLASS_MIN, [Sample(8000, 80_000)] * CLASS_MIN])
    assert found == PrefillTime(0, 20_000)


def test_models_are_apart_and_the_same_samples_give_the_same() -> None:
    """Of another model nothing is known; the order within a class does not matter before any is pushed out."""
    found = learned(samples(200))
    assert found.time("other") is None
    assert found.time("tiny") == learned(samples(200)).time("tiny")
    few = samples(24)
    assert learned(few).time("tiny") == learned(few[::-1]).time("tiny")
    assert repr(found).startswith("<Learned {'tiny': PrefillTime(")
