"""Counts by buckets."""

from __future__ import annotations

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import HistogramMetricFamily

from actors.metrics.histogram import Histogram, cumulative

BOUNDS = (0.001, 0.5, 1.0, 60.0)


@pytest.mark.parametrize("values", [(), (0.0,), (0.001,), (0.0010001, 0.5), (0.4, 0.75, 1.0, 1.5), (60.0, 60.1, 1e9)])
def test_it_counts_as_prometheus_does(values: tuple[float, ...]) -> None:
    """A value at a bound belongs below it; above all bounds is a bucket, too."""
    ours, registry = Histogram(BOUNDS), CollectorRegistry()
    theirs = prometheus_client.Histogram("waits", "Waits", buckets=BOUNDS, registry=registry)
    for value in values:
        ours.observe(value)
        theirs.observe(value)

    class Ours:
        @staticmethod
        def collect() -> list[HistogramMetricFamily]:
            return [HistogramMetricFamily("waits", "Waits", cumulative(BOUNDS, ours.counts), ours.sum)]

    assert generate_latest(Ours()) == without_created(generate_latest(registry))


def without_created(text: bytes) -> bytes:
    """The moment of making stands in series of its own, which ours have not."""
    return b"".join(line for line in text.splitlines(keepends=True) if b"waits_created" not in line)
