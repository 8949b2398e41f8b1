"""lag: from an event that happens at a worker to its effect in the fold of every replica.

Workers put cache events into their outboxes at a steady pace; replicas are processes of their own, each with the
runner of a front end. An event carries the time when it was put as one of its hashes, and a replica takes the time
again when it has folded it: the clock is the machine's monotonic one, the same for all processes. All of them, and
the broker, share this machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import uvloop

from bench.figures import MICRO, Figure, main
from core.clock import SystemClock
from core.events import BlocksStored, WorkerJoined
from core.ids import SourceId, new_id
from core.subjects import kv_stream, subject
from projections.folds.state import Applied, State
from projections.runner.runner import Runner
from streams.embedded.embedded_nats import EmbeddedNats
from streams.jetstream.jetstream_log import JetStreamLog
from streams.jetstream.nats_credentials import NatsCredentials
from streams.outbox.outbox import Outbox
from streams.topology import Topology

NAMESPACE = "bench"
CHAIN_KEY = bytes(32)
KV = kv_stream(0)
TOPOLOGY = Topology(max_bytes=4 * 10**9)
REPLICAS = (1, 2, 8)
WORKERS = 8
EVENTS_PER_S = 2_000
BLOCKS = 4
"""Blocks in one event."""
WARM_UP_S, MEASURED_S, MEASURED_QUICK_S = 1.0, 10.0, 2.0
READY = b"ready\n"
READY_S, RESULT_S = 30.0, 60.0
NS_PER_MS = 1e6
JOINED = WorkerJoined(
    name="w", model="m", role="decode", engine="none", block_size=64, capacity_blocks=1, context_max=1, address="-"
)


class Lags:
    """Time until each event was folded, from a certain time on."""

    def __init__(self) -> None:
        self.ns = array("q")
        self.messages = 0

    def note(self, applied: Applied) -> None:
        """Each event's first hash is the time when it was put."""
        now_ns = time.monotonic_ns()
        self.messages += 1
        for event in applied.message.events:
            if isinstance(event, BlocksStored):
                self.ns.append(now_ns - int.from_bytes(event.hashes[:8], "little"))

    def summary(self, skip: int) -> dict[str, Any]:
        """Without the first events, which warm up."""
        sorted_ns = sorted(self.ns[skip:])
        at = {part: sorted_ns[int(len(sorted_ns) * part)] / NS_PER_MS for part in (0.5, 0.99)}
        return {"p50_ms": at[0.5], "p99_ms": at[0.99], "events": len(self.ns)}


