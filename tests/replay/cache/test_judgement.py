"""The judgement: one sentence by the largest part, with the numbers that decide."""

from __future__ import annotations

import pytest

from replay.cache.cache_report import CacheReport, CacheRow, CacheSums, DisplacementRemainder
from replay.cache.displacement import DisplacedTokens
from replay.cache.judgement import judge, judge_displacement


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


def report(by: str = "tenant", unowned: int = 0, **rows: tuple[int, int, int]) -> CacheReport:
    """Of each group: tokens lost to others, lost to its own, taken from others."""
    groups = [
        CacheRow(
            name=name, sums=sums(evicted=10), displaced=DisplacedTokens(
                lost_to_others=lost, lost_to_own=own, took_from_others=took
            ),
        )
        for name, (lost, own, took) in rows.items()
    ]  # fmt: skip
    total = CacheRow(name="", sums=sums(evicted=10 * len(groups)), displaced=DisplacedTokens())
    for group in groups:
        assert total.displaced is not None
        assert group.displaced is not None
        total.displaced.add(group.displaced)
    rest = DisplacementRemainder(unlisted=DisplacedTokens(), lost_unowned=unowned, forgotten=0)
    return CacheReport(
        by=by, total=total, rows=groups, apart={}, first_ms=0, last_ms=0, history_from_ms=0, gaps=0, blocks_max=1,
        forgotten=0, remainder=rest,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "verdict", "tenant"),
    [
        (report(a=(100, 0, 0), b=(0, 50, 100)), "one_tenant", "b"),
        (report(a=(100, 0, 92), b=(92, 0, 100)), "evenly", "b"),
        (report(a=(100, 0, 80), b=(80, 0, 100)), "one_tenant", "b"),
        (report(a=(100, 0, 80), b=(80, 0, 100), unowned=300), "evenly", "b"),
        (report(a=(0, 70, 0), b=(0, 30, 0)), "none", ""),
        (report(), "none", ""),
    ],
)
def test_one_tenant_that_took_more_than_it_lost(found: CacheReport, verdict: str, tenant: str) -> None:
    """By more than a twentieth of all that was removed."""
    judged = judge_displacement(found)
    assert judged is not None
    assert (judged.verdict, judged.tenant) == (verdict, tenant)


def test_the_tenants_sentence() -> None:
    """With the tokens that the others computed again; there is none by session."""
    judged = judge_displacement(report(a=(100, 0, 0), b=(0, 50, 100)))
    assert judged is not None
    assert judged.text == (
        "Tenant b pushed out others: of 150 tokens that workers removed, 100 made room for another tenant, and b took "
        "100 and lost 0; the others computed 10 evicted tokens again."
    )
    assert judge_displacement(report("session", a=(100, 0, 0), b=(0, 50, 100))) is None
