"""A worker's port as replicas meet it, over real TCP: greetings, bounds, streams, slow readers, ends."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from actors.transport import worker_server as port_module
from actors.transport.frames import (
    PROTOCOL,
    AskCache,
    AskFiles,
    Cache,
    Cancel,
    ClientHello,
    ClientProof,
    Failed,
    Files,
    Generate,
    LegacyHello,
    Ping,
    Pong,
    Refusal,
    Restate,
    StepTokens,
    Tokens,
    ToReplica,
    ToWorker,
    Welcome,
    WorkerHello,
)
from actors.transport.framing import FRAME_BYTES_MAX, HELLO_BYTES_MAX, decode_to_replica, encode_frame
from actors.transport.handshake import ClientHandshake
from actors.transport.worker_server import REQUESTS_MAX, WRITE_HIGH_BYTES, WorkerServer
from core.errors import CallerError, EngineDead
from core.generation import Output
from core.ids import WorkerId
from tests.actors.scripted_engine import WORKER, ScriptedHost
from tests.actors.transport.linking import LINK
from tests.actors.world import request
from tests.fixtures.eventually import eventually
from tests.fixtures.loops import Run, run

__all__ = ["run"]

HELLO = ClientHello(protocol=PROTOCOL, namespace="test", client="r", worker=WORKER, nonce=bytes(32))
SMALL_BYTES = 4096


class Client:
    """A replica that says and reads exactly what a test wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def say(self, *frames: ToWorker) -> None:
        self.writer.write(b"".join(map(encode_frame, frames)))

    async def hear(self) -> ToReplica:
        (size,) = struct.unpack("<I", await self.reader.readexactly(4))
        return decode_to_replica(await self.reader.readexactly(size))

    async def ended(self) -> bool:
        """Whether the worker hung up and had nothing more to say."""
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True

    async def greet(self, address: str, *, steps: bool = False, client: str = "r") -> ClientHandshake:
        """Both ends have proved themselves."""
        handshake = ClientHandshake(LINK, client, WorkerId(WORKER), address, steps=steps)
        self.say(handshake.hello)
        answer = await self.hear()
        assert isinstance(answer, WorkerHello)
        self.proof = handshake.check(answer, b"")
        self.say(self.proof)
        assert await self.hear() == Welcome(worker=WORKER, name="w", model="sim")
        return handshake

    async def refusal(self) -> str:
        """The worker's last word."""
        frame = await self.hear()
        assert isinstance(frame, Refusal)
        assert await self.ended()
        return frame.reason


class Site:
    """One port around a scripted engine."""

    def __init__(self) -> None:
        self.host = ScriptedHost()
        self.port = WorkerServer(self.host, LINK)
        self.address = ("", 0)
        self._clients: list[Client] = []

    async def connect(self, *, greet: bool = True, receive_bytes: int = 0, steps: bool = False) -> Client:
        """A client; one with few `receive_bytes` leaves what it does not read to the worker."""
        loop, raw = asyncio.get_running_loop(), socket.socket()
        if receive_bytes:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        raw.setblocking(False)
        await loop.sock_connect(raw, self.address)
        limit = receive_bytes or 1 << 20
        client = Client(*await asyncio.open_connection(sock=raw, limit=limit))
        self._clients.append(client)
        if greet:
            await client.greet(self.port.address, steps=steps)
        return client

    async def end(self) -> None:
        await self.port.close()
        for client in self._clients:
            client.writer.close()
            await asyncio.gather(client.writer.wait_closed(), return_exceptions=True)


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    """A port that listens."""
    it = Site()
    it.address = await it.port.open("127.0.0.1", 0)
    try:
        yield it
    finally:
        await it.end()


def generate(stream: int, id: str = "x", model: str = "sim") -> Generate:
    return Generate(stream=stream, model=model, request=request(range(8), id=id))


