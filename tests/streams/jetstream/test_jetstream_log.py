"""The log in JetStream, on a real nats-server."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from core.errors import Refused, Unavailable, WrongSequence
from core.ids import StreamSeq
from core.subjects import LOAD, broker_stream, subject
from streams.embedded.embedded_nats import EmbeddedNats
from streams.jetstream.broker_errors import refusal
from streams.jetstream.jetstream_log import JetStreamLog
from streams.jetstream.nats_client import NatsClient
from streams.jetstream.nats_credentials import NatsCredentials
from streams.jetstream.nkey import Nkey
from streams.jetstream.pull_consumer import INACTIVE_S
from streams.log import Record, StreamState
from streams.topology import Topology
from tests.contracts.event_log import KV, EventLogContract
from tests.fixtures.eventually import eventually

SMALL = Topology(max_bytes=100 * 1024 * 1024)


async def connect(server: EmbeddedNats, namespace: str | None = None) -> JetStreamLog:
    """A log in a namespace of its own."""
    namespace = namespace or "t-" + secrets.token_hex(6)
    return await JetStreamLog.connect([server.url], namespace, SMALL, server.credentials)


class TestJetStreamLog(EventLogContract):
    @pytest.fixture
    async def log(self, nats_server: EmbeddedNats) -> AsyncIterator[JetStreamLog]:
        log = await connect(nats_server)
        await log.ensure([KV, LOAD])
        yield log
        await log.close()

    @pytest.fixture
    def break_off(self, log: JetStreamLog) -> Callable[[], Awaitable[None]]:
        return log.close

    async def test_long_history(self, log: JetStreamLog) -> None:
        """Passes and tails of many requests, slow ones too, give every record once and in order."""
        await self.append(log, "a", 2_500)
        read = [record.seq async for record in log.read(KV, StreamSeq(1))]
        seen: list[int] = []
        tail = await log.tail(KV, StreamSeq(1), lambda record: seen.append(record.seq))
        await eventually(lambda: len(seen) == 2_500)
        await tail.stop()
        slow = []
        async for record in log.read(KV, StreamSeq(1)):
            slow.append(record.seq)
            if len(slow) % 100 == 0:
                await asyncio.sleep(0)
        assert read == seen == slow == list(range(1, 2_501))

    async def test_too_large(self, log: JetStreamLog) -> None:
        """What is larger than the broker takes is refused for good."""
        with pytest.raises(Refused, match="more than"):
            await log.append(KV, self.subject(log, "a"), bytes(log.max_payload + 1), "a:0", StreamSeq(0))

    async def test_wrong_credentials(self, nats_server: EmbeddedNats, tmp_path: Path) -> None:
        """Who is not let in is told so, at once."""
        key = tmp_path / "other.nk"
        key.write_text(Nkey.generate().seed)
        for credentials in (NatsCredentials(user="contrail", password="wrong"), NatsCredentials(nkey_file=key), None):
            with pytest.raises(Refused, match="Authorization"):
                await JetStreamLog.connect([nats_server.url], "t", SMALL, credentials)

    async def test_other_limits_are_kept(
        self, log: JetStreamLog, nats_server: EmbeddedNats, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A stream that exists with other limits keeps them and its history; a fingerprint is no other limit."""
        await self.append(log, "a", 1)
        narrower = Topology(max_bytes=10 * 1024 * 1024)
        other = await JetStreamLog.connect([nats_server.url], log.namespace, narrower, nats_server.credentials)
        caplog.clear()
        await log.ensure([KV], {"0": "ab"})
        assert not caplog.records
        await other.ensure([KV])
        assert "exists with other limits than configured" in caplog.text
        assert (await other.state(KV)).messages == 1
        await other.close()


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
    await log.ensure([KV])
    yield log
    await log.close()


