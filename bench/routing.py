"""routing: what policies make of a public trace, on simulated engines; beside Dynamo's router with `--peer-venv`.

Each run is what `contrail simulate` does: our decisions, Dynamo's engine model, virtual time; equal calls give equal
figures. Dynamo's are from its own offline replay of the same arrivals on the same engines: round-robin beside
round-robin, and beside everything else the best that any of DYNAMO reaches in that row, figure by figure. Its KV router
breaks ties at random, so its figures differ from run to run, by up to 3 % of a hit rate: `--draws N` gives the means of
N runs of each, in ours the ties and in both the jitter drawn anew.

Public traces round their times (the conversation trace to 3 s); rows with jitter spread them again, alike for both.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from actors.engines.simulated.simulated_settings import mocker_settings
from api.cli.options import pairs
from bench.figures import PEERS, Figure, main, number, peer_python, refuse
from replay.simulate.options import Options
from replay.simulate.report import SimulationReport
from replay.simulate.setup import SEED, Setup, sweep
from replay.simulate.trace_file import MOONCAKE, TraceFile
from replay.simulate.workload import US_PER_MS, Pace, Trace

TRACE = "mooncake_conversation_trace.jsonl"
QUICK_REQUESTS = 1000
POLICIES = ("round-robin", "kv", "time")
ROUND_ROBIN = "round-robin"
DYNAMO: Mapping[str, Mapping[str, float]] = {
    "kv": {},
    "kv, scale 64": {"prefill_load_scale": 64},
    "kv, scale 16, credit 2": {"prefill_load_scale": 16, "overlap_score_credit": 2},
}
"""Settings of its router: the defaults, and the best that were found by hand."""
PEER_TIMEOUT_S = 600


class Row(NamedTuple):
    """One load."""

    workers: int
    speed_up: int
    jitter_ms: int = 0

    def __str__(self) -> str:
        jitter = f", jitter {self.jitter_ms / 1000:g} s" if self.jitter_ms else ""
        return f"{self.workers} workers, x{self.speed_up}{jitter}"

    @staticmethod
    def parse(text: str) -> Row:
        """As `--rows` has it: `8x3` is eight workers at three times the speed, and `8x3j` the same with jitter."""
        found = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,2})(j?)", text)
        if found is None:
            raise argparse.ArgumentTypeError(f"{text!r} is no load: 8x3 is one, and so is 8x3j, with jitter")
        return Row(int(found[1]), int(found[2]), JITTER_MS if found[3] else 0)

    @property
    def short(self) -> str:
        """The inverse."""
        return f"{self.workers}x{self.speed_up}{'j' if self.jitter_ms else ''}"


JITTER_MS = 3000
ROWS = (Row(8, 1), Row(8, 4), Row(16, 1), Row(4, 2), Row(8, 1, JITTER_MS), Row(8, 4, JITTER_MS), Row(4, 2, JITTER_MS))
"""Those of the conversation trace."""


class Found(NamedTuple):
    """Policies and trace of a comparison."""

    hit_percent: float
    first_ms: float
    token_ms: float
    whole_ms: float
    whole_p99_ms: float

    @staticmethod
    def of(report: SimulationReport) -> Found:
        return Found(
            100 * report.hit_rate, report.ttft_ms.mean, report.itl_ms.mean, report.e2e_ms.mean, report.e2e_ms.p99
        )

    @staticmethod
    def of_dynamo(summary: Mapping[str, float]) -> Found:
        return Found(
            100 * summary["prefix_cache_reused_ratio"],
            summary["mean_ttft_ms"],
            summary["mean_itl_ms"],
            summary["mean_e2e_latency_ms"],
            summary["p99_e2e_latency_ms"],
        )

    @staticmethod
    def best(found: Sequence[Found]) -> Found:
        """Figure by figure."""
        hits, *others = zip(*found, strict=True)
        return Found(max(hits), *map(min, others))

    @staticmethod
    def mean(found: Sequence[Found]) -> Found:
        """Of several runs."""
        return Found(*map(fmean, zip(*found, strict=True)))


WHATS = (
    ("cached", "%", False),
    ("first token", "ms", True),
    ("per token", "ms", True),
    ("answer", "ms", True),
    ("p99 answer", "ms", True),
)
"""Of the fields of Found: name, unit, whether lower is better."""


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    """The figures of every row, Dynamo's and then ours under every policy; then the table."""
    file = trace_file(options)
    base = Setup(file, Pace(seed=options.seed), Options(engine=mocker_settings(), seed=options.seed))
    rows: list[Row] = options.rows
    seeds = range(options.seed, options.seed + options.draws)
    tries = [(row, policy) for row in rows for policy in options.policies]
    peers = {} if options.peer_venv is None else _dynamo(file.read(), rows, seeds, options.peer_venv)
    for row, found in peers.items():
        for name, it in found.items():
            yield from _figures(row, f"Dynamo {name}", it)
    table: dict[Row, dict[str, Found]] = {row: {} for row in rows}
    runs = sweep(base, [{**_given(*each), SEED: seed} for each in tries for seed in seeds], options.jobs)
    for row, policy in tries:
        reports = [point.report for point in islice(runs, len(seeds))]
        table[row][policy] = Found.mean([Found.of(each) for each in reports])
        beside, note = _beside(policy, peers.get(row, {})), _note(reports)
        yield from _figures(row, policy, table[row][policy], beside, note)
    print("\n" + markdown(table, peers) + "\n", flush=True)


