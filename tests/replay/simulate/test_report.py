"""The report: each number by hand on a few requests."""

from __future__ import annotations

import random
from statistics import fmean, pstdev
from typing import Any

import pytest

from core.ids import RequestId
from replay.simulate.report import (
    LatencySummary,
    ServedRequest,
    latency_summary,
    report,
    spread,
    token_times,
)


def served(number: int = 0, **given: Any) -> ServedRequest:
    """A request that came at 0, waited for nothing, had its first token after 1 s and nine more in the second after."""
    usual = ServedRequest(
        id=RequestId(f"req-{number}"),
        arrival_us=0,
        routed_us=0,
        first_us=1_000_000,
        end_us=2_000_000,
        worker=0,
        replica=0,
        prompt_tokens=100,
        cached_tokens=40,
        predicted_tokens=50,
        output_tokens=10,
    )
    return usual._replace(**given)


def failed(number: int) -> ServedRequest:
    return served(number, first_us=-1, worker=-1, cached_tokens=0, output_tokens=0)


def test_rates_and_times() -> None:
    """By tokens, not by requests; over the time from the first arrival to the last end."""
    found = report(
        [
            served(1, arrival_us=500_000),
            served(
                2, arrival_us=1_000_000, first_us=1_600_000, end_us=4_500_000, prompt_tokens=300, predicted_tokens=0
            ),
        ],
        workers=2,
        digest="abc",
        wall_s=3.0,
    )

    assert (found.requests, found.failed, found.migrated) == (2, 0, 0)
    assert (found.hit_rate, found.predicted_hit_rate) == (80 / 400, 50 / 400)
    assert found.ttft_ms == LatencySummary(mean=550.0, p50=500.0, p90=600.0, p99=600.0)
    assert found.e2e_ms == LatencySummary(mean=2500.0, p50=1500.0, p90=3500.0, p99=3500.0)
    assert found.itl_ms.mean == pytest.approx((1000 + 2900) / 18)
    assert (found.requests_per_s, found.output_tokens_per_s, found.duration_s) == (0.5, 5.0, 4.0)
    assert (found.digest, found.wall_s) == ("abc", 3.0)


def test_what_failed_is_counted_and_nothing_else() -> None:
    """A run in which all failed has no numbers, and does not fail itself."""
    both = report([served(1), failed(2)], workers=2)

    assert both.failed == 1
    assert both.hit_rate == 0.4
    assert both.ttft_ms == report([served(1)], workers=2).ttft_ms
    none = report([failed(1)], workers=2)
    assert (none.failed, none.hit_rate, none.requests_per_s, none.ttft_ms) == (1, 0.0, 0.0, LatencySummary())
    assert report([], workers=1).requests == 0


def test_percentiles_are_values_that_occurred() -> None:
    """The nearest rank: of a hundred the 99th, of 101 the 100th."""
    hundred = latency_summary([number * 1000 for number in range(100, 0, -1)])

    assert hundred == LatencySummary(mean=50.5, p50=50.0, p90=90.0, p99=99.0)
    assert latency_summary([*range(1000, 102_000, 1000)]).p99 == 100.0
    assert latency_summary([7000]) == LatencySummary(mean=7.0, p50=7.0, p90=7.0, p99=7.0)


def test_inter_token_times_are_of_tokens() -> None:
    """A long answer counts as often as it has tokens; one of a single token not at all."""
    found = token_times([(99 * 2000, 99), (50_000, 1), (0, 0)])

    assert found == LatencySummary(mean=(198 + 50) / 100, p50=2.0, p90=2.0, p99=2.0)
    assert token_times([(98 * 2000, 98), (2 * 50_000, 2)]).p99 == 50.0
    assert token_times([(0, 0)]) == LatencySummary()


def test_spread_is_that_of_the_textbook() -> None:
    """Deviation and most over the mean; nothing is even."""
    dice = random.Random(1)
    values = [dice.randrange(1000) for _ in range(8)]

    found = spread(values)

    assert found.cv == pytest.approx(pstdev(values) / fmean(values))
    assert found.max_over_mean == pytest.approx(max(values) / fmean(values))
    assert found.per_worker == tuple(values)
    assert (spread([0, 0]).cv, spread([0, 0]).max_over_mean) == (0.0, 1.0)


def test_idle_workers_are_uneven() -> None:
    """They count, and so do those that came later than the first ones."""
    found = report([served(1), served(2, worker=2, cached_tokens=90)], workers=2).load_spread

    assert found.requests.per_worker == (1, 0, 1)
    assert found.computed_tokens.per_worker == (60, 0, 10)


def test_held_and_migrated() -> None:
    """What was chosen for again was not held for that."""
    found = report(
        [served(1), served(2, routed_us=30_000), served(3, declined=2), served(4, routed_us=900_000, attempts=2)],
        workers=1,
    )

    assert (found.migrated, found.declined) == (1, 2)
    assert (found.held.mean_ms, found.held.max_ms, found.held.share) == (10.0, 30.0, 1 / 3)


def test_order_does_not_show() -> None:
    """Equal results in another order are an equal report, to the last bit."""
    dice = random.Random(2)
    rows = [
        served(n, first_us=dice.randrange(1, 10**6), end_us=10**6 + dice.randrange(10**6), routed_us=n, worker=n % 3)
        for n in range(200)
    ]

    assert report(rows, workers=3) == report(dice.sample(rows, len(rows)), workers=3)
