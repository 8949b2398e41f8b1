"""arena: our planner in the simulator of Dynamo, beside fixed fleets, the rate rule and Dynamo's own planner.

One trace, one engine, one start-up time and one router, Dynamo's, for each fleet. `--fleets` names the runs:
`static:5`, `rate:1.6` (arrivals a second and worker, told to the rule), `planner:95` (the attainment that is sought),
`dynamo:MODE` or `dynamo:MODE:SHARE`. With a share, Dynamo's planner is told bounds that are so many per cent of the
true ones: so its modes have frontiers, too.
The rate rule and our planner are the machines of `bench.scaling`. Dynamo's planner has an exact profile of the engine.

A tick of Dynamo's simulator tells means, and our log has requests. So the simulator is sampled every 20 ms, in which at
most one request comes or ends, as a rule: then the means are its own. Where several do, they are taken as alike.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from actors.engines.simulated.engine_profile import profile
from actors.engines.simulated.simulated_settings import mocker_settings
from actors.planning.planner import CancelStart, DrainWorker, PeriodEnded, Planner, StartWorker, WorkerReady
from bench.figures import PEERS, Figure, main, peer_python, refuse
from bench.scaling import BOUNDS, PLANNER, RATE, STATIC, WORKERS, Fleet
from bench.scaling_rule import RateRule
from core.errors import CallerError
from core.events.scale import DemandCell, DemandRolled
from projections.scaling.request_demand import size_classes
from projections.scaling.scale_settings import ScaleSettings
from replay.simulate.simulated_planner import PlannerMachine
from replay.simulate.trace_file import TraceFile

DYNAMO = "dynamo"
"""A kind of run beside those of `bench.scaling`."""
MODES = ("thr:constant", "thr:kalman", "load:constant", "both:constant", "both:kalman")
"""Loops of Dynamo's planner (by throughput, by load, or both), and its forecast."""
FLEETS = ("static:4", "static:5", "rate:1.6", "rate:1.4", "planner:94", "planner:95", *(f"dynamo:{it}" for it in MODES))
SHARE_MAX = 1000
US_PER_MS = 1000
QUICK_REQUESTS = 1_000
PEER_TIMEOUT_S = 1_800.0
"""A run that takes longer has failed."""


class PeerFleet(NamedTuple):
    """A fleet that Dynamo's planner sizes."""

    mode: str
    share: int = 100
    """Of the bounds that it is told, in per cent of the true ones."""


class ArenaRun(NamedTuple):
    """What a fleet cost, and how it served."""

    hours: float
    attainment: float
    """Share of requests within both bounds."""
    first_token_ms: float

    @staticmethod
    def of(summary: Mapping[str, Any]) -> ArenaRun:
        """The run of which Dynamo's simulator gives this summary."""
        attained = summary["goodput_completed_requests"] / summary["num_requests"]
        return ArenaRun(summary["gpu_hours"], attained, summary["mean_ttft_ms"])


class ArenaDemand:
    """Ticks as the periods that our planner reads from its log."""

    def __init__(self, trace: TraceFile, settings: ScaleSettings) -> None:
        self._settings = settings
        self._prompts = deque(each.prompt_tokens for each in trace.read().asked)
        """Of the requests that have not come, by arrival."""
        self._uncached: dict[int, deque[int]] = {}
        """By prompt tokens: uncached ones of the requests that came and have not ended, by arrival."""

    def __repr__(self) -> str:
        return f"<ArenaDemand, {len(self._prompts)} requests to come>"

    def rolled(self, tick: Mapping[str, Any]) -> DemandRolled:
        """The period that the tick ends."""
        engines: Sequence[Mapping[str, Any]] = tick["decode_fpm_snapshots"]
        arrivals = ended = attained = first_token_ms = between_tokens_us = 0
        cells: dict[tuple[int, int], list[int]] = {}
        for sample in tick["samples"]:
            arrivals += self._arrive(sample)
            count = sample["completed_requests"]
            if not count:
                continue
            first_ms, between_us = sample["avg_ttft_ms"], sample["avg_itl_ms"] * US_PER_MS
            ended += count
            first_token_ms += round(first_ms * count)
            between_tokens_us += round(between_us * count)
            if first_ms <= self._settings.ttft_ms and between_us <= self._settings.itl_ms * US_PER_MS:
                attained += count
            self._size(sample, cells)
        return DemandRolled(
            at_ms=round(tick["now_ms"]),
            period_s=self._settings.period_s,
            arrivals=arrivals,
            queued=0,
            refused=0,
            waiting=sum(each["num_queued_prefill"] for each in engines),
            running=sum(each["num_prefill_requests"] + each["num_decode_requests"] for each in engines),
            ended=ended,
            attained=attained,
            first_token_ms=first_token_ms,
            between_tokens_us=between_tokens_us,
            cells=tuple(DemandCell(*cell) for _, cell in sorted(cells.items())),
            cursor={},
        )

    def _arrive(self, sample: Mapping[str, Any]) -> int:
        count: int = sample["arriving_requests"]
        for _ in range(count):
            prompt = self._prompts.popleft()
            uncached = round(prompt * (1 - sample["avg_router_kv_hit_rate"]))
            self._uncached.setdefault(prompt, deque()).append(uncached)
        return count

    def _size(self, sample: Mapping[str, Any], cells: dict[tuple[int, int], list[int]]) -> None:
        """A request that ended alone counts by its size."""
        prompt, output = round(sample["avg_isl"]), round(sample["avg_osl"])
        waiting = self._uncached.get(prompt)
        if sample["completed_requests"] > 1 or not waiting:
            return
        uncached = waiting.popleft()
        cell = cells.setdefault(size_classes(uncached, output), [0, 0, 0, 0])
        for place, value in enumerate((1, uncached, output, prompt)):
            cell[place] += value
        if not waiting:
            del self._uncached[prompt]


