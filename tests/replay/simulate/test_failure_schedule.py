"""When workers fail: as often as was asked for, at moments of the seed's."""

from __future__ import annotations

from replay.simulate.simulated_fleet import HOUR_US, FailureSchedule


def first(count: int, per_hour: int, seed: int) -> list[tuple[int, int]]:
    failures = FailureSchedule(per_hour, 8, seed)
    return [failures.next() for _ in range(count)]


def test_there_are_as_many_as_were_asked_for() -> None:
    """In every hour, one in each stretch of equal length; all over the fleet."""
    found = first(60, 20, seed=3)

    assert [at_us // (HOUR_US // 20) for at_us, _ in found] == list(range(60))
    assert sorted({place for _, place in found}) == list(range(8))


def test_they_are_the_seeds() -> None:
    """Equal seeds, equal failures; another seed has others."""
    assert first(10, 5, seed=1) == first(10, 5, seed=1)
    assert first(10, 5, seed=1) != first(10, 5, seed=2)
