"""Setup: everything that a simulation depends on, how a setting is changed by its name, and sweeps over settings.

The results of a sweep and their order depend on the question alone, not on how many processes share the work or which
ends first.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from actors.engines.simulated.simulated_settings import LINEAR, SimulatedSettings
from actors.planning.planner import Planner
from core.errors import CallerError
from core.events.kv import PREFILL
from core.settings import RoutingSettings
from projections.scaling.scale_settings import SLO, ScaleSettings
from replay.parallel import Progress, parallel_results
from replay.simulate.options import TWO_LAGS, Options
from replay.simulate.report import (
    PrefillFleet,
    PrefillVerdict,
    ScalingReport,
    ServedRequest,
    SimulationReport,
    WorkerSpan,
    report,
    scaling,
)
from replay.simulate.scale_judge import judge
from replay.simulate.simulated_planner import MakePlanner
from replay.simulate.simulation import SimulationResult, simulate
from replay.simulate.trace_file import TraceFile
from replay.simulate.workload import Pace

ENGINE = "engine."
"""Before the name of an engine's setting."""
WORLD = (
    "workers", "prefill_workers", "replicas", "lag_ms", "concurrency", "failures_per_hour", "pool_blocks",
    "pool_us_per_block",
)  # fmt: skip
"""Options by name."""
PACE = ("speed_up", "jitter_ms")
PLANNER = "planner."
"""Before the name of a planner's setting."""
LINEAR_ONLY = ("prefill_us_per_token", "prefill_us_per_pass", "decode_us_per_step", "decode_us_per_context_token")
"""Settings of an engine that no other timing goes by."""
SEED = "seed"
"""Of all that is drawn: jitter, failures, decisions."""


class SetupResult(NamedTuple):
    """Results of a simulation."""

    served: list[ServedRequest]
    report: SimulationReport


class Setup(NamedTuple):
    """Equal ones give equal results, but for the seconds that they take."""

    trace: TraceFile
    pace: Pace
    options: Options

    def changed(self, given: Mapping[str, Any]) -> Setup:
        """The setup with these changes: of WORLD, of PACE, SEED, `engine.NAME`, `planner.NAME`; every other name is a
        routing setting. CallerError names what cannot be."""
        pace = self.pace._replace(**_typed(given, {"speed_up": float, "jitter_ms": int, SEED: int}))
        if "lag_ms" in given and self.options.replica_lags_ms:
            raise CallerError(TWO_LAGS)
        changes: dict[str, Any] = _typed(given, dict.fromkeys((*WORLD, SEED), int))
        if engine := {key.removeprefix(ENGINE): value for key, value in given.items() if key.startswith(ENGINE)}:
            changes["engine"] = changed_engine(self.options.engine, engine, ENGINE)
        if scale := {key.removeprefix(PLANNER): value for key, value in given.items() if key.startswith(PLANNER)}:
            changes["planner"] = self._changed_planner(scale)
        if routing := {key: value for key, value in given.items() if not _is_own(key)}:
            changes["routing"] = RoutingSettings.parse({**self.options.routing.to_mapping(), **_known(routing)})
        return self._replace(pace=pace, options=dataclasses.replace(self.options, **changes)).checked()

    def _changed_planner(self, given: Mapping[str, Any]) -> ScaleSettings:
        before = self.options.planner
        if before is None:
            raise CallerError(f"{PLANNER}{next(iter(given))}: there is no planner: give --planner, too")
        settings = before.to_mapping()
        return ScaleSettings.parse({**settings[SLO], **{k: v for k, v in settings.items() if k != SLO}, **given})

    def checked(self) -> Setup:
        """The same; CallerError names what cannot be, or would count for nothing."""
        self.pace.check()
        if self.options.concurrency and self.pace.speed_up != 1:
            raise CallerError(
                "speed-up: with a concurrency requests come when others end, not at their times: leave either out"
            )
        return self

    def run(self, progress: Progress, archive: Path | None = None, make_planner: MakePlanner = Planner) -> SetupResult:
        """The results of a run; its log is written to `archive`, if one is given. `make_planner` as of `simulate`.
        CallerError or Corrupt if the trace cannot be used."""
        trace = self.trace.read()
        started_s = time.perf_counter()
        arrivals = trace.arrivals(self.pace, self.options.engine.block_size)
        options = self.options
        verdicts: list[PrefillVerdict] = []
        found = simulate(
            options, arrivals, progress, archive, on_verdict=verdicts.append, make_planner=make_planner, judge=judge
        )
        wall_s, prefill = time.perf_counter() - started_s, None
        if options.prefill_workers:
            prefill = prefill_fleet(options, verdicts)
        found_report = report(
            found.served,
            options.workers,
            found.digest,
            wall_s,
            prefill,
            found.computed_tokens,
            scaling_of(options, found),
            found.pool,
        )
        return SetupResult(found.served, found_report)


