"""The log in a NATS cluster: three copies of each stream, and leaders that go."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from core.clock import SystemClock
from core.codec import decode_message
from core.errors import Unavailable
from core.ids import StreamSeq
from core.subjects import LOAD, broker_stream, subject
from streams.jetstream.jetstream_log import JetStreamLog
from streams.log import Record, StreamState
from streams.outbox.backlog import OutboxLimits
from streams.outbox.outbox import Outbox
from streams.topology import Topology
from tests.contracts.event_log import KV, EventLogContract
from tests.fixtures.eventually import eventually
from tests.fixtures.nats_cluster import NODES, NatsCluster
from tests.streams.source import SOURCE, Owner, messages, outbox_on, reasons, running, said

TOPOLOGY = Topology(replicas=NODES, max_bytes=100 * 1024 * 1024)
PATIENCE_S = 30.0
"""An election, while the machine does other things too."""


async def connect(cluster: NatsCluster) -> JetStreamLog:
    """A log in a namespace of its own."""
    return await JetStreamLog.connect(cluster.urls, "t-" + secrets.token_hex(6), TOPOLOGY, cluster.credentials)


async def ensured(log: JetStreamLog) -> None:
    """The streams exist; for a moment after a server came back the cluster does not count it yet."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await log.ensure([KV, LOAD])
            except Unavailable:
                await asyncio.sleep(0.2)
            else:
                return


@pytest.fixture
async def log(nats_cluster: NatsCluster) -> AsyncIterator[JetStreamLog]:
    log = await connect(nats_cluster)
    await ensured(log)
    yield log
    await log.close()


class TestClusterLog(EventLogContract):
    @pytest.fixture
    async def log(self, nats_cluster: NatsCluster) -> AsyncIterator[JetStreamLog]:
        log = await connect(nats_cluster)
        await ensured(log)
        yield log
        await log.close()

    @pytest.fixture
    def break_off(self, log: JetStreamLog) -> Callable[[], Awaitable[None]]:
        return log.close


async def put_for(outbox: Outbox, ms: int, start: int) -> int:
    """About a thousand events a second, numbered on; the number after the last."""
    clock, number = SystemClock(), start
    end_ms = clock.monotonic_ms() + ms
    while clock.monotonic_ms() < end_ms:
        outbox.put(said(number))
        number += 1
        await asyncio.sleep(0.001)
    return number


@pytest.mark.parametrize("how", ["killed", "steps down"])
async def test_the_leader_goes(nats_cluster: NatsCluster, log: JetStreamLog, how: str) -> None:
    """Under an outbox and a tail: nothing acknowledged is lost, nothing comes twice, the order is exact."""
    seen: list[Record] = []
    resets: list[StreamState] = []
    tail = await log.tail(KV, StreamSeq(1), seen.append, on_reset=resets.append)
    written = subject(log.namespace, KV, SOURCE)
    outbox = outbox_on(log, Owner(), OutboxLimits(retry_min_s=0.02, retry_max_s=0.2), written)
    stream = broker_stream(log.namespace, KV)
    leader = await nats_cluster.leader(stream)
    async with running(outbox):
        count = await put_for(outbox, 300, 0)
        if how == "killed":
            leader.kill()
        else:
            await nats_cluster.step_down(stream)
        count = await put_for(outbox, 300, count)
        assert await outbox.drain(PATIENCE_S)
        if how == "killed":
            await nats_cluster.start()
    found = await messages(log)
    await eventually(lambda: len(seen) >= len(found), timeout_s=PATIENCE_S)
    assert reasons(found) == [str(number) for number in range(count)]
    assert [message.n for message in found] == list(range(len(found)))
    assert [decode_message(record.payload) for record in seen] == found
    assert [record.seq for record in seen] == list(range(1, len(found) + 1))
    assert (resets, outbox.counts.restated, outbox.counts.dropped_events) == ([], 0, 0)
    await tail.stop()


async def test_retry_under_another_leader(nats_cluster: NatsCluster, log: JetStreamLog) -> None:
    """A stored append that is offered again to a new leader stands once, whatever that answers."""
    outbox = outbox_on(log, Owner(), OutboxLimits(), subject(log.namespace, KV, SOURCE))
    async with running(outbox):
        outbox.put(said("first"))
        assert await outbox.drain(PATIENCE_S)
    await nats_cluster.step_down(broker_stream(log.namespace, KV))
    again = outbox_on(log, Owner(), OutboxLimits(), subject(log.namespace, KV, SOURCE))
    async with running(again):
        again.put(said("first"))  # the same bytes under the same message id: the one before forgot that it was stored
        assert await again.drain(PATIENCE_S)
    assert reasons(await messages(log)) == ["first"]
    assert again.n_acked == 1
