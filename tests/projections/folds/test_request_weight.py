"""What a request in flight weighs in a digest is what `mix` gives: digests of older programs are compared with it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core.ids import RequestId, WorkerId
from projections.digest import mix
from projections.folds.in_flight import InFlight
from projections.folds.routing_fold import request_weight


@given(st.text(), st.integers(0), st.text(), st.integers(0), st.integers(0))
def test_a_weight_is_the_mix_of_what_is_named(request: str, attempt: int, worker: str, blocks: int, left: int) -> None:
    """Whatever characters a client put into the id."""
    entry = InFlight(WorkerId(worker), blocks, left, b"hashes", 5)
    assert request_weight((RequestId(request), attempt), entry) == mix(request, attempt, worker, blocks, left)
