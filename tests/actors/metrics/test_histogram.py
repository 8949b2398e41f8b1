"""Our histogram against the library's."""

from __future__ import annotations

import prometheus_client
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from actors.metrics.histogram import Histogram

BOUNDS = (0.001, 0.01, 0.5, 1, 10)


def lines(registry: CollectorRegistry) -> list[str]:
    """What is scraped, without times of creation, which only the library's tells."""
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.one_of(st.sampled_from(BOUNDS), st.floats(0, 100))), max_size=30))
def test_it_tells_what_the_librarys_tells(observed: list[tuple[str, float]]) -> None:
    """Byte for byte."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    mine = Histogram("x_seconds", "Some time", "model", BOUNDS, ours)
    other = prometheus_client.Histogram("x_seconds", "Some time", ["model"], buckets=BOUNDS, registry=theirs)
    for label, value in observed:
        mine.labels(label).observe(value)
        other.labels(label).observe(value)
    assert lines(ours) == lines(theirs)
