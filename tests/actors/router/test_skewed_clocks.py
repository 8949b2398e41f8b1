"""Front ends with clocks that are off, beside a real nats-server: both see the same waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
from msgspec import UNSET

from actors.engines.simulated.simulated_engine import SimulatedSettings
from core.clock import SystemClock
from core.events import LoadReported, ReplicaReported, RequestRouted
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING, kv_stream
from streams.broker_clock import BrokerClock
from streams.embedded.embedded_nats import EmbeddedNats
from streams.jetstream.jetstream_log import JetStreamLog
from streams.topology import Topology
from tests.actors.world import NAMESPACE, World, collect, request, world
from tests.fixtures.eventually import eventually

SLOW = SimulatedSettings(
    prefill_us_per_token=1000, decode_us_per_step=200, eos_every=0, block_size=16, capacity_blocks=256
)
TOKENS = 1000
AT_ONCE = RoutingSettings(prefill_us_per_token_m=1_000_000, hold_max_ms=0)
"""The prompt is known to take a second, and is not held."""


class WrongClock(SystemClock):
    """A machine's clocks with a wall clock that is off."""

    def __init__(self, ahead_ms: int) -> None:
        self.ahead_ms = ahead_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


async def waits_us(it: World, first_ahead_ms: int, second_ahead_ms: int) -> tuple[int, int]:
    """The expected wait behind a prompt that begins to be computed for a second, as the front end that sent it sees the
    wait, and as another does."""
    it.clock = SystemClock()
    await it.worker("decode-0", settings=SLOW)
    routers = []
    for name, ahead_ms in (("frontend-0", first_ahead_ms), ("frontend-1", second_ahead_ms)):
        it.clock = WrongClock(ahead_ms)
        routers.append(await it.router(name, AT_ONCE))
    for router in routers:
        await it.ready(router)
    first, second = routers
    long = asyncio.create_task(collect(first, request(range(TOKENS), id="long")))
    await eventually(lambda: bool(second.state.routing.in_flight_load.prefills), "the prompt in the other's fold")
    own = asyncio.create_task(collect(first, request(range(5000, 5100), id="own")))
    other = asyncio.create_task(collect(second, request(range(6000, 6100), id="other")))
    await asyncio.gather(long, own, other)
    routed = {each.request: each.wait_us for each in await it.told(ROUTING, RequestRouted)}
    return routed["own"], routed["other"]


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[JetStreamLog]:
    server = EmbeddedNats(tmp_path)
    await server.start()
    topology = Topology(max_bytes=100 * 1024 * 1024)
    log = await JetStreamLog.connect([server.url], NAMESPACE, topology, server.credentials)
    await log.ensure([kv_stream(0), LOAD, ROUTING])
    yield log
    await log.close()
    await server.stop()


@pytest.mark.parametrize("ahead_ms", [1000, -1000, 60_000, 3_600_000])
async def test_a_front_end_with_a_wrong_clock_sees_the_waits_that_another_sees(
    log: JetStreamLog, ahead_ms: int
) -> None:
    async with world(log) as it:
        own_us, other_us = await waits_us(it, 0, ahead_ms)
        assert own_us > 500_000
        assert abs(other_us - own_us) < 150_000
        clock = it.routers["frontend-1"].describe()["clock"]
        assert abs(clock["offset_ms"] - ahead_ms) < 50
        assert clock["known"]


async def test_a_front_end_that_decides_by_its_own_clock_sees_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BrokerClock, "add", lambda *_: None)
    async with world() as it:
        own_us, other_us = await waits_us(it, 0, 1100)
        assert own_us > 500_000
        assert other_us == 0


async def test_offsets_are_recorded_with_reports() -> None:
    async with world() as it:
        it.clock = WrongClock(-2000)
        await it.worker("decode-0")
        router = await it.router()
        await it.ready(router)
        await collect(router, request(range(100)))
        report = ReplicaReported(fold_version=0, points={})
        router.background_tasks._publish_report(report)
        assert await router.publisher.outbox.drain(5)
        for reports in (await it.told(LOAD, LoadReported), await it.told(ROUTING, ReplicaReported)):
            assert reports
            assert all(abs(cast(int, each.clock_offset_ms) + 2000) < 50 for each in reports)


async def test_right_clocks_record_no_offset() -> None:
    async with world() as it:
        await it.worker("decode-0")
        await it.ready(await it.router())
        assert {each.clock_offset_ms for each in await it.told(LOAD, LoadReported)} == {UNSET}
