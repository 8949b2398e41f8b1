"""planner_cost: the processor time and memory of a planner's process, with reading the log, at a rate of requests.

`contrail up` with simulated workers and a planner that advises: NATS, etcd, a front end, and a process for each worker.
Prompts and answers are short, so that one machine can carry the rate. The planner reads the same events for each
request as at any length. Processor time is that of the kernel's count for the process, from the end of a first part of
the requests to the end of the last one.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from actors.engines.simulated.simulated_settings import SimulatedSettings
from bench.deployed import Deployed, deployed
from bench.disagg_client import part
from bench.figures import Figure, main
from bench.processes import cpu_s
from bench.slice_part import MODEL, engine_args
from bench.spent import Spent
from bench.streamed import Streamed, ask, completion
from projections.scaling.scale_settings import ScaleSettings
from tests.chaos.processes import rss_bytes

ENGINE = SimulatedSettings(
    block_size=16,
    capacity_blocks=16_384,
    max_seqs=256,
    prefill_us_per_token=50,
    decode_us_per_step=20_000,
    eos_every=0,
    token_min=300,
    vocab=900,
)
SETTINGS = ScaleSettings()
"""All defaults: a period of 5 s."""
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 4
RATE, RATE_QUICK = 100.0, 20.0
SECONDS, SECONDS_QUICK = 150.0, 12.0
WARM_SHARE = 0.2
"""Of the time, before processor time is counted: connections and caches are new."""
SHARE_MAX = 0.05
"""Of a core: the planner's aim at 100 requests a second."""
VERIFY_S = 1800.0
MIB = 1 << 20
CONTRAIL = (sys.executable, "-P", "-m", "api.cli")


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    """The planner's cost, and what the client found."""
    rate = options.rate or (RATE_QUICK if options.quick else RATE)
    seconds = options.seconds or (SECONDS_QUICK if options.quick else SECONDS)
    group = {
        "name": "decode",
        "model": MODEL,
        "count": options.workers,
        "engine": "simulated",
        "engine_args": engine_args(ENGINE),
    }
    planner = {**SETTINGS.to_mapping(), "mode": "advise"}
    if options.profile is not None:
        planner["profile"] = str(options.profile.absolute())
    with deployed({"workers": [group], "planner": planner}) as deployment:
        yield from uvloop.run(_asked(deployment, rate, seconds))
        verified = _verified(deployment)
    for name in ("decisions", "periods"):
        done, made = verified["verified" if name == "decisions" else "periods_verified"], verified[name]
        yield Figure(f"{name} made again, of {made}", done, "", lower_is_better=False, holds=done == made)


class PlannerCost(NamedTuple):
    """Of a stretch of time."""

    took_s: float
    requests: int
    spent_s: float
    """Processor time of the planner's process."""
    memory_bytes: int
    """Resident at the end."""

    def figures(self, rate: float) -> list[Figure]:
        """The share of a core does not hold above SHARE_MAX, unless more requests were asked for than the aim names."""
        share = self.spent_s / self.took_s
        return [
            Figure("requests a second", self.requests / self.took_s, "", lower_is_better=False),
            Figure("planner, of a core", 100 * share, "%", holds=share <= SHARE_MAX or rate > RATE),
            Figure("planner, for each request", 1e6 * self.spent_s / self.requests, "us"),
            Figure("planner, memory", self.memory_bytes / MIB, "MiB"),
        ]


async def _asked(deployment: Deployed, rate: float, seconds: float) -> list[Figure]:
    dice, tasks, late_s = random.Random(1), list[asyncio.Task[Streamed]](), list[float]()
    (planner,) = deployment.parts("planner")
    gc.freeze()
    start_s = due_s = time.perf_counter()
    counted: tuple[Spent, float, int] | None = None
    while due_s < start_s + seconds:
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        late_s.append(time.perf_counter() - due_s)
        prompt = [dice.randrange(300, 1200) for _ in range(PROMPT_TOKENS)]
        body = completion(MODEL, prompt, OUTPUT_TOKENS)
        tasks.append(asyncio.create_task(ask(deployment.port, body, f"asked-{len(tasks)}")))
        if counted is None and due_s >= start_s + WARM_SHARE * seconds:
            counted = Spent.by_now(deployment), cpu_s(planner["pid"]), len(tasks)
        due_s += dice.expovariate(rate)
    assert counted is not None
    (before, spent_s, first), after = counted, Spent.by_now(deployment)
    cost = PlannerCost(
        took_s=after.at_s - before.at_s,
        requests=len(tasks) - first,
        spent_s=cpu_s(planner["pid"]) - spent_s,
        memory_bytes=rss_bytes(planner["pid"]),
    )
    answers = await asyncio.gather(*tasks)
    failures = [it.failure or f"status {it.status}" for it in answers if not it.complete]
    found = cost.figures(rate)
    found.append(Figure("requests", len(answers), ""))
    found.append(Figure("failed", len(failures), "", note=failures[0][:80] if failures else "", holds=not failures))
    found.append(Figure("delay of sending, p99", 1000 * part(late_s, 0.99), "ms"))
    for kind, cores in sorted(after.cores_since(before).items()):
        found.append(Figure(f"processor time: {kind}", cores, "cores"))
    found.append(Figure("processor time: machine, all programs", 100 * after.busy_since(before), "%"))
    return found


def _verified(deployment: Deployed) -> dict[str, Any]:
    """Counts of `contrail replay verify`. The program ends with its errors if it had nothing to output."""
    words = [*CONTRAIL, "replay", "verify", "--data", str(deployment.data), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=VERIFY_S, check=False)
    if not done.stdout:
        sys.exit(f"contrail replay verify: status {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)["scale"]
    return found


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second (100)")
    parser.add_argument("--seconds", type=float, default=0.0, help="time in which requests come (150)")
    parser.add_argument("--profile", type=Path, help="of an engine: then the speed is learned from requests, too")
    parser.add_argument("--workers", type=int, default=4, help="simulated workers (4)")


if __name__ == "__main__":
    main("planner_cost", measure, _options)
