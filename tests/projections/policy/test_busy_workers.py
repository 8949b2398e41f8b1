"""Busy workers count until the log tells of what a worker computes, or that should be over."""

from __future__ import annotations

from projections.policy.binding_plan import PASS_TOKENS, BusyWorkers, plan, tokens_in_progress
from projections.policy.prefill_time import MILLI
from tests.projections.facts import prompt
from tests.projections.policy.test_binding_plan import GIVEN, NOW_MS, A, B, busy, held
from tests.projections.site import Site

OTHERS = PASS_TOKENS - 600


def test_a_decline_counts_until_the_log_tells_of_as_much() -> None:
    """What is known of a worker beside that is not what it declined for; more than was said, or its end, is."""
    busy_workers = BusyWorkers()
    busy_workers.note(B, 100, 5000)
    busy_workers.note(A, 3000, 9000)
    assert busy_workers.busy_us({A: 2999}, 1000) == {A: 8000, B: 4000}
    assert busy_workers.busy_us({B: 100}, 2000) == {A: 7000}
    assert busy_workers.busy_us({}, 9000) == {}
    assert (busy_workers.stand, busy_workers.count) == (False, 2)


def test_who_says_nothing_counts_until_anything_is_known() -> None:
    """A worker of another version may not tell how much it computes."""
    busy_workers = BusyWorkers()
    busy_workers.note(A, 0, 5000)
    assert busy_workers.busy_us({}, 1000) == {A: 4000}
    assert busy_workers.busy_us({A: 1}, 1000) == {}


def test_a_worker_that_declined_is_not_asked_again_at_once() -> None:
    """Though something small is known to be outstanding there, and it holds the prompt: others' long ones are not in
    the log yet."""
    site = Site()
    site.join(A, B)
    site.cache(A, prompt(*range(300)), 300)
    busy(site, A, 40)
    busy_workers, asked = BusyWorkers(), list[str | None]()
    while len(asked) < 5:
        known = tokens_in_progress(site.view.outstanding(), GIVEN, NOW_MS)
        busy_us = busy_workers.busy_us(known, NOW_MS * MILLI) if busy_workers.stand else {}
        planned = plan(site.view, [held("r", 700)], GIVEN, NOW_MS, busy_us)
        asked.append(planned.decision.worker if planned else None)
        if asked[-1] != A:
            break
        busy_workers.note(A, OTHERS, NOW_MS * MILLI + 500_000)
    assert asked == [A, None]
