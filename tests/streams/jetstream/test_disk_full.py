"""JetStream out of space: one more way for the log to be away, until there is space again."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from core.errors import Refused, Unavailable
from core.ids import StreamSeq
from core.subjects import ROUTING, broker_stream, subject
from streams.embedded.embedded_nats import SPACE_BACK_BYTES, EmbeddedNats
from streams.jetstream.jetstream_log import JetStreamLog
from streams.jetstream.nats_client import NatsClient
from streams.outbox.backlog import OutboxLimits
from streams.topology import Topology
from tests.fixtures.eventually import eventually
from tests.streams.source import KV, Owner, messages, outbox_on, reasons, running, said

NAMESPACE = "test"
STREAM = broker_stream(NAMESPACE, KV)
SMALL_BYTES = 64 * 1024
EVENTS = 400
MIB = 1024 * 1024


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedNats]:
    server = EmbeddedNats(tmp_path / "data", store_bytes_max=100 * MIB)
    await server.start()
    yield server
    await server.stop()


async def connect(server: EmbeddedNats, max_bytes: int = 10 * MIB) -> JetStreamLog:
    return await JetStreamLog.connect([server.url], NAMESPACE, Topology(max_bytes=max_bytes), server.credentials)


async def test_a_full_stream_holds_events_back(server: EmbeddedNats) -> None:
    """A stream that takes no more: events wait in the outbox, reading goes on; with room again all arrive in order."""
    log = await connect(server)
    config = Topology(max_bytes=10 * MIB).config(KV).as_json(NAMESPACE)
    small = config | {"discard": "new", "max_bytes": SMALL_BYTES}
    await log._connection.call(f"$JS.API.STREAM.CREATE.{STREAM}", small)
    outbox = outbox_on(log, Owner(), OutboxLimits(retry_min_s=0.01, retry_max_s=0.05))
    async with running(outbox):
        for number in range(EVENTS):
            outbox.put(said(f"{number} {'x' * 500}"))
            if number % 10 == 0:
                await outbox.drain(0.01)
        await eventually(lambda: outbox.counts.retried > 3)
        before = await log.state(KV)
        assert outbox.depth > 0
        assert 0 < len(await messages(log)) == before.messages
        assert before.bytes <= SMALL_BYTES
        await log._connection.call(f"$JS.API.STREAM.UPDATE.{STREAM}", small | {"max_bytes": 100 * SMALL_BYTES})
        assert await outbox.drain(10)
    found = await messages(log)
    assert [reason.split()[0] for reason in reasons(found)] == [str(number) for number in range(EVENTS)]
    assert [message.n for message in found] == list(range(len(found)))
    assert outbox.counts.dropped_events == 0
    await log.close()


async def test_reservation_too_large(server: EmbeddedNats) -> None:
    """A log that the broker cannot hold is refused at the start, with the number to change."""
    log = await connect(server, max_bytes=1_000 * MIB)
    with pytest.raises(Refused, match=rf"lower log\.max_bytes \({1_000 * MIB} bytes for all streams\), or raise"):
        await log.ensure([KV])
    await log.close()


class Disk(NamedTuple):
    """What `shutil.disk_usage` says."""

    total: int
    used: int
    free: int


async def test_a_server_that_ran_out_of_disk(server: EmbeddedNats, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is worth a restart when there is space again, not before, and once."""
    assert server.healthy()
    free = 0
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(0, 0, free))
    assert server.healthy()
    with server.log.open("a") as log:
        log.write("[1] [ERR] Filestore [s] Critical write error: write 5.blk: no space left on device\n")
    assert server.healthy()
    free = SPACE_BACK_BYTES
    assert not server.healthy()
    await server.stop()
    await server.start()
    assert server.healthy()


async def test_the_log_began_a_new_file(server: EmbeddedNats) -> None:
    """What the server says is found in a log that was turned over as well."""
    with server.log.open("a") as log:
        log.write("x" * 10_000)
    assert server.healthy()
    server.log.write_text("[ERR] JetStream out of File resources, will be DISABLED\n")
    assert not server.healthy()


async def test_jetstream_switched_off(server: EmbeddedNats, tmp_path: Path) -> None:
    """A server without JetStream is refused at the start; one that had it and lost it is away."""
    log = await connect(server)
    await log.ensure([KV])
    disabled = {"error": {"code": 503, "err_code": 10039, "description": "JetStream not enabled for account"}}
    with pytest.raises(Unavailable):
        log._connection.check(disabled, "append")
    await log.close()
    fresh = NatsClient([server.url], server.credentials, "test")
    with pytest.raises(Refused):
        fresh.check(disabled, "append")


async def test_no_stream_fills_up_at_the_start(server: EmbeddedNats) -> None:
    """Streams take their reserve when they are made, so the last of them fits or the first start fails."""
    log = await connect(server, max_bytes=90 * MIB)
    topology = Topology(max_bytes=90 * MIB)
    await log.ensure(topology.names())
    await log.ensure(topology.names())
    assert await log.streams() == sorted(topology.names())
    written = subject(NAMESPACE, ROUTING, "r")
    assert await log.append(ROUTING, written, b"x", "r:0", StreamSeq(0)) == 1
    await log.close()
