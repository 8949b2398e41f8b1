"""Growth of the log: bytes per request in each stream, and per day.

One deployment after the other, each as `contrail up` starts it, with simulated engines, a real NATS and a real etcd.
Prompts have 2 000 tokens, of which the first half is one of PREFIXES common ones; answers have OUTPUT_TOKENS. Caches
are small enough that old blocks go as new ones come, as they do in production, so that stores and removals are both
counted. What a stream took is the broker's own count of its bytes, as on disk. Load reports come by time, up to four
per second and worker, and not by request: a worker is taken to serve REQUESTS_PER_WORKER_S.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import httpx

from api.config.deployment_ref import DeploymentRef, find_by_data_folder
from bench.figures import Figure, main
from core.ids import StreamName
from core.subjects import LOAD, ROUTING, is_kv
from projections.folds.snapshot import encode
from projections.folds.state import State
from projections.runner.rebuild import rebuild
from streams.embedded.loopback_ports import free_port
from streams.jetstream.broker_accounts import READER
from streams.jetstream.broker_inspection import BrokerInspection
from streams.jetstream.jetstream_log import JetStreamLog

BLOCK_SIZES = (64, 16)
PROMPT_TOKENS = 2000
OUTPUT_TOKENS = 100
PREFIXES = 64
WORKERS = 8
CAPACITY_TOKENS = 64 * PROMPT_TOKENS
"""Of each worker's cache."""
REQUESTS_PER_WORKER_S = 10
PACED = (10, 100)
"""Requests per second that are measured; what lies above is reckoned from the last one."""
SHOWN = (10, 100, 1000)
WARM_UP_REQUESTS = 300
"""At a time, until caches are full."""
WARM_UPS_MAX = 30
FULL = 0.95
"""Of each worker's blocks: the rest is what requests that run will need."""
RUN_S, RUN_QUICK_S = 20.0, 3.0
REPORTS_PER_S = 4
"""Load reports of a busy worker."""
START_S = 120.0
END_S = 60.0
AT_ONCE_MAX = 256
VOCAB = (16, 4096)
DAY_S = 86_400
GB = 1e9
KINDS = ("kv", ROUTING, LOAD)


class Grown(NamedTuple):
    """Bytes that the streams grew by during so many requests."""

    requests: int
    seconds: float
    bytes: dict[str, int]
    messages: dict[str, int]

    def per_request(self, kind: str) -> float:
        """Bytes."""
        return self.bytes[kind] / self.requests

    @property
    def per_report(self) -> float:
        """Bytes of one load report."""
        return self.bytes[LOAD] / max(self.messages[LOAD], 1)


class Sizes(NamedTuple):
    """Of one block size."""

    block_size: int
    grown: dict[int, Grown]
    """By requests per second."""
    snapshot_bytes_per_block: float

    def gb_per_day(self, kind: str, rate: int) -> float:
        """Bytes of the stream per day at so many requests per second."""
        measured = self.grown[max(paced for paced in self.grown if paced <= rate)]
        if kind == LOAD:
            workers = max(rate / REQUESTS_PER_WORKER_S, 1)
            return measured.per_report * REPORTS_PER_S * workers * DAY_S / GB
        return measured.per_request(kind) * rate * DAY_S / GB


def measure(options: argparse.Namespace) -> Iterable[Figure]:
    """The figures of each block size; then the table for docs/benchmarks.md."""
    found = []
    for block_size in BLOCK_SIZES:
        sizes = asyncio.run(_measured(block_size, RUN_QUICK_S if options.quick else RUN_S))
        found.append(sizes)
        yield from _figures(sizes)
    print("\n" + markdown(found) + "\n")


def markdown(found: list[Sizes]) -> str:
    """GB per day of each stream."""
    heads = [f"{rate:,} requests/s" for rate in SHOWN]
    lines = [f"| GB per day | tokens per block | {' | '.join(heads)} |", "|---|--:|" + "--:|" * len(SHOWN)]
    for sizes in found:
        for kind in KINDS:
            cells = " | ".join(f"{sizes.gb_per_day(kind, rate):,.2f}" for rate in SHOWN)
            lines.append(f"| {kind} | {sizes.block_size} | {cells} |")
        total = " | ".join(f"{sum(sizes.gb_per_day(kind, rate) for kind in KINDS):,.2f}" for rate in SHOWN)
        lines.append(f"| **all** | {sizes.block_size} | {total} |")
    return "\n".join(lines)


def _figures(sizes: Sizes) -> Iterable[Figure]:
    of = f"{sizes.block_size} tokens per block"
    for rate, grown in sizes.grown.items():
        for kind in ("kv", ROUTING):
            note = f"{grown.messages[kind] / grown.requests:.2f} messages per request"
            yield Figure(f"{kind}, {of}, {rate} requests/s", grown.per_request(kind), "B/request", note=note)
        yield Figure(f"{LOAD}, {of}, {rate} requests/s", grown.per_report, "B/report")
    yield Figure(f"snapshot, {of}", sizes.snapshot_bytes_per_block, "B/block", note="per block of a worker")
    for rate in SHOWN:
        yield Figure(f"all streams, {of}, {rate} requests/s", sum(sizes.gb_per_day(k, rate) for k in KINDS), "GB/day")


