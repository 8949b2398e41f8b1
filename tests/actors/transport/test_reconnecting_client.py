"""A replica's link to a worker, over real TCP: connections that break, lie, hang or flood."""

from __future__ import annotations

import asyncio
import struct

import pytest

from actors.transport import reconnecting_client as link_module
from actors.transport.frames import AskCache, AskFiles, Cache, ClientProof, Files, Generate, Ping, Pong, ToWorker
from actors.transport.framing import ANSWER_BYTES_MAX, FRAME_BYTES_MAX, encode_frame
from actors.transport.handshake import LinkSecurity
from actors.transport.worker_connection import WorkerDisconnected
from core.generation import Output
from tests.actors.scripted_engine import ScriptedHost
from tests.actors.transport.linking import TokenReader, impostor, linked, port, rest, up, welcome
from tests.actors.world import request
from tests.fixtures.eventually import eventually
from tests.fixtures.loops import Run, run
from tests.output_stream import output_stream

__all__ = ["run"]


def test_it_comes_back_whenever_the_worker_does(run: Run) -> None:
    """A break ends the open streams after what had come; it is no failed try, and the worker is found again."""

    async def scenario() -> None:
        host = ScriptedHost()
        async with port(host) as address:
            keeper = linked(address)
            link, changes = await keeper.__aenter__()
            await up(link)
            answer = TokenReader.of(link, request(range(4), id="a"))
            stream = output_stream(lambda consumer: answer.run(consumer.on_output))
            host.engine.script("a").put_nowait(Output(tokens=(1, 2)))
            assert (await anext(stream)).tokens == (1, 2)
        await eventually(lambda: not link.up, "the link is down")
        with pytest.raises(WorkerDisconnected, match="the connection broke"):
            await anext(stream)
        with pytest.raises(WorkerDisconnected, match="no connection"):
            await rest(TokenReader.of(link, request(range(4))))
        with pytest.raises(WorkerDisconnected, match="no connection to worker"):
            link.restate()
        assert not await link.ping(1)
        await eventually(lambda: link.failures > 1, "tries fail")
        async with port(host, int(address.rpartition(":")[2])):
            await up(link)
            assert link.failures == 0
            await keeper.__aexit__(None, None, None)
        assert changes == [True, False, True]

    run(scenario)


def test_a_break_alone_is_no_failed_try(run: Run) -> None:
    """A worker that hangs up and takes us again was never unreachable."""

    async def scenario() -> None:
        writers: list[asyncio.StreamWriter] = []

        def greet(writer: asyncio.StreamWriter, frame: ToWorker) -> None:
            if isinstance(frame, ClientProof):
                writers.append(writer)
            welcome(writer, frame)

        async with impostor(greet) as (_, address), linked(address) as (link, changes):
            for times in range(1, 4):
                await up(link)
                assert len(writers) == times
                writers[-1].close()
                await eventually(lambda: not link.up, "the break is seen")
                assert link.failures == 0
            await up(link)
        assert changes == [True, False] * 3 + [True]

    run(scenario)


def test_a_refusal_is_kept_in_the_workers_words(run: Run) -> None:
    """A worker of another deployment is not used, and why can be read."""

    async def scenario() -> None:
        async with (
            port(ScriptedHost()) as address,
            linked(address, LinkSecurity(key=b"wrong", namespace="test")) as (link, changes),
        ):
            await eventually(lambda: link.refusal, "the refusal")
            assert "does not prove" in link.refusal
            assert "does not prove" in repr(link)
            await eventually(lambda: link.failures > 1, "it is tried again")
            assert changes == []

    run(scenario)


def test_another_worker_at_the_address_is_not_it(run: Run) -> None:
    """A restarted worker on the old port has another id: the link of the old one stays down."""

    async def scenario() -> None:
        host = ScriptedHost()
        host.worker = "00000000000000bb"
        async with port(host) as address, linked(address) as (link, changes):
            await eventually(lambda: link.failures > 1, "tries fail")
            assert changes == []

    run(scenario)


