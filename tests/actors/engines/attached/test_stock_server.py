"""A stock `vllm serve` as an engine: the contract, and what only a real server can show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from actors.engines.attached.attached_engine import AttachedEngine
from actors.engines.attached.server_facts import ServerOptions
from actors.engines.engine import CacheChange
from tests.contracts.engine import EngineContract, Started
from tests.fixtures.vllm_server import VllmServer


class Attached:
    """An attached engine that keeps what it told of its cache."""

    def __init__(self, engine: AttachedEngine) -> None:
        self.engine = engine
        self.changes: list[CacheChange] = []


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(tiny_checkpoint: Path) -> AsyncIterator[VllmServer]:
    """One server for all tests, which says how much of each prompt its cache had."""
    server = VllmServer(tiny_checkpoint, "--enable-prompt-tokens-details")
    try:
        server.start()
        await server.ready()
        yield server
    finally:
        await asyncio.to_thread(server.close)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def attached(server: VllmServer) -> AsyncIterator[Attached]:
    """One engine on it for all tests."""
    attached = Attached(AttachedEngine("tiny", ServerOptions(server.url, slots=32)))
    await attached.engine.start(attached.changes.append)
    yield attached
    await attached.engine.stop()


class TestStockServer(EngineContract):
    @pytest.fixture
    async def started(self, attached: Attached) -> AsyncIterator[Started]:
        yield Started(attached.engine, attached.changes)