def extend(parser: argparse.ArgumentParser) -> None:
    """Which trace, and what is tried on it."""
    which_trace(parser)
    parser.add_argument("--policies", nargs="+", default=POLICIES, metavar="NAME[,KEY=VALUE…]", help="what to try")
    names = " ".join(row.short for row in ROWS)
    parser.add_argument("--rows", nargs="+", type=Row.parse, default=[*ROWS], metavar="ROW", help=f"{names}, or others")
    parser.add_argument("--seed", type=int, default=0, help="of the jitter and of all draws, the first one's")
    parser.add_argument(
        "--draws", type=int, default=1, choices=range(1, 33), metavar="N", help="runs of each, whose means are shown"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that share the work")


def markdown(table: Mapping[Row, Mapping[str, Found]], peers: Mapping[Row, Mapping[str, Found]]) -> str:
    """A row for each load and policy, Dynamo's below ours."""
    heads = [f"{what}, {unit}" for what, unit, _ in WHATS]
    lines = [f"| load | policy | {' | '.join(heads)} |", "|---|---|" + "--:|" * len(heads)]
    for row, found in table.items():
        named = {**found, **{f"Dynamo {policy}": it for policy, it in peers.get(row, {}).items()}}
        lines += [f"| {row} | {policy} | {' | '.join(map(number, it))} |" for policy, it in named.items()]
    return "\n".join(lines)


def which_trace(parser: argparse.ArgumentParser) -> None:
    """The options that say where the trace is."""
    parser.add_argument("--trace", type=Path, metavar="FILE", help=f"in Mooncake's format; else {TRACE} in …")
    traces = os.environ.get("CONTRAIL_TRACES")
    parser.add_argument("--traces", type=Path, metavar="DIR", default=traces, help="… this folder; or CONTRAIL_TRACES")


def trace_path(options: argparse.Namespace) -> Path:
    """The trace; the program ends if it is not where it was said to be, or nothing was completed."""
    path: Path = options.trace or Path(options.traces or ".", TRACE)
    if not path.is_file():
        if options.trace:
            refuse(f"--trace {path}: there is no such file")
        if options.traces:
            refuse(f"--traces, or CONTRAIL_TRACES: there is no {path}")
        refuse(f"nothing to measure: give --trace FILE, or --traces DIR, a folder that has {TRACE}")
    return path


def trace_file(options: argparse.Namespace) -> TraceFile:
    """The same, as simulations take it; only its beginning if it is to be quick."""
    return TraceFile(trace_path(options), MOONCAKE, first=QUICK_REQUESTS if options.quick else 0)


def _given(row: Row, policy: str) -> dict[str, Any]:
    name, _, settings = policy.partition(",")
    return {**row._asdict(), "policy": name, **(pairs([settings]) if settings else {})}


def _figures(row: Row, policy: str, found: Found, peer: Found | None = None, note: str = "") -> Iterator[Figure]:
    for place, (what, unit, lower) in enumerate(WHATS):
        beside = None if peer is None else peer[place]
        yield Figure(f"{row}, {policy}: {what}", found[place], unit, beside, lower, "" if place else note)


def _note(reports: Sequence[SimulationReport]) -> str:
    """Speed and results of the first run; of several runs, the range of their p99s."""
    first, p99s = reports[0], [each.e2e_ms.p99 for each in reports]
    between = f", p99 {min(p99s):,.0f} to {max(p99s):,.0f} ms" if len(reports) > 1 else ""
    return f"{first.requests / max(first.wall_s, 1e-9):,.0f} requests/s, digest {first.digest}{between}"


# --- Dynamo --------------------------------------------------------------------------------------------------------


def _beside(policy: str, peers: Mapping[str, Found]) -> Found | None:
    if policy == ROUND_ROBIN:
        return peers.get(ROUND_ROBIN)
    routed = [found for name, found in peers.items() if name != ROUND_ROBIN]
    return Found.best(routed) if routed else None


def _dynamo(trace: Trace, rows: Sequence[Row], seeds: Sequence[int], venv: Path) -> dict[Row, dict[str, Found]]:
    """By row, and there by what it was told."""
    python, found = peer_python(venv, PEERS["routing"]), {}
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            runs = [_replayed(python, _written(trace, Path(folder, "trace.jsonl"), row, seed), row) for seed in seeds]
            found[row] = {name: Found.mean([run[name] for run in runs]) for name in runs[0]}
    return found


def _written(trace: Trace, path: Path, row: Row, seed: int) -> Path:
    """The trace with this jitter, times rounded down to whole ms."""
    pace = Pace(jitter_ms=row.jitter_ms, seed=seed)
    lines: list[dict[str, Any]] = [
        {
            "timestamp": pace.time_us(each.at_us, place) // US_PER_MS,
            "input_length": each.prompt_tokens,
            "output_length": each.output_tokens,
            "hash_ids": array("Q", each.content).tolist(),
        }
        for place, each in enumerate(trace.asked)
    ]
    lines.sort(key=lambda line: line["timestamp"])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _replayed(python: str, trace: Path, row: Row) -> dict[str, Found]:
    engine = mocker_settings()
    asked = {
        "trace": str(trace),
        "workers": row.workers,
        "speed_up": row.speed_up,
        "block_size": engine.block_size,
        "blocks": engine.capacity_blocks,
        "modes": ["round_robin", *DYNAMO.values()],
    }
    completed = subprocess.run(
        [python, "-m", "bench.routing_peer", json.dumps(asked)],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "DYN_LOG": "error"},
        stdout=subprocess.PIPE,
        timeout=PEER_TIMEOUT_S,
        check=True,
    )
    return dict(
        zip((ROUND_ROBIN, *DYNAMO), map(Found.of_dynamo, map(json.loads, completed.stdout.splitlines())), strict=True)
    )


if __name__ == "__main__":
    main("routing", measure, extend)
