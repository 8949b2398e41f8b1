"""Histogram: counts by bucket at a fifth of the library's price, which every token would pay."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Series:
    """One label's observations; the event loop's alone, scrapes included."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """It counts in the first bucket whose bound is not below it."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def told(self) -> tuple[list[tuple[str, float]], float]:
        """Buckets as Prometheus has them, each with all below it; and the sum."""
        total, buckets = 0, list[tuple[str, float]]()
        for bound, count in zip([*self._bounds, float("inf")], self._counts, strict=True):
            total += count
            buckets.append((floatToGoString(bound), float(total)))  # type: ignore[no-untyped-call]
        return buckets, self._sum


class Histogram(Collector):
    """A family with one label, registered where it is made."""

    def __init__(self, name: str, text: str, label: str, bounds: Sequence[float], registry: CollectorRegistry) -> None:
        assert list(bounds) == sorted(bounds)
        self._name = name
        self._text = text
        self._label = label
        self._bounds = tuple(bounds)
        self._series: dict[str, Series] = {}
        registry.register(self)

    def __repr__(self) -> str:
        return f"<Histogram {self._name}, {len(self._series)} series>"

    def labels(self, value: str) -> Series:
        """The series of this label; made on the first call."""
        found = self._series.get(value)
        if found is None:
            found = self._series[value] = Series(self._bounds)
        return found

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """As the library's own."""
        family = HistogramMetricFamily(self._name, self._text, labels=[self._label])
        for value, series in self._series.items():
            buckets, total = series.told()
            family.add_metric([value], buckets, total)
        yield family
