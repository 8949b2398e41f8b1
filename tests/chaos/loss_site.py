"""A deployment whose log can be harmed: NATS and disk are the test's own, two front ends and two simulated workers are
`contrail up`'s; and the questions that an operator asks afterwards."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from core.events import RequestRouted
from core.ids import StreamName
from core.subjects import ROUTING, broker_stream
from streams.embedded.embedded_nats import EmbeddedNats
from streams.jetstream.broker_accounts import ADMIN, account_of
from streams.jetstream.nats_client import NatsClient
from tests.chaos.broker import Broker
from tests.chaos.load import Load
from tests.e2e.deployment import Running, contrail, up

REPLICAS = WORKERS = 2
RATE, CLIENTS = 25.0, 8
OUTPUT_TOKENS = (4, 8, 16)
ENGINE_ARGS = {"capacity_blocks": 256, "eos_every": 0}
ASK_S = 120.0


class LossSite:
    """NATS, and a `contrail up` that may be stopped and started again."""

    def __init__(self, folder: Path, disk: Path, log: dict[str, Any]) -> None:
        """`disk` has the folders of NATS and of the deployment; `log` are further settings of the log."""
        self.folder = folder
        self.disk = disk
        self.store = store = disk / "nats"
        self.nats = EmbeddedNats(store, namespace="default", store_bytes_max=8 * 1024**3)
        self._log = log
        self._up = AsyncExitStack()
        self._running: Running | None = None
        self._load: Load | None = None
        self.answered: list[str] = []
        """Requests whose answer came whole, known once there is no load."""

    @property
    def running(self) -> Running:
        """The deployment that runs."""
        assert self._running is not None
        return self._running

    async def start(self) -> None:
        """Ready, and under load."""
        if self._running is None:
            file = self.folder / "loss.yaml"
            access = {"nkey": str(self.nats.credentials.nkey_file)}
            log = {"nats": [self.nats.url], "credentials": access, "max_bytes": "1GiB", **self._log}
            workers = [{"engine": "simulated", "count": WORKERS, "engine_args": ENGINE_ARGS}]
            parts = {"frontend": {"replicas": REPLICAS}, "workers": workers}
            file.write_text(json.dumps({"version": 1, "log": log, **parts}))
            self._running = await self._up.enter_async_context(up(self.disk / "data", "-f", str(file)))
        host, _, port = self.running.url.removeprefix("http://").rpartition(":")
        self._load = Load(host, int(port), 1, CLIENTS, RATE, OUTPUT_TOKENS)

    async def rest(self) -> None:
        """No request is under way."""
        if self._load is not None:
            load, self._load = self._load, None
            await load.stop()
            self.answered += load.answered()

    async def stop(self) -> None:
        """The deployment is stopped; NATS is not."""
        await self.rest()
        self._running = None
        await self._up.aclose()

    @asynccontextmanager
    async def broker(self) -> AsyncIterator[Broker]:
        """The broker's own API, with the rights of its owner."""
        connection = NatsClient([self.nats.url], self.nats.credentials, "contrail tests")
        await connection.open()
        try:
            yield Broker(connection, "default")
        finally:
            await connection.close()

    async def state(self, stream: str) -> dict[str, Any]:
        """The stream's extent in the broker's words."""
        async with self.broker() as broker:
            found: dict[str, Any] = (await broker.call("STREAM.INFO", stream))["state"]
            return found

    def stream_folder(self, stream: str) -> Path:
        """The stream's files."""
        return self.streams_folder / broker_stream("default", StreamName(stream))

    @property
    def streams_folder(self) -> Path:
        """The files of all streams."""
        return self.store / "jetstream" / account_of(ADMIN) / "streams"

    async def copy_store(self) -> Path:
        """A copy of all streams, as they are now, made while NATS was stopped for a moment."""
        await self.nats.stop()
        copy = self.folder / "copy"
        shutil.copytree(self.streams_folder, copy)
        await self.nats.start()
        return copy

    async def roll_back(self, copy: Path, *streams: str) -> None:
        """These streams, or all, are as they were in the copy."""
        await self.nats.stop()
        names = [broker_stream("default", StreamName(it)) for it in streams] or [it.name for it in copy.iterdir()]
        for name in names:
            shutil.rmtree(self.streams_folder / name)
            shutil.copytree(copy / name, self.streams_folder / name)
        await self.nats.start()

    # --- what an operator asks -----------------------------------------------------------------------------------

    async def ask(self, *words: str) -> Any:
        """The command's JSON."""
        more = ("--data", str(self.running.data), "--json")
        done = await asyncio.to_thread(contrail, *words, *more, timeout_s=ASK_S)
        try:
            return json.loads(done.stdout)
        except ValueError:
            return {"error": done.stderr.strip()[-1000:] or f"exit status {done.returncode}"}

    async def undecided(self) -> int:
        """Answered requests without a decision in the log."""
        routed = {event.request for event in await self.running.events(ROUTING) if isinstance(event, RequestRouted)}
        return len(set(self.answered) - routed)


@asynccontextmanager
async def loss_site(folder: Path, disk: Path, **log: Any) -> AsyncIterator[LossSite]:
    """Ready and under load; nothing is left of it."""
    site = LossSite(folder, disk, log)
    await site.nats.start()
    try:
        await site.start()
        yield site
    finally:
        await site.stop()
        await site.nats.stop()
