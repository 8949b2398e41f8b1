"""Soak: an hour of requests at a low rate while workers come and go; memory must stay flat, and nothing be left.

python -m tests.chaos.soak --minutes 60 --json soak.json

Samples of every process (memory, open files), of every stream against its limits, and of who reads it. At the end:
the slope of each process's memory after the warm-up, and the verdict as exit status.
"""

# ruff: noqa: T201 - it talks to whoever started it
from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

import httpx

from core.errors import Unavailable
from core.prompt import TOKEN_BYTES
from tests.chaos.broker import broker_of
from tests.chaos.load import Load
from tests.chaos.processes import cpu_s, open_files, rss_bytes
from tests.chaos.rest import Rest, tried
from tests.e2e.deployment import Running, up

SAMPLE_EVERY_S = 10.0
TURNOVER_MEAN_S = 45.0
"""Mean time between two workers that leave; every other one is killed instead of asked."""
STEADY_S = 20.0
"""The next one goes only when all are there and this has passed."""
WARM_UP_SHARE = 0.25
"""So much of the time is not looked at: caches fill, allocators settle."""
FILL_SAID_EVERY = 500
SLOPE_MAX = 4 << 20
"""Bytes per hour that a process's memory may seem to grow by …"""
SLOPE_SHARE_MAX = 0.05
"""… or this share of it, whichever is more."""
FILES_MORE_MAX = 8
"""More open files at the end than after the warm-up."""
TEXT_WORDS = 4000
TEXT_CACHE_BYTES = 32 << 20
"""Of each front end."""
TEXTS_PER_FRONTEND = 3 * TEXT_CACHE_BYTES // (TEXT_WORDS * TOKEN_BYTES)
"""Front ends keep the tokens of texts seen lately within a bound: with so many that is reached before anything is
measured, whichever of them answers. Else an hour at this rate would be growth towards it."""
ENGINE_ARGS = {"capacity_blocks": 256, "eos_every": 0}
SNAPSHOT_EVERY = "5m"
"""More often than by default, so that an hour sees a dozen of them."""
LASTING = ("nats", "etcd", "frontend-", "contrail up")
"""Processes that live from start to end; workers do not."""
NATS, NATS_MAX = "nats", 256 << 20
"""nats-server keeps the newest block of each stream in memory: it grows until those are full, at about 160 MiB."""


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--rate", type=float, default=5.0, help="requests per second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-bytes", default="1GiB", help="of the log")
    parser.add_argument("--json", type=Path, dest="report")
    return parser.parse_args()


async def main(wanted: argparse.Namespace) -> int:
    """The exit status."""
    folder = Path(tempfile.mkdtemp(prefix="contrail-soak-"))
    try:
        workers = [{"engine": "simulated", "count": wanted.workers, "engine_args": ENGINE_ARGS}]
        log = {"max_bytes": wanted.max_bytes, "snapshot_every": SNAPSHOT_EVERY}
        deployment = {"version": 1, "log": log, "workers": workers}
        frontend = {"replicas": wanted.replicas, "text_cache_max": f"{TEXT_CACHE_BYTES >> 20}MiB"}
        file = folder / "soak.yaml"
        file.write_text(json.dumps({**deployment, "frontend": frontend}))
        async with up(folder / "data", "-f", str(file)) as running:
            findings = await _soaked(running, wanted)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if wanted.report:
        wanted.report.write_text(json.dumps(findings, indent=1) + "\n")
    _show(findings)
    return 1 if findings["wrong"] else 0


