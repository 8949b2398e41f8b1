"""The bundled etcd is killed again and again while workers come, change and leave, and an operator changes settings."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from api.cli.inspect.live_settings import change_stored, read_stored
from core.errors import Unavailable
from core.settings import RoutingSettings
from streams.embedded.embedded_etcd import EmbeddedEtcd
from streams.etcd.etcd_lease import PROBE_S_MAX
from streams.etcd.etcd_registry import LEASE_S, EtcdRegistry
from streams.live_settings import LiveSettings
from tests.contracts.registry import Heard

KILLS = 12
WORKERS = 6
RUN_S = (0.2, 0.8)
"""Between two kills."""
MENDED_S = LEASE_S + PROBE_S_MAX + 5.0
"""After the last kill: leases of registries that closed while etcd was away run out, lost writes are written again."""
NAMESPACE = "test"
CONFIGURED = RoutingSettings.parse({})


class Owner:
    """One process after another that registers under a name of its own, changes its registration, and leaves."""

    def __init__(self, server: EmbeddedEtcd, name: str) -> None:
        self.wanted: dict[str, bytes] = {}
        """Registrations that must be there when all is quiet."""
        self._server = server
        self._name = name
        self._random = random.Random(name)
        self._registry: EtcdRegistry | None = None

    async def run(self, over: asyncio.Event) -> None:
        """Until it is over; the last process stays."""
        life = 0
        while not over.is_set():
            life += 1
            key = f"workers/{self._name}-{life}"
            registry = self._registry = self._registry or await self._connect()
            for turn in range(self._random.randrange(1, 20)):
                self.wanted = {key: b"%d" % turn}
                await self._tried(registry.register(key, self.wanted[key]))
                await asyncio.sleep(self._random.uniform(0, 0.03))
                if over.is_set():
                    return
            self.wanted = {}
            if self._random.random() < 0.5:  # it leaves, and its process lives on
                await self._tried(registry.unregister(key))
            else:
                await self.close()

    async def close(self) -> None:
        """The process has ended."""
        if self._registry is not None:
            await self._registry.close()
        self._registry = None

    async def _connect(self) -> EtcdRegistry:
        while True:
            try:
                return await EtcdRegistry.connect(self._server.endpoint, NAMESPACE, self._server.credentials)
            except Unavailable:
                await asyncio.sleep(0.05)

    async def _tried(self, wish: Awaitable[None]) -> None:
        try:
            await wish
        except Unavailable:
            await asyncio.sleep(0.05)


class Operator:
    """Changes a setting without end; knows the last value that etcd acknowledged, and the last one that it tried."""

    def __init__(self, registry: EtcdRegistry) -> None:
        self.acknowledged = self.tried = 0
        self._registry = registry

    async def run(self, over: asyncio.Event) -> None:
        """Until it is over."""
        while not over.is_set():
            self.tried += 1
            given = {"waiting_max": self.tried}
            try:
                await change_stored(self._registry, CONFIGURED, given, frozenset())
                self.acknowledged = self.tried
            except Unavailable:
                await asyncio.sleep(0.05)

    async def stored(self) -> int:
        """The value in etcd, as soon as it answers."""
        while True:
            try:
                return int((await read_stored(self._registry)).values.get("waiting_max", 0))
            except Unavailable:
                await asyncio.sleep(0.05)


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EmbeddedEtcd]:
    """The bundled etcd, also where the PATH has a sound one."""
    monkeypatch.setenv("PATH", "")
    server = EmbeddedEtcd(tmp_path / "data")
    await server.start()
    yield server
    await server.stop()


async def test_registrations_and_settings_are_right_after_kills(server: EmbeddedEtcd) -> None:
    observer = await EtcdRegistry.connect(server.endpoint, NAMESPACE, server.credentials)
    heard, live = Heard(), LiveSettings(CONFIGURED, lambda: None)
    await observer.watch("workers/", heard.on_change)
    await live.follow(observer)
    owners = [Owner(server, f"decode-{number}") for number in range(WORKERS)]
    operator = Operator(await EtcdRegistry.connect(server.endpoint, NAMESPACE, server.credentials))
    over, chance = asyncio.Event(), random.Random(7)
    load = [asyncio.create_task(it.run(over)) for it in owners] + [asyncio.create_task(operator.run(over))]
    for _ in range(KILLS):
        await asyncio.sleep(chance.uniform(*RUN_S))
        acknowledged = operator.acknowledged
        await asyncio.to_thread(server.kill)
        await server.start()
        assert await operator.stored() >= acknowledged
    over.set()
    await asyncio.gather(*load)

    wanted = {key: value for owner in owners for key, value in owner.wanted.items()}
    async with asyncio.timeout(MENDED_S):
        await heard.until(lambda heard: heard.keys == wanted)
        while live.current.waiting_max != await operator.stored():
            await asyncio.sleep(0.05)
    assert {change.key: change.value for change in await observer.get("workers/")} == wanted
    assert operator.acknowledged <= live.current.waiting_max <= operator.tried
    assert operator.acknowledged > KILLS
    await asyncio.gather(observer.close(), operator._registry.close(), *(owner.close() for owner in owners))
