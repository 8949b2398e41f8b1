"""slice: a live run compared with its simulation.

A part of a public conversation trace, as fast as it came, prompts as token ids: once through `contrail up` (front end,
NATS, etcd, a process for each worker) with simulated engines that wait in real time; and several times through the
simulator, in virtual time. Requests, settings and the report are the same; caches are empty at the start.

A choice may depend on the worker that is free at that millisecond. Then two runs diverge, even two simulated ones that
begin a millisecond apart. So many short runs are compared with a mean, and its spread is shown. `round-robin` is the
exception: it chooses the same while requests keep their order, and shows how exact times and caches are.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from bench.figures import Figure, main, number, refuse
from bench.policies import policies
from bench.routing import POLICIES, trace_path, which_trace
from bench.slice_live import Live, lives
from bench.slice_part import Part, part_of, simulated
from core.errors import CallerError
from core.settings import RoutingSettings
from replay.simulate.report import SimulationReport
from replay.simulate.workload import US_PER_MS, Pace

START_S = 600.0
"""Into the trace."""
SECONDS, SECONDS_QUICK = 240.0, 15.0
WORKERS = 4
JITTER_MS = 3000
"""To what the trace rounds."""
RUNS, RUNS_QUICK = 8, 2
"""Simulations of each."""
FAILURES_SHOWN = 3
DIFFERS = "DIFFERS"


class What(NamedTuple):
    """One number that both runs have."""

    name: str
    unit: str
    of: Callable[[SimulationReport], float]
    bound: float | None = None
    """Largest difference of live and simulated, as a share of the simulated."""
    lower: bool = True


WHATS = (
    What("cached", "%", lambda it: 100 * it.hit_rate, 0.05, lower=False),
    What("requests, most over mean", "", lambda it: it.load_spread.requests.max_over_mean, 0.05),
    What("computed tokens, most over mean", "", lambda it: it.load_spread.computed_tokens.max_over_mean, 0.05),
    What("first token, mean", "ms", lambda it: it.ttft_ms.mean, 0.15),
    What("first token, p50", "ms", lambda it: it.ttft_ms.p50),
    What("first token, p99", "ms", lambda it: it.ttft_ms.p99),
    What("per token, mean", "ms", lambda it: it.itl_ms.mean),
    What("answer, mean", "ms", lambda it: it.e2e_ms.mean),
)


class Compared(NamedTuple):
    """One of WHATS, live beside its simulations."""

    what: What
    live: float
    runs: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Of the simulations."""
        return fmean(self.runs)

    @property
    def apart(self) -> float:
        """Live over simulated, less one."""
        return self.live / self.mean - 1 if self.mean else 0.0

    @property
    def verdict(self) -> str:
        """Of what has a bound: `agrees`, `as runs differ` (simulations are as far from their mean), or `DIFFERS`."""
        if self.what.bound is None:
            return ""
        if abs(self.apart) <= self.what.bound:
            return "agrees"
        return "as runs differ" if min(self.runs) <= self.live <= max(self.runs) else DIFFERS


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    """The figures of each kind of arrivals under each policy; then the table."""
    file = trace_path(options)
    seconds = options.seconds or (SECONDS_QUICK if options.quick else SECONDS)
    runs = options.runs or (RUNS_QUICK if options.quick else RUNS)
    table: dict[str, list[Compared]] = {}
    for jitter_ms in options.jitter_ms:
        asked = _part(file, options, seconds, jitter_ms)
        for policy, given, found in _lived(asked, options):
            load = f"{policy}, {f'jitter {jitter_ms / US_PER_MS:g} s' if jitter_ms else 'as published'}"
            _print(f"{load}: simulated {runs} times")
            reports = list(simulated(asked.arrivals, options.workers, RoutingSettings.parse(given), runs))
            table[load] = compared(found.report, reports)
            yield from _figures(load, table[load], found)
    print("\n" + markdown(table) + "\n", flush=True)


def _lived(asked: Part, options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any], Live]]:
    """Each policy, as a deployment file has it, and what came of it live."""
    named = policies(options.policies)
    together = [list(named)] if options.at_once else [[policy] for policy in named]
    for them in together:
        _print(f"{'; '.join(them)}: live")
        found = lives(asked, options.workers, [named[policy] for policy in them])
        yield from ((policy, named[policy], it) for policy, it in zip(them, found, strict=True))


