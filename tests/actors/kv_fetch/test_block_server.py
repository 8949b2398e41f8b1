"""Blocks over a wire: whole and right, or not at all, and never later than the bound."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from actors.kv_fetch import block_server
from actors.kv_fetch.block_client import SILENCE_S, BlockClient
from actors.kv_fetch.block_server import CONNECTIONS_MAX, BlockServer
from actors.kv_fetch.fetch_facts import FetchFacts, read_fetch, write_fetch
from actors.kv_fetch.fetch_protocol import FOUND, HANDSHAKE_S, HELLO, NONCE_BYTES, PROOF_BYTES, REQUEST, checksum, read
from core.clock import SystemClock
from core.errors import CallerError
from tests.fixtures.eventually import eventually

KEY, KIND, SIZE = b"k" * 32, b"i" * 16, 65536
NAMES = [bytes([number]) * 36 for number in range(8)]
SOON_MS = 2000


class Host:
    """Blocks in a dictionary; `before` is called with each name that is copied."""

    def __init__(self) -> None:
        self.blocks = {name: bytes([name[0] + 1]) * SIZE for name in NAMES}
        self.before: Callable[[bytes], object] = lambda _: None

    def copy(self, name: bytes, into: bytearray) -> bool:
        self.before(name)
        found = self.blocks.get(name)
        if found is None:
            return False
        into[:] = found
        return True


class Rows:
    """Room for as many blocks."""

    def __init__(self, count: int = len(NAMES)) -> None:
        self.memory = bytearray(count * SIZE)

    def all(self) -> list[memoryview]:
        view = memoryview(self.memory)
        return [view[at : at + SIZE] for at in range(0, len(self.memory), SIZE)]

    def block(self, number: int) -> bytes:
        return bytes(self.memory[number * SIZE : (number + 1) * SIZE])


@contextmanager
def serving(host: Host | None = None, **changed: bytes) -> Iterator[tuple[Host, BlockServer]]:
    found = host or Host()
    server = BlockServer("127.0.0.1", changed.get("key", KEY), changed.get("kind", KIND), SIZE, found)
    try:
        yield found, server
    finally:
        server.close()


_clients: list[BlockClient] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _clients:
        _clients.pop().close()


def client(size: int = SIZE) -> BlockClient:
    """Closed after the test."""
    _clients.append(BlockClient(KEY, KIND, size, SystemClock()))
    return _clients[-1]


def fetch(of: BlockClient, port: int, names: list[bytes] = NAMES, rows: Rows | None = None) -> tuple[int, str, float]:
    """The blocks that came, why there are no more, and how long it took."""
    began = time.monotonic()
    room = (rows or Rows(len(names))).all()
    done, why = of.fetch(("127.0.0.1", port), names, room, SystemClock().monotonic_ms() + SOON_MS)
    return done, why, time.monotonic() - began


async def test_blocks_come_whole_and_in_their_order() -> None:
    """Again over the connection that was kept."""
    with serving() as (host, server):
        reader, rows = client(), Rows()
        for _ in range(2):
            assert fetch(reader, server.port, rows=rows)[:2] == (8, "")
            assert all(rows.block(number) == host.blocks[name] for number, name in enumerate(NAMES))
        told = f"<BlockServer on port {server.port}, 1 connections, 16 blocks served>"
        await eventually(lambda: repr(server) == told)  # a block counts once it is sent, when a reader may have it


async def test_what_the_source_lacks_ends_the_answer() -> None:
    """What came before counts, and the connection is of use for the next fetch."""
    with serving() as (host, server):
        del host.blocks[NAMES[5]]
        reader = client()
        assert fetch(reader, server.port)[:2] == (5, "the source has no more")
        assert fetch(reader, server.port, NAMES[:5])[:2] == (5, "")
        await eventually(lambda: server.served == 10)


@pytest.mark.parametrize("changed", [{"key": b"x" * 32}, {"kind": b"o" * 16}])
def test_another_key_and_another_kind_are_refused(changed: dict[str, bytes]) -> None:
    """Nothing is read from it, and nothing is served to it."""
    with serving(None, **changed) as (_, server):
        done, why, _ = fetch(client(), server.port)
        assert done == 0
        assert why
        assert server.served == 0


def test_blocks_of_another_size_are_refused() -> None:
    with serving() as (_, server):
        assert fetch(client(SIZE // 2), server.port)[:2] == (0, "its blocks are of another kind")


def test_a_client_without_the_key_is_served_nothing() -> None:
    """It gets a nonce, and the connection ends."""
    with serving() as (_, server), socket.create_connection(("127.0.0.1", server.port), 2) as channel:
        assert len(read(channel, NONCE_BYTES)) == NONCE_BYTES
        channel.sendall(bytes(64))
        assert not channel.recv(1)
        assert server.served == 0


def test_a_server_without_the_key_is_asked_for_nothing() -> None:
    """It took the port of a source that is gone, and says the right kind: no name of a block reaches it."""
    got: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            channel, _ = listener.accept()
            with channel:
                channel.sendall(bytes(NONCE_BYTES))
                read(channel, NONCE_BYTES + PROOF_BYTES)
                channel.sendall(HELLO.pack(bytes(PROOF_BYTES), KIND, SIZE))
                got.append(channel.recv(1000))

        thread = threading.Thread(target=answer)
        thread.start()
        done, why, _ = fetch(client(), listener.getsockname()[1])
        thread.join()
    assert (done, why, got) == (0, "it does not hold the deployment's key", [b""])


def test_a_source_that_is_gone_costs_no_time() -> None:
    with serving() as (_, server):
        port = server.port
    done, why, took_s = fetch(client(), port)
    assert (done, took_s < SILENCE_S) == (0, True)
    assert "refused" in why


def test_a_source_that_started_again_is_asked_over_a_new_connection() -> None:
    """The kept one is dead, which is no failure of the source that listens there now."""
    reader, host = client(), Host()
    with serving(host) as (_, server):
        port = server.port
        assert fetch(reader, port)[0] == 8
    with serving(host) as (_, other):
        reader._idle["127.0.0.1", other.port] = reader._idle.pop(("127.0.0.1", port))
        assert fetch(reader, other.port)[:2] == (8, "")


@pytest.mark.parametrize("says", [0, NONCE_BYTES])
def test_a_source_that_is_silent_in_the_handshake_is_given_up(says: int) -> None:
    """A stopped process: the kernel still takes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            channel, _ = listener.accept()
            with channel:
                channel.sendall(bytes(says))
                channel.recv(1000)
                time.sleep(1.5 * HANDSHAKE_S)

        thread = threading.Thread(target=answer)
        thread.start()
        done, why, took_s = fetch(client(), listener.getsockname()[1])
        thread.join()
    assert done == 0
    assert "timed out" in why
    assert took_s < 2 * HANDSHAKE_S