STRANGERS = {
    "key": (encode_frame(HELLO) + encode_frame(ClientProof(proof=bytes(32))), "your key is another one"),
    "short proof": (encode_frame(HELLO) + encode_frame(ClientProof(proof=b"")), "your key is another one"),
    "namespace": (encode_frame(msgspec.structs.replace(HELLO, namespace="prod")), "'prod'.*here.*'test'"),
    "protocol": (encode_frame(msgspec.structs.replace(HELLO, protocol=9)), "protocol 9.*here: protocol 2"),
    "worker": (encode_frame(msgspec.structs.replace(HELLO, worker="x")), f"worker {WORKER} answers here"),
    "nonce": (encode_frame(msgspec.structs.replace(HELLO, nonce=b"")), "a nonce has 32 bytes"),
    "earlier version": (
        encode_frame(LegacyHello(protocol=1, key="secret", namespace="test", replica="r")),
        "your handshake is of an earlier version",
    ),
    "no hello": (encode_frame(Ping(n=1)), "first frame must be ClientHello"),
    "no proof": (encode_frame(HELLO) + encode_frame(generate(0)), "the second ClientProof"),
    "proof alone": (encode_frame(ClientProof(proof=bytes(32))), "first frame must be ClientHello"),
    "garbage": (b"\x05\0\0\0GARBAGE", "not a frame"),
    "no text": (b"\x0e\0\0\0\x81\xa4type\xa5Hel\xff\xff..", "not a frame"),
    "nested": (struct.pack("<I", 4000) + b"\x91" * 4000, "not a frame"),
    "http": (b"GET / HTTP/1.1\r\n\r\n", "a frame of 542393671 bytes"),
    "long hello": (struct.pack("<I", HELLO_BYTES_MAX + 1), f"at most {HELLO_BYTES_MAX}"),
    "twice": (encode_frame(HELLO) + encode_frame(HELLO), "the second ClientProof"),
    "behind": (encode_frame(Ping(n=1)) + encode_frame(HELLO), "first frame must be ClientHello"),
}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_who_does_not_greet_is_refused(run: Run, stranger: str) -> None:
    """Both sides are named, the connection is closed, nothing was served, and the next replica is welcome."""
    said, reason = STRANGERS[stranger]

    async def scenario() -> None:
        async with site() as it:
            client = await it.connect(greet=False)
            client.writer.write(said)
            if (said.count(b"Client") > 1 and stranger != "behind") or stranger == "no proof":
                assert isinstance(await client.hear(), WorkerHello)
            with pytest.raises(AssertionError, match=reason):
                raise AssertionError(await client.refusal())
            await eventually(lambda: not it.port._connections, "the connection is gone")
            assert not it.host.engine.scripts
            await it.connect()

    run(scenario)


def test_a_greeted_client_cannot_greet_again(run: Run) -> None:
    async def scenario() -> None:
        async with site() as it:
            client = await it.connect()
            client.say(HELLO)
            assert await client.refusal() == "greeted twice"

    run(scenario)


def test_a_frame_is_taken_up_to_the_bound(run: Run) -> None:
    """A frame of FRAME_BYTES_MAX is read, one byte more is refused as soon as its length is known."""

    async def scenario() -> None:
        async with site() as it:
            client = await it.connect()
            client.writer.write(struct.pack("<I", FRAME_BYTES_MAX))
            client.writer.write(b"\x82\xa4type\xa4Ping\xa1n\x07".ljust(FRAME_BYTES_MAX, b"\xc0"))
            assert "not a frame" in await client.refusal()  # read as a whole, and found to have more than one map
            other = await it.connect()
            other.writer.write(struct.pack("<I", FRAME_BYTES_MAX + 1))
            assert str(FRAME_BYTES_MAX) in await other.refusal()

    run(scenario)