async def _fill(url: str, texts: int) -> None:
    """So many long texts are tokenized, each over a connection of its own."""
    for number in range(texts):
        async with httpx.AsyncClient(timeout=30) as http:
            text = f"{number:08} " + "word and " * (TEXT_WORDS // 2)
            (await http.post(f"{url}/tokenize", json={"prompt": text})).raise_for_status()
        if number % FILL_SAID_EVERY == 0:
            print(f"filling the front ends' memory of texts: {number} of {texts}")


async def _soaked(running: Running, wanted: argparse.Namespace) -> dict[str, Any]:
    await _fill(running.url, wanted.replicas * TEXTS_PER_FRONTEND)
    host, _, port = running.url.removeprefix("http://").rpartition(":")
    load = Load(host, int(port), wanted.seed, clients=8, per_s=wanted.rate)
    turnover = Turnover(running, wanted.seed, wanted.workers)
    turning = asyncio.create_task(turnover.run())
    samples: list[dict[str, Any]] = []
    began_s, missed = time.monotonic(), 0
    try:
        while (elapsed_s := time.monotonic() - began_s) < wanted.minutes * 60:
            try:
                samples.append({"at_s": elapsed_s, **await sample(running)})
                _say(samples[-1], load, turnover)
            except Unavailable as error:  # a machine that does other things too; the laws below need most of them
                missed += 1
                print(f"{elapsed_s:6.0f} s  no sample: {error}")
            await asyncio.sleep(SAMPLE_EVERY_S)
    finally:
        turning.cancel()
        await asyncio.wait([turning])
        await load.stop()
    rest = Rest(running, wanted.replicas, wanted.workers)
    laws = {
        "all parts come to rest, all replicas equal": await tried(rest.reached(), "rest"),
        "a fold from zero is what caches hold": await tried(_caches(rest), "caches"),
        "no consumer is left behind": await tried(rest.consumers_left(), "consumers"),
        "memory is flat": flat(samples),
        "open files do not grow": files(samples),
        "streams stay within their limits": within_limits(samples),
        "nine samples of ten were taken": [f"{missed} were not"] if missed * 9 > len(samples) else [],
        "no request failed": [f"{one.request}: {one.outcome} {one.detail}" for one in load.unmended],
    }
    return {
        "wrong": sum(bool(found) for found in laws.values()),
        "laws": laws,
        "requests": dict(load.counts),
        "workers_gone": turnover.gone,
        "samples_missed": missed,
        "slopes_bytes_per_h": slopes(samples),
        "samples": samples,
    }


async def _caches(rest: Rest) -> list[str]:
    """Comparable as long as the log still holds its start."""
    return [] if rest.cursor == {} else await rest.fold_differs()


class Turnover:
    """Workers leave or are killed, one at a time; the supervisor starts others."""

    def __init__(self, running: Running, seed: int, workers: int) -> None:
        self.gone = 0
        self._running, self._workers = running, workers
        self._random = Random(f"{seed}/turnover")

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(max(STEADY_S, self._random.expovariate(1 / TURNOVER_MEAN_S)))
            there = [part for part in self._running.run()["parts"] if part["kind"] == "worker" and part["id"]]
            if len(there) == self._workers:
                victim = self._random.choice(there)
                os.kill(victim["pid"], signal.SIGKILL if self.gone % 2 else signal.SIGTERM)
                self.gone += 1


async def sample(running: Running) -> dict[str, Any]:
    """All processes and all streams, once."""
    pids = {part["name"]: part["pid"] for part in running.run()["parts"]} | {"contrail up": running.process.pid}
    async with broker_of(running) as broker:
        streams = {name: size._asdict() for name, size in (await broker.streams()).items()}
        consumers = {name: len(found) for name, found in (await broker.consumers()).items()}
    return {
        "rss": {name: rss_bytes(pid) for name, pid in pids.items()},
        "files": {name: open_files(pid) for name, pid in pids.items()},
        "cpu_s": {name: cpu_s(pid) for name, pid in pids.items()},
        "streams": streams,
        "consumers": consumers,
    }


def slopes(samples: list[dict[str, Any]]) -> dict[str, float]:
    """Least squares through each lasting process's memory after the warm-up, in bytes per hour."""
    warm = samples[int(len(samples) * WARM_UP_SHARE) :]
    names = [name for name in warm[-1]["rss"] if name.startswith(LASTING)] if warm else []
    return {name: _slope([(s["at_s"], s["rss"][name]) for s in warm if s["rss"].get(name)]) for name in names}


def _slope(points: list[tuple[float, float]]) -> float:
    if len(points) < 3:
        return 0.0
    x_mean = sum(x for x, _ in points) / len(points)
    y_mean = sum(y for _, y in points) / len(points)
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    return 3600 * sum((x - x_mean) * (y - y_mean) for x, y in points) / spread


def flat(samples: list[dict[str, Any]]) -> list[str]:
    """Processes whose memory grew over what was measured, by more than the noise; and the broker's, by its bound."""
    hours = (samples[-1]["at_s"] - samples[0]["at_s"]) / 3600 if samples else 0
    grown = {name: slope * hours for name, slope in slopes(samples).items() if name != NATS}
    broker = max((one["rss"].get(NATS, 0) for one in samples), default=0)
    too_large = [f"{NATS} had {broker >> 20} MiB"] if broker > NATS_MAX else []
    return too_large + [
        f"{name} grew by {grew / 2**20:.1f} MiB in {hours:.2f} h"
        for name, grew in grown.items()
        if grew > max(SLOPE_MAX, SLOPE_SHARE_MAX * samples[-1]["rss"][name])
    ]


def files(samples: list[dict[str, Any]]) -> list[str]:
    """Lasting processes that hold more files at the end than after the warm-up."""
    if len(samples) < 4:
        return []
    warm, last = samples[int(len(samples) * WARM_UP_SHARE)]["files"], samples[-1]["files"]
    grown = {name: last[name] - warm[name] for name in last if name in warm and name.startswith(LASTING)}
    return [f"{name} holds {more} more files" for name, more in grown.items() if more > FILES_MORE_MAX]


def within_limits(samples: list[dict[str, Any]]) -> list[str]:
    """Streams that were larger than they may be."""
    seen = {
        (name, size["bytes"], size["bytes_max"])
        for one in samples
        for name, size in one["streams"].items()
        if size["bytes"] > size["bytes_max"]
    }
    return [f"{name} had {size} of {most} bytes" for name, size, most in sorted(seen)]


def _say(one: dict[str, Any], load: Load, turnover: Turnover) -> None:
    memory = ", ".join(f"{name} {size >> 20}" for name, size in sorted(one["rss"].items()))
    streams = ", ".join(f"{name} {size['bytes'] >> 20}" for name, size in sorted(one["streams"].items()))
    counts = f"{len(load.attempts)} requests, {len(load.unmended)} failed, {turnover.gone} workers gone"
    print(f"{one['at_s']:7.0f} s  {counts}; MiB: {memory}; streams: {streams}; readers {one['consumers']}", flush=True)


def _show(findings: dict[str, Any]) -> None:
    print()
    for law, found in findings["laws"].items():
        print(f"  {'WRONG' if found else 'holds'}  {law}")
        for sentence in found[:5]:
            print(f"         - {sentence[:500]}")
    grown = ", ".join(f"{name} {slope / 2**20:+.1f}" for name, slope in findings["slopes_bytes_per_h"].items())
    print(f"\n  memory, MiB per hour: {grown}\n  requests: {findings['requests']}")


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main(arguments())))
