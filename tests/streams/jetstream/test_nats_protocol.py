"""Messages among the bytes of a connection."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import Refused, Unavailable
from core.ids import StreamSeq
from core.subjects import kv_stream
from streams.embedded.embedded_nats import EmbeddedNats
from streams.jetstream import nats_client
from streams.jetstream.nats_client import NatsClient
from streams.jetstream.nats_protocol import NatsProtocol, header_block, headers_of, status_of
from streams.jetstream.pull_consumer import PullConsumer
from streams.jetstream.stream_reader import StreamReader
from streams.log import Record, StreamState

MAX_PAYLOAD = 100
CONTROL = [b"PING\r\n", b"+OK\r\n", b'INFO {"max_payload": 5}\r\n', b"-ERR 'MSG is not what this is'\r\n"]
HEADERS = header_block({"A": "1", "B": "two words"})

Got = tuple[bytes, bytes, bytes, bytes]


class Socket:
    """A transport with a library's protocol behind it."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.library = bytearray()
        self.protocol: object = SimpleNamespace(data_received=self.library.extend)
        self.closing = False

    def get_protocol(self) -> object:
        return self.protocol

    def set_protocol(self, protocol: object) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        self.written += data


def wired() -> tuple[Socket, NatsProtocol]:
    socket = Socket()
    writer = SimpleNamespace(transport=socket)
    transport = SimpleNamespace(_io_writer=writer)
    client: Any = SimpleNamespace(_transport=transport, _sid=0, max_payload=MAX_PAYLOAD, is_connected=True)
    return socket, NatsProtocol(client)


def framed(number: int, payload: bytes, headers: bytes, reply: bytes) -> bytes:
    """As the server sends it."""
    size = len(payload) + len(headers)
    sizes = b"%d %d" % (len(headers), size) if headers else b"%d" % size
    words = [b"HMSG" if headers else b"MSG", b"s.%d" % number, b"%d" % number, *([reply] if reply else []), sizes]
    return b" ".join(words) + b"\r\n" + headers + payload + b"\r\n"


MESSAGE = st.tuples(
    st.integers(1, 3), st.binary(max_size=60), st.sampled_from([b"", HEADERS]), st.sampled_from([b"", b"r.1"])
)
PIECES = st.lists(st.one_of(MESSAGE, st.sampled_from(CONTROL)), max_size=8)


@given(pieces=PIECES, cuts=st.lists(st.integers(0, 500), max_size=6))
def test_any_cut(pieces: list[bytes | tuple[int, bytes, bytes, bytes]], cuts: list[int]) -> None:
    """However the bytes are cut: each message goes to its subscription, in order, and all the rest to the library."""
    socket, wire = wired()
    got: list[Got] = []
    for number in (1, 2):
        assert wire.subscribe(f"s.{number}", lambda *what: got.append(what)) == number
    stream = b"".join(piece if isinstance(piece, bytes) else framed(*piece) for piece in pieces)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    for start, end in pairwise(places):
        wire.data_received(stream[start:end])
    messages = [piece for piece in pieces if not isinstance(piece, bytes)]
    assert got == [(b"s.%d" % n, reply, payload, headers) for n, payload, headers, reply in messages if n < 3]
    assert bytes(socket.library) == b"".join(piece for piece in pieces if isinstance(piece, bytes))


def test_what_is_sent() -> None:
    """Messages with and without headers, subscriptions, and nothing that the server would close the connection for."""
    socket, wire = wired()
    wire.send("a.b", b"xyz", "r.1")
    wire.send("a.b", b"xyz", "r.1", HEADERS)
    number = wire.subscribe("c.*", print)
    wire.unsubscribe(number)
    wire.unsubscribe(number)
    size = len(HEADERS)
    sent = [b"PUB a.b r.1 3\r\nxyz\r\n", b"HPUB a.b r.1 %d %d\r\n%bxyz\r\n" % (size, size + 3, HEADERS)]
    assert bytes(socket.written) == b"".join(sent) + b"SUB c.* 1\r\nUNSUB 1\r\n"
    wire.send("a.b", bytes(MAX_PAYLOAD - size), "r.1", HEADERS)
    with pytest.raises(Refused, match=f"{MAX_PAYLOAD + 1} bytes are more than the {MAX_PAYLOAD}"):
        wire.send("a.b", bytes(MAX_PAYLOAD + 1 - size), "r.1", HEADERS)
    socket.closing = True
    with pytest.raises(Unavailable):
        wire.send("a.b", b"xyz", "r.1")
    wire.unsubscribe(number)


