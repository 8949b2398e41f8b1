"""Clocks of replicas and broker that are off: decisions by the broker's time come out as with right clocks."""

from __future__ import annotations

import pytest

from bench.skew import KEPT_WITHIN, REPLICAS, SkewResult, SkewRow, figures, rows, run
from core.errors import CallerError
from replay.simulate.options import Options
from replay.simulate.simulated_clock import ClockError

REQUESTS = 220
ROWS = {row.what: row for row in rows()}


@pytest.fixture(scope="module")
def right() -> SkewResult:
    return run(ROWS["right clocks"], REQUESTS)


def seen_by_the_first(found: SkewResult) -> float:
    """Waits that the first replica sees, by those that the others see."""
    return found.seen_ms[0] / (sum(found.seen_ms[1:]) / (REPLICAS - 1))


@pytest.mark.parametrize(
    "what",
    [
        "one replica 0.1 s behind",
        "one replica 1 s ahead",
        "one replica 3600 s behind",
        "replicas apart by up to 120 s",
        "broker 60 s ahead",
        "replicas drift by 200 millionths",
        "one replica steps 1 s behind",
        "broker steps 1 s behind",
        "broker steps 3600 s behind",
    ],
)
def test_decisions_come_out_as_with_right_clocks_and_all_verify(what: str, right: SkewResult) -> None:
    found = run(ROWS[what], REQUESTS)
    assert found.verified == found.decisions >= REQUESTS
    assert abs(found.hit_rate / right.hit_rate - 1) <= KEPT_WITHIN
    assert found.ttft_ms / right.ttft_ms - 1 <= KEPT_WITHIN
    assert all(figure.holds for figure in figures(ROWS[what], found, right))


def test_a_replica_one_second_ahead_that_decides_by_its_own_clock_sees_few_waits(right: SkewResult) -> None:
    found = run(ROWS["one replica 1 s ahead"], REQUESTS, corrected=False)
    assert found.verified == found.decisions  # the time of a decision is recorded
    assert seen_by_the_first(found) < seen_by_the_first(right) / 2


def test_a_figure_that_is_too_far_from_right_clocks_does_not_hold(right: SkewResult) -> None:
    row = SkewRow("late", (ClockError(1000),) * REPLICAS)
    late = right._replace(ttft_ms=right.ttft_ms * 1.03)
    assert [each.holds for each in figures(row, late, right)][1] is False
    differing = right._replace(verified=right.verified - 1)
    assert not next(figures(row, differing, right)).holds


def test_each_replica_needs_its_clock() -> None:
    with pytest.raises(CallerError, match="clocks has the errors of 1 replicas for 2: give one for each"):
        Options(replicas=2, clocks=(ClockError(),))
