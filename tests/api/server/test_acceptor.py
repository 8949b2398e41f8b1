"""Sockets that outlive their server: neighbours take what nobody tends, successors take over, nothing is reset."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from api.server.acceptor import BACKLOG
from api.server.http_server import HttpServer
from api.server.sockets import bind
from tests.api.server.front import GET, App, Client

FRESH = b"GET /whole HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"


@asynccontextmanager
async def slots(count: int) -> AsyncIterator[list[socket.socket]]:
    """So many sockets on one port, none of which listens yet."""
    first = bind("127.0.0.1", 0, reuse_port=True)
    address = first.getsockname()
    held = [first, *(bind(*address, reuse_port=True) for _ in range(count - 1))]
    try:
        yield held
    finally:
        for each in held:
            each.close()


async def serving(own: socket.socket, neighbours: Sequence[socket.socket] = ()) -> tuple[HttpServer, App]:
    app = App()
    server = HttpServer(app, own.dup(), neighbours=[each.dup() for each in neighbours])
    await server.start()
    return server, app


async def ask(address: tuple[str, int]) -> int:
    """The status that a fresh connection gets."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(FRESH)
        return (await Client(reader, writer).answer()).status
    finally:
        writer.close()


async def test_a_queue_that_nobody_tends_is_served_by_the_neighbour() -> None:
    """One of two front ends is gone without a word: every connection is served all the same, by the other."""
    async with slots(2) as (one, other):
        server, app = await serving(one, [other])
        other.listen(BACKLOG)  # as it does when its process was killed
        assert await asyncio.gather(*(ask(server.address) for _ in range(40))) == [200] * 40
        assert app.answered == 40
        await server.stop(1.0)


async def test_a_tended_queue_is_left_alone() -> None:
    """What one front end serves at once, its neighbour does not take."""
    async with slots(2) as (one, other):
        served = [await serving(one, [other]), await serving(other, [one])]
        for _ in range(40):
            assert await ask(served[0][0].address) == 200
        assert all(app.answered for _, app in served)
        assert sum(app.answered for _, app in served) == 40
        for server, _ in served:
            await server.stop(1.0)


async def test_a_neighbour_that_does_not_listen_yet_is_no_matter() -> None:
    """Nothing is taken from a socket that is only bound, and connections go to the one that listens."""
    async with slots(2) as (one, other):
        server, app = await serving(one, [other])
        await asyncio.sleep(0.12)
        assert [await ask(server.address) for _ in range(5)] == [200] * 5
        assert app.answered == 5
        await server.stop(1.0)


async def test_taking_turns_on_a_held_socket_resets_nobody() -> None:
    """Clients open fresh connections all the time while one server after the other takes the socket over."""
    async with slots(1) as (held,):
        server, app = await serving(held)
        address, going = server.address, True
        statuses: list[int] = []

        async def client() -> None:
            while going:
                statuses.append(await ask(address))

        clients = asyncio.gather(*(client() for _ in range(4)))
        for _ in range(5):
            while app.answered < 6:
                assert not clients.done(), clients.exception()
                await asyncio.sleep(0.005)
            (server, app), old = await serving(held), server
            await old.stop(5.0)
        going = False
        await clients
        await server.stop(5.0)
        assert len(statuses) > 25
        assert set(statuses) == {200}


async def test_a_queue_waits_for_the_next_server() -> None:
    """With no server at all, connections to a held socket wait, and are served when there is one."""
    async with slots(1) as (held,):
        server, _ = await serving(held)
        await server.stop(1.0)
        waiting = asyncio.create_task(ask(server.address))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        server, _ = await serving(held)
        assert await waiting == 200
        await server.stop(1.0)


async def test_a_kept_connection_moves_to_the_successor() -> None:
    """A client that keeps its connection is told to make another, which finds the next server."""
    async with slots(1) as (held,):
        old, _ = await serving(held)
        reader, writer = await asyncio.open_connection(*old.address)
        client = Client(reader, writer)
        writer.write(GET)
        assert "connection" not in (await client.answer()).headers
        new, app = await serving(held)
        stopping = asyncio.create_task(old.stop(5.0))
        await asyncio.sleep(0.05)
        writer.write(GET)
        assert (await client.answer()).headers["connection"] == "close"
        assert app.answered == 0
        assert await ask(new.address) == 200
        await stopping
        await new.stop(1.0)
        writer.close()


async def test_a_unix_socket_is_served(tmp_path: Path) -> None:
    """Its clients have no address; one that is silent at first is served, too."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(tmp_path / "socket"))
    listener.setblocking(False)
    server = HttpServer(App(), listener)
    await server.start()
    for pause_s in (0.0, 0.05):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "socket"))
        await asyncio.sleep(pause_s)
        writer.write(FRESH)
        assert (await Client(reader, writer).answer()).status == 200
        writer.close()
    await server.stop(1.0)