def extend(parser: argparse.ArgumentParser) -> None:
    """Which part of which trace, and what is tried on it."""
    which_trace(parser)
    parser.add_argument("--policies", nargs="+", default=POLICIES, metavar="NAME[,KEY=VALUE…]", help="what to try")
    parser.add_argument("--start", type=float, default=START_S, metavar="S", help="where in the trace it begins")
    parser.add_argument("--seconds", type=float, metavar="S", help=f"how much of the trace; {SECONDS:g} if not given")
    parser.add_argument("--workers", type=int, default=WORKERS)
    jitter = "0: bursts, as the times were rounded when it was published; may name several"
    parser.add_argument("--jitter-ms", type=int, nargs="+", default=[JITTER_MS], metavar="MS", help=jitter)
    parser.add_argument("--seed", type=int, default=0, help="of the jitter")
    parser.add_argument("--at-once", action="store_true", help="all policies at the same time, each on its own site")
    parser.add_argument("--runs", type=int, help=f"simulations of each; {RUNS} if not given")


def compared(found: SimulationReport, reports: Sequence[SimulationReport]) -> list[Compared]:
    """Of all WHATS, in their order."""
    return [Compared(what, what.of(found), tuple(map(what.of, reports))) for what in WHATS]


def markdown(table: dict[str, list[Compared]]) -> str:
    """A row for each number under each load."""
    lines = ["| | | live | simulated | lowest to highest | apart | |", "|---|---|--:|--:|--:|--:|---|"]
    for load, rows in table.items():
        for it in rows:
            name = f"{it.what.name}, {it.what.unit}" if it.what.unit else it.what.name
            between = f"{_digits(min(it.runs))} to {_digits(max(it.runs))}"
            lines.append(
                f"| {load} | {name} | {_digits(it.live)} | {_digits(it.mean)} | {between} | {it.apart:+.1%} "
                f"| {it.verdict} |"
            )
    return "\n".join(lines)


def _digits(value: float) -> str:
    return f"{value:.3f}" if value < 10 else number(value)


def _figures(load: str, rows: list[Compared], found: Live) -> Iterator[Figure]:
    for it in rows:
        what, lower = f"{load}: {it.what.name}", it.what.lower
        yield Figure(f"{what}, live", it.live, it.what.unit, lower_is_better=lower)
        between = f"{len(it.runs)} runs, {_digits(min(it.runs))} to {_digits(max(it.runs))}"
        yield Figure(f"{what}, simulated", it.mean, it.what.unit, lower_is_better=lower, note=between)
        within = "" if it.what.bound is None else f"{it.verdict}; bound {it.what.bound:.0%}"
        yield Figure(f"{what}, apart", 100 * it.apart, "%", note=within, holds=it.verdict != DIFFERS)
    failures = "; ".join(found.failures[:FAILURES_SHOWN])
    yield Figure(f"{load}: requests", found.report.requests, "", lower_is_better=False)
    yield Figure(f"{load}: failed", found.report.failed, "requests", note=failures)
    yield Figure(f"{load}: in the front end before the choice, p50", found.reading_ms, "ms")
    yield Figure(f"{load}: sent late by, p99", found.late_p99_ms, "ms", note=found.strain.note)
    for kind, cores in sorted(found.cores.items()):
        yield Figure(f"{load}: CPU, {kind}", cores, "cores")
    yield Figure(f"{load}: CPU, whole machine", 100 * found.machine, "% busy", note=f"{os.cpu_count()} cores")


def _part(file: Path, options: argparse.Namespace, seconds: float, jitter_ms: int) -> Part:
    try:
        asked = part_of(file, options.start, seconds, Pace(jitter_ms=jitter_ms, seed=options.seed))
    except CallerError as error:
        refuse(str(error))
    _print(f"{len(asked.arrivals)} requests, {asked.prompt_tokens:,} prompt tokens, {asked.output_tokens:,} to answer")
    return asked


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main("slice", measure, extend)
