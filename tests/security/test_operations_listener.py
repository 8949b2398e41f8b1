"""The operations listener: who reaches it, by which name, how often, and with which token."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from api.config.schema import OperationsSection
from api.process.operations import CONNECTIONS_MAX, REQUESTS_BURST, REQUESTS_PER_S, operations_server
from api.server.http_server import HttpServer
from core.errors import CallerError
from core.readiness import Readiness
from tests.api.server.front import Client
from tests.e2e.deployment import contrail, up
from tests.fixtures.eventually import eventually

SCRAPERS = 8
LOOP_S = 2.0
READY = Readiness(ready=True, waiting_for={})


class Counted(Collector):
    """Metrics whose renderings are counted."""

    def __init__(self) -> None:
        self.count = 0

    def collect(self) -> list[Any]:
        self.count += 1
        return []


@asynccontextmanager
async def listener(address: str = "", **section: Any) -> AsyncIterator[tuple[HttpServer, Counted]]:
    """A process's listener, and the count of its renderings."""
    registry, counted = CollectorRegistry(), Counted()
    registry.register(counted)
    counted.count = 0
    server = operations_server(OperationsSection(**section), address, lambda: READY, registry, lambda: {"worker": "w"})
    await server.start()
    try:
        yield server, counted
    finally:
        await server.stop(1.0)


def asked(path: str, host: str = "127.0.0.1", *headers: str) -> bytes:
    """A request, byte by byte."""
    return "\r\n".join([f"GET {path} HTTP/1.1", f"host: {host}", *headers, "", ""]).encode()


async def status(server: HttpServer, path: str, host: str = "127.0.0.1", *headers: str) -> int:
    """The status of the answer on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.address.port)
    writer.write(asked(path, host, *headers))
    answer = await Client(reader, writer).answer()
    writer.close()
    return answer.status


async def test_scrapers_in_a_tight_loop_cost_little() -> None:
    """Metrics are rendered once a second however many ask, and all answers together have a rate."""
    async with listener() as (server, counted):
        answers, end_s = 0, time.monotonic() + LOOP_S

        async def scrape() -> None:
            nonlocal answers
            reader, writer = await asyncio.open_connection(*server.address)
            while time.monotonic() < end_s:
                writer.write(asked("/metrics"))
                assert (await Client(reader, writer).answer()).status == 200
                answers += 1
            writer.close()

        await asyncio.gather(*(scrape() for _ in range(SCRAPERS)))
        assert counted.count <= LOOP_S + 1
        assert answers <= REQUESTS_BURST + REQUESTS_PER_S * (LOOP_S + 0.5)
        began_s = time.monotonic()
        assert await status(server, "/live") == 200
        assert time.monotonic() - began_s < 1.0, "a probe of Kubernetes waits for a second"


async def test_a_scrape_sees_what_is_so() -> None:
    """A scrape later than a second after the last one is rendered for itself."""
    async with listener() as (server, counted):
        for expected in (1, 2):
            assert await status(server, "/metrics") == 200
            assert await status(server, "/metrics") == 200
            assert counted.count == expected
            await asyncio.sleep(1.05)


async def test_connections_are_bounded() -> None:
    """Idle ones make room, so that a probe is answered."""
    async with listener() as (server, _):
        opened = []
        for _ in range(CONNECTIONS_MAX + 20):
            opened.append(Client(*await asyncio.open_connection(*server.address)))
            opened[-1].writer.write(asked("/live"))
            assert (await opened[-1].answer()).status == 200
        assert len(server.connections) <= CONNECTIONS_MAX
        assert await status(server, "/ready") == 200
        for each in opened:
            each.writer.transport.abort()
        await eventually(lambda: not server.connections, "the end")


async def test_a_rebound_name_reads_nothing_here() -> None:
    """On loopback a name in the public DNS is refused; beyond it the operator's names are unknown, and any is
    served."""
    paths = ("/live", "/ready", "/metrics", "/state")
    async with listener() as (server, _):
        for path in paths:
            assert await status(server, path, "evil.example:9090") == 403
            for host in ("localhost:9090", "[::1]", "10.0.0.7:9090", "contrail"):
                assert await status(server, path, host) == 200
    async with listener("0.0.0.0:0") as (server, _):
        assert await status(server, "/metrics", "worker-7.example.org:9090") == 200


async def test_a_token_closes_metrics_and_state(tmp_path: Path) -> None:
    """Probes need none, because a kubelet has none."""
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    async with listener(token_file=str(file)) as (server, counted):
        for path in ("/metrics", "/state"):
            for headers in ((), ("authorization: Bearer wrong",), ("authorization: Basic s3cret",)):
                assert await status(server, path, "127.0.0.1", *headers) == 401
            assert counted.count == (path == "/state")
            assert await status(server, path, "127.0.0.1", "authorization: bearer s3cret") == 200
        assert {await status(server, path) for path in ("/live", "/ready")} == {200}
    for content, fault in {"\n": "one word", "a\nb": "one word", "x" * 5000: "longer", "zwölf": "not ASCII"}.items():
        file.write_text(content)
        with pytest.raises(CallerError, match=fault):
            async with listener(token_file=str(file)):
                pass
    with pytest.raises(CallerError, match="No such file"):
        async with listener(token_file=str(tmp_path / "none")):
            pass


@pytest.mark.parametrize("host", ["", "10.0.0.5:9090"])
def test_a_host_has_no_port(host: str) -> None:
    """One port would not do for several processes."""
    with pytest.raises(ValueError, match="no host without a port"):
        OperationsSection(host=host)


async def test_the_listener_stays_on_loopback(tmp_path: Path) -> None:
    """Front ends and workers that listen beyond loopback keep their operations listener there; commands of a deployment
    with a token send it, and say what is missing without."""
    token = tmp_path / "token"
    token.write_text("s3cret")
    worker = {"engine": "simulated", "count": 1, "listen": "0.0.0.0:0", "advertise": "127.0.0.1"}
    file = tmp_path / "open.yaml"
    sections = {"frontend": {"listen": "0.0.0.0:0"}, "operations": {"token_file": str(token)}}
    file.write_text(json.dumps({"version": 1, "workers": [worker], **sections}))
    data = tmp_path / "data"
    async with up(data, "-f", str(file)) as running:
        for part in ("frontend-0", "decode-0"):
            ops = running.part(part)["ops"]
            assert ops.startswith("127.0.0.1:")
            async with httpx.AsyncClient(base_url=f"http://{ops}", verify=False) as http:
                assert (await http.get("/state")).status_code == 401
                assert (await http.get("/ready")).status_code == 200
        for words in (["doctor"], ["replicas"], ["settings", "show"]):
            found = await asyncio.to_thread(contrail, *words, "--data", str(data))
            assert found.returncode == 0, found.stdout + found.stderr
        token.write_text("another")
        found = await asyncio.to_thread(contrail, "replicas", "--data", str(data))
        assert "operations.token_file" in found.stdout
        token.write_text("s3cret")