class Publisher:
    """One source that appends until told to stop, and remembers what was acknowledged."""

    def __init__(self, log: JetStreamLog) -> None:
        self._log = log
        self._subject = subject(log.namespace, KV, "w")
        self.acked: list[bytes] = []
        self.wanted = 0
        """Stops after so many."""
        self.unavailable = 0
        self._last = StreamSeq(0)

    async def run(self) -> None:
        while not self.wanted or len(self.acked) < self.wanted:
            payload = f"message {len(self.acked)}".encode()
            self._last = await self._stored(payload, self._last)
            self.acked.append(payload)

    async def _stored(self, payload: bytes, last: StreamSeq) -> StreamSeq:
        message_id = f"w:{len(self.acked)}"
        while True:
            try:
                return await self._log.append(KV, self._subject, payload, message_id, last)
            except Unavailable:
                self.unavailable += 1
                await asyncio.sleep(0.01)
            except WrongSequence:
                end = await self._log.last(KV, self._subject)
                assert end is not None
                assert end.payload == payload
                return end.seq


def reached(seen: list[Record], count: int) -> bool:
    return len(seen) >= count


async def test_killed_under_way(server: EmbeddedNats, log: JetStreamLog) -> None:
    """A server killed and started again under a publisher and a tail: all acknowledged, once, in order."""
    seen: list[Record] = []
    resets: list[StreamState] = []
    await log.tail(KV, StreamSeq(1), seen.append, on_reset=resets.append)
    publisher = Publisher(log)
    task = asyncio.create_task(publisher.run())
    for _ in range(3):
        enough = len(seen) + 300
        await eventually(partial(reached, seen, enough))
        server.kill()
        with pytest.raises(Unavailable):
            await log.state(KV)
        await server.start()
    publisher.wanted = len(publisher.acked) + 300
    await task
    await eventually(lambda: len(seen) >= len(publisher.acked))
    assert publisher.unavailable >= 3
    assert [record.payload for record in seen] == publisher.acked
    assert [record.seq for record in seen] == list(range(1, len(seen) + 1))
    assert [record async for record in log.read(KV, StreamSeq(1))] == seen
    assert resets == []


async def test_killed_under_a_pass(server: EmbeddedNats, log: JetStreamLog) -> None:
    """A pass goes on where it was when the server is back."""
    publisher = Publisher(log)
    publisher.wanted = 3_000
    await publisher.run()
    seen: list[bytes] = []
    async for record in log.read(KV, StreamSeq(1)):
        seen.append(record.payload)
        if len(seen) == 700:
            server.kill()
            await server.start()
    assert seen == publisher.acked


async def test_remade_stream(server: EmbeddedNats, log: JetStreamLog) -> None:
    """A stream deleted at the broker is made again by the next append; tails are told, and follow the new one."""
    seen: list[Record] = []
    resets: list[StreamState] = []
    await log.tail(KV, StreamSeq(1), seen.append, on_reset=resets.append)
    publisher = Publisher(log)
    publisher.wanted = 5
    await publisher.run()
    await eventually(lambda: len(seen) == 5)
    epoch = (await log.state(KV)).epoch

    raw = NatsClient([server.url], server.credentials, "test")
    await raw.open()
    await raw.call(f"$JS.API.STREAM.DELETE.{broker_stream(log.namespace, KV)}")
    await raw.close()
    second = subject(log.namespace, KV, "v")
    with pytest.raises(Unavailable):
        await log.append(KV, second, b"new", "v:0", StreamSeq(0))
    assert await log.append(KV, second, b"new", "v:0", StreamSeq(0)) == 1

    await eventually(lambda: len(seen) == 6)
    assert (seen[-1].seq, seen[-1].payload) == (1, b"new")
    assert [state.epoch > epoch for state in resets] == [True]


async def consumers_are(log: JetStreamLog, count: int) -> None:
    """The server has so many for the stream, soon and long before it would forget one that nobody asks."""
    async with asyncio.timeout(INACTIVE_S / 2):
        while True:
            info = await log._connection.call(f"$JS.API.STREAM.INFO.{broker_stream(log.namespace, KV)}")
            if info["state"]["consumer_count"] == count:
                return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("lacks", [0, 1, 2, 7, 30])
