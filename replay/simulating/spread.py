"""Spread: how evenly something lay on the workers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """1 and 0 are as even as can be."""

    max_over_mean: float
    cv: float
    """The coefficient of variation: standard deviation (of the whole population) over mean."""
    per_worker: tuple[int, ...]


def spread(found: Sequence[int]) -> Spread:
    """Of what each worker had; as even as can be if none had anything."""
    total = sum(found)
    if not total:
        return Spread(max_over_mean=1.0, cv=0.0, per_worker=tuple(found))
    squares = sum((value * len(found) - total) ** 2 for value in found)  # of integers: the order cannot show
    return Spread(
        max_over_mean=max(found) * len(found) / total,
        cv=math.sqrt(squares / len(found)) / total,
        per_worker=tuple(found),
    )
