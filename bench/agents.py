"""agents: what a turn of a coding agent's talk costs in front of the workers.

`python -m bench.agents --json FILE`. One `contrail up` for each load, with a real log, one front end and simulated
workers; talks of `bench.agents_load` over HTTP. CPU is that of the front ends' processes, all that belongs to a request
included; its parts stand below, each alone in a loop. First turns of as many other talks are measured after the load,
by themselves. The log's bytes are the broker's own count. A request that failed ends the program.

`--workers 100` measures with so many workers; idle front ends follow what these say, which is counted first.
`--frontends 1 2 4` measures each load with so many front ends, and a new connection for each turn: they share no store
of what they know of talks, and the kernel gives each connection to any of them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import uvloop

from actors.engines.tiny_model import ensure_tiny_checkpoint
from api.config.deployment_ref import DeploymentRef, find_by_data_folder
from bench.agents_load import OK, TalksLoad, talk_all
from bench.agents_parts import BLOCK_SIZE, MILLI, parts
from bench.deployed import Deployed, deployed
from bench.figures import Figure, main
from bench.processes import main_thread_s
from core.subjects import ROUTING, is_kv
from streams.jetstream.broker_accounts import READER
from streams.jetstream.broker_inspection import BrokerInspection

MODEL = "sim"
WORKERS = 8
MIB = 2**20
LOADS = {
    "24 talks, one at a time": TalksLoad(24, 20, 1, 22_000, 3300),
    "24 talks, 8 at a time": TalksLoad(24, 20, 8, 22_000, 3300),
    "150 talks at once": TalksLoad(150, 9, 150, 31_000, 8000),
    "100 talks of 100 000 tokens": TalksLoad(100, 4, 16, 85_000, 5000),
}
QUICK = TalksLoad(4, 3, 4, 2000, 500)
ENGINE = {
    "block_size": BLOCK_SIZE,
    "capacity_blocks": 160_000,
    "context_max": 262_144,
    "prefill_us_per_token": 1,
    "decode_us_per_step": 500,
    "eos_every": 0,
}
SETTLE_S = 1.0
"""For the last messages of a load."""
IDLE_S = 10.0
START_S, START_WORKER_S = 120.0, 6.0
"""Longest start, and of it what each worker has: a process on few cores."""


def measure(options: argparse.Namespace) -> Iterable[Figure]:
    """Each load on a deployment of its own, and then its parts."""
    loads = {"4 short talks": QUICK} if options.quick else LOADS
    if options.loads:
        loads = {name: load for name, load in loads.items() if any(part in name for part in options.loads)}
    with TemporaryDirectory() as folder:
        ensure_tiny_checkpoint(Path(folder, "tiny"), lambda *_: None)
        for name, load in loads.items():
            if not options.parts_alone:
                for count in options.frontends or [0]:
                    yield from _live(name, load, count, options.workers)
            yield from parts(name, Path(folder, "tiny"), load, "parts")


def _live(name: str, load: TalksLoad, frontends: int, workers: int) -> Iterable[Figure]:
    """With so many front ends, and a connection for each turn; with 0: one, and a connection for each talk."""
    if workers != WORKERS:
        name = f"{name}, {workers} workers"
    if frontends:
        name = f"{name}, {frontends} front end{'s' * (frontends > 1)}, a connection per turn"
    group = {"name": "decode", "model": MODEL, "count": workers, "engine": "simulated", "engine_args": ENGINE}
    config = {"log": {"max_bytes": "8GiB"}, "frontend": {"replicas": max(1, frontends)}, "workers": [group]}
    with deployed(config, START_S + START_WORKER_S * workers) as there:
        reference = find_by_data_folder(there.data)
        idle_s = there.cpu_s()["frontend"]
        time.sleep(IDLE_S)
        idle_s = there.cpu_s()["frontend"] - idle_s
        uvloop.run(talk_all(there.port, MODEL, QUICK, "warm-up"))
        before = asyncio.run(_log_bytes(reference))
        cpu_s, loop_s, memory = there.cpu_s()["frontend"], _loop_s(there), _memory_bytes(there)
        answers = uvloop.run(talk_all(there.port, MODEL, load, name, reconnects=frontends > 0))
        cpu_s, loop_s = there.cpu_s()["frontend"] - cpu_s, _loop_s(there) - loop_s
        asyncio.run(asyncio.sleep(SETTLE_S))
        after = asyncio.run(_log_bytes(reference))
        if failed := [answer for answer in answers if answer.status != OK]:
            sys.exit(f"{name}: {len(failed)} of {load.requests} turns failed, the first one with {failed[0].status}")
        count = len(answers)
        tokens = sum(answer.prompt_tokens for answer in answers)
        times = sorted(answer.seconds for answer in answers)
        yield Figure(f"{name}: CPU without requests", idle_s / IDLE_S * MILLI, "ms/s")
        yield Figure(f"{name}: CPU per request", cpu_s / count * MILLI, "ms", note=f"{tokens / count:,.0f} tokens")
        yield Figure(f"{name}: of it in the event loop", loop_s / count * MILLI, "ms")
        yield Figure(f"{name}: p50", median(times) * MILLI, "ms")
        yield Figure(f"{name}: p99", times[int(0.99 * count)] * MILLI, "ms")
        grown = (_memory_bytes(there) - memory) / MIB
        first_s = there.cpu_s()["frontend"]
        uvloop.run(talk_all(there.port, MODEL, load._replace(turns=1), f"{name}, first turns"))
        first_s = there.cpu_s()["frontend"] - first_s
        yield Figure(f"{name}: CPU per first turn", first_s / load.talks * MILLI, "ms", note="of other talks")
        yield Figure(f"{name}: CPU per later turn", (cpu_s - first_s) / (count - load.talks) * MILLI, "ms")
        hit = sum(answer.cached_tokens for answer in answers) / tokens
        yield Figure(f"{name}: hit rate", hit, "of 1", lower_is_better=False)
        for kind, total in after.items():
            yield Figure(f"{name}: {kind} stream", (total - before[kind]) / count, "B/request")
        yield Figure(f"{name}: memory", memory / MIB + grown, "MiB", note=f"{grown:,.0f} of it grown")


def _loop_s(there: Deployed) -> float:
    """Processor time of all front ends' event loops until now."""
    return sum(main_thread_s(part["pid"]) for part in there.parts("frontend"))


async def _log_bytes(reference: DeploymentRef) -> dict[str, int]:
    """Bytes of the log by kind of stream."""
    found = {ROUTING: 0, "kv": 0}
    credentials = reference.nats_credentials(READER)
    async with BrokerInspection(reference.nats, credentials, reference.namespace) as broker:
        for stream in await broker.streams():
            kind = "kv" if is_kv(stream.name) else str(stream.name)
            if kind in found:
                found[kind] += stream.bytes
    return found


def _memory_bytes(there: Deployed) -> int:
    """Resident memory of all front ends."""
    texts = [Path(f"/proc/{part['pid']}/status").read_text() for part in there.parts("frontend")]
    return sum(int(text.split("VmRSS:", 1)[1].split()[0]) for text in texts) * 1024


def _extend(parser: argparse.ArgumentParser) -> None:
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
