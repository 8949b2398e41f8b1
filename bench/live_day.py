"""live_day: a planned fleet of real processes on a day's trace, compared with its own simulation.

The trace goes through `contrail up` at its own times: NATS, etcd, a front end, a planner that acts, and a process for
each simulated worker. The same requests, engine and settings run in the simulator. Compared are worker-hours and the
share of requests within the bounds of service, as the client saw them. Afterwards `contrail replay verify` makes every
decision of the planner again. A client that is late, or a machine that is full, makes the live run worse.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from actors.engines.simulated.simulated_settings import SimulatedSettings
from bench.deployed import Deployed, deployed
from bench.disagg_client import part
from bench.figures import Figure, main, refuse
from bench.slice_live import play, served
from bench.slice_part import MODEL, US_PER_S, Part, engine_args
from bench.spent import Spent
from bench.streamed import Streamed, completion
from core.errors import CallerError
from projections.scaling.scale_settings import ScaleSettings
from replay.simulate.options import Options
from replay.simulate.report import ScalingReport, WorkerSpan, scaling
from replay.simulate.setup import Setup
from replay.simulate.trace_file import TraceFile, Vocabulary, read_mooncake, token_ids
from replay.simulate.workload import Pace

ENGINE = SimulatedSettings(
    block_size=64,
    capacity_blocks=16_384,
    context_max=64 * 16_384,
    max_seqs=128,
    batched_tokens_max=4096,
    prefill_us_per_token=40,
    decode_us_per_step=20_000,
    eos_every=0,
    token_min=300,
    vocab=900,
)
"""Slow steps: fewer of them cost this machine less, and the time between tokens is that of a loaded device."""
SETTINGS = ScaleSettings(ttft_ms=3000, itl_ms=50, max=8, startup_s=5)
WORKERS = 2
"""At the start."""
RUNS = 3
"""Simulations, with seeds of their own."""
QUICK_REQUESTS = 40
LOOK_S = 0.5
"""Interval of looks at the processes that run."""
APART_MAX = 0.05
"""Largest difference of live and simulated, as a share of the simulated."""
VERIFY_S = 1800.0
CONTRAIL = (sys.executable, "-P", "-m", "api.cli")


class LiveDay(NamedTuple):
    """Results of the live run."""

    report: ScalingReport
    answers: list[Streamed]
    late_p99_ms: float
    """Largest delay of the client's sending."""
    cores: dict[str, float]
    """Processor time per second, by kind of process."""
    machine: float
    """The part of the machine's processor time that any program had."""
    verified: str
    """Output of `contrail replay verify --json`."""

    @property
    def failures(self) -> list[str]:
        """Of requests without a whole answer."""
        return [it.failure or f"status {it.status}" for it in self.answers if not it.complete]


class ProcessSpans:
    """The workers' processes, from the first look that found each to the last."""

    def __init__(self, data: Path) -> None:
        self._file = data / "run.json"
        self._found: dict[int, tuple[float, float]] = {}

    def __repr__(self) -> str:
        return f"<ProcessSpans of {len(self._found)}>"

    async def look(self, start_s: float) -> None:
        """Until it is cancelled. `start_s` is of the loop's clock."""
        loop = asyncio.get_running_loop()
        while True:
            found, now_s = json.loads(self._file.read_bytes()), loop.time() - start_s
            for process in (*found["parts"], *found["beside"]):
                if process["kind"] == "worker":
                    first_s, _ = self._found.get(process["pid"], (now_s, now_s))
                    self._found[process["pid"]] = first_s, now_s
            await asyncio.sleep(LOOK_S)

    def spans(self, end_s: float) -> list[WorkerSpan]:
        """Of each process. One that was there at the last look stayed to the end."""
        return [
            WorkerSpan(
                round(US_PER_S * max(0.0, first_s - LOOK_S)),
                -1 if last_s > end_s - 2 * LOOK_S else round(US_PER_S * (last_s + LOOK_S)),
            )
            for first_s, last_s in self._found.values()
        ]


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    """The simulations, then the live run beside their mean."""
    first = QUICK_REQUESTS if options.quick else options.first
    try:
        simulated = [_simulated(options.trace, first, seed) for seed in range(1 if options.quick else RUNS)]
        asked = _requests(options.trace, first)
    except CallerError as error:
        refuse(str(error))
    for seed, it in enumerate(simulated):
        yield Figure(f"simulated, seed {seed}", it.worker_hours, "worker-hours", note=_note(it))
    live = _live(asked, options.keep)
    yield Figure("live", live.report.worker_hours, "worker-hours", note=_note(live.report))
    yield _compared("worker-hours", "", live.report.worker_hours, [it.worker_hours for it in simulated])
    attainments = [100 * it.attainment for it in simulated]
    yield _compared("within the bounds", "%", 100 * live.report.attainment, attainments)
    failures = live.failures
    note = "" if not failures else failures[0][:80]
    yield Figure("requests", len(live.answers), "")
    yield Figure("failed", len(failures), "requests", note=note, holds=not failures)
    wrong = sum(
        it.complete and it.output_tokens != asked.output_tokens
        for it, asked in zip(live.answers, asked.arrivals, strict=True)
    )
    yield Figure("with another number of tokens", wrong, "requests", holds=not wrong)
    verified: dict[str, Any] = json.loads(live.verified)["scale"]
    for name in ("decisions", "periods"):
        done, made = verified["verified" if name == "decisions" else "periods_verified"], verified[name]
        yield Figure(f"{name} made again, of {made}", done, "", lower_is_better=False, holds=done == made)
    yield Figure("delay of sending, p99", live.late_p99_ms, "ms")
    for kind, cores in sorted(live.cores.items()):
        yield Figure(f"processor time: {kind}", cores, "cores")
    yield Figure("processor time: machine, all programs", 100 * live.machine, "%")


