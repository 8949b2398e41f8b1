"""The work queue in JetStream, on a real nats-server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from core.errors import Unavailable
from core.subjects import JOBS, asked_wildcard, broker_stream
from streams.embedded.embedded_nats import EmbeddedNats
from streams.jetstream.jetstream_log import JetStreamLog
from streams.jetstream.jetstream_queue import JetStreamDelivery, JetStreamQueue
from streams.log import Delivery, Queue, QueueLimits
from tests.contracts.queue import NAME, NEVER_S, QUICK, SOON_S, QueueContract, got, now_s, said
from tests.streams.jetstream.test_jetstream_log import connect


class TestJetStreamQueue(QueueContract):
    @pytest.fixture
    async def log(self, nats_server: EmbeddedNats) -> AsyncIterator[JetStreamLog]:
        log = await connect(nats_server)
        await log.ensure([JOBS])
        yield log
        await log.close()

    @pytest.fixture
    def break_off(self, log: JetStreamLog) -> Callable[[], Awaitable[None]]:
        return log.close


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedNats]:
    """One that may be killed."""
    server = EmbeddedNats(tmp_path)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def log(server: EmbeddedNats) -> AsyncIterator[JetStreamLog]:
    log = await connect(server)
    await log.ensure([JOBS])
    yield log
    await log.close()


async def opened(log: JetStreamLog, limits: QueueLimits = QUICK) -> JetStreamQueue:
    return await log.queue(JOBS, NAME, asked_wildcard(log.namespace), limits)


async def ask(log: JetStreamLog, *payloads: str) -> None:
    """Messages of one source, as soon as the log is there."""
    async with asyncio.timeout(SOON_S):
        while not log.connected:
            await asyncio.sleep(0.01)
    await QueueContract().ask(log, *payloads)


async def next_in_time(queue: Queue) -> Delivery:
    """As whoever owns a queue does: asks again when the log is away. No call hangs."""
    async with asyncio.timeout(4 * SOON_S):
        while True:
            begun_s = now_s()
            try:
                found = await queue.next(0.5)
            except Unavailable:
                await asyncio.sleep(0.05)
            else:
                if found is not None:
                    return found
            assert now_s() - begun_s < 1.5


async def api(log: JetStreamLog, what: str) -> None:
    """Somebody does that with the queue's consumer."""
    await log._connection.call(f"$JS.API.CONSUMER.{what}.{broker_stream(log.namespace, JOBS)}.{NAME}")


@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_the_server_comes_back(server: EmbeddedNats, log: JetStreamLog, how: str) -> None:
    """With messages handed out, acknowledged and asked for: none is lost, and each is done in the end."""
    queue = await opened(log)
    await ask(log, "done", "held", "silent")
    await (await got(queue)).done()
    held = await got(queue)
    await got(queue)
    waiting = asyncio.create_task(next_in_time(await opened(log)))
    await asyncio.sleep(0.05)
    server.kill() if how == "killed" else await server.stop()
    await server.start()
    with suppress(Unavailable):  # after a crash the broker may not know any more that it was handed out
        await held.done()
    await ask(log, "waits")
    taken = [await waiting]
    finished = {"done", "held"}  # if the last was not heard it comes again, and is done then
    while finished < {"done", "held", "silent", "waits"}:
        await taken[-1].done()
        finished.add(taken[-1].record.payload.decode())
        if finished < {"done", "held", "silent", "waits"}:
            taken.append(await next_in_time(queue))
    if how == "stopped":
        assert "done" not in {each.record.payload.decode() for each in taken}
    await ask(log, "new")
    while (last := await next_in_time(queue)).record.payload != b"new":
        await last.done()
    assert last.number == 1


