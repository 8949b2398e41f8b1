"""The parts of `bench.overload`: what counts as goodput, and when it is lost."""

from __future__ import annotations

import pytest

from bench.overload import _figures, kept
from bench.overload_load import Phase, RequestResult


def result(ended_s: float, seconds: float = 1.0, status: int = 200) -> RequestResult:
    return RequestResult("greedy", status, seconds, ended_s, retry_after=status != 200)


PHASE = Phase(
    10.0, 110.0, [result(102), result(105), result(109), result(106, seconds=3.5), result(111), result(104, status=503)]
)
"""From 100 s on: one at the beginning, two in time, one too late, one after the last request was sent, one refused."""


def test_only_answers_within_the_time_by_which_they_are_divided_are_goodput() -> None:
    assert PHASE.goodput(3.0) == 2 / 7
    assert PHASE.goodput(20.0) == 2 / 5  # never less than half of the time; the late one is in time, 105 not within it
    assert len(PHASE.good(3.0)) == 4  # of a tenant's own requests every one counts, whenever it was sent


def test_more_that_is_offered_is_no_worse() -> None:
    figures = {figure.what: figure for figure in _figures(1.0, PHASE, 1.0)}

    assert figures["x1: answered within 3 s"].value == 2 / 7
    assert not figures["x1: offered"].lower_is_better


@pytest.mark.parametrize(("last", "holds"), [(9.5, True), (8.0, False)])
def test_goodput_that_is_lost_does_not_hold(last: float, holds: bool) -> None:
    figure = kept({0.5: 5.0, 1.0: 10.0, 2.0: last})

    assert figure.holds == holds
    assert figure.note == ("kept" if holds else "LOST: below 0.9")


def test_where_nothing_was_answered_it_is_lost() -> None:
    assert not kept({1.0: 0.0, 2.0: 0.0}).holds