class ArenaPolicy:
    """A planner's machine that answers the ticks of Dynamo's simulator."""

    def __init__(self, machine: PlannerMachine, demand: ArenaDemand) -> None:
        self._machine = machine
        self._demand = demand
        self._known: set[int] = set()
        """Workers that are or were ready."""
        self._starting: list[int] = []
        """Orders that are not ready, oldest first."""

    def __repr__(self) -> str:
        return f"<ArenaPolicy of {self._machine!r}>"

    def target(self, tick: Mapping[str, Any]) -> int:
        """Workers that are to serve or start from here on."""
        now_us = round(tick["now_ms"]) * US_PER_MS
        ready: set[int] = set(tick["active_decode_ids"])
        if self._known:
            for _ in range(min(len(ready - self._known), len(self._starting))):
                self._machine.step(WorkerReady(self._starting.pop(0), now_us // US_PER_MS), now_us)
        self._known |= ready
        target: int = tick["non_draining_decode_count"]
        ended = PeriodEnded(self._demand.rolled(tick), len(ready), tick["draining_decode_count"])
        for command in self._machine.step(ended, now_us):
            match command:
                case StartWorker(start):
                    self._starting.append(start)
                    target += 1
                case CancelStart(start):
                    self._starting.remove(start)
                    target -= 1
                case DrainWorker():
                    target -= 1
        return target


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    """Each run."""
    if options.peer_venv is None:
        refuse("--peer-venv: Dynamo's simulator runs all fleets, so its environment is needed")
    python = peer_python(options.peer_venv, PEERS["arena"])
    for text in options.fleets.split(","):
        try:
            fleet = _parsed(text)
            found = _run(python, options.trace, fleet, options.ttft_ms, QUICK_REQUESTS if options.quick else 0)
        except CallerError as error:
            refuse(str(error))
        note = f"{100 * found.attainment:.2f} % attained, first token after {found.first_token_ms:.0f} ms"
        yield Figure(text, found.hours, "worker-hours", note=note)


def _parsed(text: str) -> Fleet | PeerFleet:
    """A run as of `bench.scaling`, or one of Dynamo's planner. CallerError if the text names none."""
    kind, _, value = text.partition(":")
    if kind != DYNAMO:
        return Fleet.parse(text)
    mode, share = value, "100"
    if value not in MODES:
        mode, _, share = value.rpartition(":")
    if mode not in MODES:
        raise CallerError(f"--fleets: {value!r} is no mode of Dynamo's planner; there are {', '.join(MODES)}")
    if not share.isdecimal() or not 1 <= int(share) <= SHARE_MAX:
        raise CallerError(f"--fleets: {share!r} is no share of the bounds: a whole number from 1 to {SHARE_MAX}")
    return PeerFleet(mode, int(share))


def _run(python: str, trace: Path, fleet: Fleet | PeerFleet, ttft_ms: int, first: int) -> ArenaRun:
    ours, share = (fleet, 100) if isinstance(fleet, Fleet) else (None, fleet.share)
    asked = {
        "trace": str(trace),
        "first": first,
        "workers": int(ours.value) if ours and ours.kind == STATIC else WORKERS,
        "mode": "" if isinstance(fleet, Fleet) else fleet.mode,
        "bounds_share": share / 100,
        "period_s": 0 if ours is None or ours.kind == STATIC else ScaleSettings().period_s,
        "startup_s": ScaleSettings().startup_s,
        "ttft_ms": ttft_ms,
        "itl_ms": BOUNDS.itl_ms,
        "block_size": mocker_settings().block_size,
        "blocks": mocker_settings().capacity_blocks,
    }
    policy = None if ours is None or ours.kind == STATIC else _policy(ours, ttft_ms, TraceFile(trace, first=first))
    peer = subprocess.Popen(
        [python, "-m", "bench.arena_peer", json.dumps(asked)],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "DYN_LOG": "error"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    end = threading.Timer(PEER_TIMEOUT_S, peer.kill)
    end.start()
    try:
        return _talk(peer, policy)
    finally:
        end.cancel()
        peer.kill()
        peer.wait()


def _talk(peer: subprocess.Popen[str], policy: ArenaPolicy | None) -> ArenaRun:
    """Answers each tick, until the summary comes."""
    assert peer.stdin is not None
    assert peer.stdout is not None
    for line in peer.stdout:
        told = json.loads(line)
        if "summary" in told:
            return ArenaRun.of(told["summary"])
        assert policy is not None  # ticks come only where a policy was asked for
        peer.stdin.write(f"{policy.target(told)}\n")
        peer.stdin.flush()
    raise CallerError(f"the peer ended without a summary, or took over {PEER_TIMEOUT_S:.0f} s: see what it printed")


def _policy(fleet: Fleet, ttft_ms: int, trace: TraceFile) -> ArenaPolicy:
    settings = ScaleSettings(ttft_ms=ttft_ms)
    if fleet.kind == PLANNER:
        settings = replace(settings, attainment=fleet.value)
    machine: PlannerMachine
    machine = RateRule(fleet.value, settings) if fleet.kind == RATE else Planner(settings, profile(mocker_settings()))
    return ArenaPolicy(machine, ArenaDemand(trace, settings))


def _extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trace", type=Path, required=True, help="in Mooncake's format, shaped like a day")
    parser.add_argument(
        "--ttft-ms", type=int, default=BOUNDS.ttft_ms, help="bound of the time to first token (%(default)s)"
    )
    parser.add_argument("--fleets", default=",".join(FLEETS), help="KIND:VALUE,… (%(default)s)")


if __name__ == "__main__":
    main("arena", measure, _extend)
