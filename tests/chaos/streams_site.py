"""A deployment whose workers are killed, stopped and drained while answers stream: real processes, real NATS and etcd.

`contrail up` runs NATS, etcd, two front ends, and a worker of another model that nobody asks; the others are ours.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from actors.worker.engine_watchdog import ENGINE_STALL_S
from tests.chaos.disagg_engines import Kind
from tests.chaos.disagg_site import DECODE, Worker
from tests.chaos.processes import rss_bytes
from tests.e2e.deployment import Running, up
from tests.fixtures.eventually import eventually

REPLICAS = 2
"""Front ends, behind one port."""
MODEL, UNUSED = "tiny", "unused"
SEEN_S = 60.0
"""How long it may take until both front ends can use all workers."""
IDLE_S = 60.0
"""How long it may take until nothing is left of requests that are over."""
AGAIN_S = 1.0
"""A worker that drains is told a second time after so long."""
END_S = 60.0
"""How long a worker may take to end that was told to, or to come in place of another."""
BUSY_S = 60.0
"""How long it may take until a worker answers somebody while streams are asked for all the time."""
BUSY_LOOK_S = 0.05
HANG_FOUND_S = 2 * ENGINE_STALL_S
BUSY = {"frontend": ("in_flight", "ahead"), "worker": ("requests",)}
"""What of a state must be zero when nobody asks."""


class StreamSite:
    """The parts. `args` are the engines' arguments."""

    def __init__(self, running: Running, kind: Kind, args: dict[str, Any], workers: int, seed: int) -> None:
        self.running = running
        self.kind = kind
        self.workers: list[Worker] = []
        """Those that run, stopped ones included."""
        self.stopped: set[str] = set()
        """Of these, by name."""
        self.random = Random(f"{seed}/streams")
        self._args = args
        self._wanted = workers
        self._all: list[Worker] = []

    @property
    def model(self) -> Path:
        """The folder of the built-in model."""
        return self.running.data / "models" / "tiny"

    @property
    def well(self) -> list[Worker]:
        """Workers that run and are not stopped."""
        return [worker for worker in self.workers if worker.name not in self.stopped]

    async def busy(self) -> tuple[Worker, int]:
        """One of the workers that are well and answer somebody, and how many requests it has."""
        async with asyncio.timeout(BUSY_S):
            while True:
                well = self.well
                requests = await asyncio.gather(*(asyncio.to_thread(_requests, worker) for worker in well))
                busy = [pair for pair in zip(well, requests, strict=True) if pair[1] and pair[0] in self.well]
                if busy:
                    return self.random.choice(busy)
                await asyncio.sleep(BUSY_LOOK_S)

    async def whole(self) -> None:
        """As many workers as there should be, and both front ends can use them."""
        await asyncio.gather(*(self._start() for _ in range(self._wanted - len(self.workers))))
        await eventually(self._seen, "workers that both front ends can use", SEEN_S)

    async def killed(self, worker: Worker) -> None:
        """It is gone without a word, and another takes its place."""
        self.workers.remove(worker)
        worker.kill()
        worker.clear()
        await self._start()

    async def slept(self, worker: Worker, for_s: float) -> None:
        """It was stopped for so long, and goes on as if nothing had been."""
        self.stopped.add(worker.name)
        worker.freeze()
        await asyncio.sleep(for_s)
        worker.thaw()
        self.stopped.discard(worker.name)

    async def engine_harmed(self, worker: Worker, how: signal.Signals) -> None:
        """Its engine is stopped or gone, and it answers as before: it finds that out and ends; another follows."""
        engines = _children(worker.pid, "VLLM::Engine")
        assert engines, "only a real engine has a process that can be harmed alone"
        for pid in engines:
            os.kill(pid, how)
        self.workers.remove(worker)
        status = await worker.ended(HANG_FOUND_S)
        worker.clear()
        assert status == 1, worker.said[-2000:]
        await self._start()

    async def drained(self, worker: Worker) -> None:
        """It was told to end, and soon told again; another takes its place."""
        self.workers.remove(worker)
        os.kill(worker.pid, signal.SIGTERM)
        await asyncio.sleep(AGAIN_S)
        if worker.alive():
            os.kill(worker.pid, signal.SIGTERM)
        status = await worker.ended(END_S)
        worker.clear()
        assert status == 0, worker.said[-2000:]
        await self._start()

    async def all_killed(self) -> None:
        """Nobody is left to go on with anything."""
        gone, self.workers = self.workers, []
        for worker in gone:
            worker.kill()
            worker.clear()

    async def idle(self) -> list[str]:
        """What is left of requests though nobody asks, when all have had the time; empty if nothing is."""
        left: list[str] = ["not looked at"]

        def look() -> bool:
            try:
                left[:] = self._left()
            except OSError as error:
                left[:] = [f"cannot be asked: {error!r}"]
            return not left

        try:
            await eventually(look, "idleness", IDLE_S)
        except AssertionError:
            return left
        return []

    async def in_flight(self) -> list[str]:
        """Requests that the log itself holds for unfinished, folded from its start."""
        state = await self.running.folded(self.running.state(self._fronts()[0])["cursor"])
        flying = {part.replica: sorted(part.in_flight) for part in state.routing.replicas.values() if part.in_flight}
        return [f"the log has requests of {replica} in flight: {keys[:5]}" for replica, keys in flying.items()]

    def memory(self) -> dict[str, int]:
        """Bytes in memory of front ends and workers, by name."""
        parts = {part["name"]: part["pid"] for part in self.running.run()["parts"] if part["kind"] == "frontend"}
        parts |= {worker.name: worker.pid for worker in self.workers}
        return {name: rss_bytes(pid) for name, pid in parts.items()}

    def clear(self) -> None:
        """No worker of ours is left."""
        for worker in self._all:
            worker.clear()

    def _left(self) -> list[str]:
        states = {("frontend", name): self.running.state(name) for name in self._fronts()}
        states |= {("worker", worker.name): worker.state() for worker in self.workers}
        found = []
        for (kind, name), state in states.items():
            busy = {key: state[key] for key in BUSY[kind] if state.get(key)}
            found += [f"{name}: {busy}"] if busy else []
        for worker in self.workers:
            for number in ("running", "waiting", "blocks_used"):
                value = self._metric(worker, f"contrail_worker_{number}")
                found += [f"{worker.name}: {number} {value:g}"] if value else []
        return found

    def _metric(self, worker: Worker, name: str) -> float:
        lines = [line for line in self._metrics(worker) if line.startswith((name + "{", name + " "))]
        return float(lines[0].rpartition(" ")[2]) if lines else 0.0

    def _metrics(self, worker: Worker) -> list[str]:
        with urllib.request.urlopen(f"http://{worker.ops}/metrics", timeout=10) as answer:
            return str(answer.read().decode()).splitlines()

    def _fronts(self) -> list[str]:
        return [part["name"] for part in self.running.run()["parts"] if part["kind"] == "frontend"]

    def _seen(self) -> bool:
        try:
            names = [worker.state()["worker"] for worker in self.workers]
            states = [self.running.state(name) for name in self._fronts()]
        except OSError:
            return False
        return all(set(names) <= set(state["workers"]) for state in states)

    async def _start(self) -> None:
        name = f"{DECODE}-{len(self._all)}"
        words = ["worker", "--data", str(self.running.data), "--name", name, "--model", MODEL]
        words += ["--model-path", str(self.model), "--engine", self.kind.name]
        words += ["--engine-args", json.dumps(self._args)]
        log = self.running.data / "logs" / f"{name}.log"
        worker = Worker(DECODE, 0, name, log, words, {"GRPC_ENABLE_FORK_SUPPORT": "0"})
        worker.ready_s = self.kind.start_s
        self._all.append(worker)
        await worker.start()
        self.workers.append(worker)


def _requests(worker: Worker) -> int:
    """How many it has in flight, in its own words."""
    try:
        return int(worker.state()["requests"])
    except OSError:
        return 0  # it ends


def _children(pid: int, name: str) -> list[int]:
    """Processes of that name that this one has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            comm, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if comm.startswith(name) and int(rest.split()[1]) == pid:
            found.append(int(folder.name))
    return found


@asynccontextmanager
async def stream_site(
    folder: Path, kind: Kind, args: dict[str, Any], workers: int, seed: int
) -> AsyncIterator[StreamSite]:
    """All of it, whole."""
    file = folder / "streams.yaml"
    group = {"name": UNUSED, "served_name": UNUSED, "count": 1, "engine": "simulated"}
    file.write_text(json.dumps({"version": 1, "frontend": {"replicas": REPLICAS}, "workers": [group]}))
    async with up(folder / "data", "-f", str(file)) as running:
        site = StreamSite(running, kind, args, workers, seed)
        try:
            await site.whole()
            yield site
        finally:
            site.clear()
