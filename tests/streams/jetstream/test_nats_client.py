"""NatsClient at the moments when a connection comes and goes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streams.embedded.embedded_nats import EmbeddedNats
from streams.jetstream.nats_client import NatsClient


async def test_a_close_together_with_a_connection_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library waits for answers by `asyncio.wait_for`. In Python 3.11 that loses a cancellation that comes with
    the answer. So a client that was closed in this moment kept its connection, and its close never ended."""
    server = EmbeddedNats(tmp_path / "nats")
    await server.start()
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
    await server.stop()
