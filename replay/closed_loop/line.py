"""Line: a straight line through measured times that some slow ones among many do not change.

Samples are put into classes of about equal size by what they are of, and the line goes through the classes' medians
with the median of all slopes between two of them (Theil and Sen); its start is the median of what the slope leaves.
The same samples give the same line in any order, anywhere: they are sorted, and medians are values that occurred.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, pairwise
from typing import NamedTuple

CLASSES_MAX = 12
CLASS_MIN = 5
"""Samples of a class, at least."""


class Point(NamedTuple):
    """One measured time, and what it is of."""

    x: float
    us: float


class Line(NamedTuple):
    """`base_us + per_us * x`."""

    base_us: float = 0.0
    per_us: float = 0.0

    def us(self, x: float) -> float:
        """The time that it gives."""
        return self.base_us + self.per_us * x


def line(points: Iterable[Point]) -> Line:
    """The line through CLASS_MIN points or more; neither number is below 0. If the points are all of the same, its
    slope is 0. O(n log n)."""
    ordered = sorted(points)
    middles = [_middle(each) for each in _classes(ordered)]
    slopes = [(then.us - first.us) / (then.x - first.x) for first, then in combinations(middles, 2) if then.x > first.x]
    per_us = max(0.0, median(slopes)) if slopes else 0.0
    return Line(max(0.0, median(each.us - per_us * each.x for each in ordered)), per_us)


def median(values: Iterable[float]) -> float:
    """The lower one of two in the middle."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def _classes(ordered: list[Point]) -> list[list[Point]]:
    count = max(1, min(CLASSES_MAX, len(ordered) // CLASS_MIN))
    edges = [len(ordered) * at // count for at in range(count + 1)]
    return [ordered[low:high] for low, high in pairwise(edges)]


def _middle(points: list[Point]) -> Point:
    return Point(median(each.x for each in points), median(each.us for each in points))
