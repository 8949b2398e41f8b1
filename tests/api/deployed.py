"""A deployment as its commands meet it: the real log and registry, and parts that say what a test wants them to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click
import orjson
from click.testing import CliRunner, Result
from prometheus_client import CollectorRegistry

from api.config.deployment_ref import DeploymentRef, find_by_address
from api.process.operations import create_operations_app
from api.server.http_server import HttpServer
from api.server.sockets import bind
from core.ids import new_id
from core.keys import DeploymentKey
from core.readiness import Readiness
from streams.embedded.embedded_etcd import EmbeddedEtcd
from streams.embedded.embedded_nats import EmbeddedNats
from streams.etcd.etcd_registry import EtcdRegistry
from streams.jetstream.jetstream_log import JetStreamLog
from streams.key_check import register_own

DECODE = {
    "role": "decode",
    "model": "tiny",
    "engine": "simulated",
    "block_size": 16,
    "context_max": 4096,
    "address": "127.0.0.1:1",
}


class Deployed:
    """One namespace, with whatever a test registers in it."""

    def __init__(
        self, connection: DeploymentRef, words: tuple[str, ...], log: JetStreamLog, registry: EtcdRegistry
    ) -> None:
        self.connection = connection
        self.words = words
        self.log = log
        self.registry = registry
        self._servers: list[HttpServer] = []

    async def replica(self, name: str, **state: Any) -> dict[str, Any]:
        """A registered front end; what it says is the dict returned, which may be changed."""
        return await self._part("replicas", "replica", name, {}, state)

    async def worker(self, name: str, about: dict[str, Any] | None = None, **state: Any) -> dict[str, Any]:
        """The same for a worker, which registered `about` over what a decode worker registers."""
        return await self._part("workers", "worker", name, {**DECODE, **(about or {})}, state)

    async def silent(self, name: str) -> None:
        """A registered front end at an address where nobody listens."""
        held = bind("127.0.0.1", 0)  # bound, so that nobody else gets it, and never listened on
        about = {"name": name, "ops": f"127.0.0.1:{held.getsockname()[1]}"}
        held.close()
        await self.registry.register(f"replicas/{new_id()}", orjson.dumps(about))

    async def run(self, command: click.Command, *words: str) -> Result:
        """The command with these words, on another thread, as it has a loop of its own."""
        before, after = words[:1], words[1:]
        group = isinstance(command, click.Group)
        all_words = [*before, *self.words, *after] if group else [*self.words, *words]
        return await asyncio.to_thread(CliRunner().invoke, command, all_words)

    async def json(self, command: click.Command, *words: str) -> tuple[int, Any]:
        """Its exit status, and what it says with --json."""
        result = await self.run(command, *words, "--json")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, json.loads(result.stdout)

    async def close(self) -> None:
        for server in self._servers:
            await server.stop(grace_s=1)

    async def _part(
        self, below: str, kind: str, name: str, about: dict[str, Any], state: dict[str, Any]
    ) -> dict[str, Any]:
        said = {kind: new_id(), "name": name, **state}
        server = _server(lambda: said)
        address = await server.start()
        self._servers.append(server)
        entry = {"id": said[kind], "name": name, "ops": str(address), **about}
        await self.registry.register(f"{below}/{said[kind]}", orjson.dumps(entry))
        return said


def _server(state: Callable[[], dict[str, Any]]) -> HttpServer:
    app = create_operations_app(lambda: True, lambda: Readiness(True, {}), CollectorRegistry(), state)
    return HttpServer(app, bind("127.0.0.1", 0))


@asynccontextmanager
async def serving(state: Callable[[], dict[str, Any]]) -> AsyncIterator[str]:
    """The address of an operations listener that says this at /state."""
    server = _server(state)
    yield str(await server.start())
    await server.stop(grace_s=1)


@asynccontextmanager
async def deployed(folder: Path, nats: EmbeddedNats, etcd: EmbeddedEtcd, **more: Any) -> AsyncIterator[Deployed]:
    """An empty namespace of the two servers; `more` goes into the deployment file."""
    namespace = f"t{new_id()}"
    file, key = folder / f"{namespace}.json", folder / f"{namespace}.key"
    DeploymentKey.load_or_create(key)
    log = {
        "nats": [nats.url],
        "etcd": [etcd.endpoint],
        "max_bytes": "64MiB",
        "credentials": {"nkey": str(nats.credentials.nkey_file)},
        "etcd_credentials": {"user": etcd.credentials.user, "password": etcd.credentials.password},
    }
    file.write_text(json.dumps({"version": 1, "namespace": namespace, **more, "log": log | more.get("log", {})}))
    connection = find_by_address(file, {}, key)
    words = ("--file", str(file), "--key-file", str(key))
    log_ = await JetStreamLog.connect([nats.url], namespace, connection.topology, nats.credentials)
    await log_.ensure(connection.topology.names(), connection.checked_key.fingerprints)
    registry = await EtcdRegistry.connect(etcd.endpoint, namespace, etcd.credentials)
    await register_own(registry, connection.checked_key)
    it = Deployed(connection, words, log_, registry)
    try:
        yield it
    finally:
        await it.close()
        await registry.close()
        await log_.close()