async def replica() -> None:
    """Reads the log's address from standard input, folds until the next line, and prints its measurements."""
    given = json.loads(sys.stdin.readline())
    credentials = NatsCredentials(nkey_file=Path(given["nkey"]))
    log = await JetStreamLog.connect([given["url"]], NAMESPACE, TOPOLOGY, credentials)
    lags = Lags()
    runner = Runner(log, State(CHAIN_KEY), lags.note)
    runner.start()
    while not runner.caught_up:  # noqa: ASYNC110 - it has no event to wait for
        await asyncio.sleep(0.01)
    cpu_s = time.process_time()
    print(READY.decode(), end="", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    cpu_us = (time.process_time() - cpu_s) / max(lags.messages, 1) * MICRO
    found = lags.summary(given["skip"]) | {"cpu_us_per_message": cpu_us, "digest": runner.state.digest}
    await runner.stop()
    await log.close()
    print(json.dumps(found), flush=True)


class Replica:
    """A replica's process."""

    def __init__(self, server: EmbeddedNats, skip: int) -> None:
        command = [sys.executable, "-m", "bench.lag", "replica"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._send({"url": server.url, "nkey": str(server.credentials.nkey_file), "skip": skip})

    async def ready(self) -> None:
        """It has folded what is there. The program ends if it does not say so within READY_S."""
        line = await self._receive("ready", READY_S)
        if line != READY:
            sys.exit(f"a replica says {line!r}, not that it is ready")

    async def result(self) -> dict[str, Any]:
        """The measurements of the replica; the program ends if that takes longer than RESULT_S."""
        self._send("end")
        found: dict[str, Any] = json.loads(await self._receive("done", RESULT_S))
        return found

    def kill(self) -> None:
        """It is gone, if it was not."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # it did not read all
                    pipe.close()

    def _send(self, what: object) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # one that is gone says nothing, and that is noticed
            self._process.stdin.write(json.dumps(what).encode() + b"\n")
            self._process.stdin.flush()

    async def _receive(self, what: str, within_s: float) -> bytes:
        """Its next line; the program ends if there is none."""
        try:
            async with asyncio.timeout(within_s):
                line = await asyncio.to_thread(self._line)
        except TimeoutError:
            self.kill()  # which ends the thread that waits for its line
            sys.exit(f"a replica was not {what} within {within_s:g} s")
        return line or sys.exit(f"a replica ended before it was {what}")

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@asynccontextmanager
async def worker(log: JetStreamLog) -> AsyncIterator[Outbox]:
    """An outbox at work, of a worker that has joined."""
    source = SourceId(new_id())
    written = subject(NAMESPACE, KV, source)
    made = Outbox(log, KV, written, source, CHAIN_KEY, SystemClock(), on_overflow=list, on_superseded=lambda _: None)
    task = asyncio.create_task(made.run())
    made.put(JOINED)
    yield made
    if not await made.drain(10):
        raise RuntimeError(f"not drained: {made!r}")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def put(workers: list[Outbox], count: int) -> None:
    """So many events happen, one at a time, at the workers in turn and at a steady pace."""
    began_s = time.monotonic()
    for number in range(count):
        wait_s = began_s + number / EVENTS_PER_S - time.monotonic()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        first = time.monotonic_ns()
        hashes = b"".join((first + block).to_bytes(8, "little") for block in range(BLOCKS))
        workers[number % len(workers)].put(BlocksStored(hashes=hashes))


async def run(replicas: int, count: int, skip: int) -> list[dict[str, Any]]:
    """The measurements of each replica."""
    async with AsyncExitStack() as stack:
        server = EmbeddedNats(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        await server.start()
        stack.push_async_callback(server.stop)
        log = await JetStreamLog.connect([server.url], NAMESPACE, TOPOLOGY, server.credentials)
        stack.push_async_callback(log.close)
        await log.ensure(TOPOLOGY.names())
        readers = [Replica(server, skip) for _ in range(replicas)]
        for reader in readers:
            stack.callback(reader.kill)
        for reader in readers:
            await reader.ready()
        async with AsyncExitStack() as working:
            await put([await working.enter_async_context(worker(log)) for _ in range(WORKERS)], count)
        await asyncio.sleep(0.5)
        return [await reader.result() for reader in readers]


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    """Lag for each number of replicas: of the replica that was worst."""
    skip = int(WARM_UP_S * EVENTS_PER_S)
    count = skip + int((MEASURED_QUICK_S if options.quick else MEASURED_S) * EVENTS_PER_S)
    for replicas in options.replicas:
        found = uvloop.run(run(replicas, count, skip))
        if any(one["events"] != count for one in found) or len({one["digest"] for one in found}) != 1:
            sys.exit(f"replicas differ, or lack events: {found}")
        what = f"worker to fold, {EVENTS_PER_S} events/s, {replicas} replicas"
        yield Figure(f"{what}: p50", max(one["p50_ms"] for one in found), "ms")
        yield Figure(f"{what}: p99", max(one["p99_ms"] for one in found), "ms")
        cpu_us = max(one["cpu_us_per_message"] for one in found)
        yield Figure(f"{what}: CPU", cpu_us, "us/message", note="of one replica, all it does counted")


def extend(parser: argparse.ArgumentParser) -> None:
    """The option for the numbers of replicas."""
    parser.add_argument("--replicas", type=int, nargs="+", default=REPLICAS, metavar="N", help="runs with N replicas")


if __name__ == "__main__":
    if sys.argv[1:2] == ["replica"]:
        uvloop.run(replica())
    else:
        main("lag", measure, extend)
