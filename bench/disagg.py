"""disagg: what remote prefill costs and what it gains.

All actors of a deployment stand in this one process, with a nats-server of their own and TCP between them
(`bench.disagg_world`). Three questions: a public trace on simulated engines (`disagg_trace`), steady decoding while
long prompts arrive (`disagg_steady`, with real vLLM engines if selected), and what the machinery itself takes
(`disagg_cost`). A figure that was measured on a loop that had too much to do says so.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvloop

from actors.engines.engine import Engine
from actors.engines.simulated.simulated_engine import SimulatedEngine
from actors.engines.tiny_model import ensure_tiny_checkpoint
from actors.engines.vllm.vllm_engine import VllmEngine
from bench import disagg_cost, disagg_steady, disagg_trace
from bench.disagg_steady import MakeEngine, Mixture
from bench.disagg_trace import Fleet, Slice
from bench.disagg_world import MODEL
from bench.figures import Figure, main, number, refuse
from core.settings import RoutingSettings

TRACE = "mooncake_conversation_trace.jsonl"
START_S = 600.0
"""Into the trace."""
PARTS = ("trace", "steady", "cost")
STEADY_ONLY = ("steady",)
VLLM = "vllm"
OF_TRACE = ("traces", "speed_up", "seconds", "time_scale")
"""Options of the trace part."""
SPEED_UPS = (1.0, 2.0)
WARM_UP_S, MEASURED_S, TAIL_S = 4.0, 12.0, 20.0
QUICK = (2.0, 4.0, 2.0)
TRACE_FLEETS = (Fleet(16), Fleet(8, 8), Fleet(8, 8, slots=2), Fleet(8))
STEADY_FLEETS = (Fleet(2), Fleet(1, 1), Fleet(3), Fleet(2, 1))
PAIRS = 2
"""The first ones of each: all of a quick run, and of one with real engines."""
STEADY = Mixture(streams=16, stream_tokens=4000, long_tokens=8192, every_s=1.0, seconds=6.0)
STEADY_VLLM = Mixture(streams=8, stream_tokens=3900, long_tokens=3000, every_s=2.0, seconds=20.0)
CONTEXT_VLLM = 4096
COST_JOBS, COST_JOBS_QUICK = 100, 20


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    """The figures of the selected parts, each part with its table."""
    selected = parts(options)
    if options.engine == VLLM:
        yield from _shown(_steady_vllm())
        return
    them = {"trace": _trace, "steady": _steady, "cost": _cost}
    for part in selected:
        yield from _shown(them[part](options))


def parts(options: argparse.Namespace) -> Sequence[str]:
    """The selected parts; options without an effect on them are refused."""
    selected: Sequence[str] = options.parts or (STEADY_ONLY if options.engine == VLLM else PARTS)
    if options.engine == VLLM:
        if set(selected) != set(STEADY_ONLY):
            refuse(f"--engine {VLLM} is for the part {STEADY_ONLY[0]} alone: leave --parts out")
        if options.quick:
            refuse(f"--engine {VLLM} has no smaller run: leave --quick out")
    if "trace" not in selected:
        given = [f"--{name.replace('_', '-')}" for name in OF_TRACE if getattr(options, name) is not None]
        if given:
            refuse(f"{', '.join(given)}: of the part trace, which is not measured here")
    return selected


def extend(parser: argparse.ArgumentParser) -> None:
    """Which parts, and of the trace how much."""
    parser.add_argument("--traces", type=Path, metavar="DIR", help=f"has {TRACE}; or CONTRAIL_TRACES")
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="what to measure; all if not given")
    parser.add_argument("--engine", choices=("simulated", VLLM), default="simulated", help="vllm: the steady part")
    parser.add_argument("--speed-up", type=float, nargs="+", metavar="X", help="times as fast as the trace")
    parser.add_argument("--seconds", type=float, metavar="S", help="of the trace part that are measured, each run")
    parser.add_argument("--time-scale", type=float, metavar="X", help="below 1: slower engines and load")


def markdown(found: Iterable[Figure]) -> str:
    """A table: rows and columns are what stands before and behind the colon."""
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    for figure in found:
        row, _, column = figure.what.rpartition(": ")
        cells[row][f"{column}, {figure.unit}"] = number(figure.value)
    heads = list(dict.fromkeys(head for row in cells.values() for head in row))
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "--:|" * len(heads)]
    return "\n".join(
        [*lines, *(f"| {row} | {' | '.join(of.get(head, '-') for head in heads)} |" for row, of in cells.items())]
    )


def _shown(figures: Iterable[Figure]) -> Iterator[Figure]:
    found = []
    for figure in figures:
        found.append(figure)
        yield figure
    if found:
        print("\n" + markdown(found) + "\n", flush=True)


def _trace(options: argparse.Namespace) -> Iterator[Figure]:
    file = Path(options.traces or os.environ.get("CONTRAIL_TRACES") or ".", TRACE)
    if not file.is_file():
        print(f"the trace part is left out: give --traces DIR, a folder that has {TRACE}", file=sys.stderr)
        return
    warm_up_s, measured_s, tail_s = QUICK if options.quick else (WARM_UP_S, MEASURED_S, TAIL_S)
    asked = Slice(
        file=file,
        start_s=START_S,
        warm_up_s=warm_up_s,
        measured_s=options.seconds or measured_s,
        tail_s=tail_s,
        time_scale=options.time_scale or 1.0,
    )
    for speed_up in options.speed_up or SPEED_UPS[: 1 if options.quick else None]:
        for fleet in TRACE_FLEETS[: PAIRS if options.quick else None]:
            yield from uvloop.run(disagg_trace.run(fleet, asked, speed_up))


def _steady(options: argparse.Namespace) -> Iterator[Figure]:
    def make(role: str) -> Engine:
        return SimulatedEngine(MODEL, disagg_trace.settings(1.0, transfer=bool(role)))

    mixture = STEADY._replace(seconds=2.0) if options.quick else STEADY
    yield from _compared(STEADY_FLEETS[: PAIRS if options.quick else None], make, mixture)


def _steady_vllm() -> Iterator[Figure]:
    with _tiny() as folder:

        def make(role: str) -> Engine:
            return VllmEngine(MODEL, str(folder), {"max_model_len": CONTEXT_VLLM}, moves_blocks=role)

        yield from _compared(STEADY_FLEETS[:PAIRS], make, STEADY_VLLM)


def _compared(fleets: Iterable[Fleet], make: MakeEngine, mixture: Mixture) -> Iterator[Figure]:
    for fleet in fleets:
        yield from uvloop.run(disagg_steady.run(fleet, make, mixture, RoutingSettings()))


def _cost(options: argparse.Namespace) -> Iterator[Figure]:
    jobs, idle_s = (COST_JOBS_QUICK, 0.5) if options.quick else (COST_JOBS, disagg_cost.IDLE_S)
    for tokens in disagg_cost.PROMPT_TOKENS[-1 if options.quick else 0 :]:
        yield from uvloop.run(disagg_cost.run(tokens, jobs, idle_s))


@contextmanager
def _tiny() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield ensure_tiny_checkpoint(Path(folder) / "tiny", lambda text: print(text, file=sys.stderr))


if __name__ == "__main__":
    main("disagg", measure, extend)