def test_a_listener_that_says_nothing_is_given_up(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """After CONNECT_TIMEOUT_S the try has failed, and its connection is closed."""
    monkeypatch.setattr(link_module, "CONNECT_TIMEOUT_S", 0.05)

    async def scenario() -> None:
        async with impostor(lambda _writer, _frame: None) as (it, address), linked(address) as (link, _):
            await eventually(lambda: link.failures >= 2, "tries fail")
            await eventually(lambda: it.connections >= 2 and it.open <= 1, "old connections are closed")

    run(scenario)


@pytest.mark.parametrize("address", ["", "host", "host:", "host:x", "host:99999", "h\xf6st:1", f"{'a' * 70}.x:1"])
def test_an_address_without_sense_is_one_that_fails(run: Run, address: str) -> None:
    """Whatever stands in the registry, the link lives, and says that it is down."""

    async def scenario() -> None:
        async with linked(address) as (link, changes):
            await eventually(lambda: link.failures > 1, "tries fail")
            assert changes == []

    run(scenario)


def test_brackets_around_an_address_are_understood(run: Run) -> None:
    """As IPv6 addresses are written."""

    async def scenario() -> None:
        async with port(ScriptedHost()) as address:
            host, _, number = address.rpartition(":")
            async with linked(f"[{host}]:{number}") as (link, _):
                await up(link)

    run(scenario)


def test_a_large_tokenizer_comes_through(run: Run) -> None:
    """Files may be larger than any request."""

    async def scenario() -> None:
        host = ScriptedHost()
        host.tokenizer = {"tokenizer.json": bytes(2 * FRAME_BYTES_MAX)}
        async with port(host) as address, linked(address) as (link, changes):
            await up(link)
            assert await link.files() == host.tokenizer
            assert changes == [True]

    run(scenario)


@pytest.mark.parametrize(
    "sent", [struct.pack("<I", ANSWER_BYTES_MAX + 1), b"\x03\0\0\0\xff\xff\xff", b"\x02\0\0\0\x81\xa1"]
)
def test_a_worker_that_breaks_the_protocol_is_cut_off(run: Run, sent: bytes) -> None:
    """What is no frame, or longer than the bound, ends the connection and every stream over it."""

    def answer(writer: asyncio.StreamWriter, frame: ToWorker) -> None:
        welcome(writer, frame)
        if isinstance(frame, Generate):
            writer.write(sent)

    async def scenario() -> None:
        async with impostor(answer) as (it, address), linked(address) as (link, _):
            await up(link)
            with pytest.raises(WorkerDisconnected):
                await rest(TokenReader.of(link, request(range(4))))
            await eventually(lambda: it.connections > 1, "it is tried again")

    run(scenario)


def test_a_frozen_worker_does_not_answer(run: Run) -> None:
    """A connection that stands says nothing of the worker behind it; a ping does. Questions have a bound."""

    async def scenario() -> None:
        async with impostor(welcome) as (_, address), linked(address) as (link, _):
            await up(link)
            assert not await link.ping(0.05)
            assert link.up
            link_module.ASK_TIMEOUT_S, before = 0.05, link_module.ASK_TIMEOUT_S
            try:
                with pytest.raises(TimeoutError):
                    await link.files()
            finally:
                link_module.ASK_TIMEOUT_S = before

    run(scenario)


@pytest.mark.parametrize("what", ["files", "cached"])
def test_a_late_answer_is_not_the_next_questions(run: Run, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """A question that timed out still gets its answer, before that of the next one: the next one has its own."""
    monkeypatch.setattr(link_module, "ASK_TIMEOUT_S", 0.05)
    questions = 0

    def answer(writer: asyncio.StreamWriter, frame: ToWorker) -> None:
        nonlocal questions
        welcome(writer, frame)
        questions += isinstance(frame, AskFiles | AskCache)
        if questions == 2:
            for said in (b"late", b"new"):
                writer.write(encode_frame(Files(files={"a": said}) if what == "files" else Cache(hashes=said)))

    async def scenario() -> None:
        async with impostor(answer) as (_, address), linked(address) as (link, _):
            await up(link)
            with pytest.raises(TimeoutError):
                await getattr(link, what)()
            monkeypatch.setattr(link_module, "ASK_TIMEOUT_S", 10)
            assert await getattr(link, what)() in ({"a": b"new"}, b"new")

    run(scenario)


@pytest.mark.parametrize("before", ["ping", "silence"])
def test_a_late_pong_is_not_the_next_pings(run: Run, before: str) -> None:
    """Neither that of a ping that timed out, nor that of one for which nobody waited."""
    pings: list[Ping] = []

    def answer(writer: asyncio.StreamWriter, frame: ToWorker) -> None:
        welcome(writer, frame)
        if isinstance(frame, Ping):
            pings.append(frame)
            if len(pings) > 1:
                writer.write(encode_frame(Pong(n=pings[-2].n)))

    async def scenario() -> None:
        async with impostor(answer) as (_, address), linked(address) as (link, _):
            await up(link)
            if before == "ping":
                assert not await link.ping(0.05)
            else:
                assert (link.silence(), link.silence()) == (0, 1)
            assert not await link.ping(0.05)
            assert len(pings) == 2

    run(scenario)
