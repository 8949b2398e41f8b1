"""A deployment on a NATS and an etcd that the test itself holds, so that it can stop them and change what they hold."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from streams.embedded.embedded_etcd import EmbeddedEtcd
from streams.embedded.embedded_nats import EmbeddedNats
from tests.chaos.load import Load
from tests.chaos.rest import Rest
from tests.e2e.deployment import Running, up
from tests.fixtures.eventually import eventually

ENGINE_ARGS = {"capacity_blocks": 256, "eos_every": 0}
STORE = "jetstream"


class OwnPlanes:
    """The deployment, its servers, and the load on it."""

    def __init__(self, folder: Path, replicas: int, workers: int) -> None:
        self.nats = EmbeddedNats(folder / "nats")
        self.etcd = EmbeddedEtcd(folder / "etcd")
        self.replicas, self.workers = replicas, workers
        self.running: Running
        self.load: Load
        self._folder = folder

    def file(self) -> Path:
        """A deployment file with the addresses of both."""
        nats, etcd = self.nats.credentials, self.etcd.credentials
        log: dict[str, Any] = {"nats": [self.nats.url], "etcd": [self.etcd.endpoint], "max_bytes": "1GiB"}
        log |= {"credentials": {"nkey": str(nats.nkey_file)}}
        log |= {"etcd_credentials": {"user": etcd.user, "password": etcd.password}}
        workers = [{"engine": "simulated", "count": self.workers, "engine_args": ENGINE_ARGS}]
        file = self._folder / "own.yaml"
        front = {"replicas": self.replicas}
        file.write_text(json.dumps({"version": 1, "log": log, "frontend": front, "workers": workers}))
        return file

    async def answered(self, more: int, timeout_s: float = 60) -> None:
        """So many more requests have been answered, and none has failed."""
        enough = len(self.load.answered()) + more
        await eventually(
            lambda: len(self.load.answered()) >= enough or self.load.unmended, f"{more} answers", timeout_s
        )
        assert not self.load.unmended, self.load.unmended[:3]

    async def keep_store(self) -> Path:
        """A copy of the broker's store as it is now; the broker is away for a moment."""
        await self.nats.stop()
        kept = self._folder / "kept"
        shutil.copytree(self._folder / "nats" / STORE, kept)
        await self.nats.start()
        return kept

    async def put_back(self, kept: Path) -> None:
        """The broker's store is the copy again; the broker is away for a moment."""
        await self.nats.stop()
        shutil.rmtree(self._folder / "nats" / STORE)
        kept.rename(self._folder / "nats" / STORE)
        await self.nats.start()

    def blocks_of(self, stream: str) -> list[Path]:
        """The files that hold the stream's messages."""
        return sorted((self._folder / "nats" / STORE).glob(f"**/streams/*_{stream}/msgs/*.blk"))

    async def wipe_etcd(self) -> None:
        """etcd is there again, empty."""
        await self.etcd.stop()
        shutil.rmtree(self._folder / "etcd" / "etcd")
        await self.etcd.start()

    async def assert_whole(self) -> None:
        """The load ended without a failure; all replicas are equal, and are what the log and the caches say."""
        await self.load.stop()
        assert not self.load.unmended, self.load.unmended[:3]
        rest = Rest(self.running, self.replicas, self.workers)
        wrong = await rest.reached() or await rest.fold_differs()
        assert not wrong, wrong


@asynccontextmanager
async def own_planes(folder: Path, *, replicas: int = 2, workers: int = 2) -> AsyncIterator[OwnPlanes]:
    """All of it, under a load that has begun."""
    planes = OwnPlanes(folder, replicas, workers)
    try:
        await planes.nats.start()
        await planes.etcd.start()
        async with up(folder / "data", "-f", str(planes.file())) as planes.running:
            host, _, port = planes.running.url.removeprefix("http://").rpartition(":")
            planes.load = Load(host, int(port), seed=1, clients=16, per_s=25.0)
            try:
                await planes.answered(40)
                yield planes
            finally:
                await planes.load.stop()
    finally:
        await planes.etcd.stop()
        await planes.nats.stop()
