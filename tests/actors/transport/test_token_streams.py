"""Streams of tokens over a replica's link to a worker: told, merged, refused, closed."""

from __future__ import annotations

import asyncio

import pytest

from actors.transport import worker_connection
from actors.transport.frames import Failed, Generate, StepTokens, Tokens, ToWorker
from actors.transport.framing import FRAME_BYTES_MAX, encode_frame
from actors.transport.worker_connection import WorkerConnection, WorkerDisconnected
from core.errors import CallerError
from core.generation import GenerateRequest, Output, Sampling
from core.ids import RequestId
from tests.actors.scripted_engine import ScriptedHost
from tests.actors.transport.linking import TokenReader, impostor, linked, port, rest, up, welcome
from tests.actors.world import request
from tests.fixtures.eventually import eventually
from tests.fixtures.loops import Run, run

__all__ = ["run"]


def test_a_request_is_answered_to_its_end(run: Run) -> None:
    """Tokens come in order and end with `finish`; a worker's refusal of one request is that request's error."""

    async def scenario() -> None:
        host = ScriptedHost()
        async with port(host) as address, linked(address) as (link, changes):
            await up(link)
            stream = TokenReader.of(link, request(range(4), id="a"))
            host.engine.script("a").put_nowait(Output(tokens=(1, 2)))
            host.engine.script("a").put_nowait(Output(tokens=(3,), finish="stop"))
            assert await rest(stream) == [1, 2, 3]
            assert link.streams == 0
            refused = TokenReader.of(link, request(range(4), id="b"))
            host.engine.script("b").put_nowait(CallerError("too long"))
            with pytest.raises(CallerError, match="too long"):
                await rest(refused)
            assert await link.ping(1)
            assert (await link.files(), await link.cached()) == ({"tokenizer.json": b"{}"}, bytes(8))
            link.restate()
            await eventually(lambda: host.restated, "the restatement")
        assert changes == [True]

    run(scenario)


def test_late_tokens_of_a_closed_stream_are_nobodys(run: Run) -> None:
    """A client that hangs up and sends the same request id again gets the second answer alone."""
    asked: list[Generate] = []

    def answer(writer: asyncio.StreamWriter, frame: ToWorker) -> None:
        welcome(writer, frame)
        if isinstance(frame, Generate):
            asked.append(frame)
        if len(asked) == 2 and isinstance(frame, Generate):
            writer.write(encode_frame(Tokens(stream=asked[0].stream, output=Output(tokens=(666,)))))
            writer.write(encode_frame(Tokens(stream=asked[1].stream, output=Output(tokens=(1,), finish="stop"))))

    async def scenario() -> None:
        asked.clear()
        async with impostor(answer) as (_, address), linked(address) as (link, _):
            await up(link)
            TokenReader.of(link, request(range(4), id="same")).close()
            assert await rest(TokenReader.of(link, request(range(4), id="same"))) == [1]

    run(scenario)


class Nowhere(asyncio.Transport):
    """Takes all that is written."""

    def write(self, data: object) -> None:
        """It is gone."""

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing waits."""


async def test_one_frame_has_tokens_of_many() -> None:
    """Each stream takes its own, with what came for it alone before and after; one that is over is nobody's."""
    line = WorkerConnection()
    line.connection_made(Nowhere())
    line.trust()
    streams = [TokenReader(line, request(range(4), id=name)) for name in ("a", "b", "c")]
    streams[1].close()
    line.data_received(
        encode_frame(Tokens(stream=0, output=Output(tokens=(1,), cached_tokens=0)))
        + encode_frame(StepTokens(tokens={2: 5, 1: 6, 0: 2, 9: 7}))
        + b"".join(encode_frame(Tokens(stream=number, output=Output(tokens=(3,), finish="stop"))) for number in (0, 2))
    )
    assert [await rest(stream) for stream in (streams[0], streams[2])] == [[1, 2, 3], [5, 3]]
    assert not line.streams


class TooMuch(Exception):
    """What a reader raises."""


