"""Lines through measured times: exact where the times are, and unmoved by some that are not."""

from __future__ import annotations

import pytest

from replay.closed_loop.engine_fit import CLASS_MIN, LinearFit, TimeSample, fit_line


def points(count: int, base_us: float = 300.0, per_us: float = 2.0) -> list[TimeSample]:
    return [TimeSample(x, base_us + per_us * x) for x in range(10, 10 * count + 1, 10)]


def test_a_line_is_found() -> None:
    assert fit_line(points(40)) == LinearFit(300.0, 2.0)
    assert fit_line(points(40)).us(1000) == 2300.0


def test_some_slow_ones_change_nothing() -> None:
    """One in eight took a hundred times as long."""
    stalled = [each._replace(us=each.us * 100) if number % 8 == 3 else each for number, each in enumerate(points(160))]
    found = fit_line(stalled)
    assert found.per_us == pytest.approx(2.0, rel=0.05)
    assert found.base_us == pytest.approx(300.0, rel=0.2)


def test_the_order_does_not_matter() -> None:
    some = [each._replace(us=each.us + number * 7 % 13) for number, each in enumerate(points(50))]
    assert fit_line(reversed(some)) == fit_line(some) == fit_line(sorted(some, key=lambda each: -each.us))


@pytest.mark.parametrize("count", [1, CLASS_MIN, 2 * CLASS_MIN - 1])
def test_one_class_has_no_slope(count: int) -> None:
    """With so few, or all of the same, the middle of them is all that is known."""
    assert fit_line([TimeSample(4.0, 9.0)] * count) == LinearFit(9.0, 0.0)
    assert fit_line(points(count)).per_us == 0


def test_two_classes_have_one() -> None:
    assert fit_line(points(2 * CLASS_MIN)).per_us == 2.0


def test_neither_number_is_below_zero() -> None:
    assert fit_line(points(40, base_us=5000.0, per_us=-2.0)).per_us == 0
    assert fit_line(points(40, base_us=-10.0)) == LinearFit(0.0, 2.0)