async def test_a_follower_that_lacks_the_newest_messages(
    log: JetStreamLog, monkeypatch: pytest.MonkeyPatch, lacks: int
) -> None:
    """A time is found though the server of the consumer begins it at the end of the messages that it has."""
    publisher = Publisher(log)
    publisher.wanted = 30
    await publisher.run()
    for deleted in (12, 24, 29):
        name = broker_stream(log.namespace, KV)
        await log._connection.call(f"$JS.API.STREAM.MSG.DELETE.{name}", {"seq": deleted})
    times = [(record.seq, record.time_ms) async for record in log.read(KV, StreamSeq(1))]
    assert len(times) == 27
    call = log._connection.call

    async def behind(subject: str, body: dict[str, Any] | None = None, what: str = "") -> dict[str, Any]:
        answer = await call(subject, body, what)
        if ".CONSUMER.CREATE." in subject:
            reached = answer["delivered"]["stream_seq"]
            answer["delivered"]["stream_seq"] = min(reached, 30 - lacks)
        return answer

    monkeypatch.setattr(log._connection, "call", behind)
    (_, oldest_ms), (_, newest_ms) = times[0], times[-1]
    for time_ms in [oldest_ms - 10_000, *sorted({stored_ms for _, stored_ms in times}), newest_ms + 1]:
        found = next((seq for seq, stored_ms in times if stored_ms >= time_ms), 31)
        assert await log.seek(KV, time_ms) == found


async def test_no_consumer_is_left_behind(server: EmbeddedNats, log: JetStreamLog) -> None:
    """Passes, seeks and tails that ended, broke off or were replaced leave nothing on the server."""
    publisher = Publisher(log)
    publisher.wanted = 20
    await publisher.run()
    for count in (20, 5, 0):
        records = log.read(KV, StreamSeq(1))
        for _ in range(count):
            await anext(records)
        await records.aclose()  # type: ignore[attr-defined]
    await log.seek(KV, 0)
    seen: list[Record] = []
    tail = await log.tail(KV, StreamSeq(1), seen.append)
    await eventually(lambda: len(seen) == 20)
    await consumers_are(log, 1)
    pull = tail._pull
    assert pull is not None
    pull.broken.set()
    await eventually(lambda: tail._pull not in (None, pull))
    publisher.wanted = 25
    await publisher.run()
    await eventually(lambda: len(seen) == 25)
    await consumers_are(log, 1)
    await tail.stop()
    await consumers_are(log, 0)


async def test_consumers_of_a_dead_process_expire(server: EmbeddedNats, log: JetStreamLog) -> None:
    """Who vanishes cannot clean up; the server does, after a while without being asked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streams.jetstream.pull_consumer.INACTIVE_S", 1)
        dying = await connect(server, log.namespace)
        await dying.tail(KV, StreamSeq(1), lambda _: None)
        await consumers_are(log, 1)
        keeper = dying._connection._keeper
        assert keeper is not None
        keeper.cancel()
        wire = dying._connection._wire
        assert wire is not None
        wire._transport.abort()
        await consumers_are(log, 0)
        await dying.close()


async def test_expired_requests_do_not_add_up(server: EmbeddedNats, log: JetStreamLog) -> None:
    """A tail that waits long asks again when its requests end, and still hears everything once."""
    seen: list[Record] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streams.jetstream.pull_consumer.REQUEST_EXPIRES_S", 1)
        patch.setattr("streams.jetstream.pull_consumer.HEARTBEAT_S", 0.25)
        tail = await log.tail(KV, StreamSeq(1), seen.append)
        publisher = Publisher(log)
        publisher.wanted = 10
        await publisher.run()
        await eventually(lambda: len(seen) == 10)
        pull = tail._pull
        assert pull is not None
        assert pull.outstanding == 990
        await eventually(lambda: pull.outstanding == 1_000)  # both requests ended and were made again
        publisher.wanted = 1_300
        await publisher.run()
        await eventually(lambda: len(seen) == 1_300)
        assert tail._pull is pull
        assert 0 < pull.outstanding <= 1_000
    assert [record.payload for record in seen] == publisher.acked


def test_refusals() -> None:
    """What can be put right while we wait is Unavailable; what cannot is Refused."""
    cases = {
        (400, 10071): WrongSequence,
        (400, 10164): WrongSequence,
        (500, 10047): Unavailable,
        (503, 10023): Unavailable,
        (503, 10077): Unavailable,
        (409, 10158): Unavailable,
        (503, 10008): Unavailable,
        (404, 10059): Unavailable,
        (400, 10054): Refused,
        (500, 10074): Refused,
        (400, 10065): Refused,
    }
    for (status, code), kind in cases.items():
        answer = {"error": {"code": status, "err_code": code, "description": "no"}}
        assert type(refusal(answer, "append")) is kind
    assert refusal({"seq": 1}, "append") is None
