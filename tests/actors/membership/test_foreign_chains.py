"""Two deployments with keys of their own on one log: neither writes ends for the other's sources."""

from __future__ import annotations

import asyncio

import pytest

from actors.membership import failure_detector
from actors.router import liveness_monitor
from core.codec import CHAIN_START, encode_event, encode_message
from core.events import Event, ReplicaJoined, ReplicaLost, ReplicaReported, WorkerLost
from core.ids import SourceId, StreamSeq, WorkerId
from core.keys import DeploymentKey
from core.subjects import LOAD, ROUTING, kv_stream, subject
from projections.digest import FOLD_VERSION
from tests.actors.world import NAMESPACE, World, collect, request, world
from tests.fixtures.eventually import eventually

OTHER = DeploymentKey(b"other" + bytes(27))
LEASE_MS = 3_000
"""Longer than two load reports."""
JUDGED_S = 3 * LEASE_MS / 1000


async def ends(it: World) -> list[WorkerLost | ReplicaLost]:
    """All ends in the log."""
    return [
        *await it.told(kv_stream(0), WorkerLost),
        *await it.told(LOAD, WorkerLost),
        *await it.told(ROUTING, ReplicaLost),
    ]


async def test_no_end_is_written_on_chains_of_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a registry of its own, so the other's sources have no lease. A dead worker of ours still gets its end.
    `/state` names the other's sources."""
    monkeypatch.setattr(failure_detector, "REPLICA_LEASES", 1)
    monkeypatch.setattr(failure_detector, "FOREIGN_LEASES", 2)
    monkeypatch.setattr(liveness_monitor, "PING_TIMEOUT_S", 0.2)
    async with world() as ours, world(ours.log, ours.clock, OTHER) as theirs:
        routers = []
        for it in (ours, theirs):
            await it.worker("decode-0")
            routers.append(await it.router(lease_ms=LEASE_MS))
        for it, router in zip((ours, theirs), routers, strict=True):
            await it.ready(router)
            for number in range(4):
                await collect(router, request(range(100 * number, 100 * number + 40)))
        await asyncio.sleep(JUDGED_S)
        assert await ends(ours) == []
        other = theirs.workers["decode-0"].publisher
        assert other is not None
        foreign = routers[0].describe()["foreign_sources"]
        assert set(foreign) == {other.id, routers[1].publisher.id}
        tokens, _ = await collect(routers[0], request(range(40)))
        assert tokens
        dead = await ours.crash("decode-0")
        ours.store.expire(f"workers/{dead}")
        await eventually(lambda: dead not in routers[0].state.workers(), "the end of our worker", 2 * JUDGED_S)
        assert WorkerId(other.id) in routers[0].state.workers()


async def test_a_dead_source_with_a_message_that_was_changed_gets_its_end() -> None:
    """Its last message does not follow on the one before, as if another key had sealed both. It was unknown for ever,
    since no message of it could come any more that shows its key."""
    async with world() as it:
        router = await it.router()
        dead = "dd" * 8
        reported = ReplicaReported(fold_version=FOLD_VERSION, points={})
        events: list[Event] = [ReplicaJoined(name="frontend-1", version="0"), reported]
        seq = StreamSeq(0)
        for n, event in enumerate(events):
            payload = encode_message(SourceId(dead), n, CHAIN_START, it.clock.wall_ms(), [encode_event(event)])
            seq = await it.log.append(ROUTING, subject(NAMESPACE, ROUTING, dead), payload, f"{dead}:{n}", seq)
        await eventually(lambda: dead in router.state.foreign, "a chain that does not fit")
        await eventually(lambda: not router.state.incomplete, "the end of the source", 10)
        assert router.state.routing.ended.keys() == {dead}
