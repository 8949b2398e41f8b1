"""A share of the time, spent and coming in again."""

from __future__ import annotations

from actors.router.late_binding import TimeBudget
from core.clock import ManualClock


def test_what_was_spent_comes_in_again() -> None:
    """A quarter of the time, up to the bound; who spent more than there was waits for it."""
    clock = ManualClock(1000)
    budget = TimeBudget(4, 2000)
    assert budget.has_time(clock.monotonic_us())
    budget.spend(2000)
    assert not budget.has_time(clock.monotonic_us())
    clock.advance(1)
    assert budget.has_time(clock.monotonic_us())
    budget.spend(1250)
    assert not budget.has_time(clock.monotonic_us())
    clock.advance(4)
    assert not budget.has_time(clock.monotonic_us())
    clock.advance(1)
    assert budget.has_time(clock.monotonic_us())
    clock.advance(1_000_000)
    assert budget.has_time(clock.monotonic_us())
    budget.spend(1999)
    assert budget.has_time(clock.monotonic_us())
    budget.spend(1)
    assert not budget.has_time(clock.monotonic_us())


def test_parts_that_do_not_come_out_even_are_not_lost() -> None:
    """However often it is asked."""
    clock = ManualClock()
    budget = TimeBudget(3000, 1000)
    assert budget.has_time(clock.monotonic_us())
    budget.spend(1000)
    for _ in range(2):
        clock.advance(1)
        assert not budget.has_time(clock.monotonic_us())
    clock.advance(1)
    assert budget.has_time(clock.monotonic_us())