def test_a_source_that_falls_silent_keeps_what_came() -> None:
    """Three blocks count, the fourth never comes; the bound is that of one silence."""
    with serving() as (host, server):
        go_on = threading.Event()
        host.before = lambda name: go_on.wait(5) if name == NAMES[3] else None
        done, why, took_s = fetch(client(), server.port)
        go_on.set()
    assert (done, why) == (3, "the source fell silent")
    assert SILENCE_S <= took_s < 3 * SILENCE_S


def test_no_row_is_written_after_the_end() -> None:
    """The source goes on sending; nothing of it reaches the memory, which is another prompt's by then."""
    with serving() as (host, server):
        go_on, rows = threading.Event(), Rows()
        host.before = lambda name: go_on.wait(5) if name == NAMES[3] else None
        assert fetch(client(), server.port, rows=rows)[0] == 3
        rows.memory[:] = bytes(len(rows.memory))
        go_on.set()
        time.sleep(0.1)
        assert not any(rows.memory)


def test_a_trickle_ends_with_the_time() -> None:
    """A source that sends a few bytes now and then is never silent; the whole fetch has a bound all the same."""
    with serving() as (host, server):
        host.before = lambda _: time.sleep(SILENCE_S * 0.6)
        names = NAMES * 4
        done, _, took_s = fetch(client(), server.port, names)
        assert 0 < done < len(names)
        assert took_s < SOON_MS / 1000 + SILENCE_S


def test_a_changed_byte_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks before it count; it and those behind it do not."""
    sums = iter([*range(3)])

    def damaged(seed: int, name: bytes, block: bytearray) -> int:
        found = checksum(seed, name, block)
        if next(sums, None) == 2:
            block[100] ^= 1
        return found

    monkeypatch.setattr(block_server, "checksum", damaged)
    with serving() as (_, server):
        assert fetch(client(), server.port)[:2] == (2, "the source fell silent")


def test_another_block_under_the_name_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checksum is of the name as well."""
    monkeypatch.setattr(block_server, "checksum", lambda seed, _, block: checksum(seed, NAMES[0], block))
    with serving() as (_, server):
        assert fetch(client(), server.port)[0] == 1


def test_connections_are_bounded() -> None:
    """One more is closed at once, and its fetch fails. On a busy machine a handshake may be late: it is tried again."""
    with serving() as (_, server):
        readers = [client() for _ in range(CONNECTIONS_MAX)]
        for reader in readers:
            assert any(fetch(reader, server.port, NAMES[:1])[0] for _ in range(20))
        done, why, _ = fetch(client(), server.port)
        assert (done, "timed out" in why) == (0, False)


@pytest.mark.parametrize("header", [(0, 1), (1000, 1), (36, 1 << 20)])
def test_a_request_beyond_the_bounds_ends_the_connection(header: tuple[int, int]) -> None:
    with serving() as (_, server):
        reader = client()
        assert fetch(reader, server.port, NAMES[:1])[0] == 1
        channel = reader._idle["127.0.0.1", server.port].socket
        channel.settimeout(2)
        channel.sendall(REQUEST.pack(*header))
        assert not channel.recv(FOUND.size)


def test_a_host_of_no_machine_is_refused() -> None:
    with pytest.raises(CallerError, match=r"cannot listen on 192\.0\.2\.1"):
        BlockServer("192.0.2.1", KEY, KIND, SIZE, Host())


def test_facts_come_back(tmp_path: Path) -> None:
    """A file that is not there, or not whole, has none."""
    path, facts = tmp_path / "fetches", FetchFacts(7, "ab", 262144, 100, 200, 1)
    assert read_fetch(path) is None
    write_fetch(path, facts)
    assert read_fetch(path) == facts
    path.write_bytes(path.read_bytes()[:-1])
    assert read_fetch(path) is None
