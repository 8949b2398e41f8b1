"""What is reported of prefill workers: each number by hand on a few verdicts."""

from __future__ import annotations

from core.ids import RequestId
from replay.simulate.report import LatencySummary, PrefillFleet, PrefillVerdict, disaggregation


def pulled(name: str, place: int, cached: int, computed: int, wait_us: int) -> PrefillVerdict:
    return PrefillVerdict(
        RequestId(name), "long", "pulled", place, 100, 4, cached, computed,
        queue_us=wait_us // 2, wait_us=wait_us, pull_us=7000,
    )  # fmt: skip


def test_each_number() -> None:
    """Places of prefill workers begin behind those that decode; what was not pulled is counted, and nothing else."""
    verdicts = [
        pulled("a", 3, 0, 100, 10_000),
        PrefillVerdict(RequestId("b"), "short", ""),
        pulled("a", 3, 0, 300, 10_000),
        PrefillVerdict(RequestId("c"), "long", "deadline"),
        pulled("d", 4, 200, 200, 40_000)._replace(pulled_tokens=50),
    ]
    fleet = PrefillFleet(3, 3, 10, verdicts)
    found = disaggregation(fleet)

    assert found.prefill_workers == 3
    assert found.verdicts == {"long": 4, "short": 1}
    assert found.jobs == {"deadline": 1, "pulled": 3}
    assert found.remote_share == 3 / 5
    assert (found.pulled_tokens, found.pulled_blocks, found.pulled_bytes) == (250, 12, 120)
    assert found.hit_rate == 200 / 800
    assert found.queued_ms == LatencySummary(mean=10.0, p50=5.0, p90=20.0, p99=20.0)
    assert found.job_ms == LatencySummary(mean=20.0, p50=10.0, p90=40.0, p99=40.0)
    assert found.pull_ms == LatencySummary(mean=7.0, p50=7.0, p90=7.0, p99=7.0)
    assert found.computed_tokens.per_worker == (400, 200, 0)
    assert fleet.pulled_tokens() == {"a": 100, "b": 0, "c": 0, "d": 50}, "of two attempts the first counts"


def test_nothing() -> None:
    """Has no numbers, and does not fail."""
    found = disaggregation(PrefillFleet(1, 2, 10, []))

    assert (found.verdicts, found.jobs, found.remote_share, found.hit_rate) == ({}, {}, 0.0, 0.0)
    assert found.job_ms == LatencySummary()
    assert found.computed_tokens.per_worker == (0, 0)
