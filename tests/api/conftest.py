"""The API over a scripted backend, served by the real server on a free port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import openai
import pytest

from actors.metrics.frontend_metrics import FrontendMetrics
from api.app import create_app
from api.server.http_server import HttpServer
from api.server.limits import ApiSettings
from api.server.sockets import bind
from tests.api.scripted import ScriptedBackend


@dataclass(frozen=True, slots=True)
class Api:
    backend: ScriptedBackend
    metrics: FrontendMetrics
    server: HttpServer
    http: httpx.AsyncClient
    client: openai.AsyncOpenAI

    def count(self, model: str, outcome: str) -> float:
        """Requests counted with this outcome."""
        labels = {"model": model, "outcome": outcome}
        return self.metrics.registry.get_sample_value("contrail_requests_total", labels) or 0.0

    async def counted(self, model: str, outcome: str, count: int = 1) -> None:
        """So many requests were counted; that happens after their answers have left."""
        async with asyncio.timeout(5):
            while self.count(model, outcome) < count:
                await asyncio.sleep(0.002)
        assert self.count(model, outcome) == count


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    """A fresh API; nothing of it is left afterwards."""
    backend, metrics = ScriptedBackend(), FrontendMetrics()
    server = HttpServer(create_app(backend, metrics, ApiSettings()), bind("127.0.0.1", 0))
    address = await server.start()
    base_url = f"http://{address}"
    async with (
        # no TLS context: building one takes longer than most tests
        httpx.AsyncClient(base_url=base_url, verify=False, timeout=30) as http,
        openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield Api(backend, metrics, server, http, client)
    await server.stop(grace_s=1)
