"""Sweep: the same trace under every combination of some settings, in several processes.

The results and their order depend on the question alone, not on how many processes share the work or which ends first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

from core.errors import CallerError
from replay.simulating.processes import Progress, shared
from replay.simulating.report import Report
from replay.simulating.setup import Setup

POINTS_MAX = 1000
"""Runs of one sweep."""


class Point(NamedTuple):
    """One run of a sweep."""

    given: Mapping[str, Any]
    """What was set for it."""
    report: Report


def points(sweeps: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination, the last name's values changing fastest. CallerError if there are more than POINTS_MAX."""
    count = prod(map(len, sweeps.values()))
    if count > POINTS_MAX:
        raise CallerError(f"{count} runs are too many: sweep over {POINTS_MAX} combinations at most")
    return [dict(zip(sweeps, values, strict=True)) for values in product(*sweeps.values())]


def sweep(
    base: Setup, asked: Sequence[Mapping[str, Any]], jobs: int, progress: Progress = lambda _done, _of: None
) -> Iterator[Point]:
    """A run of `base` with each of these changes, in their order, each given as soon as it and those before it are
    there; progress is told the requests that were run, over all runs. CallerError before the first run if one of them
    cannot be; PeerError if a process was ended."""
    setups = [base.changed(given) for given in asked]
    return _runs(asked, setups, jobs, progress)


def _runs(
    asked: Sequence[Mapping[str, Any]], setups: Sequence[Setup], jobs: int, progress: Progress
) -> Iterator[Point]:
    with shared(_run, setups, jobs, progress) as reports:
        yield from map(Point, asked, reports)


def _run(setup: Setup, progress: Progress) -> Report:
    return setup.run(progress).report
