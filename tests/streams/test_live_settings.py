from __future__ import annotations

import asyncio
import logging
from typing import Any

import orjson
import pytest

from core.codec import decode_message
from core.events import RequestRouted, SettingsChanged
from core.ids import StreamSeq
from core.settings import RoutingSettings
from core.subjects import ROUTING
from streams.live_settings import SETTINGS_KEY, LiveSettings
from streams.memory.memory_registry import MemoryRegistry, MemoryRegistryStore
from streams.registry import Change
from tests.actors.world import World, collect, request, world
from tests.fixtures.eventually import eventually

CONFIGURED = RoutingSettings.parse({"policy": "kv", "prefill_weight": 1.5})


class Desk:
    """Live settings that follow a registry, and an operator's own way to it."""

    def __init__(self, store: MemoryRegistryStore) -> None:
        self.registry = MemoryRegistry(store)
        self.operator = MemoryRegistry(store)
        self.said: list[SettingsChanged] = []
        self.live = LiveSettings(CONFIGURED, lambda: self.said.append(self.live.event()))

    async def put(self, value: bytes, key: str = SETTINGS_KEY) -> int:
        revision = await self.operator.put(key, value)
        await asyncio.sleep(0)
        return revision

    async def set(self, **given: object) -> int:
        return await self.put(orjson.dumps(given))


@pytest.fixture
async def desk() -> Desk:
    desk = Desk(MemoryRegistryStore())
    await desk.live.follow(desk.registry)
    return desk


async def test_set_and_unset(desk: Desk) -> None:
    """What is set counts over what was configured, key by key; what is not set any more is as configured again."""
    assert (desk.live.current, desk.live.revision, desk.said) == (CONFIGURED, 0, [])
    revision = await desk.set(policy="random", tie_margin=0.5)
    assert desk.live.revision == revision
    assert desk.live.current == RoutingSettings.parse({"policy": "random", "prefill_weight": 1.5, "tie_margin": 0.5})
    await desk.set(tie_margin=1)
    assert desk.live.current == RoutingSettings.parse({"policy": "kv", "prefill_weight": 1.5, "tie_margin": 1})
    await desk.operator.unregister(SETTINGS_KEY)
    await asyncio.sleep(0)
    assert desk.live.current == CONFIGURED
    assert [said.settings for said in desk.said][-1] == CONFIGURED.to_mapping()
    assert [said.revision for said in desk.said] == [1, 2, 3]


