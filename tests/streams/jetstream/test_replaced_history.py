"""History lost or changed behind our back, on a real nats-server."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from core.ids import StreamSeq
from core.subjects import broker_stream
from streams.embedded.embedded_nats import EmbeddedNats
from streams.jetstream.jetstream_log import JetStreamLog
from streams.log import EventLog
from streams.topology import Topology
from tests.contracts.replaced_history import KV, NAMESPACE, ReplacedHistoryContract

TOPOLOGY = Topology(max_bytes=100 * 1024 * 1024)
STREAM = broker_stream(NAMESPACE, KV)


async def connect(server: EmbeddedNats) -> JetStreamLog:
    return await JetStreamLog.connect([server.url], NAMESPACE, TOPOLOGY, server.credentials)


class NatsBroker:
    """A private server, and what can be done to its store."""

    def __init__(self, server: EmbeddedNats, log: JetStreamLog, data: Path) -> None:
        self.log = log
        self._server = server
        self._data = data
        self._copied = data.with_suffix(".copy")

    async def delete(self, seq: int) -> None:
        await self.log._connection.call(f"$JS.API.STREAM.MSG.DELETE.{STREAM}", {"seq": seq})

    async def remake(self) -> None:
        await self.log._connection.call(f"$JS.API.STREAM.DELETE.{STREAM}")
        await self.log.ensure([KV])

    async def copy(self) -> None:
        await self._server.stop()
        shutil.copytree(self._data / "jetstream", self._copied)
        await self._start()

    async def put_back(self, then: Callable[[EventLog], Awaitable[object]]) -> None:
        await self._server.stop()
        shutil.rmtree(self._data / "jetstream")
        shutil.copytree(self._copied, self._data / "jetstream")
        elsewhere = EmbeddedNats(self._data)  # on another port: no reader looks yet
        await elsewhere.start()
        log = await connect(elsewhere)
        await then(log)
        await log.close()
        await elsewhere.stop()
        await self._start()

    async def damage(self, seq: int) -> None:
        record = await self.log.at(KV, StreamSeq(seq))
        assert record is not None
        await self._server.stop()
        [block] = (self._data / "jetstream").rglob("*.blk")
        content = bytearray(block.read_bytes())
        content[content.index(record.payload)] ^= 1
        block.write_bytes(content)
        await self._start()

    async def _start(self) -> None:
        await self._server.start()
        while not self.log.connected:
            await asyncio.sleep(0.01)


class TestJetStreamHistory(ReplacedHistoryContract):
    @pytest.fixture
    async def broker(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NatsBroker]:
        for name in ("CHECK_EVERY_S", "HEARTBEAT_S", "CONFIRM_S"):
            monkeypatch.setattr(f"streams.jetstream.stream_tail.{name}", 0.1)
        server = EmbeddedNats(tmp_path / "data")
        await server.start()
        log = await connect(server)
        await log.ensure([KV])
        yield NatsBroker(server, log, tmp_path / "data")
        await log.close()
        await server.stop()
