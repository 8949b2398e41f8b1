"""Time that requests stay at their worker: a mean over the newest, of each model by itself."""

from __future__ import annotations

from projections.policy.worker_room import NEWEST, ResidenceTime


def test_the_mean_of_few_is_that_of_all() -> None:
    """And 0 before the first; models do not mix."""
    residence = ResidenceTime()
    assert residence.us("tiny") == 0
    for us in (1000, 3000, 5000):
        residence.note("tiny", us)
    residence.note("other", 7)
    assert (residence.us("tiny"), residence.us("other")) == (3000, 7)


def test_old_requests_are_forgotten() -> None:
    """After many newer ones the mean is theirs, to a hundredth."""
    residence = ResidenceTime()
    for us in [1_000_000] * NEWEST + [10_000_000] * (10 * NEWEST):
        residence.note("tiny", us)
    assert 9_900_000 < residence.us("tiny") <= 10_000_000