@pytest.mark.parametrize("how", ["closing", "lost"])
def test_no_goodbye_without_a_connection(how: str) -> None:
    """A subscription is given up without a word when there is no connection: who cancels must not be told of that."""
    socket, wire = wired()
    number = wire.subscribe("a", print)
    said = bytes(socket.written)
    if how == "closing":
        socket.closing = True
    else:
        wire._client.is_connected = False  # type: ignore[misc]  # as the library has it for a while before it closes
    wire.unsubscribe(number)
    assert bytes(socket.written) == said


def test_a_callback_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and what follows is delivered."""
    _, wire = wired()
    got: list[bytes] = []

    def fail_once(_subject: bytes, _reply: bytes, payload: bytes, _headers: bytes) -> None:
        got.append(payload)
        if len(got) == 1:
            raise ValueError("once")

    wire.subscribe("s.1", fail_once)
    wire.data_received(framed(1, b"x", b"", b"") + framed(1, b"y", b"", b""))
    assert got == [b"x", b"y"]
    assert "a NATS callback failed" in caplog.text


def test_headers() -> None:
    """What is written reads back; a status has a number and a text."""
    assert headers_of(HEADERS) == {"A": "1", "B": "two words"}
    assert status_of(HEADERS) == ""
    status = b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 7\r\n\r\n"
    assert status_of(status) == "408"
    assert headers_of(status) == {"Description": "Request Timeout", "Nats-Pending-Messages": "7"}
    assert (status_of(b"NATS/1.0 503\r\n\r\n"), headers_of(b"NATS/1.0 503\r\n\r\n")) == ("503", {})


async def test_no_answer(nats_server: EmbeddedNats, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that nobody answers is Unavailable after its time, and leaves no timer behind."""
    monkeypatch.setattr(nats_client, "REQUEST_TIMEOUT_S", 0.1)
    monkeypatch.setattr(nats_client, "SWEEP_EVERY_S", 0.02)
    connection = NatsClient([nats_server.url], nats_server.credentials, "test")
    await connection.open()
    connection.subscribe("silent", lambda *_: None)
    with pytest.raises(Unavailable, match="silent: no answer within"):
        await connection.exchange("silent", b"?")
    await connection.call("$JS.API.INFO")
    assert connection._waiting == {}
    await asyncio.sleep(0.1)
    assert connection._sweeper is None
    await connection.close()


class _Silent(PullConsumer):
    """A consumer on a server that has not caught up: it knows of nothing, and then delivers after all."""

    def __init__(self, on_record: object, late: list[Record]) -> None:
        super().__init__(SimpleNamespace(new_inbox=lambda: "i"), kv_stream(0), "b", on_record)  # type: ignore[arg-type]
        self._late = late

    async def open(self, start: int) -> int:
        assert start == 1
        asyncio.get_running_loop().call_later(0.05, self._deliver)
        return 0

    def close(self) -> None:
        self.broken.set()

    def top_up(self) -> None:
        pass

    def _deliver(self) -> None:
        for record in self._late:
            self._on_record(record, 0)
            self.stirred.set()


async def test_a_pass_does_not_believe_a_follower() -> None:
    """A server that knows of nothing more may lag behind: a pass ends where the leader said, not before."""
    records = [Record(kv_stream(0), StreamSeq(seq), 0, "s", b"x") for seq in (1, 2, 3)]

    async def state() -> StreamState:
        return StreamState(SimpleNamespace(), records[0].seq, records[-1].seq, 3, 3)  # type: ignore[arg-type]

    async def following(seq: StreamSeq) -> Record | None:
        return next((record for record in records if record.seq >= seq), None)

    same = await state()

    async def unchanged() -> StreamState:
        return same

    one = StreamReader(lambda on_record, _: _Silent(on_record, records), unchanged, following, 1)
    assert [record async for record in one.records()] == records


def test_what_lies_before_the_start_is_skipped() -> None:
    """A consumer made on a server that lags begins at that server's end; what was read before is not read again."""
    got: list[int] = []
    connection = SimpleNamespace(new_inbox=lambda: "i")
    pull = PullConsumer(connection, kv_stream(0), "b", lambda record, _: got.append(record.seq))  # type: ignore[arg-type]
    pull._start = 5
    pull.outstanding = 1000
    for delivered, seq in enumerate((3, 4, 5, 6), 1):
        pull._on_message(b"s", b"$JS.ACK.b.c.1.%d.%d.1700000000000000000.0" % (seq, delivered), b"x", b"")
    assert got == [5, 6]
    assert (pull.outstanding, pull.broken.is_set()) == (996, False)
    pull._on_message(b"s", b"$JS.ACK.dom.acc.b.c.1.7.5.1700000000000000000.0.rnd", b"x", b"")
    assert got == [5, 6, 7]
    pull._on_message(b"s", b"$JS.ACK.b.c.1.9.7.1700000000000000000.0", b"x", b"")
    assert pull.broken.is_set()
