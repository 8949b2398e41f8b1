"""Slow, silent and too many clients: each bound is met, and said."""

from __future__ import annotations

import asyncio
import resource
import socket
from contextlib import suppress

import pytest

import api.server.http_server
from api.process.frontend import raise_file_limit
from api.server.limits import CONNECTIONS_MAX, FILES_RESERVED, HttpLimits, connections_for
from tests.api.server.front import GET, Site, served
from tests.fixtures.eventually import eventually
from tests.fixtures.loops import Run, run

__all__ = ["run"]

HELD = b"GET /held HTTP/1.1\r\nhost: a\r\n\r\n"
SHORT = HttpLimits(head_timeout_s=0.2, body_timeout_s=0.2, body_bytes_per_s_min=1 << 20, keep_alive_s=0.3)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are looked at often enough for a test."""
    monkeypatch.setattr(api.server.http_server, "TICK_S", 0.05)


async def drip(site: Site, raw: bytes, drops: bytes) -> int:
    """The status that a client gets that sends this, and then a byte at a time."""
    client = await site.client(raw)
    answer = asyncio.create_task(client.answer())
    for drop in drops:
        if answer.done():
            break
        client.writer.write(bytes([drop]))
        await asyncio.sleep(0.05)
    return (await answer).status


async def test_a_slow_head_is_refused() -> None:
    """Byte for byte, on a fresh connection and on one that was served: 408, whatever is still coming."""
    async with served(SHORT) as site:
        assert await drip(site, b"GET /whole HTTP/1.1\r\nhost: a\r\nx: ", b"y" * 40) == 408
        client = await site.client(GET)
        assert (await client.answer()).status == 200
        client.writer.write(b"GET /wh")
        assert (await client.answer()).status == 408
        assert await client.closed()


async def test_a_slow_body_is_refused() -> None:
    """With a length and in chunks; the application hears that its client is gone, and nothing of it stays."""
    async with served(SHORT) as site:
        post = b"POST /whole HTTP/1.1\r\nhost: a\r\n"
        assert await drip(site, post + b"content-length: 99\r\n\r\n", b"x" * 40) == 408
        assert await drip(site, post + b"transfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 7) == 408
        assert site.app.hung_up == 2
        assert site.app.answered == 0


async def test_a_large_body_may_take_longer() -> None:
    """Time grows with what has come: a body at the least rate is served though it takes longer than the timeout."""
    limits = HttpLimits(body_timeout_s=1.5, body_bytes_per_s_min=1000)
    async with served(limits) as site:
        client = await site.client(b"POST /whole HTTP/1.1\r\nhost: a\r\ncontent-length: 4000\r\n\r\n")
        for _ in range(20):
            client.writer.write(b"x" * 200)
            await asyncio.sleep(0.1)
        assert (await client.answer()).status == 200


async def test_a_large_body_that_stops_is_refused() -> None:
    """The time that its first part earned ends with the timeout: else 16 MiB were held for half an hour."""
    limits = HttpLimits(body_timeout_s=0.1, body_bytes_per_s_min=1000)
    async with served(limits) as site:
        head = b"POST /whole HTTP/1.1\r\nhost: a\r\ncontent-length: 60000\r\n\r\n"
        client = await site.client(head + b"x" * 59_999)
        async with asyncio.timeout(5):
            assert (await client.answer()).status == 408


async def test_idle_connections_are_closed() -> None:
    """One that never spoke, one that was served, and one that sends nothing but line ends."""
    async with served(SHORT) as site:
        silent, spoke, blank = await site.client(), await site.client(GET), await site.client(b"\r\n")
        assert (await spoke.answer()).status == 200
        blank.writer.write(b"\r\n" * 3)
        assert all(await asyncio.gather(silent.closed(), spoke.closed(), blank.closed()))


async def test_a_slow_answer_is_nobodys_fault() -> None:
    """No bound of ours ends a request that came whole and waits."""
    async with served(SHORT) as site:
        client = await site.client(b"GET /held HTTP/1.1\r\nhost: a\r\n\r\n")
        await asyncio.sleep(0.6)
        site.app.go.set()
        assert (await client.answer()).status == 200


async def test_one_connection_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the bound all are served; while all have requests, one more is told to come again; far beyond it is cut; then
    there is room again."""
    monkeypatch.setattr("api.server.protocol.TURNED_AWAY_MAX", 1)
    async with served(HttpLimits(connections_max=2)) as site:
        first, second = await site.client(HELD), await site.client(HELD)
        await eventually(lambda: site.app.asked == 2, "both requests")
        third = await site.client(GET)
        answer = await third.answer()
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        async with asyncio.timeout(5):
            with suppress(ConnectionResetError):
                assert await (await site.client(GET)).reader.read() == b""
        site.app.go.set()
        assert {(await first.answer()).status, (await second.answer()).status} == {200}
        for client in (first, third):
            client.writer.close()
        await eventually(lambda: len(site.server.connections) == 1, "room")
        assert (await site.ask(GET)).status == 200


async def test_connections_without_a_request_make_room() -> None:
    """Those that are idle or in the middle of a head, the one that has been so for longest first; none of a client that
    waits for its answer or sends a body."""
    async with served(HttpLimits(connections_max=4)) as site:
        post = b"POST /whole HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nx"
        held, sending = await site.client(HELD), await site.client(post)
        idle, half = await site.client(GET), await site.client(b"GET /whole")
        assert (await idle.answer()).status == 200
        await eventually(lambda: len(site.server.connections) == 4, "four connections")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("api.server.eviction.EVICTED_AT_ONCE", 1)
            for closed in (idle, half):
                fresh = await site.client(GET)
                assert (await fresh.answer()).status == 200
                assert await closed.closed()
                assert len(site.server.connections) == 4
        sending.writer.write(b"x")
        site.app.go.set()
        assert {(await held.answer()).status, (await sending.answer()).status} == {200}


def test_small_writes_leave_at_once_on_every_loop(run: Run) -> None:
    """TCP_NODELAY is set on what is accepted, by asyncio's loop and by uvloop."""

    async def scenario() -> None:
        async with served() as site:
            await site.ask(GET)
            sockets = [each.transport.get_extra_info("socket") for each in site.server.connections]
            assert [each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) > 0 for each in sockets] == [True]

    run(scenario)


def test_as_many_connections_as_files() -> None:
    """Where the system allows few open files, some of them are kept for the log, the registry and workers."""
    assert connections_for(1 << 20) == CONNECTIONS_MAX
    assert connections_for(1024) == 1024 - FILES_RESERVED
    assert connections_for(100) == 1
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert raise_file_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