def _note(it: ScalingReport) -> str:
    return (
        f"{100 * it.attainment:.2f} % attained, mean {it.workers_mean:.2f}, most {it.workers_max}, "
        f"{it.starts} starts, {it.stops} stops"
    )


def _compared(what: str, unit: str, live: float, simulated: list[float]) -> Figure:
    """The live figure beside the mean of the simulated ones. It does not hold if they are further apart than
    APART_MAX."""
    mean = sum(simulated) / len(simulated)
    apart = live / mean - 1
    holds, note = abs(apart) <= APART_MAX, f"{100 * apart:+.1f} %"
    return Figure(f"{what}, live beside simulated", live, unit, mean, note=note, holds=holds)


def _simulated(trace: Path, first: int, seed: int) -> ScalingReport:
    options = Options(workers=WORKERS, engine=ENGINE, planner=SETTINGS, seed=seed)
    found = Setup(TraceFile(trace, first=first), Pace(), options).run(lambda _done, _of: None).report.scaling
    assert isinstance(found, ScalingReport)
    return found


def _requests(file: Path, first: int) -> Part:
    """The trace's requests; each body is made when it is sent."""
    trace = read_mooncake(file, first)
    by_id, words = {each.id: each for each in trace.asked}, Vocabulary(ENGINE.vocab, ENGINE.token_min)
    arrivals = list(trace.arrivals(Pace(), ENGINE.block_size))
    bodies = (completion(MODEL, token_ids(by_id[it.id], words).tolist(), it.output_tokens) for it in arrivals)
    return Part(arrivals, bodies)


def _live(asked: Part, keep: Path | None) -> LiveDay:
    group = {
        "name": "decode",
        "model": MODEL,
        "count": WORKERS,
        "engine": "simulated",
        "engine_args": engine_args(ENGINE),
    }
    planner = {**SETTINGS.to_mapping(), "mode": "act"}
    with deployed({"workers": [group], "planner": planner}) as deployment:
        return uvloop.run(_played(deployment, asked, keep))


async def _played(deployment: Deployed, asked: Part, keep: Path | None) -> LiveDay:
    loop, processes = asyncio.get_running_loop(), ProcessSpans(deployment.data)
    gc.freeze()
    before, begin_s = Spent.by_now(deployment), loop.time()
    looking = asyncio.create_task(processes.look(begin_s))
    start_s, answers = await play(deployment.port, asked)
    end_s = loop.time() - begin_s
    after = Spent.by_now(deployment)
    looking.cancel()
    with suppress(asyncio.CancelledError):
        await looking
    requests = served(asked.arrivals, answers, start_s)
    bounds = SETTINGS.ttft_ms, SETTINGS.itl_ms
    due_s = [start_s + each.at_us / US_PER_S for each in asked.arrivals]
    late_ms = [1000 * (it.sent_s - each_s) for it, each_s in zip(answers, due_s, strict=True)]
    if keep is not None:
        _contrail("export", str(keep), "--data", str(deployment.data))
    verified = _contrail("replay", "verify", "--data", str(deployment.data), "--json")
    return LiveDay(
        report=scaling(requests, bounds, processes.spans(end_s), round(US_PER_S * end_s)),
        answers=answers,
        late_p99_ms=part(late_ms, 0.99),
        cores=after.cores_since(before),
        machine=after.busy_since(before),
        verified=verified,
    )


def _contrail(*words: str) -> str:
    """The output of a command. The program ends with its errors if it had nothing to output."""
    done = subprocess.run([*CONTRAIL, *words], capture_output=True, text=True, timeout=VERIFY_S, check=False)
    if not done.stdout:
        sys.exit(f"contrail {' '.join(words)}: status {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trace", type=Path, required=True, help="in Mooncake's format, as long as the run is to be")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="only the trace's first N requests")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="export the live run's log there")


if __name__ == "__main__":
    main("live_day", measure, _options)
