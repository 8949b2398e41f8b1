"""Devices divided among the models of a fleet."""

from __future__ import annotations

import random

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from projections.scaling.fleet_decision import ModelNeed, decide_fleet, divide_devices
from projections.scaling.scale_decision import BUDGET, ScaleInputs, decide_scale
from projections.scaling.scale_settings import ScaleSettings
from tests.projections.scaling.demands import inputs, rolled

RUNS = 400


def need(model: str, sought: int, held: int, least: int = 1, devices: int = 1, priority: int = 0) -> ModelNeed:
    return ModelNeed(model, sought, held, least, devices, priority)


@pytest.mark.parametrize(
    ("needs", "budget", "found"),
    [
        ([need("a", 3, 1), need("b", 4, 1)], 7, (3, 4)),
        ([need("a", 6, 1, priority=1), need("b", 6, 6)], 8, (6, 2)),
        ([need("a", 9, 1, priority=1), need("b", 6, 6, least=2)], 8, (6, 2)),
        ([need("a", 9, 1, priority=1), need("b", 3, 3, least=0)], 8, (8, 0)),
        ([need("a", 4, 4), need("b", 4, 4)], 6, (3, 3)),
        ([need("a", 8, 1), need("b", 4, 1)], 6, (4, 2)),
        ([need("a", 8, 7), need("b", 8, 1)], 8, (4, 4)),
        ([need("a", 8, 4), need("b", 9, 4)], 8, (4, 4)),
        ([need("a", 4, 4, least=0), need("b", 2, 0, least=0, devices=4)], 4, (4, 0)),
        ([need("a", 8, 8, least=0), need("b", 2, 0, least=0, devices=4)], 8, (4, 1)),
        ([need("a", 2, 2, least=2), need("b", 2, 2, least=2)], 3, (2, 2)),
    ],
    ids=[
        "enough",
        "a higher priority comes first",
        "each keeps its least",
        "which may be none",
        "equals give in turn",
        "by what they seek",
        "one that has too much gives",
        "noise moves nothing",
        "a large worker is not worth four",
        "until its share is smaller",
        "the least of all stays",
    ],
)
def test_devices_are_divided(needs: list[ModelNeed], budget: int, found: tuple[int, int]) -> None:
    """Each row is one rule."""
    assert tuple(divide_devices(needs, budget).values()) == found


def test_a_division_fits_and_stays() -> None:
    """Within the devices, between least and sought, with nothing left that fits; the next division changes nothing, and
    the order of the models is of no account."""
    random_ = random.Random(7)
    for _ in range(RUNS):
        needs = []
        for model in "abcd":
            least, devices = random_.randint(0, 2), random_.randint(1, 3)
            sought = least + random_.randint(0, 8)
            needs.append(need(model, sought, random_.randint(0, 10), least, devices, random_.randint(0, 1)))
        budget = sum(each.least * each.devices for each in needs) + random_.randint(0, 20)
        found = divide_devices(needs, budget)

        left = budget - sum(found[each.model] * each.devices for each in needs)
        assert left >= 0
        for each in needs:
            assert each.least <= found[each.model] <= each.sought
            assert found[each.model] == each.sought or each.devices > left
        again = [each._replace(held=found[each.model]) for each in needs]
        assert divide_devices(again, budget) == found
        assert divide_devices(needs[::-1], budget) == found


def test_a_higher_priority_never_has_less_for_the_demand_of_a_lower_one() -> None:
    """It has the same, whatever the lower one seeks and holds."""
    high = need("a", 7, 2, priority=5)
    found = {divide_devices([high, need("b", sought, held)], 10)["a"] for sought in range(1, 12) for held in range(12)}
    assert found == {7}


def sized(arrivals: int, priority: int = 0) -> ScaleInputs:
    demand = [rolled(number, arrivals) for number in range(1, 13)]
    return inputs(demand, ScaleSettings(max=12, priority=priority), arrivals * 200, ready=1)


def test_decisions_of_models_that_share_devices() -> None:
    """What each seeks stands beside its target, and without a budget nothing changes but the name."""
    both = {"b": sized(300, priority=1), "a": sized(300)}
    alone = decide_scale(both["a"])
    assert alone.target > 3
    free = decide_fleet(both, None)
    assert free["a"] == replace(alone, model="a")

    found = decide_fleet(both, alone.target + 2)
    assert (found["b"].target, found["b"].bound) == (alone.target, alone.bound)
    assert (found["a"].target, found["a"].sought, found["a"].bound) == (2, alone.target, BUDGET)
    assert {each.budget for each in found.values()} == {alone.target + 2}
    for model in both:
        assert found[model].required == free[model].required
    assert free["a"].budget is UNSET
