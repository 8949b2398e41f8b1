"""How often a request is tried again, and when that ends."""

from __future__ import annotations

import pytest

from actors.router.routed_request import ATTEMPTS_MAX, BEGUN_ATTEMPTS_MAX, LEAVING_MAX, LOST_MAX, RetryBudget
from core.models import GenerationFailed, NoWorkers


def test_before_the_first_token() -> None:
    """So many workers in a row, and the client may try again itself."""
    tries = RetryBudget()
    for _ in range(ATTEMPTS_MAX - 1):
        tries.spend(0, "gone")
    with pytest.raises(NoWorkers, match=f"{ATTEMPTS_MAX} workers failed"):
        tries.spend(0, "gone")


def test_an_answer_that_gets_on_goes_on() -> None:
    """Each new token is a new beginning, up to a bound over all."""
    tries = RetryBudget()
    for told in range(1, LOST_MAX + 1):
        tries.spend(told, "gone")
    with pytest.raises(GenerationFailed, match=f"more than {LOST_MAX} workers broke off, the last one: gone"):
        tries.spend(LOST_MAX + 1, "gone")


def test_an_answer_that_does_not_get_on_ends() -> None:
    """A request that ends every engine ends but a few of them."""
    tries = RetryBudget()
    for _ in range(BEGUN_ATTEMPTS_MAX - 1):
        tries.spend(7, "gone")
    with pytest.raises(GenerationFailed, match=f"{BEGUN_ATTEMPTS_MAX} workers broke off"):
        tries.spend(7, "gone")


@pytest.mark.parametrize(("told", "kind"), [(0, NoWorkers), (7, GenerationFailed)])
def test_workers_that_leave_count_apart(told: int, kind: type[Exception]) -> None:
    """The request did nothing to them; but one that is always refused must end, too."""
    tries = RetryBudget()
    tries.spend(told, "gone")
    for _ in range(LEAVING_MAX - 1):
        tries.spend(told, "draining", leaving=True)
    with pytest.raises(kind):
        tries.spend(told, "draining", leaving=True)


def test_an_answer_may_be_handed_on_any_number_of_times() -> None:
    """As long as it gets on."""
    tries = RetryBudget()
    for told in range(1, 10 * LOST_MAX):
        tries.spend(told, "draining", leaving=True)


def test_a_repetition_that_breaks_off_is_not_the_requests_fault() -> None:
    """Another worker made the same without harm; but there is an end to that, too."""
    tries = RetryBudget()
    for number in range(LOST_MAX):
        tries.spend(7, "gone", repeating=True, leaving=number % 2 == 0)
    with pytest.raises(GenerationFailed, match="more than"):
        tries.spend(7, "gone", repeating=True)
