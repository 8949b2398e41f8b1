"""disagg: what remote prefill costs and what it gains."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import uvloop

from bench import disagg_trace
from bench.disagg_trace import Fleet, Slice
from bench.figures import Figure, main

TRACE = "mooncake_conversation_trace.jsonl"


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    asked = Slice(file=options.traces / TRACE, start_s=600, warm_up_s=options.warm_up, measured_s=options.seconds, time_scale=options.time_scale, prefill_slots=options.prefill_slots)
    for x in options.speed_up:
        for f in options.fleet:
            d, p = map(int, f.split("+"))
            yield from uvloop.run(disagg_trace.run(Fleet(d, p), asked, x))


def extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--traces", type=Path, default=os.environ.get("CONTRAIL_TRACES", "traces"))
    parser.add_argument("--speed-up", type=float, nargs="+", default=[1,2])
    parser.add_argument("--fleet", nargs="+", default=["16+0","8+8","8+0"])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--warm-up", type=float, default=6)
    parser.add_argument("--prefill-slots", type=int, default=2)
    parser.add_argument("--time-scale", type=float, default=1)

if __name__ == "__main__":
    main("disagg", measure, extend)
