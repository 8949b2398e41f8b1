"""Runs of one workload in several ways, in several processes: every combination of some settings, or given options.

The results and their order depend on the question alone, not on how many processes share the work or which ends first.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import Any, NamedTuple

from core.errors import CallerError
from core.ids import RequestId
from replay.parallel import Progress, parallel_results
from replay.simulate.options import Options
from replay.simulate.report import SimulationReport, report
from replay.simulate.setup import Setup
from replay.simulate.simulation import simulate
from replay.simulate.workload import Arrival, FollowUp

POINTS_MAX = 1000
"""Runs of one sweep."""


class SweepPoint(NamedTuple):
    """One run of a sweep."""

    given: Mapping[str, Any]
    """What was set for it."""
    report: SimulationReport


def combinations(sweeps: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination, the last name's values changing fastest. CallerError if there are more than POINTS_MAX."""
    count = prod(map(len, sweeps.values()))
    if count > POINTS_MAX:
        raise CallerError(f"{count} runs are too many: sweep over {POINTS_MAX} combinations at most")
    return [dict(zip(sweeps, values, strict=True)) for values in product(*sweeps.values())]


def sweep(
    base: Setup, asked: Sequence[Mapping[str, Any]], jobs: int, progress: Progress = lambda _done, _of: None
) -> Iterator[SweepPoint]:
    """A run of `base` with each of these changes, in their order, each given as soon as it and those before it are
    there; progress is told the requests that were run, over all runs. CallerError before the first run if one of them
    cannot be; PeerError if a process was ended."""
    setups = [base.changed(given) for given in asked]
    return _runs(asked, setups, jobs, progress)


def _runs(
    asked: Sequence[Mapping[str, Any]], setups: Sequence[Setup], jobs: int, progress: Progress
) -> Iterator[SweepPoint]:
    with parallel_results(_run, setups, jobs, progress) as reports:
        yield from map(SweepPoint, asked, reports)


def _run(setup: Setup, progress: Progress) -> SimulationReport:
    return setup.run(progress).report


class RunRequests(NamedTuple):
    """What is the same for all runs."""

    arrivals: list[Arrival]
    follows: Mapping[RequestId, FollowUp]
    counted: frozenset[RequestId]
    """Those that reports are about."""


def run_all(
    requests: RunRequests, asked: Sequence[Options], jobs: int, progress: Progress
) -> dict[Options, SimulationReport]:
    """What comes of each way, equal ones run once."""
    ways = list(dict.fromkeys(asked))
    with parallel_results(partial(_run_requests, requests), ways, jobs, progress) as reports:
        return dict(zip(ways, reports, strict=True))


def _run_requests(requests: RunRequests, options: Options, progress: Progress) -> SimulationReport:
    started_s = time.perf_counter()
    found = simulate(options, requests.arrivals, progress, follows=requests.follows)
    counted = [it for it in found.served if it.id in requests.counted]
    return report(counted, options.workers, found.digest, time.perf_counter() - started_s)
