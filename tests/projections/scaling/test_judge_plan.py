"""The simulations that a decision asks for."""

from __future__ import annotations

import random
from itertools import pairwise

import msgspec
import pytest
from msgspec.structs import replace

from core.events.scale import DemandCell
from projections.scaling.judge_plan import FAMILY, SAMPLE_MIN, WARM_SHARE, JudgePlan, judge_plan
from projections.scaling.queue_model import SAMPLE, US_PER_S
from projections.scaling.scale_decision import ScaleInputs, decide_scale
from projections.scaling.scale_settings import ON, ScaleSettings
from tests.projections.scaling.demands import CAPACITY, cell, inputs, poisson, rolled

RATE_M = 15_000
SETTINGS = ScaleSettings(judge=ON, ttft_ms=2_000, max=64)


def sizes(arrivals: int) -> tuple[DemandCell, ...]:
    """A fifth of the tokens of short prompts are cached, and nothing of long ones."""
    short = arrivals // 2
    found = cell(short, 2_000, 150, 2_500), cell(arrivals - short, 6_000, 50, 6_000)
    return tuple(each for each in found if each.count)


def asked(periods: int = 40, rate_m: int = RATE_M, mean: int = 75) -> ScaleInputs:
    random_, demand = random.Random(1), []
    for number in range(1, periods + 1):
        arrivals = poisson(random_, mean)
        demand.append(rolled(number, arrivals, sizes(arrivals)))
    return inputs(demand, SETTINGS, rate_m)


def plan(it: ScaleInputs) -> JudgePlan:
    found = judge_plan(it, decide_scale(it))
    assert found is not None
    return found


def test_one_worker_less_and_one_more() -> None:
    """Than the decision requires; at its rate, which is that of its queue, and with its bounds."""
    it = asked()
    decided, found = decide_scale(it), plan(it)

    assert found.numbers == (decided.required - 1, decided.required, decided.required + 1)
    assert (found.asked_ms, found.rate_m) == (decided.at_ms, decided.candidates[0].rate_m) == (it.at_ms, RATE_M)
    assert (found.ttft_ms, found.itl_ms, found.capacity) == (2_000, 50, CAPACITY)
    for run in found.runs:
        assert all(one <= other for one, other in pairwise(run.times_us))
        rate = len(run.times_us) * US_PER_S / run.times_us[-1]
        assert run.part == run.workers
        assert rate == pytest.approx(RATE_M / 1000, rel=0.02)


def test_a_number_that_cannot_keep_up_is_not_simulated() -> None:
    """A prompt takes 0.1 s of a worker: with 21 a second two workers have more than they can do."""
    it = asked(rate_m=21_000, mean=105)
    decided = replace(decide_scale(it), required=3)
    found = judge_plan(it, decided)
    assert found is not None
    assert found.numbers == (3, 4)
    assert plan(asked(rate_m=1_000)).numbers == (1, 2), "no fleet has no worker"


def test_requests_are_bounded_and_enough() -> None:
    """A quarter of them fills caches; with few arrivals nothing is simulated."""
    most = plan(asked(periods=180))
    assert len(most.prompt_tokens) <= SAMPLE
    assert most.warm == len(most.prompt_tokens) // WARM_SHARE
    few = asked(periods=SAMPLE_MIN // 75 - 1)
    assert judge_plan(few, decide_scale(few)) is None
    it = asked()
    assert judge_plan(it, replace(decide_scale(it), candidates=())) is None


def test_a_part_of_a_large_fleet_is_simulated() -> None:
    """Its arrivals are its share of all."""
    it = asked(periods=40, rate_m=200_000, mean=1_000)
    for run in plan(it).runs:
        assert run.part < run.workers / 4
        rate = len(run.times_us) * US_PER_S / run.times_us[-1]
        assert rate == pytest.approx(200 * run.part / run.workers, rel=0.05)


def test_hits_are_as_many_as_were_seen() -> None:
    """Followers have them, a few in a family; the others have no cached part."""
    found = plan(asked(periods=60))
    followers = [number for number, tokens in enumerate(found.followed_tokens) if tokens]
    own = [prompt - start for prompt, start in zip(found.prompt_tokens, found.followed_tokens, strict=True)]

    assert set(own) == {2_000, 6_000}
    assert all(own[number] == 2_000 for number in followers), "no long prompt was cached"
    assert sum(found.followed_tokens) / sum(found.prompt_tokens) == pytest.approx(0.5 / 8.5, abs=0.015)
    families = {found.families[number] for number in followers}
    assert len(followers) / FAMILY / 2 < len(families) <= max(1, len(followers) // FAMILY)
    assert max(found.families) < max(1, len(followers) // FAMILY)


def test_a_plan_is_equal_anywhere() -> None:
    """From equal inputs, and behind a way through a pipe."""
    found = plan(asked())
    assert plan(asked()) == found
    assert msgspec.json.decode(msgspec.json.encode(found), type=JudgePlan) == found
