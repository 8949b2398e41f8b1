"""ScaleFold: the window for shrinking, falls that were taken back, and sizes of requests."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from core.events import ScaleDecided
from projections.scaling.scale_decision import FleetCounts
from projections.scaling.scale_fold import REGRET_S, SURPLUS_S, ScaleFold
from projections.scaling.scale_rules import RULES
from projections.scaling.scale_settings import ScaleSettings
from tests.projections.scaling.demands import CAPACITY, PERIOD_S, START_MS, cell, decided, foreseen, rolled

DECIDED = decided([rolled(1, 10)], ScaleSettings(), 2_000)
WINDOW = ScaleSettings().down_window_s // PERIOD_S


def decision(period: int, target: int = 3) -> ScaleDecided:
    return replace(DECIDED, at_ms=START_MS + period * PERIOD_S * 1000, target=target, required=target)


def fold(*decisions: ScaleDecided, settings: ScaleSettings | None = None) -> ScaleFold:
    found = ScaleFold()
    found.capacity, found.settings = CAPACITY, settings or ScaleSettings()
    for each in decisions:
        found.apply(each)
    return found


def is_full(found: ScaleFold, period: int) -> bool:
    return found.inputs(START_MS + period * PERIOD_S * 1000, FleetCounts(3), foreseen(0)).is_window_full


def regretted(found: ScaleFold, period: int) -> int:
    return found.inputs(START_MS + period * PERIOD_S * 1000, FleetCounts(3), foreseen(0)).regretted


def test_the_window_is_full_when_its_whole_time_has_decisions() -> None:
    """And stays so while decisions go on."""
    found = fold(*map(decision, range(1, WINDOW + 1)))

    assert not is_full(found, WINDOW)
    assert is_full(found, WINDOW + 1)
    for period in range(WINDOW + 1, 3 * WINDOW):
        found.apply(decision(period))
        assert is_full(found, period + 1)


def test_the_window_begins_anew_behind_a_gap() -> None:
    """A planner that was away for an hour knows no window: with history missing, no fleet shrinks."""
    found = fold(*map(decision, range(1, 2 * WINDOW)))
    found.apply(decision(2 * WINDOW + 720))

    assert not is_full(found, 2 * WINDOW + 721)
    assert not is_full(fold(*map(decision, range(1, 2 * WINDOW))), 2 * WINDOW + 3), "also for the first one behind it"
    assert len(found.inputs(START_MS, FleetCounts(3), foreseen(0)).required) == 1


def test_a_window_that_becomes_longer_is_not_full() -> None:
    """Decisions before the shorter one are not kept."""
    found = fold(*map(decision, range(1, 3 * WINDOW)))
    found.settings = replace(found.settings, down_window_s=240)

    assert not is_full(found, 3 * WINDOW)


def test_a_window_may_have_no_length() -> None:
    """Then no earlier decision counts."""
    found = fold(*map(decision, range(1, 5)), settings=ScaleSettings(down_window_s=0))

    assert is_full(found, 5)
    assert not found.inputs(START_MS, FleetCounts(3), foreseen(0)).required


@pytest.mark.parametrize(
    ("targets", "workers"),
    [([3, 2, 3], 3), ([3, 2, 4], 3), ([4, 3, 2, 3], 3), ([2, 3], 0), ([3, 2, 2], 0), ([3, 2, 3, 4, 3], 3)],
)
def test_a_fall_that_is_taken_back_is_remembered(targets: list[int], workers: int) -> None:
    """With the number of workers that should have stayed, for an hour."""
    found = fold(*(decision(period, target) for period, target in enumerate(targets)))

    assert regretted(found, len(targets)) == workers
    assert regretted(found, len(targets) + REGRET_S // PERIOD_S) == 0


def test_a_rise_long_after_a_fall_is_no_regret() -> None:
    """The demand changed."""
    found = fold(decision(0, 3), decision(1, 2), decision(1 + REGRET_S // PERIOD_S, 3))

    assert regretted(found, 2 + REGRET_S // PERIOD_S) == 0


def surplus_bp(found: ScaleFold) -> int:
    return found.inputs(START_MS, FleetCounts(3), foreseen(0)).surplus_bp


def test_requests_beyond_the_goal_are_a_surplus() -> None:
    """Of 100 requests 95 were asked to be within the bounds, so 98 are three too many. An hour later a third counts."""
    found = fold()
    found.apply(replace(rolled(0, 100), attained=98))

    assert surplus_bp(found) == 30_000 - 30_000 * PERIOD_S // SURPLUS_S
    for number in range(1, SURPLUS_S // PERIOD_S):
        found.apply(rolled(number, 0))
    assert 30_000 * 0.36 < surplus_bp(found) < 30_000 * 0.38
    found.apply(replace(rolled(SURPLUS_S // PERIOD_S, 100), attained=80))
    assert surplus_bp(found) < -130_000


def sized(found: ScaleFold, version: int) -> int:
    """The requests whose sizes that version reads."""
    return sum(each.count for each in found.inputs(START_MS, FleetCounts(3), foreseen(0), version).cells)


@pytest.mark.parametrize("version", RULES)
def test_sizes_are_those_that_the_version_of_the_rules_reads(version: int) -> None:
    """The last requests; since version 5 also those of the hour before them that are like them."""
    found, rules = fold(), RULES[version]
    count = rules.sized_requests
    for number in range(40):
        found.apply(rolled(number, 10, (cell(count // 8, uncached=1000 + number),)))

    assert sized(found, version) == (5 * count if rules.sized_s else count)
    found.apply(rolled(40, 10, (cell(count, uncached=5000),)))
    assert sized(found, version) == (count * 5 // 4 if rules.sized_s else count), "the mean may be a quarter off"
