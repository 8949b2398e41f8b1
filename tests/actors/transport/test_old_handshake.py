"""The handshake of the version before: admitted under an option alone, until its time ends; no peer can force it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from actors.transport.frames import (
    PROTOCOL,
    ClientHello,
    LegacyHello,
    Ping,
    Pong,
    Refusal,
    ToWorker,
    Welcome,
)
from actors.transport.framing import encode_frame
from actors.transport.handshake import LEGACY_REFUSAL, LegacyHandshake, LinkSecurity
from actors.transport.reconnecting_client import OLDER
from actors.transport.worker_server import WorkerServer
from core.clock import SystemClock
from tests.actors.scripted_engine import WORKER, ScriptedHost
from tests.actors.transport.linking import KEY, impostor, linked, port, up, welcome
from tests.actors.transport.test_worker_server import Client
from tests.fixtures.eventually import eventually
from tests.fixtures.loops import Run, run

__all__ = ["run"]

DOOR_KEY = "d" * 64
HELLO = LegacyHello(protocol=1, key=DOOR_KEY, namespace="test", replica="r")


def admitting(for_s: float) -> LinkSecurity:
    """Credentials that admit the old handshake for so long."""
    clock = SystemClock()
    legacy = LegacyHandshake(DOOR_KEY, clock.wall_ms() + int(for_s * 1000), clock)
    return LinkSecurity(key=KEY, namespace="test", legacy=legacy)


@asynccontextmanager
async def server(link: LinkSecurity) -> AsyncIterator[WorkerServer]:
    it = WorkerServer(ScriptedHost(), link)
    await it.open("127.0.0.1", 0)
    try:
        yield it
    finally:
        await it.close()


async def old_client(it: WorkerServer, hello: LegacyHello = HELLO) -> Client:
    """A client of the version before, which has sent its hello."""
    host, _, number = it.address.rpartition(":")
    client = Client(*await asyncio.open_connection(host, int(number)))
    client.say(hello)
    return client


def old_worker(writer: asyncio.StreamWriter, frame: ToWorker) -> None:
    """A worker of the version before."""
    if isinstance(frame, ClientHello):
        writer.write(encode_frame(Refusal(reason=f"{LEGACY_REFUSAL}: Invalid value 'ClientHello' - at `$.type`")))
        writer.close()
    elif isinstance(frame, LegacyHello):
        assert frame == LegacyHello(protocol=1, key=DOOR_KEY, namespace="test", replica="r")
        writer.write(encode_frame(Welcome(worker=WORKER, name="w", model="sim")))


def test_an_old_client_is_refused_unless_the_option_is_set(run: Run) -> None:
    async def scenario() -> None:
        async with server(LinkSecurity(key=KEY, namespace="test")) as it:
            client = await old_client(it)
            assert "link.old_handshake_until" in await client.refusal()
            client.writer.close()

    run(scenario)


def test_an_old_client_is_admitted_until_the_time_ends(run: Run) -> None:
    """Then its connection is closed, and a new one is refused."""

    async def scenario() -> None:
        async with server(admitting(0.5)) as it:
            client = await old_client(it)
            assert await client.hear() == Welcome(worker=WORKER, name="w", model="sim")
            client.say(Ping(n=1))
            assert await client.hear() == Pong(n=1)
            assert await client.ended()
            late = await old_client(it)
            assert "earlier version" in await late.refusal()
            for each in (client, late):
                each.writer.close()

    run(scenario)


def test_the_old_key_must_be_right(run: Run) -> None:
    async def scenario() -> None:
        async with server(admitting(60)) as it:
            for hello, reason in (
                (LegacyHello(protocol=1, key="wröng", namespace="test", replica="r"), "key is another one"),
                (LegacyHello(protocol=2, key=DOOR_KEY, namespace="test", replica="r"), "protocol 2.*here: protocol 1"),
                (LegacyHello(protocol=1, key=DOOR_KEY, namespace="prod", replica="r"), "'prod'"),
            ):
                client = await old_client(it, hello)
                text = await client.refusal()
                client.writer.close()
                assert all(part in text for part in reason.split(".*"))

    run(scenario)


def test_an_old_worker_is_reached_until_the_time_ends(run: Run) -> None:
    async def scenario() -> None:
        async with impostor(old_worker) as (_, address), linked(address, admitting(1.0)) as (link, changes):
            await up(link)
            await eventually(lambda: not link.up, "the time ends")
            await eventually(lambda: link.failures > 1, "only the proof is taken now")
            assert changes == [True, False]
            assert link.refusal == OLDER

    run(scenario)


def test_no_old_key_is_sent_without_the_option(run: Run) -> None:
    """No answer of a worker talks a part back to the old handshake."""
    frames: list[ToWorker] = []

    def listen(writer: asyncio.StreamWriter, frame: ToWorker) -> None:
        frames.append(frame)
        old_worker(writer, frame)

    async def scenario() -> None:
        link_security = LinkSecurity(key=KEY, namespace="test")
        async with impostor(listen) as (_, address), linked(address, link_security) as (link, changes):
            await eventually(lambda: link.failures > 3, "tries fail")
            assert changes == []
        assert {type(frame) for frame in frames} == {ClientHello}

    run(scenario)


def test_a_new_worker_is_greeted_anew_under_the_option(run: Run) -> None:
    """Both of this version prove themselves, also while the old handshake is admitted."""
    frames: list[ToWorker] = []

    def listen(writer: asyncio.StreamWriter, frame: ToWorker) -> None:
        frames.append(frame)
        welcome(writer, frame)

    async def scenario() -> None:
        async with impostor(listen) as (_, address), linked(address, admitting(60)) as (link, _):
            await up(link)
        async with port(ScriptedHost(), link=admitting(60)) as address, linked(address, admitting(60)) as (link, _):
            await up(link)
        assert isinstance(frames[0], ClientHello)
        assert frames[0].protocol == PROTOCOL
        assert not any(isinstance(frame, LegacyHello) for frame in frames)

    run(scenario)
