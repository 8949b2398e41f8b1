"""The work queue in a NATS cluster: its leader goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from core.errors import Unavailable, WrongSequence
from core.subjects import JOBS, asked_token, asked_wildcard, broker_stream, subject
from streams.jetstream.jetstream_log import JetStreamLog
from streams.jetstream.jetstream_queue import JetStreamQueue
from streams.log import QueueLimits
from tests.contracts.queue import NAME, QueueContract, now_s
from tests.fixtures.nats_cluster import NatsCluster
from tests.streams.jetstream.test_cluster import PATIENCE_S, connect

LIMITS = QueueLimits(ack_wait_s=2.0, deliveries_max=100, pending_max=64)
MESSAGES = 60
WORKERS = 2


async def patiently(what: Callable[[], Awaitable[object]]) -> None:
    """Done, as soon as the cluster is able to."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await what()
            except Unavailable:
                await asyncio.sleep(0.1)
            else:
                return


@pytest.fixture
async def log(nats_cluster: NatsCluster) -> AsyncIterator[JetStreamLog]:
    log = await connect(nats_cluster)
    await patiently(lambda: log.ensure([JOBS]))
    yield log
    await log.close()


async def all_done(log: JetStreamLog) -> bool:
    """As the broker has it. A leader that is killed may have stored a word and not told us: that message is done,
    never comes again, and whoever said so cannot know."""
    info = f"$JS.API.CONSUMER.INFO.{broker_stream(log.namespace, JOBS)}.{NAME}"
    try:
        found = await log._connection.request(info)
    except Unavailable:
        return False
    return "error" not in found and not found["num_pending"] and not found["num_ack_pending"]


@pytest.fixture
async def queues(log: JetStreamLog) -> list[JetStreamQueue]:
    made: list[JetStreamQueue] = []

    async def make() -> None:
        made.append(await log.queue(JOBS, NAME, asked_wildcard(log.namespace), LIMITS))

    for _ in range(WORKERS):
        await patiently(make)
    return made


@pytest.mark.parametrize("how", ["killed", "steps down"])
async def test_the_leader_goes(
    nats_cluster: NatsCluster, log: JetStreamLog, queues: list[JetStreamQueue], how: str
) -> None:
    """Under two that take and one that writes: every message is taken, is done in the end, and no call hangs."""
    contract, taken, written = QueueContract(), set[str](), asyncio.Event()
    stream = broker_stream(log.namespace, JOBS)

    async def work(queue: JetStreamQueue) -> None:
        while not (written.is_set() and await all_done(log)):
            begun_s = now_s()
            try:
                delivery = await queue.next(0.5)
                assert now_s() - begun_s < 1.6
                if delivery is not None:
                    taken.add(delivery.record.payload.decode())
                    await asyncio.sleep(0.005)
                    await delivery.done()
            except Unavailable:
                await asyncio.sleep(0.05)

    async def write() -> None:
        for number in range(MESSAGES):
            await patiently(lambda payload=str(number): stored(payload))  # type: ignore[misc]
            await asyncio.sleep(0.01)
        written.set()

    async def stored(payload: str) -> None:
        try:
            await contract.ask(log, payload)
        except WrongSequence as error:  # it was stored before, and we were not told; or we were told of an old end
            last = await log.last(JOBS, subject(log.namespace, JOBS, asked_token("d0")))
            if last is None or last.payload != payload.encode():
                raise Unavailable("not stored") from error

    workers = [asyncio.create_task(work(queue)) for queue in queues]
    writer = asyncio.create_task(write())
    await asyncio.sleep(0.2)
    if how == "killed":
        (await nats_cluster.leader(stream)).kill()
    else:
        await nats_cluster.step_down(stream)
        await log._connection.request(f"$JS.API.CONSUMER.LEADER.STEPDOWN.{stream}.{NAME}")
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(writer, *workers)
    assert taken == set(map(str, range(MESSAGES)))
