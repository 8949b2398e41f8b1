"""The judgement: one sentence by the largest part, with the numbers that decide."""

from __future__ import annotations

import pytest

from replay.cache.cache_report import CacheSums
from replay.cache.judgement import judge


def sums(**given: int) -> CacheSums:
    return CacheSums(attempts=1, prompt_tokens=sum(given.values()), **given)


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ({"achieved": 9530, "sent_elsewhere": 18, "worker_lost": 15, "evicted": 9, "cold": 428}, "nothing"),
        ({"achieved": 9950, "evicted": 50}, "nothing"),
        ({"achieved": 9949, "evicted": 51}, "capacity"),
        ({"achieved": 500, "evicted": 100, "cold": 300, "not_yet_stored": 100}, "workload"),
        ({"achieved": 500, "evicted": 200, "worker_lost": 100, "cold": 100, "always_computed": 100}, "capacity"),
        ({"achieved": 500, "worker_lost": 300, "cold": 200}, "failure"),
        ({"achieved": 500, "sent_elsewhere": 150, "replica_behind": 150, "evicted": 200}, "router"),
        ({"achieved": 500, "unknown": 300, "cold": 200}, "unknown"),
        ({"cold": 100}, "nothing"),
        ({}, "none"),
    ],
)
def test_the_largest_part_decides(given: dict[str, int], verdict: str) -> None:
    """Beside what was achieved; within half a point nothing is to be won."""
    assert judge(sums(**given)).verdict == verdict


def test_the_numbers_stand_in_the_sentence() -> None:
    """The largest loss first; what is zero is left out."""
    text = judge(sums(achieved=500, evicted=200, worker_lost=250, cold=50)).text
    assert text == (
        "It was the loss of workers: 5.00 % of the prompt tokens were in no cache before, and 45.00 % were available "
        "and not used (worker lost 25.00 %, evicted 20.00 %)."
    )
    assert judge(sums(achieved=9530, evicted=42, cold=428)).text == (
        "Nothing is to be won by routing, capacity or repair: 95.30 % of the prompt tokens came from a cache, "
        "95.72 % were available, and the rest was in no cache before."
    )
