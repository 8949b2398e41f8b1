"""A judge's answer, and the decisions that it counts for."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from core.events.scale import JUDGE_VERSION, LATE, JudgedWorkers, ScaleJudgement
from projections.scaling.queue_model import ALL_BP
from projections.scaling.scale_decision import (
    JUDGED,
    JUDGED_ERROR_BP,
    JUDGED_FALL_BP,
    JUDGED_GAIN_BP,
    JUDGED_MS,
    ScaleInputs,
    decide_scale,
    fewest_judged,
)
from projections.scaling.scale_fold import ScaleFold
from projections.scaling.scale_settings import ON, ScaleSettings
from tests.projections.scaling.demands import CAPACITY, START_MS, decided, inputs, poisson, rolled

GOAL_BP = 9_500
RATE_M = 4_000
SETTINGS = ScaleSettings(judge=ON)


def answer(*attained: int, first: int = 3, asked_ms: int = START_MS, rate_m: int = RATE_M) -> ScaleJudgement:
    """Attainments of so many workers from `first` on."""
    workers = tuple(JudgedWorkers(first + place, each, 0) for place, each in enumerate(attained))
    return ScaleJudgement(
        asked_ms=asked_ms, rate_m=rate_m, workers=workers, digest="d", absent="", version=JUDGE_VERSION
    )


@pytest.mark.parametrize(
    ("attained", "fewest"),
    [
        ((9_600, 9_700, 9_800), 3),
        ((GOAL_BP - JUDGED_ERROR_BP, 9_700, 9_800), 3),
        ((GOAL_BP - JUDGED_ERROR_BP - 1, 9_700, 9_800), 4),
        ((9_000, 9_200, 9_600), 5),
        ((9_000, 9_100, 9_200), 5),
        ((9_000, 9_000 + JUDGED_GAIN_BP - 1, 9_600), 3),
        ((9_000, 9_000 + JUDGED_GAIN_BP, 9_600), 5),
        ((9_000,), 3),
    ],
)
def test_the_fewest_good_enough(attained: tuple[int, ...], fewest: int) -> None:
    """The most that were simulated where none is, and no worker that adds too little."""
    assert fewest_judged(answer(*attained), START_MS, RATE_M, GOAL_BP) == fewest


def test_an_answer_counts_for_a_while_and_for_like_demand() -> None:
    """And no absence counts."""
    misses = answer(9_000, 9_200, 9_600)
    least_m = RATE_M * (ALL_BP - JUDGED_FALL_BP) // ALL_BP
    assert fewest_judged(misses, START_MS + JUDGED_MS, least_m, GOAL_BP) == 5
    assert fewest_judged(misses, START_MS + JUDGED_MS + 1, RATE_M, GOAL_BP) == 0
    assert fewest_judged(misses, START_MS, least_m - 1, GOAL_BP) == 0
    assert fewest_judged(misses, START_MS, 2 * RATE_M, GOAL_BP) == 5
    assert fewest_judged(replace(misses, absent=LATE), START_MS, RATE_M, GOAL_BP) == 0
    assert fewest_judged(None, START_MS, RATE_M, GOAL_BP) == 0
    assert fewest_judged(answer(), START_MS, RATE_M, GOAL_BP) == 0


def asked(settings: ScaleSettings = SETTINGS, rate_m: int = RATE_M, **given: object) -> ScaleInputs:
    """Inputs of a steady demand, with an answer."""
    random_ = random.Random(1)
    demand = [rolled(number, poisson(random_, 20)) for number in range(1, 100)]
    return inputs(demand, settings, rate_m)._replace(**given)  # type: ignore[arg-type]


def answered(*attained: int, first: int) -> ScaleJudgement:
    """On the decision of `asked`."""
    return answer(*attained, first=first, asked_ms=asked().at_ms)


def test_simulations_raise_the_required_workers() -> None:
    """The decision names them, and has their answer; without an answer it is the queue's."""
    alone = decide_scale(asked())
    assert alone == replace(decide_scale(asked(ScaleSettings())), judged=UNSET)
    assert alone.required < 3
    found = answered(8_000, 9_000, 9_900, first=2)

    judged = decide_scale(asked(answer=found))

    assert (judged.required, judged.target, judged.judged) == (4, 4, found)
    assert judged.candidates == alone.candidates[: len(judged.candidates)], "the queue's own search is as before"
    fewer = decide_scale(asked(answer=answered(9_900, 9_900, 9_900, first=1)))
    assert fewer.required == alone.required, "both must find them good enough"


def test_the_reason_is_the_judge() -> None:
    """Where its number is more than the present one."""
    alone = decide_scale(asked())
    found = answered(8_000, 8_100, 8_800, first=alone.target + 2)
    judged = decide_scale(asked(answer=found))
    assert (judged.required, judged.target, judged.bound) == (alone.target + 4, alone.target + 4, JUDGED)


def test_an_earlier_answer_counts_until_a_newer_one() -> None:
    """An absence takes none away; a setting that is off takes it away."""
    alone = decide_scale(asked())
    first = answered(8_000, 9_000, 9_900, first=alone.target)
    before = decide_scale(asked(judged=first))
    assert (before.required, before.judged) == (alone.target + 2, UNSET)
    late = replace(first, workers=(), digest="", absent=LATE)
    absent = decide_scale(asked(judged=first, answer=late))
    assert (absent.required, absent.judged) == (alone.target + 2, late)
    newer = answered(9_900, 9_900, 9_900, first=alone.target)
    assert decide_scale(asked(judged=first, answer=newer)).required == max(alone.required, alone.target)
    off = asked(ScaleSettings(), judged=first)
    assert decide_scale(off) == decide_scale(asked(ScaleSettings()))


def test_more_demand_never_requires_fewer() -> None:
    """Also where an answer counts from some demand on."""
    found = answered(8_000, 9_000, 9_900, first=3)
    required = [decide_scale(asked(rate_m=rate_m, answer=found)).required for rate_m in range(1_000, 40_000, 1_000)]
    assert all(one <= other for one, other in pairwise(required)), required
    assert len(set(required)) > 2


def test_the_fold_keeps_the_last_answer() -> None:
    """No absence takes its place."""
    random_ = random.Random(1)
    demand = [rolled(number, poisson(random_, 20)) for number in range(1, 30)]
    event, found, fold = decided(demand, SETTINGS, RATE_M), answer(9_000), ScaleFold()
    fold.capacity = CAPACITY
    assert fold.judged is None
    fold.apply(replace(event, judged=found))
    fold.apply(replace(event, at_ms=event.at_ms + 5_000, judged=replace(found, absent=LATE)))
    fold.apply(replace(event, at_ms=event.at_ms + 10_000))
    assert fold.judged == found