def test_a_silent_connection_is_closed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has not said who it is within HELLO_TIMEOUT_S is gone; who has may be silent after that."""
    monkeypatch.setattr(port_module, "HELLO_TIMEOUT_S", 0.05)

    async def scenario() -> None:
        async with site() as it:
            polite, silent = await it.connect(), await it.connect(greet=False)
            assert await silent.ended()
            polite.say(Ping(n=3))
            assert await polite.hear() == Pong(n=3)

    run(scenario)


def test_silent_connections_make_room(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """At UNPROVED_MAX the oldest silent one goes for a new one, and a greeted one never."""
    monkeypatch.setattr(port_module, "UNPROVED_MAX", 3)

    async def scenario() -> None:
        async with site() as it:
            greeted = await it.connect()
            silent = [await it.connect(greet=False) for _ in range(3)]
            await eventually(lambda: len(it.port._connections) == 4, "all are there")
            late = await it.connect(greet=False)
            assert await silent[0].ended()
            assert len(it.port._connections) == 4
            await late.greet(it.port.address)
            for client in (greeted, late):
                client.say(Ping(n=1))
                assert await client.hear() == Pong(n=1)

    run(scenario)


def test_questions_are_answered(run: Run) -> None:
    """Files, cache and life signs come in the order of the questions; a restatement is passed on."""

    async def scenario() -> None:
        async with site() as it:
            client = await it.connect()
            client.say(Restate(), AskFiles(), Ping(n=1), AskCache())
            assert await client.hear() == Files(files={"tokenizer.json": b"{}"})
            assert await client.hear() == Pong(n=1)
            assert await client.hear() == Cache(hashes=bytes(8))
            assert it.host.restated == 1

    run(scenario)


def test_streams_are_kept_apart(run: Run) -> None:
    """Streams go by their numbers, whatever their requests are called; each ends with its own end."""

    async def scenario() -> None:
        async with site() as it:
            client = await it.connect()
            client.say(generate(1, "same"), generate(2, "other"), generate(3, "same"))
            await eventually(lambda: it.port.streams == 3, "three streams")
            it.host.engine.script("other").put_nowait(Output(tokens=(7,), cached_tokens=4))
            assert await client.hear() == Tokens(stream=2, output=Output(tokens=(7,), cached_tokens=4))
            it.host.engine.script("other").put_nowait(CallerError("too long"))
            assert await client.hear() == Failed(stream=2, fault="caller", text="too long")
            for _ in range(2):
                it.host.engine.script("same").put_nowait(Output(tokens=(1,), finish="stop"))
            heard = [await client.hear(), await client.hear()]
            assert {frame.stream for frame in heard if isinstance(frame, Tokens)} == {1, 3}
            await it.port.quiet()
            assert it.host.reused == [(8, 4)]

    run(scenario)


def test_tokens_of_one_step_leave_in_one_frame(run: Run) -> None:
    """Of streams with a token and nothing else to say; what a stream says beside it has a frame of its own. A replica
    that does not know such frames gets one for each stream."""

    async def scenario() -> None:
        async with site() as it:
            for steps in (True, False):
                client = await it.connect(steps=steps)
                client.say(*(generate(number, f"{number}{steps}") for number in range(4)))
                await eventually(lambda: it.port.streams == 4, "four streams")
                outputs = [Output(tokens=(7,)), Output(tokens=(8,)), Output(tokens=(9, 9)), Output(finish="stop")]
                for number, output in enumerate(outputs):
                    it.host.engine.script(f"{number}{steps}").put_nowait(output)
                heard = [await client.hear() for _ in range(3 if steps else 4)]
                alone = {frame.stream: frame.output for frame in heard if isinstance(frame, Tokens)}
                assert [frame for frame in heard if isinstance(frame, StepTokens)] == [
                    StepTokens(tokens={0: 7, 1: 8})
                ] * steps
                assert alone == dict(list(enumerate(outputs))[2 * steps :])
                client.writer.close()
                await eventually(lambda: not it.port.streams, "all ended")

    run(scenario)


def test_what_cannot_be_served_fails_alone(run: Run) -> None:
    """Another model, a dead engine, a defect, a worker that drains: that stream fails, the connection stands."""

    async def scenario() -> None:
        async with site() as it:
            client = await it.connect()
            client.say(generate(1, model="other"), generate(2, "dead"), generate(3, "defect"))
            it.host.engine.script("dead").put_nowait(EngineDead("it died"))
            it.host.engine.script("defect").put_nowait(ZeroDivisionError("oh"))
            heard = [await client.hear() for _ in range(3)]
            texts = {frame.stream: (frame.fault, frame.text) for frame in heard if isinstance(frame, Failed)}
            assert texts[1] == ("worker", "asked for model 'other', here is 'sim'")
            assert texts[2] == ("worker", "it died")
            assert texts[3] == ("worker", "internal error of the worker")
            it.port.draining = True
            client.say(generate(4))
            assert await client.hear() == Failed(stream=4, fault="leaving", text="draining")

    run(scenario)


def test_a_number_is_used_once(run: Run) -> None:
    """A second stream under an open number is a broken protocol."""

    async def scenario() -> None:
        async with site() as it:
            client = await it.connect()
            client.say(generate(1), generate(1))
            assert "stream 1 is open already" in await client.refusal()
            await eventually(lambda: not it.port.streams, "nothing is served")

    run(scenario)


def test_no_more_streams_than_the_bound(run: Run) -> None:
    """REQUESTS_MAX streams are served on one connection, one more fails, and the next is served once one has ended."""

    async def scenario() -> None:
        async with site() as it:
            client = await it.connect()
            client.say(*(generate(number) for number in range(REQUESTS_MAX)), generate(REQUESTS_MAX, "more"))
            frame = await client.hear()
            assert isinstance(frame, Failed)
            assert (frame.stream, frame.fault) == (REQUESTS_MAX, "worker")
            assert it.port.streams == REQUESTS_MAX
            client.say(Cancel(stream=17))
            await eventually(lambda: it.port.streams < REQUESTS_MAX, "room")
            client.say(generate(REQUESTS_MAX + 1, "next"))
            await eventually(lambda: "next" in it.host.engine.scripts, "the next one is served")

    run(scenario)


def test_a_cancelled_stream_ends_in_the_engine(run: Run) -> None:
    """Cancel, and a connection that breaks, stop what the engine does for it; nothing more is heard of it."""

    async def scenario() -> None:
        async with site() as it:
            client = await it.connect()
            client.say(generate(1, "a"), generate(2, "b"))
            await eventually(lambda: it.port.streams == 2, "two streams")
            it.host.engine.script("a").put_nowait(Output(tokens=(1,)))
            client.say(Cancel(stream=1), Cancel(stream=99))
            await eventually(lambda: it.host.engine.ended == ["a"], "the first one ended")
            client.writer.transport.abort()
            await eventually(lambda: it.host.engine.ended == ["a", "b"], "the second one ended")
            assert not it.port.streams

    run(scenario)


def test_tokens_for_a_connection_that_just_broke_are_dropped(run: Run) -> None:
    """What was to leave with this turn of the loop goes nowhere, and nothing is made of it."""

    async def scenario() -> None:
        async with site() as it:
            await it.connect()
            (connection,) = it.port._connections
            connection._gather(1, Output(tokens=(1,)))
            connection._fail(2, "worker", "late")
            connection.abort()
            await eventually(lambda: not it.port._connections, "it is gone")
            connection._gather(1, Output(tokens=(1,)))
            await asyncio.sleep(0.01)

    run(scenario)


def test_a_slow_reader_gets_all_and_costs_little(run: Run) -> None:
    """Tokens for a reader who is far behind are merged, and nothing is read from him; his end comes after them all."""
    piece, pieces = tuple(range(1000)), 3000

    async def scenario() -> None:
        async with site() as it:
            client, quick = await it.connect(receive_bytes=SMALL_BYTES), await it.connect()
            client.say(generate(1, "slow"))
            await eventually(lambda: it.port.streams == 1, "a stream")
            for _ in range(pieces):
                it.host.engine.script("slow").put_nowait(Output(tokens=piece))
            it.host.engine.script("slow").put_nowait(EngineDead("broke off"))
            await eventually(lambda: it.host.engine.ended == ["slow"], "the engine is through")
            slow = next(each for each in it.port._connections if each.busy)
            assert slow._transport is not None
            assert not slow._writable
            assert len(slow._unsent) == 1
            assert slow._transport.get_write_buffer_size() < WRITE_HIGH_BYTES + 4_000_000
            client.say(Ping(n=1))
            quick.say(Ping(n=2))
            assert await quick.hear() == Pong(n=2)
            quiet = asyncio.create_task(it.port.quiet())
            heard: list[ToReplica] = []
            while len(heard) < 2 or not isinstance(heard[-1], Pong):
                heard.append(await client.hear())
            tokens = [token for frame in heard if isinstance(frame, Tokens) for token in frame.output.tokens]
            assert tokens == list(piece) * pieces
            assert heard[-2:] == [Failed(stream=1, fault="worker", text="broke off"), Pong(n=1)]
            assert len(heard) < pieces / 2
            await quiet

    run(scenario)


def test_close_is_bounded_for_a_reader_who_never_reads(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """After CLOSE_TIMEOUT_S no connection is left; who reads has got all by then."""
    monkeypatch.setattr(port_module, "CLOSE_TIMEOUT_S", 0.1)

    async def scenario() -> None:
        async with site() as it:
            client = await it.connect(receive_bytes=SMALL_BYTES)
            client.say(generate(1, "slow"), generate(2, "open"))
            await eventually(lambda: it.port.streams == 2, "streams")
            for _ in range(3000):
                it.host.engine.script("slow").put_nowait(Output(tokens=tuple(range(1000))))
            await eventually(lambda: not next(iter(it.port._connections))._writable, "he is behind")
            await it.port.close()
            await eventually(lambda: not it.port._connections, "no connection is left")
            await eventually(lambda: sorted(it.host.engine.ended) == ["open", "slow"], "nothing is served")

    run(scenario)
