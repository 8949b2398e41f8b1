"""A deployment as a user has it: `contrail up` in a process of its own, and what one does with it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai

from actors.transport.handshake import NO_LINK_OPTIONS
from actors.transport.reconnecting_client import ReconnectingClient
from api.config.deployment_ref import DeploymentRef, find_by_data_folder
from core.clock import SystemClock
from core.codec import decode_message
from core.ids import StreamName, StreamSeq, WorkerId
from core.prompt import hashes_from_bytes
from projections.folds.state import State
from streams.jetstream.broker_accounts import ADMIN
from streams.jetstream.jetstream_log import JetStreamLog
from tests.fixtures.eventually import eventually
from tests.fixtures.own_ports import own_port
from tests.fixtures.tiny_folder import give_tiny_model

CONTRAIL = (sys.executable, "-P", "-m", "api.cli")
READY_S = 240.0
COMPARISONS_MAX = 10


def contrail(*words: str, timeout_s: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    """One command, to its end."""
    env = {**os.environ, **environment}
    return subprocess.run([*CONTRAIL, *words], capture_output=True, text=True, timeout=timeout_s, env=env, check=False)


class Running:
    """One `contrail up`, ready."""

    def __init__(self, data: Path, process: subprocess.Popen[bytes], port: int) -> None:
        self.data = data
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self.openai = openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def run(self) -> dict[str, Any]:
        """run.json."""
        found: dict[str, Any] = json.loads((self.data / "run.json").read_bytes())
        return found

    def part(self, name: str) -> dict[str, Any]:
        """The part's entry in run.json; LookupError while there is none: it is being started again."""
        found = next((part for part in self.run()["parts"] if part["name"] == name), None)
        if found is None:
            raise LookupError(f"{name} is not in run.json")
        return dict(found)

    def get(self, address: str, path: str) -> Any:
        """JSON from an operations listener."""
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            return json.load(answer)

    def state(self, name: str) -> dict[str, Any]:
        """What the part says of itself."""
        found: dict[str, Any] = self.get(self.part(name)["ops"], "/state")
        return found

    def workers(self) -> dict[str, str]:
        """Id to name of the workers that run.json knows."""
        return {part["id"]: part["name"] for part in self.run()["parts"] if part["kind"] == "worker"}

    @property
    def connection(self) -> DeploymentRef:
        return find_by_data_folder(self.data)

    @asynccontextmanager
    async def log(self) -> AsyncIterator[JetStreamLog]:
        """The deployment's log."""
        it = self.connection
        log = await JetStreamLog.connect(it.nats, it.namespace, it.topology, it.nats_credentials(ADMIN))
        try:
            yield log
        finally:
            await log.close()

    async def events(self, stream: str) -> list[Any]:
        """Every event of the stream."""
        async with self.log() as log:
            records = [record async for record in log.read(StreamName(stream), StreamSeq(1))]
        return [event for record in records for event in decode_message(record.payload).events]

    async def folded(self, cursor: dict[str, int]) -> State:
        """The log folded from zero up to there."""
        state = State(self.connection.key.chain_key)
        async with self.log() as log:
            for name, end in cursor.items():
                stream = StreamName(name)
                state.open(stream, (await log.state(stream)).epoch)
                async for record in log.read(stream, StreamSeq(1)):
                    if record.seq > end:
                        break
                    state.apply(stream, record.seq, record.subject, record.payload)
        return state

    async def cache_of(self, worker: str) -> set[int]:
        """The worker's own mirror of its engine's cache, asked over TCP."""
        key, namespace = self.connection.key, self.connection.namespace
        address = next(part["address"] for part in self.run()["parts"] if part["id"] == worker)
        security = NO_LINK_OPTIONS.security(key, namespace, SystemClock())
        link = ReconnectingClient(WorkerId(worker), address, security, lambda: "test", lambda _link: None)
        link.start()
        try:
            await eventually(lambda: link.up, f"a connection to {worker}")
            return set(hashes_from_bytes(await link.cached()))
        finally:
            await link.close()

    async def assert_index_is_cache(self) -> None:
        """The log folded from zero and each worker's mirror hold the same blocks, and the live digest is the fold's.

        An engine may tell of its last step behind the answer: what changed meanwhile is compared again.
        """
        after = await self._caches()
        for _ in range(COMPARISONS_MAX):
            before = after
            await eventually(self._at_rest, "rest")
            live = self.state("frontend-0")
            state = await self.folded(live["cursor"])
            after = await self._caches()
            if after == before:
                break
        assert f"{state.digest:016x}" == live["digest"]
        assert state.incomplete == 0
        assert {worker: state.index.held(WorkerId(worker)) for worker in after} == after

    async def _caches(self) -> dict[str, set[int]]:
        return {worker: await self.cache_of(worker) for worker in self.workers()}

    def _at_rest(self) -> bool:
        parts = [self.state(part["name"]) for part in self.run()["parts"] if part["kind"] in {"worker", "frontend"}]
        return not any(part.get(key) for part in parts for key in ("requests", "waiting", "lag_events", "ahead"))

    async def stop(self) -> int:
        """Ctrl-C; returns the exit status."""
        await self.openai.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return await asyncio.to_thread(self.process.wait, 120)


def start(data: Path, *words: str, port: int | None = None) -> Running:
    """`contrail up` with these words, in a session of its own; `wait_ready` waits for it."""
    port = port or own_port()
    give_tiny_model(data)
    with data.with_suffix(".out").open("wb") as file:
        command = [*CONTRAIL, "up", "--data", str(data), "--port", str(port), *words]
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
    return Running(data, process, port)


async def wait_ready(running: Running) -> None:
    """It serves, or AssertionError with its output."""
    output, process = running.data.with_suffix(".out"), running.process
    await eventually(lambda: process.poll() is not None or b"Ready after" in output.read_bytes(), "readiness", READY_S)
    assert process.poll() is None, output.read_text()


@asynccontextmanager
async def up(data: Path, *words: str, port: int | None = None) -> AsyncIterator[Running]:
    """`contrail up` with these words, ready; it is ended by Ctrl-C and leaves no process behind."""
    running = start(data, *words, port=port)
    try:
        await wait_ready(running)
        yield running
    finally:
        pids = [part["pid"] for part in running.run()["parts"]] if (data / "run.json").exists() else []
        status = await running.stop()
        left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        assert not left, f"processes left behind: {left}"
        assert status == 0, data.with_suffix(".out").read_text()
