"""The time of prefills, learned from first tokens: exact on a line, unmoved by some that were slow, bounded."""

from __future__ import annotations

import random
from statistics import median_low

import pytest

from projections.policy.prefill_time import (
    AGE_MAX_US,
    CLASS_MIN,
    DEFAULT_TIME,
    REFIT_EVERY,
    REFUSED_MAX,
    SAMPLES_KEPT,
    SAMPLES_MIN,
    SOUND_SHARE,
    WHOLE_CONTEXT,
    PrefillTime,
    PrefillTimeModel,
    PrefillTimeSample,
    theil_sen,
)

LINE = PrefillTime(9000, 18_250)


def samples(count: int, seed: int = 1) -> list[PrefillTimeSample]:
    """On the line, in whole milliseconds, as first tokens are told."""
    dice = random.Random(seed)
    return [
        PrefillTimeSample(tokens, LINE.us(tokens) // 1000 * 1000)
        for tokens in (dice.randint(1, 16_000) for _ in range(count))
    ]


def learned(given: list[PrefillTimeSample], model: str = "tiny") -> PrefillTimeModel:
    found = PrefillTimeModel()
    for tokens, us in given:
        found.note(model, tokens, us, 0)
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
    dice, found = random.Random(2), PrefillTimeModel()
    for slower in (1, 3):
        for _ in range(20 * SAMPLES_KEPT):
            tokens = 2 ** dice.randint(6, 13) + dice.randint(0, 30)
            found.note("tiny", tokens, slower * LINE.us(tokens), 0)
    time = found.time("tiny")
    assert time is not None
    assert time.us(1000) == pytest.approx(3 * LINE.us(1000), rel=0.05)


def test_nothing_is_learned_of_too_little() -> None:
    """Not before SAMPLES_MIN, nor of classes with fewer than CLASS_MIN, nor of reports that cannot be."""
    given = [PrefillTimeSample(1000, 30_000)] * SAMPLES_MIN
    assert learned(given[:-1]).time("tiny") is None
    assert learned(given).time("tiny") == PrefillTime(0, 30_000)
    assert learned([PrefillTimeSample(0, 5)] * 100 + [PrefillTimeSample(5, -1)] * 100).time("tiny") is None
    few = [PrefillTimeSample(1 << of, 1000) for of in range(4) for _ in range(CLASS_MIN - 1)]
    assert len(few) == SAMPLES_MIN
    assert learned(few).time("tiny") is None
    assert REFIT_EVERY <= SAMPLES_MIN


def test_a_line_has_a_slope() -> None:
    """There is none where longer prompts were no slower, nor of prompts that took no time; no base is below 0."""
    assert theil_sen([PrefillTimeSample(100, 50_000), PrefillTimeSample(8000, 10_000)]) is None
    assert theil_sen([PrefillTimeSample(100, 50_000), PrefillTimeSample(8000, 50_000)]) is None
    assert theil_sen([PrefillTimeSample(4000, 0), PrefillTimeSample(8000, 80_000)]) == PrefillTime(0, 20_000)
    assert theil_sen([PrefillTimeSample(4000, 0)]) is None
    assert theil_sen([PrefillTimeSample(4000, 3)]) is None
    assert theil_sen([]) is None


def test_the_prices_of_a_burst_are_forgotten() -> None:
    """It fills classes that nothing fills afterwards. They kept the price at thirty times what it is, for ever."""
    found, slow = PrefillTimeModel(), PrefillTime(400_000, 600_000)
    for _ in range(SAMPLES_KEPT):
        for tokens in (600, 1200, 5000):
            found.note("tiny", tokens, slow.us(tokens), 0)
    assert found.time("tiny") == slow
    for second in range(310):  # one class alone: the line keeps its form
        found.note("tiny", 9000, LINE.us(9000), second * 1_000_000)
    fallen = found.time("tiny")
    assert fallen is not None
    assert fallen.us(9000) == pytest.approx(LINE.us(9000), rel=1e-3)
    assert fallen.base_us * slow.per_token_m == pytest.approx(fallen.per_token_m * slow.base_us, rel=1e-3)
    for second in range(16):
        tokens = (900, 5000)[second % 2]
        found.note("tiny", tokens, LINE.us(tokens), (second + 640) * 1_000_000)
    assert near(found.time("tiny"), 0.01)


def test_a_pause_forgets_nothing() -> None:
    """The line stays until a class has enough new samples, and then goes through these."""
    found, at_us = learned(several(LINE)), 10 * AGE_MAX_US
    for _ in range(CLASS_MIN - 1):
        for tokens in LENGTHS:
            found.note("tiny", tokens, 10**9, at_us)
    assert found.time("tiny") == learned(several(LINE)).time("tiny")
    for _ in range(2 * REFIT_EVERY):
        found.note("tiny", 600, 3 * LINE.us(600), at_us + 2 * AGE_MAX_US)
    slower = found.time("tiny")
    assert slower is not None
    assert [slower.us(tokens) / LINE.us(tokens) for tokens in LENGTHS] == pytest.approx([3] * len(LENGTHS), rel=0.01)


def test_one_class_beside_rare_ones_is_learned_as_it_is() -> None:
    """A class of too few samples never counted, so none has grown too old."""
    found = learned([PrefillTimeSample(5000, LINE.us(5000)), *[PrefillTimeSample(1000, 30_000)] * SAMPLES_MIN])
    assert found.time("tiny") == PrefillTime(0, 30_000)
    for _ in range(2 * SAMPLES_KEPT):
        found.note("tiny", 1000, 90_000, 0)
    assert found.time("tiny") == PrefillTime(0, 90_000)


def test_lines_through_a_point() -> None:
    assert PrefillTime(10, 2000).through(PrefillTimeSample(10, 60)) == PrefillTime(20, 4000)
    assert PrefillTime(0, 20).through(PrefillTimeSample(10, 60)) is None  # 0 us are no measure
    assert PrefillTime(10_000, 20).through(PrefillTimeSample(10, 3)) is None  # nor is a price of 0 one


LENGTHS = (600, 1200, 5000, 9000)
"""One of each of four classes."""


def several(*lines: PrefillTime, each: int = SAMPLES_KEPT) -> list[PrefillTimeSample]:
    """So many prefills of each length by one line, then by the next."""
    return [PrefillTimeSample(tokens, time.us(tokens)) for time in lines for _ in range(each) for tokens in LENGTHS]


def test_prefills_that_seem_equally_long_teach_nothing() -> None:
    """They taught a price of 0, under which cached tokens counted nothing."""
    equal = PrefillTime(30_000, 0)
    assert learned(several(equal)).time("tiny") is None
    found = learned(several(LINE, equal))
    assert found.time("tiny") == learned(several(LINE)).time("tiny")
    for tokens in range(64, 8000, 7):
        found.note("tiny", tokens, 40_000 - tokens, 0)
    assert near(found.time("tiny"), 0.01)


def test_a_price_below_a_twentieth_is_not_learned() -> None:
    """Of the default, for ever; of the line that was learned before, until REFUSED_MAX looks in a row say so."""
    floor_m = DEFAULT_TIME.us(WHOLE_CONTEXT) * 1000 // (SOUND_SHARE * WHOLE_CONTEXT) + 1
    assert learned(several(PrefillTime(500_000, floor_m - 10), each=300)).time("tiny") is None
    assert learned(several(PrefillTime(0, floor_m + 10))).time("tiny") is not None
    slow = PrefillTime(0, 500_000)
    found, stayed = learned(several(slow)), 0
    for sample in several(LINE, each=100):
        found.note("tiny", *sample, 0)
        stayed += found.time("tiny") == slow
    turned = (SAMPLES_KEPT // 2 + 1) * len(LENGTHS)  # from here on the medians are of the new line
    assert REFUSED_MAX <= (stayed - turned) / REFIT_EVERY <= REFUSED_MAX + 1
    assert near(found.time("tiny"), 0.01)


def test_a_few_short_prompts_do_not_keep_the_price_high() -> None:
    """One class tells no slope, so that the base counts as the price of its tokens: far too much, and given up with the
    first line of two."""
    short = [PrefillTimeSample(10, LINE.us(10))] * SAMPLES_MIN
    assert learned(short).time("tiny") == PrefillTime(0, LINE.us(10) * 100)
    assert near(
        learned(short + [PrefillTimeSample(n, LINE.us(n)) for n in (600, 5000) * REFIT_EVERY]).time("tiny"), 0.01
    )


@pytest.mark.parametrize("seed", range(60))
def test_what_is_learned_is_sound_whatever_the_samples(seed: int) -> None:
    """No sequence teaches a price of 0 or less, nor one below the floor; once a line is known one stays known."""
    dice, found, before, now_us = random.Random(seed), PrefillTimeModel(), None, 0
    for _ in range(dice.randint(1, 6)):
        base, slope, noise = (
            dice.choice([0, 10**4, 10**6]),
            dice.choice([-50, 0, 1, 20, 10**4]),
            dice.choice([0, 10**5]),
        )
        widest, now_us = dice.randint(1, 17), now_us + dice.choice([0, AGE_MAX_US // 2, 2 * AGE_MAX_US])
        for _ in range(dice.randint(1, 400)):
            tokens = dice.randint(1, 1 << dice.randint(1, widest))
            found.note("tiny", tokens, max(0, base + slope * tokens + dice.randint(-noise, noise)), now_us)
            time = found.time("tiny")
            assert time is not None or before is None
            before = time
            if time is not None:
                assert time.base_us >= 0 < time.per_token_m
                assert time.per_token_m * WHOLE_CONTEXT // 1000 * SOUND_SHARE >= DEFAULT_TIME.us(WHOLE_CONTEXT)


def test_what_is_kept_is_all_that_counts() -> None:
    """After each look: the line through the medians of the newest of each class, if that is sound."""
    dice, found, classes = random.Random(4), PrefillTimeModel(), dict[int, list[PrefillTimeSample]]()
    for number in range(1, 600):
        tokens = dice.randint(1, 1 << dice.randint(1, 14))
        sample = PrefillTimeSample(tokens, 20 * tokens + dice.randint(0, 15))
        found.note("tiny", *sample, 0)
        classes.setdefault(sample.tokens.bit_length(), []).append(sample)
        if number >= SAMPLES_MIN and not number % REFIT_EVERY:
            kept = [each[-SAMPLES_KEPT:] for each in classes.values() if len(each) >= CLASS_MIN]
            middles = [PrefillTimeSample(*map(median_low, zip(*each, strict=True))) for each in kept]
            assert found.time("tiny") == theil_sen(sorted(middles))


def test_models_are_apart_and_the_same_samples_give_the_same() -> None:
    """Of another model nothing is known; the order within a class does not matter before any is pushed out."""
    found = learned(samples(200))
    assert found.time("other") is None
    assert found.time("tiny") == learned(samples(200)).time("tiny")
    few = samples(24)
    assert learned(few).time("tiny") == learned(few[::-1]).time("tiny")
    assert repr(found).startswith("<PrefillTimeModel {'tiny': PrefillTime(")
