"""Runs: the same requests simulated in several ways, in several processes if there are some.

The results depend on the ways alone, not on how many processes share the work.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from core.ids import RequestId
from replay.simulating.arrival import Arrival
from replay.simulating.follows import Follows
from replay.simulating.options import Options
from replay.simulating.processes import Progress, shared
from replay.simulating.report import Report, report
from replay.simulating.simulate import simulate


class Requests(NamedTuple):
    """What is the same for all runs."""

    arrivals: list[Arrival]
    follows: Mapping[RequestId, Follows]
    counted: frozenset[RequestId]
    """Those that reports are about."""


def runs(requests: Requests, asked: Sequence[Options], jobs: int, progress: Progress) -> dict[Options, Report]:
    """What comes of each way, equal ones run once."""
    ways = list(dict.fromkeys(asked))
    with shared(partial(_run, requests), ways, jobs, progress) as reports:
        return dict(zip(ways, reports, strict=True))


def _run(requests: Requests, options: Options, progress: Progress) -> Report:
    started_s = time.perf_counter()
    found = simulate(options, requests.arrivals, progress, follows=requests.follows)
    counted = [it for it in found.served if it.id in requests.counted]
    return report(counted, options.workers, found.digest, time.perf_counter() - started_s)
