"""A disaggregated deployment of real processes whose every part can be killed, stopped for a while and started again.

`contrail up` runs two front ends and one decode worker that is left alone; NATS, etcd and all other workers are ours.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

from actors.disagg.prefill_role import queue_name
from core.subjects import JOBS, asked_wildcard, job_kind
from streams.embedded.embedded_etcd import EmbeddedEtcd
from streams.embedded.embedded_nats import EmbeddedNats
from streams.log import QueueLimits
from tests.chaos.disagg_engines import Judge, Kind, judge_of
from tests.chaos.disagg_jobs import JobsLog
from tests.chaos.disagg_load import DisaggLoad
from tests.chaos.part import Part
from tests.e2e.deployment import Running, up
from tests.fixtures.own_ports import own_port

DECODE, PREFILL = "decode", "prefill"
ANCHOR = "anchor-0"
"""The decode worker that is left alone."""
REPLICAS = 2
"""Front ends."""
MIN_TOKENS = 64
WAIT_MAX_S = 4.0
"""The deadline of a job."""
ROUTING = {
    "policy": "kv",
    "remote_prefill_min_tokens": MIN_TOKENS,
    "prefill_queue_max": 64,
    "prefill_wait_max_ms": int(WAIT_MAX_S * 1000),
}
ACK_WAIT_S = 2.0
"""After so long the queue hands a job out again that nobody speaks for: less than usual, so that it happens often."""
LINKED_S = 60.0
LOOK_S = 0.05
PAUSE_S = 2.4
"""A client's pause between two requests, on average."""


BLOCK_SIZE = 32
"""Both engines' own default."""


