"""NatsClient at the moments when a connection comes and goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from streams.embedded.embedded_nats import EmbeddedNats
from streams.jetstream.nats_client import NatsClient


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedNats]:
    """A private NATS, to be killed."""
    it = EmbeddedNats(tmp_path / "nats")
    await it.start()
    yield it
    await it.stop()


async def test_a_close_together_with_a_connection_ends(server: EmbeddedNats, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library waits for answers by `asyncio.wait_for`. In Python 3.11 that loses a cancellation that comes with
    the answer. So a client that was closed in this moment kept its connection, and its close never ended."""
    client = NatsClient([server.url], server.credentials, "test")
    await client.open()
    connects, answered = asyncio.Event(), asyncio.get_running_loop().create_future()
    connect = client._connect

    async def slowly() -> None:
        await connect()
        connects.set()
        await asyncio.wait_for(answered, 60)

    monkeypatch.setattr(client, "_connect", slowly)
    server.kill()
    await server.start()
    await connects.wait()
    answered.set_result(None)
    await asyncio.sleep(0)  # it is known there, and the client's task has not run yet

    async with asyncio.timeout(10):
        await client.close()
    assert not client.connected
