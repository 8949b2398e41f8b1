"""agents: what a turn of a coding agent's talk costs in front of the workers, beside Dynamo in the same run.

`python -m bench.agents --json FILE [--peer-venvs DIR]`. A front end, a real log and simulated workers anew for each
load; talks of `bench.agents_load` over HTTP. CPU is that of the front ends' processes, all that belongs to a request
included; its parts stand below, each alone in a loop. The log's bytes are the broker's own count. Our own mean answer
stands in the stages that the log has of each request. A request that failed ends the program.

Times are those of whole answers of 16 tokens; with `--stream` also those of the first text. `--rates 4 8` lets so many
turns arrive a second instead of so many at once, and `--repeats 3` measures all sides in turn, for medians.
`--workers 100` measures with so many workers; idle front ends follow what these say, which is counted first.
`--frontends 1 2 4` measures each load with so many front ends, and a new connection for each turn: they share no store
of what they know of talks, and the kernel gives each connection to any of them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import uvloop

from actors.engines.tiny_model import ensure_tiny_checkpoint
from bench.agents_client import IN_FLIGHT_MAX, OK, TalkAnswer, TalksRun, talk_all, talk_at_rate
from bench.agents_load import TalksLoad
from bench.agents_parts import MILLI, parts
from bench.agents_targets import MODEL, MeasuredSide, dynamo, ours
from bench.figures import DYNAMO_MOCKER, OURS, Figure, beside, main, peer_python, refuse
from core.events.request_stages import PER_MS, RequestStages

WORKERS = 8
MIB = 2**20
LOADS = {
    "24 talks, one at a time": TalksLoad(24, 20, 1, 22_000, 3300),
    "24 talks, 8 at a time": TalksLoad(24, 20, 8, 22_000, 3300),
    "150 talks at once": TalksLoad(150, 9, 150, 31_000, 8000),
    "100 talks of 100 000 tokens": TalksLoad(100, 4, 16, 85_000, 5000),
}
QUICK = TalksLoad(4, 3, 4, 2000, 500)
SETTLE_S = 1.0
"""For the last messages of a load, and of the warm-up before it."""
IDLE_S = 10.0
STAGE_SHARE_MIN = 0.01
"""Stages with less of the mean answer are not shown."""

Opened = Callable[[], AbstractContextManager[MeasuredSide]]
Work = Callable[[int], Coroutine[None, None, TalksRun]]
"""From a front end's port to all answers of a load."""


class Measured(NamedTuple):
    """One load on one front end."""

    run: TalksRun
    idle_s: float
    """Processor time of the front end in IDLE_S without requests."""
    cpu_s: float
    """Of the front end during the load …"""
    others_s: float
    """… of what stands behind it: workers, broker, registry …"""
    client_s: float
    """… and of the client. All of them share the machine's cores."""
    memory_bytes: int
    """Once the load is over …"""
    grown_bytes: int
    """… and of it what came since the load's beginning."""
    log_bytes: Mapping[str, int]
    """That each kind of stream grew by; nothing without a log."""
    stages: Sequence[RequestStages]
    """Of all attempts; none without a log."""

    @property
    def prompt_tokens(self) -> int:
        """Of all turns."""
        return sum(answer.prompt_tokens for answer in self.run.answers)

    @property
    def requests(self) -> int:
        """Turns that were answered."""
        return len(self.run.answers)

    @property
    def mean_ms(self) -> float:
        """Of whole answers."""
        return fmean(map(_whole, self.run.answers)) * MILLI

    @property
    def hit_rate(self) -> float:
        """The part of all prompt tokens that came from caches, as answers have it."""
        return sum(answer.cached_tokens for answer in self.run.answers) / self.prompt_tokens

    def time_ms(self, of: Callable[[TalkAnswer], float], quantile: float) -> float:
        """Quantile over all turns."""
        times = sorted(map(of, self.run.answers))
        return times[int(quantile * len(times))] * MILLI

    def stage_ms(self, place: int) -> float:
        """Mean of the stage at this place of the record, over all requests; an unreported one counts as none."""
        return sum(max(0, stages[place]) for stages in self.stages) / PER_MS / self.requests


