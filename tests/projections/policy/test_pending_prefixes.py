"""Starts of prompts asked about for many at once are those that are found for each alone."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.ids import ReplicaId, RequestId, WorkerId
from projections.folds.in_flight import InFlight
from projections.folds.pending_events import PendingEvents
from projections.folds.state import State
from projections.policy import pending_prefixes as pending_prefixes_module
from projections.policy.pending_prefixes import PendingPrefixes
from projections.policy.view import View
from tests.projections.facts import prompt, worker_id
from tests.projections.speaker import CHAIN_KEY

WORKERS = [WorkerId(worker_id(number)) for number in range(3)]
blocks = st.lists(st.integers(1, 2), max_size=9)
rows = st.tuples(blocks, st.sampled_from(WORKERS), st.booleans(), st.booleans())


@pytest.fixture
def none_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_prefixes_module, "ALONE", 0)


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(rows, max_size=12), st.lists(st.tuples(blocks, st.integers(0, 1)), min_size=1, max_size=8))
def test_as_for_each_alone(
    none_alone: None, computing: list[tuple[list[int], WorkerId, bool, bool]], asked: list[tuple[list[int], int]]
) -> None:
    """Whoever computes them, one after the other, in whatever order: what one found is no hindrance to the next."""
    view = View(State(CHAIN_KEY), ReplicaId("ee" * 8), PendingEvents(), {})
    for number, (starts, worker, own, computed) in enumerate(computing):
        key = RequestId(f"r{number}"), 0
        (view.pending_events.in_flight_load if own else view.state.routing.in_flight_load).add(
            key, InFlight(worker, 1, 1, prompt(*starts).hashes())
        )
        if computed:
            view.pending_events.computed[key] = 1
    together = PendingPrefixes(view)
    for starts, extra in asked:
        one = prompt(*starts, extra=extra)
        assert together.pending(one) == view.pending(one)


def test_prompts_in_flight_are_looked_through_once_for_each_depth() -> None:
    """A hundred prompts that share what all share cost no more looks at those in flight than the first one."""
    view = View(State(CHAIN_KEY), ReplicaId("ee" * 8), PendingEvents(), {})
    system = list(range(1, 41))
    for number in range(200):
        entry = InFlight(WORKERS[number % 3], 1, 1, prompt(*system, 1000 + number).hashes())
        view.state.routing.in_flight_load.add((RequestId(f"r{number}"), 0), entry)
    together = PendingPrefixes(view)
    for number in range(100):
        assert together.pending(prompt(*system, 5000 + number)) == dict.fromkeys(WORKERS, len(system))
    (alike,) = together._alike.values()
    assert len(alike._layers) <= 12
