"""Who makes room: of the network with most connections the oldest ones, and silence has bounds of its own."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass

import pytest

from api.server.eviction import EVICTED_AT_ONCE, choose_evicted, client_network
from api.server.http_server import HttpServer
from api.server.limits import HttpLimits
from api.server.sockets import bind, tls_context
from tests.api.server.front import GET, App, Client, served
from tests.fixtures.certificate import Certificate
from tests.fixtures.eventually import eventually


@dataclass
class Place:
    network: bytes
    since_s: float


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("127.0.0.1", "127.8.8.8", True),
        ("127.0.0.1", "::1", True),
        ("::ffff:127.0.0.1", "::1", True),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2", True),
        ("::1", "::2", False),
    ],
)
def test_networks(one: str, other: str, same: bool) -> None:
    """All of loopback is one, an IPv4 address in either form is one, and so is a /64."""
    assert (client_network(one) == client_network(other)) is same


def test_a_network_displaces_its_own() -> None:
    """The oldest of the busiest network go, so many at once; the older ones of others stay."""
    own = [Place(b"busy", float(at)) for at in range(100, 100 + 2 * EVICTED_AT_ONCE)]
    others = [Place(bytes([each]), float(each)) for each in range(50)]
    assert choose_evicted([*others, *reversed(own)]) == own[:EVICTED_AT_ONCE]
    assert choose_evicted([*others, own[3]]) == [others[0]]
    assert choose_evicted([]) == []


async def test_silence_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the bound all stay; one more, and the oldest is closed; each that speaks is served."""
    monkeypatch.setattr("api.server.acceptor.SILENT_MAX", 3)
    monkeypatch.setattr("api.server.acceptor.SILENT_MIN", 1)
    monkeypatch.setattr("api.server.eviction.EVICTED_AT_ONCE", 1)
    async with served() as site:
        silent = [await site.client() for _ in range(3)]
        await asyncio.sleep(0.1)
        assert not any(each.reader.at_eof() for each in silent)
        silent.append(await site.client())
        assert await silent[0].closed()
        for each in silent[1:]:
            each.writer.write(GET)
            assert (await each.answer()).status == 200


async def test_silence_takes_no_place_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """All connections together are no more than there may be, but for a few that are about to speak."""
    monkeypatch.setattr("api.server.acceptor.SILENT_MIN", 1)
    monkeypatch.setattr("api.server.eviction.EVICTED_AT_ONCE", 1)
    async with served(HttpLimits(connections_max=3)) as site:
        speaking = await site.client(GET)
        assert (await speaking.answer()).status == 200
        first, second, third = [await site.client() for _ in range(3)]
        assert await first.closed()
        for each in (second, third):
            each.writer.write(GET)
            assert (await each.answer()).status == 200
        fourth = await site.client()
        await asyncio.sleep(0.05)
        fourth.writer.write(GET)
        assert (await fourth.answer()).status == 200


async def test_handshakes_have_a_bound(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it the oldest handshake is given up, whose file is free at once."""
    monkeypatch.setattr("api.server.acceptor.HANDSHAKES_MAX", 2)
    monkeypatch.setattr("api.server.eviction.EVICTED_AT_ONCE", 1)
    server = HttpServer(App(), bind("127.0.0.1", 0), tls_context(str(certificate.cert), str(certificate.key)))
    address = await server.start()
    begun = []
    for _ in range(3):
        begun.append(Client(*await asyncio.open_connection(*address)))
        begun[-1].writer.write(b"\x16\x03\x01")
        await asyncio.sleep(0.05)
    async with asyncio.timeout(5):
        assert await begun[0].reader.read() == b""
    assert not any(each.reader.at_eof() for each in begun[1:])
    trusting = ssl.create_default_context(cafile=str(certificate.cert))
    reader, writer = await asyncio.open_connection(*address, ssl=trusting)
    writer.write(GET)
    assert (await Client(reader, writer).answer()).status == 200
    for each in (writer, *(client.writer for client in begun)):
        each.transport.abort()
    await eventually(lambda: not server.connections, "the end")
    await server.stop(1.0)