def prefill_fleet(options: Options, verdicts: Sequence[PrefillVerdict]) -> PrefillFleet:
    """The prefill workers of a run: those at its start, or all places of them that a planner used."""
    first = options.first_prefill_place
    places = max((each.place - first + 1 for each in verdicts), default=0)
    return PrefillFleet(first, max(places, options.prefill_workers), options.engine.block_bytes, verdicts)


def scaling_of(options: Options, found: SimulationResult) -> ScalingReport | None:
    """Cost and service of the fleet; None without bounds of service."""
    bounds = options.counted_bounds
    if bounds is None:
        return None
    end_us = max((each.end_us for each in found.served), default=0)
    spans = [
        WorkerSpan(
            life.from_us, -1 if life.until_us > end_us else life.until_us, life.handed_over, life.role == PREFILL
        )
        for life in found.lifetimes
    ] or [
        *[WorkerSpan(0, -1)] * options.workers,
        *[WorkerSpan(0, -1, is_prefill=True)] * options.prefill_workers,
    ]
    return scaling(found.served, bounds, spans, end_us)


def changed_engine(engine: SimulatedSettings, given: Mapping[str, Any], before: str = "") -> SimulatedSettings:
    """With these settings of it. CallerError names what cannot be, or would count for nothing, with `before` before its
    name."""
    changed = SimulatedSettings.parse({**dataclasses.asdict(engine), **given})
    idle = [before + key for key in LINEAR_ONLY if key in given]
    if idle and changed.timing != LINEAR:
        raise CallerError(
            f"{', '.join(idle)}: only the timing {LINEAR} goes by it, and this engine's is {changed.timing}: "
            f"add --engine {LINEAR}, or leave it out"
        )
    return changed


def label(given: Mapping[str, Any]) -> str:
    """`prefill_weight 2, workers 4`; how people tell setups apart."""
    return ", ".join(
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in given.items()
    )


def _is_own(key: str) -> bool:
    return key in {*WORLD, *PACE, SEED} or key.startswith((ENGINE, PLANNER))


def _known(routing: Mapping[str, Any]) -> Mapping[str, Any]:
    settings = RoutingSettings().to_mapping()
    for key in routing:
        if key not in settings:
            raise CallerError(
                f"{key}: no such setting; there are {', '.join(sorted(settings))} of routing, "
                f"{', '.join((*WORLD, *PACE, SEED))}, {ENGINE}NAME of the engine, and {PLANNER}NAME of a planner"
            )
    return routing


def _typed(given: Mapping[str, Any], types: Mapping[str, type]) -> dict[str, Any]:
    """Those that are named, each of its type."""
    found: dict[str, Any] = {}
    for key, kind in types.items():
        if key in given:
            try:
                found[key] = msgspec.convert(given[key], kind)
            except msgspec.ValidationError as error:
                raise CallerError(f"{key}: {given[key]!r} is no {'whole ' if kind is int else ''}number") from error
    return found


POINTS_MAX = 1000
"""Runs of one sweep."""


class SweepPoint(NamedTuple):
    """One run of a sweep."""

    given: Mapping[str, Any]
    """Changes to the base setup."""
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
    """A run of `base` with each of these changes, in their order, each given when it and those before it have ended.
    `progress` gets the requests that ended, over all runs. CallerError before the first run if one of them cannot be;
    PeerError if a process was ended."""
    setups = [base.changed(given) for given in asked]
    return _runs(asked, setups, jobs, progress)


def _runs(
    asked: Sequence[Mapping[str, Any]], setups: Sequence[Setup], jobs: int, progress: Progress
) -> Iterator[SweepPoint]:
    with parallel_results(_run, setups, jobs, progress) as reports:
        yield from map(SweepPoint, asked, reports)


def _run(setup: Setup, progress: Progress) -> SimulationReport:
    return setup.run(progress).report
