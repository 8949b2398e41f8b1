"""The operations listener, the server around it, metrics and logs."""

from __future__ import annotations

import asyncio
import io
import json
import logging

import httpx
import pytest

from actors.metrics.frontend_metrics import FrontendMetrics
from actors.metrics.worker_metrics import WorkerMetrics
from api.config.schema import OperationsSection
from api.process.logging_setup import JsonLines
from api.process.operations import create_operations_app, operations_server
from api.server.http_server import HttpServer
from api.server.sockets import bind
from core.errors import CallerError
from core.readiness import Readiness
from streams.embedded.loopback_ports import free_port
from tests.api.conftest import Api
from tests.api.scripted import spoken


async def test_a_process_says_how_it_is() -> None:
    """/live, /ready and /metrics answer with what they were given."""
    waiting: dict[str, str] = {"log": "12 events behind"}
    metrics = WorkerMetrics("tiny", "decode-0")
    metrics.watch_load(lambda: 3, lambda: 1, lambda: 50, lambda: 200)
    metrics.log.watch_outbox("kv_0", lambda: 2, lambda: 99, lambda: {"stored": 1})
    app = create_operations_app(
        lambda: True, lambda: Readiness(not waiting, waiting), metrics.registry, lambda: {"worker": "w"}
    )
    server = HttpServer(app, bind("127.0.0.1", 0))
    async with httpx.AsyncClient(base_url=f"http://{await server.start()}", verify=False) as http:
        assert (await http.get("/live")).json() == {"live": True}
        answer = await http.get("/ready")
        assert (answer.status_code, answer.json()) == (503, {"ready": False, "waiting_for": waiting, "degraded": {}})
        waiting.clear()
        assert (await http.get("/ready")).status_code == 200
        assert (await http.get("/state")).json() == {"worker": "w"}
        text = (await http.get("/metrics")).text
    await server.stop(grace_s=1)
    assert 'contrail_worker_running{model="tiny",worker="decode-0"} 3.0' in text
    assert 'contrail_appends_total{outcome="stored",stream="kv_0"} 1.0' in text


async def test_the_listener_is_where_it_is_wanted() -> None:
    """At the address that `--ops` names, else at a free port of loopback; what is no address is said."""
    made = (lambda: Readiness(ready=True, waiting_for={}), WorkerMetrics("tiny", "decode-0").registry, dict)
    port = free_port()
    wanted, anywhere = (operations_server(OperationsSection(), address, *made) for address in (f"127.0.0.1:{port}", ""))
    async with httpx.AsyncClient(verify=False) as http:
        for server in (wanted, anywhere):
            assert (await http.get(f"http://{await server.start()}/live")).status_code == 200
            await server.stop(grace_s=1)
    assert wanted.address.port == port
    assert anywhere.address.port != port
    with pytest.raises(CallerError, match="--ops: 'here' is not an address"):
        operations_server(OperationsSection(), "here", *made)


async def test_metrics_tell_what_requests_took(api: Api) -> None:
    """One request of three outputs is one first token, two gaps, one end."""
    api.backend.script = spoken("a")
    await api.http.post("/v1/completions", json={"model": "tiny", "prompt": "hi"})
    value = api.metrics.registry.get_sample_value
    await api.counted("tiny", "stop")
    assert value("contrail_time_to_first_token_seconds_count", {"model": "tiny"}) == 1
    assert value("contrail_inter_token_seconds_count", {"model": "tiny"}) == 2
    assert value("contrail_cached_tokens_total", {"model": "tiny"}) == 7


async def test_a_port_in_use_is_one_sentence(api: Api) -> None:
    """The error names the address and says what to do."""
    with pytest.raises(CallerError, match=r"cannot listen on 127\.0\.0\.1:\d+ .*choose another port"):
        bind(*api.server.address)


def test_several_processes_may_share_a_port() -> None:
    """With `reuse_port` on all of them."""
    with bind("127.0.0.1", 0, reuse_port=True) as first, bind(*first.getsockname(), reuse_port=True) as second:
        assert first.getsockname() == second.getsockname()


async def test_stopping_waits_for_requests_and_then_cuts_them(api: Api) -> None:
    """What finishes within the grace time is whole, what does not gets an error; nothing listens afterwards."""
    go_on = asyncio.Event()
    api.backend.script = [go_on, *spoken("whole")]
    body = {"model": "tiny", "prompt": "hi"}
    patient = asyncio.create_task(api.http.post("/v1/completions", json=body))
    await api.backend.until_asked()
    api.backend.script = [asyncio.Event()]
    endless = asyncio.create_task(api.http.post("/v1/completions", json=body))
    await api.backend.until_asked(2)
    stop = asyncio.create_task(api.server.stop(grace_s=0.5))
    go_on.set()
    assert (await patient).json()["choices"][0]["text"] == "whole"
    assert (await endless).json()["error"]["message"] == "this server is stopping: try again"
    await stop
    await api.backend.until_closed(2)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*api.server.address)


def test_a_log_line_is_one_json_object() -> None:
    """With the fields that were given, and the whole exception in one string."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("tests.log_line")
    logger.addHandler(handler)
    try:
        int("two\nlines")
    except ValueError:
        logger.exception("it %s", "broke", extra={"request_id": "req-1"})
    logger.removeHandler(handler)
    line = json.loads(stream.getvalue())
    assert (line["level"], line["message"], line["request_id"]) == ("error", "it broke", "req-1")
    assert "Traceback" in line["exception"]


def test_every_process_has_a_registry_of_its_own() -> None:
    """Two of them in one process do not meet."""
    first, second = FrontendMetrics(), FrontendMetrics()
    first.decided("kv", 0.0001)
    value = second.registry.get_sample_value("contrail_decision_seconds_count", {"policy": "kv"})
    assert value is None
