"""The files of a nats-server that does not run say what it said, and stay as they are."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from core.errors import Refused, Unavailable
from core.ids import StreamName, StreamSeq
from core.subjects import LOAD, ROUTING, broker_stream, subject
from streams.embedded.embedded_nats import EmbeddedNats
from streams.jetstream.jetstream_log import JetStreamLog
from streams.jetstream.store_log import STARTED, StoreLog
from streams.log import Record, StreamState
from streams.topology import Topology

ROOMY = Topology(max_bytes=2 * 1024**3)
NAMESPACE = "test"
LARGE = bytes(64 * 1024)


class Told:
    """What the server said of one stream."""

    def __init__(self, state: StreamState, records: list[Record]) -> None:
        self.state = state
        self.records = records


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedNats]:
    server = EmbeddedNats(tmp_path / "nats", namespace=NAMESPACE)
    await server.start()
    yield server
    await server.stop()


async def fill(log: JetStreamLog, messages: int, payload: bytes = b"") -> None:
    for seq in range(messages):
        body = b"%d" % seq + payload
        await log.append(LOAD, subject(NAMESPACE, LOAD, "w"), body, f"w:{seq}", StreamSeq(seq))


async def told(log: JetStreamLog, stream: StreamName = LOAD) -> Told:
    return Told(await log.state(stream), [record async for record in log.read(stream, StreamSeq(1))])


async def opened(server: EmbeddedNats, topology: Topology = ROOMY) -> JetStreamLog:
    log = await JetStreamLog.connect([server.url], NAMESPACE, topology, server.credentials)
    await log.ensure([LOAD, ROUTING], {"0": "abcd"})
    return log


async def call(log: JetStreamLog, what: str, body: dict[str, object]) -> None:
    """A request to the broker that only an operator makes."""
    answer = await log._connection.request(
        f"{log._connection.api}.STREAM.{what}.{broker_stream(NAMESPACE, LOAD)}", body, what
    )
    log._connection.check(answer, what)


async def nothing(_: JetStreamLog) -> None:
    """Only what was appended."""


async def some_deleted(log: JetStreamLog) -> None:
    for seq in (3, 4, 17):
        await call(log, "MSG.DELETE", {"seq": seq, "no_erase": True})
    await call(log, "MSG.DELETE", {"seq": 30})


async def purged(log: JetStreamLog) -> None:
    await call(log, "PURGE", {"seq": 25})


async def all_purged(log: JetStreamLog) -> None:
    await call(log, "PURGE", {})


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("change", [nothing, some_deleted, purged, all_purged])
async def test_the_same_as_the_server_said(
    server: EmbeddedNats, tmp_path: Path, change: Callable[[JetStreamLog], object], how: str
) -> None:
    """Every message with its place, time, subject and payload, over several files; after a stop and after a kill."""
    log = await opened(server)
    await fill(log, 300, LARGE)
    await change(log)  # type: ignore[misc]
    before, empty = await told(log), await told(log, ROUTING)
    early, middle = await log.at(LOAD, StreamSeq(2)), await log.at(LOAD, StreamSeq(200))
    await log.close()
    if how == "stop":
        await server.stop()
    else:
        server.kill()
    files = StoreLog(tmp_path / "nats", NAMESPACE)
    assert await files.streams() == [LOAD, ROUTING]
    assert await files.fingerprints(LOAD) == {"0": "abcd"}
    assert [record async for record in files.read(LOAD, StreamSeq(1))] == before.records
    assert [record async for record in files.read(ROUTING, StreamSeq(1))] == empty.records == []
    for stream, known in ((LOAD, before.state), (ROUTING, empty.state)):
        state = await files.state(stream)
        same = ("epoch", "first_seq", "last_seq", "messages", "deleted", "bytes_max", "age_max_s")
        assert [getattr(state, name) for name in same] == [getattr(known, name) for name in same]
    assert await files.at(LOAD, StreamSeq(2)) == early
    assert await files.at(LOAD, StreamSeq(200)) == middle
    assert await files.last(LOAD, subject(NAMESPACE, LOAD, "w")) == (before.records[-1] if before.records else None)
    from_250 = [record async for record in files.read(LOAD, StreamSeq(250))]
    assert from_250 == [record for record in before.records if record.seq >= 250]
    if middle is not None:
        assert await files.seek(LOAD, middle.time_ms) <= 200
        assert await files.seek(LOAD, middle.time_ms + 3_600_000) == 301


async def test_limits_are_not_applied(server: EmbeddedNats, tmp_path: Path) -> None:
    """The files may still have messages that the server no longer gave: older ones, without a gap."""
    log = await opened(server, Topology(max_bytes=200 * 1024 * 1024))
    await fill(log, 300, LARGE)
    before = await told(log)
    await log.close()
    await server.stop()
    found = [record async for record in StoreLog(tmp_path / "nats", NAMESPACE).read(LOAD, StreamSeq(1))]
    assert 1 < found[0].seq <= before.records[0].seq
    assert found[-len(before.records) :] == before.records
    assert [record.seq for record in found] == list(range(found[0].seq, 301))


async def test_what_is_cut_off_ends_the_file(server: EmbeddedNats, tmp_path: Path) -> None:
    """As for the server: a machine that lost its power may leave half a record."""
    log = await opened(server)
    await fill(log, 40)
    before = await told(log)
    await log.close()
    await server.stop()
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "nats" / "jetstream", copy / "jetstream")
    (block,) = copy.glob(f"jetstream/*/streams/{broker_stream(NAMESPACE, LOAD)}/msgs/*.blk")
    whole = block.read_bytes()
    for cut in (1, 9, 60):
        block.write_bytes(whole[:-cut])
        assert [record async for record in StoreLog(copy, NAMESPACE).read(LOAD, StreamSeq(1))] == before.records[:-1]
    block.write_bytes(whole[:-1] + bytes(1000))
    assert len([record async for record in StoreLog(copy, NAMESPACE).read(LOAD, StreamSeq(1))]) in {39, 40}


async def test_what_cannot_be_read_is_one_sentence(server: EmbeddedNats, tmp_path: Path) -> None:
    """Files that are compressed, that go away, a stream that is not there; and nothing can be written."""
    log = await opened(server)
    await fill(log, 3)
    await log.close()
    await server.stop()
    files = StoreLog(tmp_path / "nats", NAMESPACE)
    with pytest.raises(Refused, match="there is no stream contrail_test_kv_0"):
        await files.state(StreamName("kv_0"))
    with pytest.raises(Refused, match="never grows"):
        await files.append(LOAD, "x", b"", "m", StreamSeq(0))
    assert (await files.state(LOAD)).messages == 3
    shutil.move(tmp_path / "nats" / "jetstream", tmp_path / "moved")
    with pytest.raises(Unavailable, match=STARTED):
        [record async for record in files.read(LOAD, StreamSeq(1))]
    (meta,) = (tmp_path / "moved").glob(f"*/streams/{broker_stream(NAMESPACE, LOAD)}/meta.inf")
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"compression": "s2"}))
    shutil.move(tmp_path / "moved", tmp_path / "nats" / "jetstream")
    with pytest.raises(Refused, match="are compressed: start the deployment"):
        await StoreLog(tmp_path / "nats", NAMESPACE).state(LOAD)
    assert await StoreLog(tmp_path / "nowhere", NAMESPACE).streams() == []