@pytest.mark.parametrize("fault", ["leaving", "worker"])
def test_who_has_enough_hears_of_no_end(run: Run, fault: str) -> None:
    """A worker that leaves says so right behind the tokens it made: an answer that these completed is complete, and
    what its reader found wrong with them stands."""

    async def scenario() -> None:
        for enough in (None, TooMuch()):
            line, taken = WorkerConnection(), list[tuple[int, ...]]()
            line.connection_made(Nowhere())
            line.trust()
            stream = TokenReader(line, request(range(4), id="a"))

            def take(output: Output, enough: Exception | None = enough, taken: list[tuple[int, ...]] = taken) -> bool:
                taken.append(output.tokens)
                if enough is not None:
                    raise enough
                return False

            running = asyncio.create_task(stream.run(take))
            await asyncio.sleep(0)
            tokens, failed = Tokens(stream=0, output=Output(tokens=(1,))), Failed(stream=0, fault=fault, text="ends")
            line.data_received(encode_frame(tokens) + encode_frame(failed))
            if enough is None:
                await running
            else:
                with pytest.raises(TooMuch):
                    await running
            assert taken == [(1,)]
            assert not line.streams

    run(scenario)


def test_tokens_nobody_reads_are_merged(run: Run) -> None:
    """A reader who comes late finds one output, and after it the break that followed it."""

    async def scenario() -> None:
        host = ScriptedHost()
        async with port(host) as address, linked(address) as (link, _):
            await up(link)
            stream = TokenReader.of(link, request(range(4), id="a"))
            host.engine.script("a").put_nowait(Output(tokens=(0,), cached_tokens=3))
            for token in range(1, 50):
                await asyncio.sleep(0)
                host.engine.script("a").put_nowait(Output(tokens=(token,)))
            await eventually(lambda: stream._buffer is not None and stream._buffer.count == 50, "all came")
            link.cut()
            taken: list[Output] = []

            def take(output: Output) -> bool:
                taken.append(output)
                return True

            with pytest.raises(WorkerDisconnected):
                await stream.run(take)
            assert taken == [Output(tokens=tuple(range(50)), cached_tokens=3)]

    run(scenario)


def test_a_reader_who_wants_no_more(run: Run) -> None:
    """It is given nothing else, and the stream can be closed."""

    async def scenario() -> None:
        host = ScriptedHost()
        async with port(host) as address, linked(address) as (link, _):
            await up(link)
            stream, taken = TokenReader.of(link, request(range(4), id="a")), list[int]()
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
            clumsy, other = (TokenReader.of(link, request(range(4), id=name)) for name in ("a", "b"))
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
            stream = TokenReader.of(link, request(range(4), id="a"))
            long = GenerateRequest(id=RequestId("b"), tokens=bytes(FRAME_BYTES_MAX), sampling=Sampling(max_tokens=1))
            with pytest.raises(CallerError, match="at most"):
                TokenReader.of(link, long)
            host.engine.script("a").put_nowait(Output(tokens=(1,), finish="stop"))
            assert await rest(stream) == [1]
            assert changes == [True]

    run(scenario)


def test_closing_ends_what_is_open(run: Run) -> None:
    """A stream and a question that are under way hear of it at once."""

    async def scenario() -> None:
        async with impostor(welcome) as (it, address), linked(address) as (link, _):
            await up(link)
            stream, question = TokenReader.of(link, request(range(4))), asyncio.create_task(link.cached())
            await asyncio.sleep(0)
            await link.close()
            for waiting in (rest(stream), question):
                with pytest.raises(WorkerDisconnected, match="given up"):
                    await waiting
            assert not link.up
            await eventually(lambda: not it.open, "the connection is gone")

    run(scenario)


def test_a_worker_that_does_not_read_is_given_up(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for it has a bound; its requests are for other workers, and one that reads is connected again."""
    monkeypatch.setattr(worker_connection, "UNSENT_BYTES_MAX", 1 << 20)
    silent = asyncio.Event()

    async def deaf(writer: asyncio.StreamWriter, frame: ToWorker) -> None:
        welcome(writer, frame)
        if isinstance(frame, Generate):
            await silent.wait()  # reads nothing behind the first request

    async def scenario() -> None:
        async with impostor(deaf) as (_, address), linked(address) as (link, changes):
            await up(link)
            long = GenerateRequest(id=RequestId("x"), tokens=bytes(1 << 20), sampling=Sampling(max_tokens=1))
            streams: list[TokenReader] = []
            while link.up and len(streams) < 64:
                streams.append(TokenReader.of(link, long))
                await asyncio.sleep(0)
            assert len(streams) < 64
            for stream in streams:
                with pytest.raises(WorkerDisconnected, match=r"does not read|no connection"):
                    await rest(stream)
            await eventually(lambda: changes[:2] == [True, False], "the break is noticed")
            silent.set()

    run(scenario)
