"""Runs: the same requests simulated in several ways, in several processes if there are some.

The results depend on the ways alone, not on how many processes share the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from core.ids import RequestId
from replay.simulating.arrival import Arrival
from replay.simulating.follows import Follows
from replay.simulating.options import Options
from replay.simulating.processes import shared
from replay.simulating.report import Report, report
from replay.simulating.simulate import simulate

Progress = Callable[[int, int], None]
"""Told requests that were run, over all runs, and how many there are."""


class Requests(NamedTuple):
    """What is the same for all runs."""

    arrivals: list[Arrival]
    follows: Mapping[RequestId, Follows]
    counted: frozenset[RequestId]
    """Those that reports are about."""


def runs(requests: Requests, asked: Sequence[Options], jobs: int, progress: Progress) -> dict[Options, Report]:
    """What comes of each way, equal ones run once; with several jobs progress is told when a run has ended."""
    ways = list(dict.fromkeys(asked))
    each, of = len(requests.arrivals), len(requests.arrivals) * len(ways)
    found: dict[Options, Report] = {}
    if min(jobs, len(ways)) <= 1:
        for way in ways:
            found[way] = _run(requests, way, lambda done, _of: progress(len(found) * each + done, of))
        return found
    progress(0, of)
    with shared(partial(_run, requests), ways, jobs) as reports:
        for way, result in zip(ways, reports, strict=True):
            found[way] = result
            progress(len(found) * each, of)
    return found


def _run(requests: Requests, options: Options, progress: Progress = lambda _done, _of: None) -> Report:
    started_s = time.perf_counter()
    found = simulate(options, requests.arrivals, progress, follows=requests.follows)
    counted = [it for it in found.served if it.id in requests.counted]
    return report(counted, options.workers, found.digest, time.perf_counter() - started_s)