def measure(options: argparse.Namespace) -> Iterable[Figure]:
    """Each load on front ends of its own, and then its parts."""
    _check(options)
    loads = {"4 short talks": QUICK} if options.quick else LOADS
    if options.loads:
        loads = {name: load for name, load in loads.items() if any(part in name for part in options.loads)}
    with TemporaryDirectory() as home:
        folder = ensure_tiny_checkpoint(Path(home, "tiny"), lambda *_: None)
        peers: dict[str, Opened] = {
            f"Dynamo of {venv.name}": partial(dynamo, venv, folder, options.workers) for venv in options.peer_venvs
        }
        if options.rates:
            yield from _at_rates(loads.values(), peers, options)
            return
        for name, load in loads.items():
            if not options.parts_alone:
                for count in options.frontends or [0]:
                    yield from _live(name, load, count, peers, options)
            yield from parts(name, folder, load, "parts")


def _check(options: argparse.Namespace) -> None:
    """Options that would have no effect are refused, and environments without the peer."""
    if options.peer_venvs and (options.frontends or options.parts_alone):
        refuse("agents: --peer-venvs has no effect with --frontends or --parts-alone: peers have one front end")
    if options.rates and (options.frontends or options.parts_alone):
        refuse("agents: --rates goes with neither --frontends nor --parts-alone")
    if any(rate <= 0 for rate in options.rates):
        refuse("agents: --rates are above 0")
    if options.repeats < 1:
        refuse("agents: --repeats is at least 1")
    for venv in options.peer_venvs:
        peer_python(venv, DYNAMO_MOCKER)


def _at_rates(loads: Iterable[TalksLoad], peers: Mapping[str, Opened], options: argparse.Namespace) -> Iterable[Figure]:
    """Loads that differ only in what is at once are one load here."""
    sides: dict[str, Opened] = {OURS: partial(ours, 1, options.workers), **peers}
    for load in dict.fromkeys(load._replace(at_once=load.talks) for load in loads):
        for rate in options.rates:
            name = _named(f"{load.talks} talks, {rate:g} turns/s", options)
            work = partial(talk_at_rate, model=MODEL, load=load, seed=name, rate=rate, streams=options.stream)
            yield from figures(name, _runs(sides, name, work, options), streams=options.stream)


def _live(
    name: str, load: TalksLoad, frontends: int, peers: Mapping[str, Opened], options: argparse.Namespace
) -> Iterable[Figure]:
    """With so many front ends, and a connection for each turn; with 0: one, and a connection for each talk."""
    name = _named(name, options)
    if frontends:
        name = f"{name}, {frontends} front end{'s' * (frontends > 1)}, a connection per turn"
    sides: dict[str, Opened] = {OURS: partial(ours, max(1, frontends), options.workers), **peers}
    work = partial(talk_all, model=MODEL, load=load, seed=name, reconnects=frontends > 0, streams=options.stream)
    yield from figures(name, _runs(sides, name, work, options), streams=options.stream)


def _named(name: str, options: argparse.Namespace) -> str:
    return name if options.workers == WORKERS else f"{name}, {options.workers} workers"


def _runs(sides: Mapping[str, Opened], name: str, work: Work, options: argparse.Namespace) -> dict[str, list[Measured]]:
    """All sides in turn, as often as asked, so that what disturbs the machine disturbs all."""
    found: dict[str, list[Measured]] = {side: [] for side in sides}
    for _ in range(options.repeats):
        for side, opened in sides.items():
            with opened() as there:
                found[side].append(_measured(f"{name}, {side}", there, work))
    return found


def _measured(name: str, there: MeasuredSide, work: Work) -> Measured:
    """The load on this front end. The program ends if a turn failed."""
    target = there.target
    idle_s = target.cpu_s()
    time.sleep(IDLE_S)
    idle_s = target.cpu_s() - idle_s
    uvloop.run(talk_all(target.port, MODEL, QUICK, "warm-up"))
    time.sleep(SETTLE_S)
    before, memory_bytes = there.log_state(), target.memory_bytes()
    clocks = (target.cpu_s, target.others_s, time.process_time)
    began_s = [clock() for clock in clocks]
    run = uvloop.run(work(target.port))
    cpu_s, others_s, client_s = (clock() - at_s for clock, at_s in zip(clocks, began_s, strict=True))
    time.sleep(SETTLE_S)
    if failed := [answer for answer in run.answers if answer.status != OK]:
        sys.exit(f"{name}: {len(failed)} of {len(run.answers)} turns failed, the first one with {failed[0].status}")
    log_bytes, stages = dict[str, int](), list[RequestStages]()
    if before is not None:
        stages = there.stages_since(before, len(run.answers))
        after = there.log_state()
        assert after is not None
        log_bytes = {kind: total - before.bytes[kind] for kind, total in after.bytes.items()}
    memory = target.memory_bytes()
    return Measured(run, idle_s, cpu_s, others_s, client_s, memory, memory - memory_bytes, log_bytes, stages)