async def test_the_consumer_is_deleted(log: JetStreamLog) -> None:
    """While one asks, while nobody does, and with messages that wait: it is made again, and nothing is left out."""
    queue = await opened(log)
    await ask(log, "a", "b")
    await (await got(queue)).done()
    await api(log, "DELETE")
    taken = await got(queue)
    assert said([taken]) == [("b", 1)]
    await taken.done()  # else it comes again on a machine that takes its time
    waiting = asyncio.create_task(got(queue))
    await asyncio.sleep(0.05)
    await api(log, "DELETE")
    await ask(log, "c")
    taken = await waiting
    while taken.record.payload == b"b":  # on a busy machine the broker may hand it out again
        await taken.done()
        taken = await got(queue)
    assert said([taken]) == [("c", 1)]
    await api(log, "DELETE")
    with pytest.raises(Unavailable, match="gone from the broker"):
        await taken.done()
    assert await queue.next(NEVER_S) is None
    await ask(log, "d")
    assert said([await got(queue)]) == [("d", 1)]


async def test_the_stream_is_made_anew(log: JetStreamLog) -> None:
    """It is the queue's again, from its start; until it is there the queue is away."""
    queue = await opened(log)
    await ask(log, "a", "b")
    await (await got(queue)).done()
    await log._connection.call(f"$JS.API.STREAM.DELETE.{broker_stream(log.namespace, JOBS)}")
    with pytest.raises(Unavailable):
        await queue.next(SOON_S)
    await log.ensure([JOBS])
    await ask(log, "e")
    assert said([await got(queue)]) == [("e", 1)]


async def test_the_first_settles_the_limits(log: JetStreamLog, caplog: pytest.LogCaptureFixture) -> None:
    """Who comes with others is told so once, and works by those that stand."""
    await opened(log)
    with caplog.at_level(logging.INFO, "streams.jetstream.jetstream_queue"):
        other = await opened(log, QueueLimits(ack_wait_s=30.0, deliveries_max=QUICK.deliveries_max, pending_max=4))
        await other._consumer.make()
    assert [record.getMessage() for record in caplog.records] == [
        f"queue {NAME} exists with another ack_wait than asked for; it keeps it"
    ]
    await ask(log, "a")
    await got(other)
    assert said([await got(other)]) == [("a", 2)]


async def test_a_request_that_is_lost(log: JetStreamLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is silent is Unavailable, soon after it should have spoken; then the queue goes on."""
    queue = await opened(log)
    publish = log._connection.publish
    monkeypatch.setattr(log._connection, "publish", lambda *_: None)
    begun_s = now_s()
    with pytest.raises(Unavailable, match="silent"):
        await queue.next(0.2)
    assert 0.2 <= now_s() - begun_s < 1.2
    monkeypatch.setattr(log._connection, "publish", publish)
    await ask(log, "a")
    assert said([await got(queue)]) == [("a", 1)]


async def test_longer_than_one_request(log: JetStreamLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits long asks again and again, with one request at the broker at a time."""
    monkeypatch.setattr("streams.jetstream.jetstream_queue.REQUEST_S", 0.05)
    queue = await opened(log)
    waiting = asyncio.create_task(got(queue))
    await asyncio.sleep(0.3)
    assert 4 <= next(queue._numbers) <= 8
    info = await log._connection.call(f"$JS.API.CONSUMER.INFO.{broker_stream(log.namespace, JOBS)}.{NAME}")
    assert info["num_waiting"] <= 1
    await ask(log, "a")
    assert said([await waiting]) == [("a", 1)]


async def test_cancelled_as_it_comes(log: JetStreamLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that was there when its `next` was cancelled, and not yet taken, is handed back at once."""
    queue = await opened(log, QUICK._replace(ack_wait_s=SOON_S))
    waiting = asyncio.create_task(queue.next(SOON_S))
    hear = queue._on_reply

    def hear_and_cancel(heard: JetStreamDelivery | tuple[str, str]) -> None:
        hear(heard)
        waiting.cancel()

    monkeypatch.setattr(queue, "_on_reply", hear_and_cancel)
    await asyncio.sleep(0.02)
    await ask(log, "a")
    with pytest.raises(asyncio.CancelledError):
        await waiting
    monkeypatch.setattr(queue, "_on_reply", hear)
    begun_s = now_s()
    assert said([await got(queue)]) == [("a", 2)]
    assert now_s() - begun_s < 0.5 * SOON_S
