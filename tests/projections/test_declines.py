"""Declines count until the log tells of what a worker computes, or that should be over."""

from __future__ import annotations

from projections.backlog import MILLI
from projections.declines import Declines
from projections.plan import PASS_TOKENS, computing, plan
from tests.projections.facts import prompt
from tests.projections.site import Site
from tests.projections.test_plan import GIVEN, NOW_MS, A, B, busy, held

OTHERS = PASS_TOKENS - 600


def test_a_decline_counts_until_the_log_tells_of_as_much() -> None:
    """What is known of a worker beside that is not what it declined for; more than was said, or its end, is."""
    declines = Declines()
    declines.note(B, 100, 5000)
    declines.note(A, 3000, 9000)
    assert declines.busy_us({A: 2999}, 1000) == {A: 8000, B: 4000}
    assert declines.busy_us({B: 100}, 2000) == {A: 7000}
    assert declines.busy_us({}, 9000) == {}
    assert (declines.stand, declines.count) == (False, 2)


def test_who_says_nothing_counts_until_anything_is_known() -> None:
    """A worker of another version may not tell how much it computes."""
    declines = Declines()
    declines.note(A, 0, 5000)
    assert declines.busy_us({}, 1000) == {A: 4000}
    assert declines.busy_us({A: 1}, 1000) == {}


def test_a_worker_that_declined_is_not_asked_again_at_once() -> None:
    """Though something small is known to be outstanding there, and it holds the prompt: others' long ones are not in
    the log yet."""
    site = Site()
    site.join(A, B)
    site.cache(A, prompt(*range(300)), 300)
    busy(site, A, 40)
    declines, asked = Declines(), list[str | None]()
    while len(asked) < 5:
        known = computing(site.view.outstanding(), GIVEN, NOW_MS)
        busy_us = declines.busy_us(known, NOW_MS * MILLI) if declines.stand else {}
        planned = plan(site.view, [held("r", 700)], GIVEN, NOW_MS, busy_us)
        asked.append(planned.decision.worker if planned else None)
        if asked[-1] != A:
            break
        declines.note(A, OTHERS, NOW_MS * MILLI + 500_000)
    assert asked == [A, None]
