"""A client that takes its answer late is noticed, and one that does not costs nothing."""

from __future__ import annotations

import asyncio
import socket
import time

from api.server.answer_delivery import AnswerDelivery, Delay
from api.server.exchange import RequestIntake
from api.server.tcp_probe import TcpProbe
from tests.fixtures.eventually import eventually


async def connected(receive_bytes: int = 0) -> tuple[asyncio.Transport, socket.socket]:
    """A server's transport and its client, which reads when the test does."""
    made: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()

    class Protocol(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            made.set_result(transport)

    server = await asyncio.get_running_loop().create_server(Protocol, "127.0.0.1", 0)
    client = socket.socket()
    if receive_bytes:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    await asyncio.to_thread(client.connect, server.sockets[0].getsockname())
    client.setblocking(False)
    transport = await made
    server.close()
    return transport, client


async def test_a_client_that_reads_at_once_is_not_noticed() -> None:
    transport, client = await connected()
    with client:
        probe, delays = TcpProbe(transport), list[Delay]()
        transport.write(b"x" * 1000)
        delivery = AnswerDelivery()
        delivery.follow(transport, probe, time.monotonic_ns(), delays.append)
        assert repr(delivery) == "<AnswerDelivery of 0 answers>"
        assert not delays
        probe.close()
        transport.close()


async def test_a_client_that_reads_late_is() -> None:
    """The time is that of its last acknowledgement, not of the question for it."""
    transport, client = await connected(receive_bytes=4096)
    with client:
        probe, delays, size = TcpProbe(transport), list[Delay](), 1_000_000
        transport.write(b"x" * size)
        begun_ns = time.monotonic_ns()
        AnswerDelivery().follow(transport, probe, begun_ns, delays.append)
        await asyncio.sleep(0.3)
        loop, got = asyncio.get_running_loop(), 0
        while got < size:
            got += len(await loop.sock_recv(client, 65536))
        took_ms = (time.monotonic_ns() - begun_ns) / 1e6
        await eventually(lambda: bool(delays), "the delay")
        (delay,) = delays
        assert abs(delay.written_ms - took_ms) <= 50
        assert 200 <= delay.stalled_ms <= took_ms + 50
        assert size - 100_000 <= delay.unsent_bytes <= size
        probe.close()
        transport.close()


async def test_an_intake_counts_what_the_kernel_had_before() -> None:
    """The loop was busy when the head came."""
    transport, client = await connected()
    with client:
        probe, intake = TcpProbe(transport), RequestIntake()
        assert intake.times() is None
        client.send(b"GET / HTTP/1.1\r\n\r\n")
        time.sleep(0.1)  # the loop is to be busy
        intake.on_head(probe)
        intake.begin()
        intake.on_whole()
        time.sleep(0.02)
        times = intake.times()
        assert times is not None
        assert 85_000 <= times.loop_us <= 130_000
        assert times.body_us < 5_000
        assert 19_000 <= times.prepare_us <= 60_000
        probe.close()
        assert (probe.ms_since_data(), probe.sending()) == (0, None)
        transport.close()