async def test_what_is_there_at_the_start() -> None:
    """A replica that starts goes by what was set before."""
    desk = Desk(MemoryRegistryStore())
    revision = await desk.set(policy="least-loaded")
    await desk.live.follow(desk.registry)
    assert (desk.live.current.policy, desk.live.revision) == ("least-loaded", revision)
    assert [said.revision for said in desk.said] == [revision]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"policy: kv",
        b"[]",
        b"null",
        b'"kv"',
        b'{"policy": "best"}',
        b'{"policy": ["kv"]}',
        b'{"prefill_weight": -1}',
        b'{"prefill_weight": "1"}',
        b'{"waiting_max": 0.5}',
        b'{"no_such": 1}',
        b"\xff",
        b"[" * 100_000,
    ],
)
async def test_no_settings(desk: Desk, value: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A value that is no settings is refused and said; the last ones stay, and the next good value counts."""
    revision = await desk.set(policy="random")
    await desk.put(value)
    assert (desk.live.current.policy, desk.live.revision, len(desk.said)) == ("random", revision, 1)
    assert desk.live.refused
    assert "refused, the last ones stay" in caplog.text
    await desk.set(policy="round-robin")
    assert (desk.live.current.policy, desk.live.refused) == ("round-robin", "")


async def test_neighbours_are_not_ours(desk: Desk) -> None:
    """Other keys that begin alike change nothing."""
    await desk.put(b'{"policy": "random"}', key=f"{SETTINGS_KEY}-old")
    assert (desk.live.current, desk.said) == (CONFIGURED, [])


async def test_registry_away(desk: Desk) -> None:
    """While the registry is away the last settings stay; what was set meanwhile counts when it is back."""
    await desk.set(policy="random")
    desk.registry.away = True
    revision = await desk.set(policy="round-robin")
    assert desk.live.current.policy == "random"
    desk.registry.away = False
    await asyncio.sleep(0)
    assert (desk.live.current.policy, desk.live.revision) == ("round-robin", revision)


async def test_registry_wiped(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """After the registry lost its data what was configured counts, what was lost is said, and a new value counts
    though its revision is lower, or even one that was used before."""
    for weight in (1, 2, 3):
        await desk.set(prefill_weight=weight)
    desk.registry.away = desk.operator.away = True
    desk.registry._store.wipe()
    desk.registry.away = desk.operator.away = False
    await asyncio.sleep(0)
    assert desk.live.current == CONFIGURED
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "contrail settings set prefill_weight 3" in record.getMessage()
    revision = await desk.set(prefill_weight=9)
    assert (desk.live.current.prefill_weight_m, desk.live.revision) == (9000, revision)
    assert revision == 1
    assert [said.revision for said in desk.said] == [1, 2, 3, 0, 1]


async def test_registry_lost_the_last_change(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """The change before it counts again, as for every replica that starts then; the lost one is said."""
    revision = await desk.set(policy="random")
    desk.registry.away = True
    lost = await desk.set(policy="round-robin", tie_margin=2)
    desk.registry.away = False
    await asyncio.sleep(0)
    assert desk.live.revision == lost
    desk.live._on_registry(Change(SETTINGS_KEY, b'{"policy": "random"}', revision))
    assert (desk.live.current.policy, desk.live.revision) == ("random", revision)
    assert "contrail settings set policy round-robin tie_margin 2" in caplog.text


async def test_wiped_and_set_again_unseen(desk: Desk) -> None:
    """A value that was set anew under the old one's very revision is noticed."""
    revision = await desk.set(policy="random")
    desk.registry.away = True
    desk.registry._store.wipe()
    assert await desk.set(policy="round-robin") == revision
    desk.registry.away = False
    await asyncio.sleep(0)
    assert (desk.live.current.policy, desk.live.revision) == ("round-robin", revision)
    assert [said.settings["policy"] for said in desk.said] == ["random", "round-robin"]


async def _chain(it: World) -> list[SettingsChanged | RequestRouted]:
    """What one replica said of its settings and decisions, in its own order."""
    events: list[Any] = []
    async for record in it.log.read(ROUTING, StreamSeq(1)):
        events += decode_message(record.payload).events
    return [event for event in events if isinstance(event, SettingsChanged | RequestRouted)]


async def test_decisions_name_what_they_rest_on() -> None:
    """Each decision's revision is that of the last SettingsChanged before it in its chain, whose policy it went by;
    so the record stays right after a wipe, where one revision names several settings."""
    async with world() as it:
        await it.worker("a")
        router = await it.router()
        await it.ready(router)
        operator = MemoryRegistry(it.store)
        policies = ["round-robin", "least-loaded", "random", "kv"]
        for turn, policy in enumerate(policies):
            if turn == 2:
                await _wipe(it)
            revision = await operator.put(SETTINGS_KEY, orjson.dumps({"policy": policy}))
            await eventually(lambda: router.live_settings.current.policy == policy, policy)  # noqa: B023
            assert router.live_settings.revision == revision
            await collect(router, request(range(40)))
        await eventually(lambda: not len(router.publisher.pending_events), "all is read back")
        said, decided = None, []
        for event in await _chain(it):
            if isinstance(event, SettingsChanged):
                said = event
                continue
            assert said is not None
            assert (event.settings_revision, event.policy) == (said.revision, said.settings["policy"])
            decided.append(event.policy)
        assert decided == policies


async def _wipe(it: World) -> None:
    """The registry's store is lost while everybody is away, and all are back."""
    for registry in it.registries.values():
        registry.away = True
    it.store.wipe()
    for registry in it.registries.values():
        registry.away = False
    await asyncio.sleep(0.01)
