"""Overload of a deployment: answers still in time, speed of refusals, and the shares of the tenants.

`contrail up` with real NATS and etcd, real front ends, and simulated workers of a fixed capacity. That is measured
first, with all places taken; then half of it, all of it and twice as much are offered, for `--seconds` each (300 by
hand), by one tenant that sends most and three that send little. An answer counts if it is whole within SLO_S; a place
is waited for at most QUEUE_WAIT_MS. Goodput is counted from SLO_S after the first request to the last one. Only
simulated engines: what is measured is the router, in this machine's loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

from bench.figures import Figure, main
from bench.overload_load import Phase, answered_per_s, offered, percentile
from bench.size import until_ready
from streams.embedded.loopback_ports import free_port

WORKERS, SLOTS = 2, 8
STEP_US = 40_000
"""An answer takes some 0.8 s, however many others run beside it."""
QUEUE_WAIT_MS = 1500
SLO_S = 3.0
LOADS = (0.5, 1.0, 2.0)
"""Of the capacity."""
GREEDY, MODEST = "greedy", ("modest-1", "modest-2", "modest-3")
GREEDY_PART = 0.7
"""Of all that is offered; the others share the rest."""
KEPT_MIN = 0.9
"""Of the best goodput, under twice the load."""
SECONDS, SECONDS_QUICK = 20.0, 6.0
MS = 1000
STOP_S = 60.0


def measure(options: argparse.Namespace) -> Iterable[Figure]:
    """The figures of each load, then how they compare."""
    seconds = options.seconds or (SECONDS_QUICK if options.quick else SECONDS)
    capacity, phases = asyncio.run(_measured(seconds, options.replicas))
    yield Figure("capacity, all places taken", capacity, "answers/s", lower_is_better=False)
    for load, phase in phases.items():
        yield from _figures(load, phase, capacity)
    yield kept({load: phase.goodput(SLO_S) for load, phase in phases.items()})


def kept(goodput: Mapping[float, float]) -> Figure:
    """Share of the best goodput under the highest load; the figure does not hold if the share is too small."""
    best = max(goodput.values())
    part = goodput[max(goodput)] / best if best else 0.0
    note = "kept" if part >= KEPT_MIN else f"LOST: below {KEPT_MIN:g}"
    what = "goodput under twice the capacity, of the best"
    return Figure(what, part, "", lower_is_better=False, note=note, holds=part >= KEPT_MIN)


def _figures(load: float, phase: Phase, capacity: float) -> Iterable[Figure]:
    at = f"x{load:g}"
    answered = [each.seconds * MS for each in phase.results if each.status == 200]
    refused = [each.seconds * MS for each in phase.refused]
    yield Figure(f"{at}: offered", len(phase.results) / phase.seconds, "requests/s", lower_is_better=False)
    rate = phase.goodput(SLO_S)
    yield Figure(
        f"{at}: answered within {SLO_S:g} s", rate, "answers/s", lower_is_better=False,
        note=f"{rate / capacity:.2f} of the capacity",
    )  # fmt: skip
    for percent in (50, 99):
        yield Figure(f"{at}: to the whole answer, p{percent}", percentile(answered, percent), "ms")
    by_status = {status: sum(each.status == status for each in phase.refused) for status in (429, 503)}
    note = ", ".join(f"{count} with {status}" for status, count in by_status.items() if count)
    yield Figure(f"{at}: refused", len(refused) / max(1, len(phase.results)), "of all", note=note)
    for percent in (50, 99) if refused else ():
        yield Figure(f"{at}: to the refusal, p{percent}", percentile(refused, percent), "ms")
    failed = phase.failed
    yield Figure(f"{at}: failed otherwise", len(failed), "requests", note=failed[0].failure[:80] if failed else "")
    for tenant in (GREEDY, *MODEST):
        mine = phase.of(tenant)
        part = len(phase.good(SLO_S, tenant)) / max(1, len(mine))
        note = f"{len(mine) / phase.seconds:.1f} of them per second"
        yield Figure(f"{at}: of {tenant}'s answered in time", part, "of its own", lower_is_better=False, note=note)


async def _measured(seconds: float, replicas: int) -> tuple[float, dict[float, Phase]]:
    with deployment(replicas) as (process, url):
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        async with httpx.AsyncClient(base_url=url, limits=limits) as http:
            await until_ready(http, process)
            capacity = await answered_per_s(http, WORKERS * SLOTS, max(4.0, seconds / 4))
            phases = {}
            for number, load in enumerate(LOADS):
                small = (1 - GREEDY_PART) / len(MODEST)
                parts = {GREEDY: GREEDY_PART, **dict.fromkeys(MODEST, small)}
                rates = {tenant: part * load * capacity for tenant, part in parts.items()}
                phases[load] = await offered(http, rates, seconds, number)
    return capacity, phases


@contextmanager
def deployment(replicas: int) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`contrail up`, started, with its URL; it leaves nothing behind."""
    engine_args = {"max_seqs": SLOTS, "decode_us_per_step": STEP_US, "prefill_us_per_token": 1, "eos_every": 0}
    group = {"name": "decode", "model": "tiny", "count": WORKERS, "engine": "simulated", "engine_args": engine_args}
    routing = {"queue_wait_max_ms": QUEUE_WAIT_MS}
    with tempfile.TemporaryDirectory() as folder:
        file, port = Path(folder) / "overload.yaml", free_port()
        file.write_text(json.dumps({"version": 1, "workers": [group], "routing": routing}))
        words = ["up", "-f", str(file), "--data", f"{folder}/data", "--port", str(port), "--replicas", str(replicas)]
        with (Path(folder) / "up.log").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "api.cli", *words],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield process, f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(STOP_S)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, help=f"for each load; {SECONDS:g} if not given")
    parser.add_argument("--replicas", type=int, default=1, help="front ends, all on one port")


if __name__ == "__main__":
    main("overload", measure, _options)
