"""The parts of `bench.planner_cost`: its aim."""

from __future__ import annotations

import pytest

from bench.planner_cost import RATE, SHARE_MAX, PlannerCost


@pytest.mark.parametrize(
    ("share", "rate", "holds"), [(0.9, RATE, True), (1.1, RATE, False), (1.1, RATE / 5, False), (1.1, 2 * RATE, True)]
)
def test_the_share_of_a_core_is_bounded(share: float, rate: float, holds: bool) -> None:
    """At the rate of the aim and below. The cost of a request is that of the planner's process alone."""
    figures = {each.what: each for each in PlannerCost(100.0, 5_000, 100.0 * SHARE_MAX * share, 80 << 20).figures(rate)}

    assert figures["planner, of a core"].holds is holds
    assert figures["planner, for each request"].value == pytest.approx(1_000 * share)
    assert (figures["requests a second"].value, figures["planner, memory"].value) == (50.0, 80.0)
