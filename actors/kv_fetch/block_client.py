"""BlockClient: reads blocks of a prompt from the host tier of another engine, within a time.

All waits have a bound: of the connection, of each silence, and of the whole fetch. After `fetch` no byte is written any
more: this end reads, and no other process writes into its memory.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from actors.kv_fetch.fetch_protocol import (
    FOUND,
    HANDSHAKE_S,
    HELLO,
    NONCE_BYTES,
    REQUEST,
    FetchRefused,
    checksum,
    checksum_seed,
    client_proof,
    is_proof,
    read,
    read_into,
    server_proof,
)
from core.clock import Clock

SILENCE_S = 0.5
"""A source that sends nothing for so long is given up."""
IDLE_MAX = 16
"""Connections that are kept for the next fetch, those used last."""
MILLI = 1000


class ProvedChannel(NamedTuple):
    """A connection on which both ends are proved."""

    socket: socket.socket
    seed: int


class BlockClient:
    """Called in any thread."""

    def __init__(self, key: bytes, kind: bytes, block_bytes: int, clock: Clock) -> None:
        self._key, self._kind, self._block_bytes, self._clock = key, kind, block_bytes, clock
        self._idle: OrderedDict[tuple[str, int], ProvedChannel] = OrderedDict()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<BlockClient {len(self._idle)} idle connections>"

    def fetch(
        self, address: tuple[str, int], names: Sequence[bytes], rows: Iterable[memoryview], until_ms: int
    ) -> tuple[int, str]:
        """The number of leading blocks that stand in their rows now, and why there are no more: empty if all are there.

        `until_ms` is monotonic. A row behind those may hold anything.
        """
        with self._lock:
            channel = self._idle.pop(address, None)
        done, why = 0, "the time was over"
        for kept in (channel, None) if channel is not None else (None,):
            try:
                channel = kept or self._connect(address, until_ms)
                done, whole = self._read(channel, names, rows, until_ms)
            except (OSError, FetchRefused) as error:
                if channel is not None:
                    channel.socket.close()
                why = str(error)
                if kept is None or self._left_s(until_ms) <= 0:
                    return 0, why
                continue  # the source may have closed an idle connection
            if whole:
                self._keep(address, channel)
            else:
                channel.socket.close()
            why = "" if done == len(names) else "the source has no more" if whole else "the source fell silent"
            return done, why
        return done, why

    def close(self) -> None:
        """No connection is kept."""
        with self._lock:
            idle, self._idle = self._idle, OrderedDict()
        for channel in idle.values():
            channel.socket.close()

    def _keep(self, address: tuple[str, int], channel: ProvedChannel) -> None:
        with self._lock:
            other = self._idle.pop(address, None)
            self._idle[address] = channel
            gone = [] if other is None else [other]
            if len(self._idle) > IDLE_MAX:
                gone.append(self._idle.popitem(last=False)[1])
        for each in gone:
            each.socket.close()

    def _left_s(self, until_ms: int) -> float:
        return (until_ms - self._clock.monotonic_ms()) / MILLI

    def _wait(self, channel: socket.socket, most_s: float, until_ms: int) -> None:
        """The next call waits for no longer than that, nor than the time that is left. TimeoutError if none is."""
        left_s = self._left_s(until_ms)
        if left_s <= 0:
            raise TimeoutError("the time was over")
        channel.settimeout(min(most_s, left_s))

    def _connect(self, address: tuple[str, int], until_ms: int) -> ProvedChannel:
        left_s = self._left_s(until_ms)
        if left_s <= 0:
            raise TimeoutError("the time was over")
        channel = socket.create_connection(address, timeout=min(HANDSHAKE_S, left_s))
        try:
            channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wait = partial(self._wait, channel, HANDSHAKE_S, until_ms)
            theirs, nonce = read(channel, NONCE_BYTES, wait), secrets.token_bytes(NONCE_BYTES)
            channel.sendall(nonce + client_proof(self._key, theirs, nonce))
            proof, kind, block_bytes = HELLO.unpack(read(channel, HELLO.size, wait))
            if not is_proof(proof, server_proof(self._key, theirs, nonce)):
                raise FetchRefused("it does not hold the deployment's key")  # noqa: TRY301
            if (kind, block_bytes) != (self._kind, self._block_bytes):
                raise FetchRefused("its blocks are of another kind")  # noqa: TRY301
        except BaseException:  # nothing else would close it
            with suppress(OSError):
                channel.close()
            raise
        return ProvedChannel(channel, checksum_seed(self._key, theirs, nonce))

    def _read(
        self, channel: ProvedChannel, names: Sequence[bytes], rows: Iterable[memoryview], until_ms: int
    ) -> tuple[int, bool]:
        """The blocks that came, and False if the connection is of no more use. OSError if none came."""
        self._wait(channel.socket, SILENCE_S, until_ms)
        channel.socket.sendall(REQUEST.pack(len(names[0]), len(names)) + b"".join(names))
        done, wait = 0, partial(self._wait, channel.socket, SILENCE_S, until_ms)
        try:
            for name, row in zip(names, rows, strict=True):
                found, proof = FOUND.unpack(read(channel.socket, FOUND.size, wait))
                if not found:
                    return done, True
                read_into(channel.socket, row, wait)
                if checksum(channel.seed, name, row) != proof:
                    raise FetchRefused("a block does not have its checksum")  # noqa: TRY301
                done += 1
        except (OSError, FetchRefused):
            if not done:
                raise
            return done, False
        return done, True
