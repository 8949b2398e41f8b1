"""What may be simulated: every bound, and one sentence for what is beyond it."""

from __future__ import annotations

import pytest

from core.errors import CallerError
from replay.simulate.options import (
    CONCURRENCY_MAX,
    FAILURES_PER_HOUR_MAX,
    LAG_MS_MAX,
    REPLICAS_MAX,
    SEED_MAX,
    WORKERS_MAX,
    Options,
)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("workers", 1, WORKERS_MAX),
        ("prefill_workers", 0, WORKERS_MAX),
        ("replicas", 1, REPLICAS_MAX),
        ("lag_ms", 0, LAG_MS_MAX),
        ("concurrency", 0, CONCURRENCY_MAX),
        ("failures_per_hour", 0, FAILURES_PER_HOUR_MAX),
        ("seed", 0, SEED_MAX),
    ],
)
def test_numbers_have_bounds(name: str, least: int, most: int) -> None:
    """The bounds themselves may be asked for; what is beyond them may not."""
    for allowed in (least, most):
        assert getattr(Options(**{name: allowed}), name) == allowed  # type: ignore[arg-type]
    for wrong in (least - 1, most + 1):
        with pytest.raises(CallerError, match=f"{name} must be from {least} to {most}, not {wrong}"):
            Options(**{name: wrong})  # type: ignore[arg-type]


def test_each_replica_may_have_a_lag_of_its_own() -> None:
    """Then there is one for each."""
    assert [Options(replicas=2, lag_ms=7).lag_us(number) for number in range(2)] == [7000, 7000]
    options = Options(replicas=2, replica_lags_ms=(1, LAG_MS_MAX))
    assert [options.lag_us(number) for number in range(2)] == [1000, LAG_MS_MAX * 1000]

    with pytest.raises(CallerError, match="replica_lags_ms has 1 lags for 2 replicas: give one for each"):
        Options(replicas=2, replica_lags_ms=(1,))
    with pytest.raises(CallerError, match="replica_lags_ms must be from 0"):
        Options(replica_lags_ms=(LAG_MS_MAX + 1,))
    with pytest.raises(CallerError, match="lag_ms: each replica has a lag of its own here: leave either out"):
        Options(replicas=2, lag_ms=7, replica_lags_ms=(1, 2))
