"""Our counter against the library's."""

from __future__ import annotations

import prometheus_client
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from actors.metrics.counter import Counter
from tests.actors.metrics.test_histogram import lines


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.integers(0, 1000)), max_size=20))
def test_it_tells_what_the_librarys_tells(counted: list[tuple[str, str, int]]) -> None:
    """Byte for byte; what was only named is 0."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    mine = Counter("x_requests", "Requests ended", ["model", "outcome"], ours)
    other = prometheus_client.Counter("x_requests", "Requests ended", ["model", "outcome"], registry=theirs)
    for labels in (("a", "x"), *((model, outcome) for model, outcome, _ in counted)):
        mine.labels(*labels)
        other.labels(*labels)
    for model, outcome, amount in counted:
        mine.labels(model, outcome).inc(amount)
        other.labels(model, outcome).inc(amount)
    assert lines(ours) == lines(theirs)
