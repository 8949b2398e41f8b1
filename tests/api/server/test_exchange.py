"""A client's deadline, and a client that does not read: both end the request at the worker."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any, cast

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from actors.router.live_requests import cancel_reason
from api.server import protocol
from api.server.exchange import ClientDisconnected
from core.generation import Output
from core.models import DeadlineExceeded
from tests.api.conftest import Api
from tests.api.openai.test_generation import Transport, exchange_over
from tests.api.scripted import Step, ids

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 100}
ENDLESS = 100_000
"""Outputs, of some 9 KB each, one in a millisecond at most."""
WAITS_MAX = 1 << 18
"""Bytes of an answer: the high-water mark with what comes at once on top of it."""
NEVER = "the request was not answered within its x-contrail-deadline-ms"


def streamed_request() -> bytes:
    body = json.dumps({**BODY, "stream": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"content-type: application/json\r\n\r\n" + body


async def test_a_request_without_a_token_by_its_deadline_is_504(api: Api) -> None:
    """The worker stops, and has been told how long the client would wait."""
    api.backend.script = [asyncio.Event()]
    answer = await api.http.post("/v1/chat/completions", json=BODY, headers={"x-contrail-deadline-ms": "150"})
    assert answer.status_code == 504
    assert answer.json()["error"] == {
        "message": NEVER,
        "type": "server_error",
        "param": None,
        "code": "deadline_exceeded",
    }
    await api.backend.until_closed()
    await api.counted("tiny", "deadline")
    assert 0 < (api.backend.requests[0].deadline_ms or 0) <= 150


@pytest.mark.parametrize(("headers", "why"), [([(b"x-contrail-deadline-ms", b"1")], "deadline"), ([], "client_gone")])
async def test_work_that_waits_for_a_worker_hears_why_it_is_ended(headers: list[tuple[bytes, bytes]], why: str) -> None:
    """The log is told so."""
    transport = Transport()
    exchange = exchange_over(transport, FlowControl(cast(Any, transport)), headers)
    reasons: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            reasons.append(cancel_reason(error))
            raise

    if not headers:
        asyncio.get_running_loop().call_later(0.001, exchange.on_disconnect)
    with pytest.raises(ClientDisconnected if not headers else DeadlineExceeded):
        await exchange.run_until_disconnect(work())
    assert reasons == [why]
    assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]


async def test_a_stream_that_meets_its_deadline_ends_with_the_error(api: Api) -> None:
    """What came before it stands, and the worker stops."""
    api.backend.script = [Output(tokens=ids("half")), asyncio.Event()]
    headers = {"x-contrail-deadline-ms": "200"}
    async with api.http.stream(
        "POST", "/v1/chat/completions", json={**BODY, "stream": True}, headers=headers
    ) as answer:
        assert answer.status_code == 200
        lines = [line async for line in answer.aiter_lines() if line]
    assert any("half" in line for line in lines[:-1])
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
    await api.backend.until_closed()


async def test_a_request_that_is_answered_in_time_is_whole(api: Api) -> None:
    """However long the deadline is."""
    headers = {"x-contrail-deadline-ms": str(24 * 3600 * 1000)}
    answer = await api.http.post("/v1/chat/completions", json=BODY, headers=headers)
    assert answer.json()["choices"][0]["message"]["content"] == "hello"


@pytest.mark.parametrize("wrong", ["0", "-5", "soon", "9" * 11])
async def test_a_deadline_without_sense_is_the_callers_error(api: Api, wrong: str) -> None:
    """Not one that is ignored."""
    answer = await api.http.post("/v1/chat/completions", json=BODY, headers={"x-contrail-deadline-ms": wrong})
    assert answer.status_code == 400
    assert not api.backend.requests


async def test_who_does_not_read_is_bounded_in_memory_and_in_time(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Little waits in its connection, what comes after that is merged, and after SLOW_READER_S the worker stops."""
    monkeypatch.setattr(protocol, "SLOW_READER_S", 0.8)
    piece = ids("a jet leaves a contrail " * 400)
    taken, most = 0, 0

    class Script(list[Step]):
        def __iter__(self) -> Iterator[Step]:
            nonlocal taken, most
            while taken < ENDLESS:
                taken += 1
                most = max(most, *(each.transport.get_write_buffer_size() for each in api.server.connections))
                yield Output(tokens=piece)
                soon = asyncio.Event()
                asyncio.get_running_loop().call_later(0.001, soon.set)
                yield soon

    api.backend.script = Script()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, port = str(api.http.base_url.host), api.http.base_url.port
    sock.connect((host, port))
    sock.sendall(streamed_request())
    await api.backend.until_closed()
    await api.counted("tiny", "abort")
    sock.close()
    assert taken < ENDLESS
    assert 0 < most < WAITS_MAX


async def test_who_reads_slowly_is_served(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it reads at all."""
    monkeypatch.setattr(protocol, "SLOW_READER_S", 0.4)
    text = "a jet leaves a contrail " * 200
    api.backend.script = [*(Output(tokens=ids(text)) for _ in range(60)), Output(tokens=ids("end"), finish="stop")]
    host, port = str(api.http.base_url.host), api.http.base_url.port
    reader, writer = await asyncio.open_connection(host, port, limit=4096)
    writer.write(streamed_request())
    got = b""
    while b"[DONE]" not in got[-200:]:
        await asyncio.sleep(0.005)
        more = await reader.read(4096)
        assert more, got[-200:]
        got += more
    writer.close()
    assert got.count(b"contrail") >= 60
