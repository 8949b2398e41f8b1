"""Candidate columns: one form of bytes for all numbers, and each value of a candidate counts."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from core.ids import RequestId, WorkerId
from core.settings import RoutingSettings
from core.subjects import LOAD
from projections.policy.candidate_columns import candidate_columns
from projections.policy.column_decision import RankedCandidates, decide_by_columns
from projections.policy.cost import ScoredCandidate
from projections.policy.decide import decide
from projections.policy.prefill_backlog import NO_BACKLOG, PrefillBacklog
from projections.policy.prefill_time import PrefillTime
from projections.policy.view import Candidate, RouteRequest
from tests.projections.facts import joined, load, prompt, worker_id
from tests.projections.site import KV, Site

A, B = WorkerId("aa" * 8), WorkerId("bb" * 8)
ONE = ScoredCandidate(Candidate(A, "m", 16, 900, True, (1, 2, 3, 4), 5, 6, 7, 8, 9, False), 10, 11)
TWO = ScoredCandidate(Candidate(B, "m", 16, 901, False, (12, 13, 14, 15), 16, -17, 18, 19, 20, True), -21, 22)
PAIRS = (
    (900, 901), (1, 0), (0, 1), (1, 12), (2, 13), (3, 14), (4, 15), (5, 16), (6, -17), (7, 18), (8, 19), (9, 20),
    (10, -21), (11, 22),
)  # fmt: skip
"""The numbers of the two in the order of the module's text."""


def written(*pairs: tuple[int, int]) -> bytes:
    ids = b"aaaaaaaaaaaaaaaa\nbbbbbbbbbbbbbbbb\n"
    return ids + b"".join(number.to_bytes(8, "little", signed=True) for pair in pairs for number in pair)


def timed(waits_us: dict[WorkerId, int], reuse: dict[WorkerId, int]) -> PrefillBacklog:
    return PrefillBacklog(PrefillTime(1, 2), waits_us, reuse=reuse)


def test_columns_stand_one_after_the_other() -> None:
    assert candidate_columns([ONE, TWO], NO_BACKLOG) == written(*PAIRS)
    assert candidate_columns([], NO_BACKLOG) == b""


def test_waits_and_reuse_are_of_candidates() -> None:
    """Zeros stand among the waits; a column of reuse stands if a candidate has some."""
    other = WorkerId("cc" * 8)
    assert candidate_columns([ONE, TWO], timed({B: 23}, {A: 24})) == written(*PAIRS, (0, 23), (24, 0))
    assert candidate_columns([ONE, TWO], timed({other: 23}, {other: 24})) == written(*PAIRS, (0, 0))


def test_turnover_stands_last_where_a_candidate_has_some() -> None:
    """Zeros stand among it. A decision without any has the bytes of version 7."""
    plain = timed({B: 23}, {A: 24})
    waits = (0, 23), (24, 0)
    assert candidate_columns([ONE, TWO], plain._replace(turnover={B: 25})) == written(*PAIRS, *waits, (0, 25))
    assert candidate_columns([ONE, TWO], plain._replace(turnover={})) == written(*PAIRS, *waits)
    assert candidate_columns([ONE, TWO], timed({B: 23}, {})._replace(turnover={A: 25})) == written(
        *PAIRS, (0, 23), (25, 0)
    )


def test_numbers_beyond_a_column_stand_by_their_lowest_bits() -> None:
    """No number of a log fails a decision."""
    wide = TWO._replace(candidate=TWO.candidate._replace(capacity_blocks=2**64 - 5), cost=-(2**63) - 1)
    pairs = [(900, -5), *PAIRS[1:12], (10, 2**63 - 1), PAIRS[13]]
    assert candidate_columns([ONE, wide], NO_BACKLOG) == written(*pairs)


def changed() -> Iterator[ScoredCandidate]:
    yield ONE._replace(cost=-10)
    yield ONE._replace(prefill_m=12)
    candidate = ONE.candidate
    yield ONE._replace(candidate=candidate._replace(worker=B))
    yield ONE._replace(candidate=candidate._replace(overlap=(1, 2, 3, 5)))
    other = Candidate(A, "m", 16, 901, False, (1, 2, 3, 4), 6, 7, 8, 9, 10, True)
    for at, value in enumerate(other):
        if value != candidate[at]:
            yield ONE._replace(candidate=Candidate._make((*candidate[:at], value, *candidate[at + 1 :])))


def test_each_value_counts() -> None:
    """But model and block size, which are those of the request."""
    found = [candidate_columns([each], NO_BACKLOG) for each in (ONE, *changed())]
    assert len({*found}) == len(found) == len(Candidate._fields) + 1


@pytest.mark.parametrize("policy", ["kv", "time"])
def test_a_worker_of_any_capacity_has_the_same_bytes_both_ways(policy: str) -> None:
    site = Site()
    for number in range(20):
        event = msgspec.structs.replace(joined(f"w-{number}"), capacity_blocks=2**63 + number)
        site.say(KV, worker_id(number), event)
        site.say(LOAD, worker_id(number), load(number, reuse_rate=1000 * number, turnover=3 * number))
    request, settings = RouteRequest(RequestId("r"), 0, "tiny", prompt(1, 2)), RoutingSettings(policy=policy)
    mine, judge = (each(site.view, request, settings, 1000, 7) for each in (decide_by_columns, decide))
    assert isinstance(mine.ranked, RankedCandidates)
    assert mine.digest == judge.digest
