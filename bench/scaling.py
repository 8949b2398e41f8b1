"""scaling: worker-hours at equal attainment, of a planner, of static fleets and of the rate rule.

One trace, one engine, one start-up time, each fleet in the simulator. `--fleets` names the runs: `static:5`, `rate:1.3`
(arrivals a second and worker, told to the rule), `planner:95` (the attainment that is sought). A kind with several runs
has a frontier; its worker-hours at an attainment between two of them lie on their line.

`planner` is told the engine's exact speed. `learned:95` learns it from requests, and `measured:95` begins with the
profile that `contrail profile` wrote (`--profile FILE`). `judged:95` is `planner:95` with simulations as its judge.
`--hours 1` runs the first hour of the trace alone. A day that was pressed into three hours has `--season-s 10800`.

Fleets with prefill workers are `split:3+2`, fixed, of three decode and two prefill workers, and `roles:95`, in which
the planner sizes both.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import orjson
from msgspec.structs import replace

from actors.engines.simulated.simulated_settings import mocker_settings
from actors.planning.planner import Planner
from api.config.profile_file import read_profile
from bench.figures import Figure, main, refuse
from bench.scaling_rule import RateRule
from core.errors import CallerError
from core.events.scale import CapacityLearned
from projections.scaling.scale_settings import ON, ScaleSettings
from replay.simulate.options import Options, ServiceBounds
from replay.simulate.report import ScalingReport
from replay.simulate.setup import Setup
from replay.simulate.simulated_planner import PlannerMachine
from replay.simulate.trace_file import TraceFile
from replay.simulate.workload import Pace

STATIC, RATE, PLANNER, LEARNED, MEASURED, JUDGED, SPLIT, ROLES = KINDS = (
    "static", "rate", "planner", "learned", "measured", "judged", "split", "roles",
)  # fmt: skip
PLANNERS = (PLANNER, LEARNED, MEASURED, JUDGED, ROLES)
FIXED = (STATIC, SPLIT)
FLEETS = ("static:4", "static:5", "static:6", "rate:1.6", "rate:1.3", "planner:93", "planner:94", "planner:95")
WORKERS = 4
"""At the start of a fleet that changes …"""
DECODE_WORKERS, PREFILL_WORKERS = 1, 3
"""… and of one of two roles."""
BOUNDS = ServiceBounds(1000, 50)
LEVELS = (94.0, 94.5, 95.0, 95.5, 96.0)
"""Attainments at which frontiers are compared."""
QUICK_REQUESTS = 1_000
MS_PER_HOUR = 3_600_000
SEASON_S = ScaleSettings().season_s


class Fleet(NamedTuple):
    """One run that was asked for."""

    kind: str
    value: float
    prefill: int = 0
    """Prefill workers at the start."""

    @staticmethod
    def parse(text: str) -> Fleet:
        """CallerError if the text names no run."""
        kind, _, value = text.partition(":")
        value, _, prefill = value.partition("+")
        try:
            if kind == SPLIT and float(value) > 0 and int(prefill) > 0:
                return Fleet(kind, float(value), int(prefill))
            if kind in KINDS and kind != SPLIT and not prefill and float(value) > 0:
                return Fleet(kind, float(value), PREFILL_WORKERS if kind == ROLES else 0)
        except ValueError:
            pass
        there = ", ".join(f"{kind}:NUMBER" + "+NUMBER" * (kind == SPLIT) for kind in KINDS)
        raise CallerError(f"--fleets: {text!r} is no run; there are {there}")

    @property
    def _workers(self) -> int:
        """At the start, without prefill workers."""
        if self.kind in FIXED:
            return int(self.value)
        return DECODE_WORKERS if self.kind == ROLES else WORKERS

    def run(self, trace: TraceFile, profile: CapacityLearned | None = None, season_s: int = SEASON_S) -> ScalingReport:
        """The fleet's cost and service. `profile` is that of a `measured` one, `season_s` the planner's."""
        settings = ScaleSettings(season_s=season_s)
        if self.kind in PLANNERS:
            settings = replace(settings, attainment=self.value)
        if self.kind == JUDGED:
            settings = replace(settings, judge=ON)
        options = Options(
            workers=self._workers,
            prefill_workers=self.prefill,
            engine=mocker_settings(),
            bounds=BOUNDS if self.kind in FIXED else None,
            planner=None if self.kind in FIXED else settings,
            learns=self.kind in {LEARNED, MEASURED},
            profile=profile if self.kind == MEASURED else None,
        )
        make = partial(_rate_rule, self.value) if self.kind == RATE else Planner
        found = Setup(trace, Pace(), options).run(lambda _done, _of: None, make_planner=make).report.scaling
        assert isinstance(found, ScalingReport)
        return found


def _rate_rule(per_worker: float, settings: ScaleSettings, _profile: CapacityLearned | None) -> PlannerMachine:
    return RateRule(per_worker, settings)


def hours_at(level: float, points: Sequence[tuple[float, float]]) -> float | None:
    """Worker-hours at that attainment, on the line between the two runs around it; None beyond the runs. `points` are
    attainments with worker-hours."""
    ordered = sorted(points)
    for (low, low_hours), (high, high_hours) in pairwise(ordered):
        if low <= level <= high:
            return low_hours + (high_hours - low_hours) * (level - low) / (high - low) if high > low else low_hours
    return None


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    """Each run, and then the frontiers, with the planner's peer beside it."""
    try:
        fleets = [Fleet.parse(text) for text in options.fleets.split(",")]
        if any(fleet.kind == MEASURED for fleet in fleets) and options.profile is None:
            raise CallerError("--fleets: `measured` needs --profile FILE, which `contrail profile --out FILE` writes")  # noqa: TRY301
        profile = None if options.profile is None else read_profile(options.profile).capacity()
    except CallerError as error:
        refuse(str(error))
    first = QUICK_REQUESTS if options.quick else requests_within(options.trace, options.hours)
    trace = TraceFile(options.trace, first=first)
    points: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for fleet in fleets:
        found = fleet.run(trace, profile, options.season_s)
        points[fleet.kind].append((100 * found.attainment, found.worker_hours))
        note = f"{100 * found.attainment:.2f} % attained, {found.starts} starts, {found.stops} stops"
        name = f"{fleet.kind} {fleet.value:g}" + (f"+{fleet.prefill}" if fleet.kind == SPLIT else "")
        if isinstance(found.prefill_worker_hours, float):
            note += f", {found.prefill_worker_hours:.2f} h of prefill workers"
        yield Figure(name, found.worker_hours, "worker-hours", note=note)
    for level in LEVELS:
        ours = hours_at(level, points[PLANNER])
        for kind in (STATIC, RATE):
            peer = hours_at(level, points[kind])
            if ours is not None and peer is not None:
                note = f"{100 * (ours / peer - 1):+.1f} %"
                yield Figure(f"planner at {level} %, beside {kind}", ours, "worker-hours", peer, note=note)


def requests_within(trace: Path, hours: float) -> int:
    """Requests of the trace's first hours; 0, which stands for all, without a bound."""
    if not hours:
        return 0
    with trace.open("rb") as lines:
        return sum(orjson.loads(line)["timestamp"] < hours * MS_PER_HOUR for line in lines)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trace", type=Path, required=True, help="in Mooncake's format, shaped like a day")
    parser.add_argument("--profile", type=Path, help="the engine's, as `contrail profile` wrote it")
    parser.add_argument("--hours", type=float, default=0.0, help="of the trace; all of it without")
    parser.add_argument("--season-s", type=int, default=SEASON_S, help="of demand that repeats itself (%(default)s)")
    parser.add_argument("--fleets", default=",".join(FLEETS), help="KIND:NUMBER,… (%(default)s)")


if __name__ == "__main__":
    main("scaling", measure, _options)
