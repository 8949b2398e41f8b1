"""A replica's link to a worker, over real TCP: connections that break, lie, hang or flood, and streams over them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from actors import link as link_module
from actors.line import TokenStream, WorkerGone
from actors.link import Link
from actors.port import Port
from actors.pulled import pulled
from actors.wire import (
    ANSWER_BYTES_MAX,
    FRAME_BYTES_MAX,
    PROTOCOL,
    Generate,
    Hello,
    Splitter,
    Tokens,
    ToWorker,
    Welcome,
    encode,
    read_by_worker,
)
from core.errors import CallerError
from core.generation import GenerateRequest, Output, Sampling
from core.ids import RequestId, WorkerId
from tests.actors.scripted_engine import WORKER, ScriptedHost
from tests.actors.world import request
from tests.fixtures.eventually import eventually
from tests.fixtures.loops import Run, run

__all__ = ["run"]

KEY = "secret"
Said = Callable[[asyncio.StreamWriter, ToWorker], Awaitable[None] | None]


@asynccontextmanager
async def linked(address: str, key: str = KEY) -> AsyncIterator[tuple[Link, list[bool]]]:
    """A link that keeps trying, and its changes."""
    changes: list[bool] = []
    hello = Hello(protocol=PROTOCOL, key=key, namespace="test", replica="r")
    link = Link(WorkerId(WORKER), address, lambda: hello, lambda it: changes.append(it.up))
    link.start()
    try:
        yield link, changes
    finally:
        await link.close()
        await asyncio.sleep(0)


@asynccontextmanager
async def port(host: ScriptedHost, at: int = 0) -> AsyncIterator[str]:
    """A worker's port; its address."""
    it = Port(host, "test", KEY)
    name, number = await it.open("127.0.0.1", at)
    try:
        yield f"{name}:{number}"
    finally:
        await it.close()


class Impostor:
    """A worker that answers as a test wants."""

    def __init__(self, on_frame: Said) -> None:
        self.connections = 0
        self.open = 0
        self._on_frame = on_frame

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        splitter = Splitter(FRAME_BYTES_MAX)
        try:
            while data := await reader.read(1 << 16):
                for body in splitter.feed(data):
                    done = self._on_frame(writer, read_by_worker(body))
                    if done is not None:
                        await done
        except ConnectionError:
            pass  # how a connection ends is for the test to see
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def impostor(on_frame: Said) -> AsyncIterator[tuple[Impostor, str]]:
    """It listens; its address."""
    it = Impostor(on_frame)
    server = await asyncio.start_server(it.serve, "127.0.0.1", 0)
    host, number = server.sockets[0].getsockname()
    try:
        yield it, f"{host}:{number}"
    finally:
        server.close()
        await eventually(lambda: not it.open, "its connections are gone")


def welcome(writer: asyncio.StreamWriter, frame: ToWorker) -> None:
    """Politeness alone."""
    if isinstance(frame, Hello):
        writer.write(encode(Welcome(worker=WORKER, name="w", model="sim")))


async def up(link: Link) -> None:
    await eventually(lambda: link.up, "the link is up")


async def rest(stream: TokenStream) -> list[int]:
    tokens: list[int] = []

    def take(output: Output) -> bool:
        tokens.extend(output.tokens)
        return True

    await stream.run(take)
    return tokens


def test_a_request_is_answered_to_its_end(run: Run) -> None:
    """Tokens come in order and end with `finish`; a worker's refusal of one request is that request's error."""

    async def scenario() -> None:
        host = ScriptedHost()
        async with port(host) as address, linked(address) as (link, changes):
            await up(link)
            stream = link.open("sim", request(range(4), id="a"))
            host.engine.script("a").put_nowait(Output(tokens=(1, 2)))
            host.engine.script("a").put_nowait(Output(tokens=(3,), finish="stop"))
            assert await rest(stream) == [1, 2, 3]
            assert link.streams == 0
            refused = link.open("sim", request(range(4), id="b"))
            host.engine.script("b").put_nowait(CallerError("too long"))
            with pytest.raises(CallerError, match="too long"):
                await rest(refused)
            assert await link.ping(1)
            assert (await link.files(), await link.cached()) == ({"tokenizer.json": b"{}"}, bytes(8))
            link.restate()
            await eventually(lambda: host.restated, "the restatement")
        assert changes == [True]

    run(scenario)


def test_it_comes_back_whenever_the_worker_does(run: Run) -> None:
    """A break ends the open streams after what had come; it is no failed try, and the worker is found again."""

    async def scenario() -> None:
        host = ScriptedHost()
        async with port(host) as address:
            keeper = linked(address)
            link, changes = await keeper.__aenter__()
            await up(link)
            stream = pulled(link.open("sim", request(range(4), id="a")).run)
            host.engine.script("a").put_nowait(Output(tokens=(1, 2)))
            assert (await anext(stream)).tokens == (1, 2)
        await eventually(lambda: not link.up, "the link is down")
        with pytest.raises(WorkerGone, match="the connection broke"):
            await anext(stream)
        with pytest.raises(WorkerGone, match="no connection"):
            await rest(link.open("sim", request(range(4))))
        with pytest.raises(WorkerGone, match="no connection to worker"):
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
        async with port(ScriptedHost()) as address, linked(address, key="wrong") as (link, changes):
            await eventually(lambda: link.refusal, "the refusal")
            assert "key" in link.refusal
            assert "key" in repr(link)
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