def figures(name: str, runs: Mapping[str, Sequence[Measured]], *, streams: bool) -> Iterable[Figure]:
    """Medians of our runs beside those of each peer, and what only ours has."""
    yield from beside(f"{name}: CPU without requests", "ms/s", runs, lambda run: run.idle_s / IDLE_S * MILLI)
    yield from beside(f"{name}: CPU per request", "ms", runs, lambda run: run.cpu_s / run.requests * MILLI)
    behind = f"{name}: CPU behind the front end, per request"
    yield from beside(behind, "ms", runs, lambda run: run.others_s / run.requests * MILLI)
    yield from beside(
        f"{name}: CPU of the client, per request", "ms", runs, lambda run: run.client_s / run.requests * MILLI
    )
    yield from beside(f"{name}: tokens of a prompt", "", runs, lambda run: run.prompt_tokens / run.requests)
    times = {"first text": _first, "whole answer": _whole} if streams else {"whole answer": _whole}
    for label, of in times.items():
        yield from beside(f"{name}: {label}, p50", "ms", runs, partial(Measured.time_ms, of=of, quantile=0.5))
        yield from beside(f"{name}: {label}, p99", "ms", runs, partial(Measured.time_ms, of=of, quantile=0.99))
    yield from beside(f"{name}: whole answer, mean", "ms", runs, lambda run: run.mean_ms)
    yield from _stage_figures(name, runs[OURS])
    yield from beside(f"{name}: hit rate", "of 1", runs, lambda run: run.hit_rate, lower=False)
    yield from beside(f"{name}: turns in flight, at most", "", runs, lambda run: run.run.in_flight)
    for side, each in runs.items():
        if not all(run.run.carried for run in each):
            note = f"NOT CARRIED by {side}: arrivals ended at {IN_FLIGHT_MAX} turns in flight"
            yield Figure(f"{name}: answered", min(run.requests for run in each), "", lower_is_better=False, note=note)
    for kind in runs[OURS][0].log_bytes:
        per_request = median(run.log_bytes[kind] / run.requests for run in runs[OURS])
        yield Figure(f"{name}: {kind} stream", per_request, "B/request")
    yield from beside(f"{name}: memory", "MiB", runs, lambda run: run.memory_bytes / MIB)
    yield from beside(f"{name}: memory, grown", "MiB", runs, lambda run: run.grown_bytes / MIB)


def _whole(answer: TalkAnswer) -> float:
    return answer.seconds


def _first(answer: TalkAnswer) -> float:
    return answer.first_s


def _stage_figures(name: str, runs: Sequence[Measured]) -> Iterable[Figure]:
    """Our mean answer in its recorded stages: means add up, medians do not."""
    for place, stage in enumerate(RequestStages._fields):
        stage_ms = median(run.stage_ms(place) for run in runs)
        if stage_ms >= STAGE_SHARE_MIN * median(run.mean_ms for run in runs):
            yield Figure(f"{name}: of the mean, {stage}", stage_ms, "ms", note="a stage of the record")


def _extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--peer-venvs", type=Path, nargs="+", default=[], metavar="DIR",
        help="environments with Dynamo; each is measured in the same run",
    )  # fmt: skip
    parser.add_argument(
        "--rates", nargs="+", type=float, default=[], metavar="R", help="so many turns a second, instead of at once"
    )
    parser.add_argument("--stream", action="store_true", help="answers are streamed: times of the first text, too")
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="of each load, all sides in turn; medians")
    parser.add_argument(
        "--loads", nargs="+", default=[], metavar="PART", help="only loads whose names have one of these"
    )
    parser.add_argument(
        "--frontends", nargs="+", type=int, default=[], metavar="N", help="so many front ends, a connection per turn"
    )
    parser.add_argument("--workers", type=int, default=WORKERS, metavar="N", help=f"simulated; {WORKERS} by default")
    parser.add_argument("--parts-alone", action="store_true", help="no deployment: only the parts, in a loop")


if __name__ == "__main__":
    main("agents", measure, _extend)