async def _measured(block_size: int, run_s: float) -> Sizes:
    with tempfile.TemporaryDirectory() as folder:
        data, port = Path(folder) / "data", free_port()
        process = _start(Path(folder), data, port, block_size)
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
                await until_ready(http, process)
                connection = find_by_data_folder(data)
                await _fill(http, connection, CAPACITY_TOKENS // block_size)
                grown = {rate: await _grown(http, connection, rate, run_s) for rate in PACED}
            return Sizes(block_size, grown, _snapshot_bytes_per_block(await _folded(connection)))
        finally:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _start(folder: Path, data: Path, port: int, block_size: int) -> subprocess.Popen[bytes]:
    """`contrail up` on a deployment of its own."""
    engine_args = {
        "block_size": block_size,
        "capacity_blocks": CAPACITY_TOKENS // block_size,
        "prefill_us_per_token": 1,
        "decode_us_per_step": 500,
        "eos_every": 0,
    }
    group = {"name": "decode", "model": "sim", "count": WORKERS, "engine": "simulated", "engine_args": engine_args}
    file = folder / "size.yaml"
    file.write_text(json.dumps({"version": 1, "log": {"max_bytes": "1GiB"}, "workers": [group]}))
    words = ["up", "-f", str(file), "--data", str(data), "--port", str(port)]
    command = [sys.executable, "-P", "-m", "api.cli", *words]
    with (folder / "up.log").open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)


async def until_ready(http: httpx.AsyncClient, process: subprocess.Popen[bytes]) -> None:
    """The deployment serves a model; the program ends with a clear line if it does not start."""
    async with asyncio.timeout(START_S):
        while True:
            if process.poll() is not None:
                sys.exit("contrail up ended at once: start it by hand to see why")
            try:
                answer = await http.get("/v1/models")
                if answer.status_code == 200 and answer.json()["data"]:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.1)


async def _fill(http: httpx.AsyncClient, connection: DeploymentRef, capacity: int) -> None:
    """Requests until every worker's cache is full, so that from now on old blocks go as new ones come."""
    for turn in range(WARM_UPS_MAX):
        await _load(http, PACED[-1], WARM_UP_REQUESTS, f"warm-up {turn}")
        state = await _folded(connection)
        held = [state.index.blocks(member.worker) for member in state.alive()]
        if len(held) == WORKERS and min(held) >= FULL * capacity:
            return
    sys.exit(f"after {WARM_UPS_MAX * WARM_UP_REQUESTS} requests caches were not full: {held} of {capacity} blocks")


async def _load(http: httpx.AsyncClient, rate: int, requests: int, seed: str) -> None:
    """So many requests are sent at that rate, without waiting for earlier ones, and all are answered."""
    rng = random.Random(seed)
    prefixes = [_tokens(random.Random(number), PROMPT_TOKENS // 2) for number in range(PREFIXES)]
    turns = asyncio.Semaphore(AT_ONCE_MAX)

    async def ask(tokens: list[int]) -> None:
        async with turns:
            body = {"model": "sim", "prompt": tokens, "max_tokens": OUTPUT_TOKENS, "temperature": 0}
            (await http.post("/v1/completions", json=body)).raise_for_status()

    started_s, tasks = time.monotonic(), []
    for number in range(requests):
        await asyncio.sleep(max(started_s + number / rate - time.monotonic(), 0))
        tokens = rng.choice(prefixes) + _tokens(rng, PROMPT_TOKENS - PROMPT_TOKENS // 2)
        tasks.append(asyncio.create_task(ask(tokens)))
    await asyncio.gather(*tasks)


async def _grown(http: httpx.AsyncClient, connection: DeploymentRef, rate: int, run_s: float) -> Grown:
    before, started_s = await _held(connection), time.monotonic()
    requests = round(rate * run_s)
    await _load(http, rate, requests, f"measured at {rate}")
    await asyncio.sleep(1)  # the last words
    after = await _held(connection)
    bytes_ = {kind: after[kind][0] - before[kind][0] for kind in KINDS}
    messages = {kind: after[kind][1] - before[kind][1] for kind in KINDS}
    return Grown(requests, time.monotonic() - started_s, bytes_, messages)


async def _held(connection: DeploymentRef) -> dict[str, tuple[int, int]]:
    """Bytes and messages by kind of stream: of those that grow with requests. There are no prefill jobs here."""
    held = dict.fromkeys(KINDS, (0, 0))
    async with BrokerInspection(connection.nats, connection.nats_credentials(READER), connection.namespace) as broker:
        for stream in await broker.streams():
            if (kind := _kind(stream.name)) in held:
                held[kind] = (held[kind][0] + stream.bytes, held[kind][1] + stream.messages)
    return held


async def _folded(connection: DeploymentRef) -> State:
    """The whole log."""
    log = await JetStreamLog.connect(
        connection.nats, connection.namespace, connection.topology, connection.nats_credentials(READER)
    )
    try:
        return (await rebuild(log, connection.key.chain_key, None)).state
    finally:
        await log.close()


def _snapshot_bytes_per_block(state: State) -> float:
    blocks = sum(state.index.blocks(member.worker) for member in state.alive())
    return sum(map(len, encode(state))) / max(blocks, 1)


def _kind(stream: StreamName) -> str:
    return "kv" if is_kv(stream) else stream


def _tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(*VOCAB) for _ in range(count)]


if __name__ == "__main__":
    main("size", measure)