def test_late_tokens_of_a_closed_stream_are_nobodys(run: Run) -> None:
    """A client that hangs up and sends the same request id again gets the second answer alone."""
    asked: list[Generate] = []

    def answer(writer: asyncio.StreamWriter, frame: ToWorker) -> None:
        welcome(writer, frame)
        if isinstance(frame, Generate):
            asked.append(frame)
        if len(asked) == 2 and isinstance(frame, Generate):
            writer.write(encode(Tokens(stream=asked[0].stream, output=Output(tokens=(666,)))))
            writer.write(encode(Tokens(stream=asked[1].stream, output=Output(tokens=(1,), finish="stop"))))

    async def scenario() -> None:
        asked.clear()
        async with impostor(answer) as (_, address), linked(address) as (link, _):
            await up(link)
            link.open("sim", request(range(4), id="same")).close()
            assert await rest(link.open("sim", request(range(4), id="same"))) == [1]

    run(scenario)


def test_tokens_nobody_reads_are_merged(run: Run) -> None:
    """A reader who comes late finds one output, and after it the break that followed it."""

    async def scenario() -> None:
        host = ScriptedHost()
        async with port(host) as address, linked(address) as (link, _):
            await up(link)
            stream = link.open("sim", request(range(4), id="a"))
            host.engine.script("a").put_nowait(Output(tokens=(0,), cached_tokens=3))
            for token in range(1, 50):
                await asyncio.sleep(0)
                host.engine.script("a").put_nowait(Output(tokens=(token,)))
            await eventually(lambda: stream._gathered.count == 50, "all came")
            link.cut()
            taken: list[Output] = []

            def take(output: Output) -> bool:
                taken.append(output)
                return True

            with pytest.raises(WorkerGone):
                await stream.run(take)
            assert taken == [Output(tokens=tuple(range(50)), cached_tokens=3)]

    run(scenario)


def test_a_reader_who_wants_no_more(run: Run) -> None:
    """It is given nothing else, and the stream can be closed."""

    async def scenario() -> None:
        host = ScriptedHost()
        async with port(host) as address, linked(address) as (link, _):
            await up(link)
            stream, taken = link.open("sim", request(range(4), id="a")), list[int]()
            for token in (1, 2, 3):
                host.engine.script("a").put_nowait(Output(tokens=(token,)))

            def take(output: Output) -> bool:
                taken.extend(output.tokens)
                return 2 not in taken

            await stream.run(take)
            stream.close()
            assert taken in ([1, 2], [1, 2, 3])
            assert link.streams == 0

    run(scenario)


def test_a_reader_who_fails_fails_alone(run: Run) -> None:
    """What it raises is its own; others over the same connection go on."""

    async def scenario() -> None:
        host = ScriptedHost()
        async with port(host) as address, linked(address) as (link, changes):
            await up(link)
            clumsy, other = (link.open("sim", request(range(4), id=name)) for name in ("a", "b"))
            host.engine.script("a").put_nowait(Output(tokens=(1,)))
            with pytest.raises(ZeroDivisionError):
                await clumsy.run(lambda output: 1 // (output.tokens[0] - 1) == 0)
            clumsy.close()
            host.engine.script("b").put_nowait(Output(tokens=(1,), finish="stop"))
            assert await rest(other) == [1]
            assert changes == [True]

    run(scenario)


def test_a_request_longer_than_a_frame_is_the_callers_error(run: Run) -> None:
    """It fails alone: others go on over the same connection."""

    async def scenario() -> None:
        host = ScriptedHost()
        async with port(host) as address, linked(address) as (link, changes):
            await up(link)
            stream = link.open("sim", request(range(4), id="a"))
            long = GenerateRequest(id=RequestId("b"), tokens=bytes(FRAME_BYTES_MAX), sampling=Sampling(max_tokens=1))
            with pytest.raises(CallerError, match="at most"):
                link.open("sim", long)
            host.engine.script("a").put_nowait(Output(tokens=(1,), finish="stop"))
            assert await rest(stream) == [1]
            assert changes == [True]

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
            with pytest.raises(WorkerGone):
                await rest(link.open("sim", request(range(4))))
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


def test_closing_ends_what_is_open(run: Run) -> None:
    """A stream and a question that are under way hear of it at once."""

    async def scenario() -> None:
        async with impostor(welcome) as (it, address), linked(address) as (link, _):
            await up(link)
            stream, question = link.open("sim", request(range(4))), asyncio.create_task(link.cached())
            await asyncio.sleep(0)
            await link.close()
            for waiting in (rest(stream), question):
                with pytest.raises(WorkerGone, match="given up"):
                    await waiting
            assert not link.up
            await eventually(lambda: not it.open, "the connection is gone")

    run(scenario)