class Worker(Part):
    """One that is ours to kill."""

    def __init__(
        self, role: str, port: int, name: str, log: Path, words: list[str], environment: dict[str, str]
    ) -> None:
        super().__init__(name, log, words, environment)
        self.role = role
        self.port = port
        """Where its blocks are fetched."""
        self.id = ""
        """As whom the log knows it, as far as we heard."""
        self.lives = True

    def launch(self) -> None:
        """Its process runs; nothing is waited for."""
        self._process = self._spawn()

    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        super().kill()
        self.lives = False

    def freeze(self) -> None:
        """Nothing of it moves, and all its connections stay."""
        os.killpg(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on as if nothing had been."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGCONT)

    async def ended(self, within_s: float) -> int:
        """Its exit status, when it has ended by itself."""
        assert self._process is not None
        return await asyncio.to_thread(self._process.wait, within_s)

    def clear(self) -> None:
        """Nothing that it started is left either."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGCONT)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    @property
    def said(self) -> str:
        """All that it has written."""
        return self._log.read_text()


class Site:
    """The parts, and who watches them."""

    def __init__(self, folder: Path, kind: Kind, seed: int) -> None:
        self.kind = kind
        self.nats = EmbeddedNats(folder / "nats")
        self.etcd = EmbeddedEtcd(folder / "etcd")
        self.jobs = JobsLog()
        self.judge: Judge = judge_of(kind)
        self.random = Random(f"{seed}/site")
        self.running: Running
        self.load: DisaggLoad
        self.all: list[Worker] = []
        """Also those that are gone."""
        self._folder = folder
        self._seed = seed

    @property
    def model(self) -> Path:
        """The folder of the built-in model."""
        return self.running.data / "models" / "tiny"

    def label(self, fault: str) -> None:
        """What is counted from now on is counted for this fault."""
        self.load.label = self.jobs.label = fault

    def workers(self, role: str) -> list[Worker]:
        """Ours that live."""
        return [worker for worker in self.all if worker.role == role and worker.lives]

    def file(self) -> Path:
        """The deployment file."""
        nats, etcd = self.nats.credentials, self.etcd.credentials
        log: dict[str, Any] = {"nats": [self.nats.url], "etcd": [self.etcd.endpoint], "max_bytes": "1GiB"}
        log |= {"credentials": {"nkey": str(nats.nkey_file)}}
        log |= {"etcd_credentials": {"user": etcd.user, "password": etcd.password}}
        anchor = {"name": "anchor", "count": 1, "engine": self.kind.name, "remote_prefill": True}
        file = self._folder / "disagg.yaml"
        front = {"replicas": REPLICAS}
        workers = [{**anchor, "engine_args": self.kind.args}]
        wanted = {"version": 1, "log": log, "frontend": front, "workers": workers, "routing": ROUTING}
        file.write_text(json.dumps(wanted))
        return file

    def make(self, role: str, port: int = 0, **args: Any) -> Worker:
        """A worker that is not started; `args` are added to its engine's."""
        name = f"{role}-{len(self.all)}"
        port = port or own_port()
        more = self.kind.prefill_args if role == PREFILL else {}
        engine_args, environment = self.kind.words({**self.kind.args, **more, **args}, port)
        words = ["prefill-worker"] if role == PREFILL else ["worker", "--remote-prefill"]
        words += ["--data", str(self.running.data), "--name", name, "--model", "tiny"]
        words += ["--model-path", str(self.model), "--engine", self.kind.name]
        words += ["--engine-args", json.dumps(engine_args)]
        log = self.running.data / "logs" / f"{name}.log"
        worker = Worker(role, port, name, log, words, {"GRPC_ENABLE_FORK_SUPPORT": "0", **environment})
        worker.ready_s = self.kind.start_s
        self.all.append(worker)
        return worker

    async def whole(self) -> None:
        """As many workers as there should be, and every decode worker can ask every prefill worker."""
        lacking = [PREFILL] * (self.kind.prefill - len(self.workers(PREFILL)))
        lacking += [DECODE] * (self.kind.decode - len(self.workers(DECODE)))
        await asyncio.gather(*(self.make(role).start() for role in lacking))
        async with asyncio.timeout(LINKED_S):
            while not await asyncio.to_thread(self._linked):
                await asyncio.sleep(LOOK_S)

    async def mend(self) -> None:
        """Servers run, and no worker is stopped: for the next fault after one that went wrong."""
        for worker in self.all:
            if worker.lives:
                worker.thaw()
        for server in (self.nats, self.etcd):
            if not server.running:
                await server.start()

    async def pulled_more(self) -> None:
        """A prompt was computed elsewhere once more."""
        wanted = self.jobs.pulled + 1
        await self.jobs.until(lambda: self.jobs.pulled >= wanted, "a prompt that another computed", LINKED_S)

    def states(self) -> dict[str, dict[str, Any]]:
        """What every worker says of itself, by name."""
        found = {worker.name: worker.state() for worker in self.all if worker.lives}
        return found | {ANCHOR: self.running.state(ANCHOR)}

    def metric(self, ops: str, name: str) -> float:
        """A gauge of a worker; LookupError if it tells of none."""
        with urllib.request.urlopen(f"http://{ops}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        line = next((line for line in lines if line.startswith(name)), None)
        if line is None:
            raise LookupError(f"{ops} tells of no {name}")
        return float(line.rpartition(" ")[2])

    def ops(self) -> dict[str, str]:
        """Where workers answer about themselves, by name."""
        found = {worker.name: worker.ops for worker in self.all if worker.lives}
        return found | {ANCHOR: str(self.running.part(ANCHOR)["ops"])}

    def _linked(self) -> bool:
        try:
            states = self.states()
        except (OSError, LookupError):  # or it is being started again
            return False
        for worker in self.all:
            if worker.lives:
                worker.id = states[worker.name]["worker"] or ""
        wanted = {worker.id for worker in self.workers(PREFILL)}
        return all(set(state["prefill"]["prefill_workers"]) == wanted for state in states.values() if _decodes(state))


def _decodes(state: dict[str, Any]) -> bool:
    return bool(state["role"] == DECODE)


@asynccontextmanager
async def site_of(folder: Path, kind: Kind, seed: int) -> AsyncIterator[Site]:
    """All of it, whole; nobody asks anything yet."""
    site = Site(folder, kind, seed)
    try:
        await site.nats.start()
        await site.etcd.start()
        async with up(folder / "data", "-f", str(site.file())) as site.running:
            await site.judge.start(site.model)
            await _settle_the_queue(site.running)
            site.load = DisaggLoad(site.running.url, seed, site.judge, kind.clients, PAUSE_S)
            await site.jobs.start(site.running)
            try:
                await site.whole()
                yield site
            finally:
                await site.jobs.stop()
                await site.judge.stop()
                for worker in site.all:
                    worker.clear()
    finally:
        await site.etcd.stop()
        await site.nats.stop()


async def _settle_the_queue(running: Running) -> None:
    """The queue is there with our bounds: the first who opens it settles them."""
    async with running.log() as log:
        kind = job_kind("tiny", BLOCK_SIZE)
        wildcard = asked_wildcard(running.connection.namespace, kind)
        queue = await log.queue(JOBS, queue_name(kind), wildcard, QueueLimits(ack_wait_s=ACK_WAIT_S))
        await queue.next(0.1)
        await queue.close()
