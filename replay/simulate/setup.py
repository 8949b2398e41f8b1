"""Setup: everything that a simulation depends on, and how a setting is changed by its name."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from actors.engines.simulated.simulated_settings import LINEAR, SimulatedSettings
from core.errors import CallerError
from core.settings import RoutingSettings
from replay.simulate.options import TWO_LAGS, Options
from replay.simulate.report import PrefillFleet, PrefillVerdict, ServedRequest, SimulationReport, report
from replay.simulate.simulation import simulate
from replay.simulate.trace_file import TraceFile
from replay.simulate.workload import Pace

ENGINE = "engine."
"""Before the name of an engine's setting."""
WORLD = ("workers", "prefill_workers", "replicas", "lag_ms", "concurrency", "failures_per_hour")
"""Options by name."""
PACE = ("speed_up", "jitter_ms")
LINEAR_ONLY = ("prefill_us_per_token", "prefill_us_per_pass", "decode_us_per_step", "decode_us_per_context_token")
"""Settings of an engine that no other timing goes by."""
SEED = "seed"
"""Of all that is drawn: jitter, failures, decisions."""

Progress = Callable[[int, int], None]
"""Told requests that ended, and how many there are."""


class SetupResult(NamedTuple):
    """What a simulation found."""

    served: list[ServedRequest]
    report: SimulationReport


class Setup(NamedTuple):
    """Equal ones give equal results, but for the seconds that they take."""

    trace: TraceFile
    pace: Pace
    options: Options

    def changed(self, given: Mapping[str, Any]) -> Setup:
        """With these: of WORLD, of PACE, SEED, `engine.NAME`, and every other name is a routing setting. CallerError
        names what cannot be."""
        pace = self.pace._replace(**_typed(given, {"speed_up": float, "jitter_ms": int, SEED: int}))
        if "lag_ms" in given and self.options.replica_lags_ms:
            raise CallerError(TWO_LAGS)
        changes: dict[str, Any] = _typed(given, dict.fromkeys((*WORLD, SEED), int))
        if engine := {key.removeprefix(ENGINE): value for key, value in given.items() if key.startswith(ENGINE)}:
            changes["engine"] = changed_engine(self.options.engine, engine, ENGINE)
        if routing := {key: value for key, value in given.items() if not _is_own(key)}:
            changes["routing"] = RoutingSettings.parse({**self.options.routing.to_mapping(), **_known(routing)})
        return self._replace(pace=pace, options=dataclasses.replace(self.options, **changes)).checked()

    def checked(self) -> Setup:
        """The same; CallerError names what cannot be, or would count for nothing."""
        self.pace.check()
        if self.options.concurrency and self.pace.speed_up != 1:
            raise CallerError(
                "speed-up: with a concurrency requests come when others end, not at their times: leave either out"
            )
        return self

    def run(self, progress: Progress, archive: Path | None = None) -> SetupResult:
        """What comes of it; its log stands in the archive, if one is wanted. CallerError or Corrupt if the trace cannot
        be used."""
        trace = self.trace.read()
        started_s = time.perf_counter()
        arrivals = trace.arrivals(self.pace, self.options.engine.block_size)
        options = self.options
        verdicts: list[PrefillVerdict] = []
        found = simulate(options, arrivals, progress, archive, judged=verdicts.append)
        wall_s, prefill = time.perf_counter() - started_s, None
        if options.prefill_workers:
            engine = options.engine
            prefill = PrefillFleet(options.workers, options.prefill_workers, engine.block_bytes, verdicts)
        told = report(found.served, options.workers, found.digest, wall_s, prefill, found.computed_tokens)
        return SetupResult(found.served, told)


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
    return key in {*WORLD, *PACE, SEED} or key.startswith(ENGINE)


def _known(routing: Mapping[str, Any]) -> Mapping[str, Any]:
    settings = RoutingSettings().to_mapping()
    for key in routing:
        if key not in settings:
            raise CallerError(
                f"{key}: no such setting; there are {', '.join(sorted(settings))} of routing, "
                f"{', '.join((*WORLD, *PACE, SEED))}, and {ENGINE}NAME of the engine"
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
