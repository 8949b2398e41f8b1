"""The short form of the fuzz: over a real router and a real worker in this process, and nothing of it is left."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

from actors.metrics.frontend_metrics import FrontendMetrics
from api.app import create_app
from api.server.http_server import HttpServer
from api.server.limits import ApiSettings
from api.server.sockets import bind
from tests.actors.world import FAST, world
from tests.api.scripted import files
from tests.chaos.fuzz import fuzz
from tests.fixtures.eventually import eventually

ATTEMPTS = 150


async def test_nothing_breaks_and_nothing_is_left(tmp_path: Path) -> None:
    """Every answer is one or is refused in the right shape; then no connection, task, flight or sequence is left."""
    for name, content in files().items():
        (tmp_path / name).write_bytes(content)
    settings = dataclasses.replace(FAST, model_path=str(tmp_path), vocab=300, context_max=400)
    async with world() as here:
        worker = await here.worker("decode-0", "tiny", settings)
        router = await here.router()
        await here.ready(router)
        server = HttpServer(create_app(router, FrontendMetrics(), ApiSettings()), bind("127.0.0.1", 0))
        address = await server.start()
        tasks = len(asyncio.all_tasks())
        found = await fuzz(1, range(ATTEMPTS), address, "tiny")
        assert found.complaints == []
        assert found.statuses["200"] > ATTEMPTS / 15
        assert found.statuses["400"] > ATTEMPTS / 5
        assert len(found.manners) == 7
        await eventually(lambda: not server.connections, "the end of all connections")
        await eventually(lambda: not router.scheduler.running, "the end of all flights")
        await eventually(lambda: not worker.engine.load().running, "an idle engine")
        await eventually(lambda: len(asyncio.all_tasks()) <= tasks, "the end of all tasks")
        await server.stop(grace_s=1)
