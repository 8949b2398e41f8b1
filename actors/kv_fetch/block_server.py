"""BlockServer: other engines of the deployment read blocks from this engine's host tier.

It knows neither vLLM nor torch: `HostBlocks` copies a block. All of it runs in threads of its own, so an engine that
computes nothing takes no time for it, and a scheduler that waits for nothing needs no step to answer.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
from contextlib import suppress
from typing import Protocol

from actors.kv_fetch.fetch_protocol import (
    BLOCKS_MAX,
    FOUND,
    HANDSHAKE_S,
    HELLO,
    NAME_BYTES_MAX,
    NONCE_BYTES,
    PROOF_BYTES,
    REQUEST,
    FetchRefused,
    checksum,
    checksum_seed,
    client_proof,
    is_proof,
    read,
    server_proof,
)
from core.errors import CallerError

CONNECTIONS_MAX = 32
"""Connections at a time; one more is closed at once, and its blocks are computed."""
SEND_S = 2.0
"""Bound on a write that the reader does not take."""
IDLE_S = 60.0
"""A connection without a request for so long ends."""

_logger = logging.getLogger(__name__)


class HostBlocks(Protocol):
    """The blocks that can be read. Called in any thread."""

    def copy(self, name: bytes, into: bytearray) -> bool:
        """True if the block of that name stood in the host all the time that it was copied."""


class BlockServer:
    """Listens from its construction on; CallerError if it cannot."""

    def __init__(self, host: str, key: bytes, kind: bytes, block_bytes: int, blocks: HostBlocks) -> None:
        self._key, self._kind, self._block_bytes, self._blocks = key, kind, block_bytes, blocks
        self.served = 0
        """Blocks that were sent whole."""
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family)
        try:
            self._socket.bind((host, 0))
            self._socket.listen(CONNECTIONS_MAX)
        except OSError as error:
            self._socket.close()
            raise CallerError(f"the engine cannot listen on {host} to have blocks fetched: {error}") from error
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, name="fetches: accept", daemon=True).start()

    def __repr__(self) -> str:
        return f"<BlockServer on port {self.port}, {len(self._connections)} connections, {self.served} blocks served>"

    def close(self) -> None:
        """Nothing is read any more from the next block on."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # `accept` in the other thread returns
        self._socket.close()
        with self._lock:
            open_ones = [*self._connections]
        for channel in open_ones:
            with suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                channel, _ = self._socket.accept()
            except OSError:  # it was closed
                return
            with self._lock:
                is_full = len(self._connections) >= CONNECTIONS_MAX
                if not is_full:
                    self._connections.add(channel)
            if is_full:
                channel.close()
            else:
                threading.Thread(target=self._serve, args=(channel,), name="fetches: serve", daemon=True).start()

    def _serve(self, channel: socket.socket) -> None:
        try:
            with channel:
                channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                seed = self._prove(channel)
                buffer = bytearray(self._block_bytes)
                while True:
                    channel.settimeout(IDLE_S)
                    first = channel.recv(REQUEST.size)
                    if not first:
                        return
                    channel.settimeout(SEND_S)
                    first += read(channel, REQUEST.size - len(first))
                    self._answer(channel, first, seed, buffer)
        except (OSError, FetchRefused) as error:
            _logger.debug("a reader of blocks is gone: %s", error)
        except Exception:  # a thread has no caller: without this, the failure would be in no log
            _logger.exception("blocks could not be served")
        finally:
            with self._lock:
                self._connections.discard(channel)

    def _prove(self, channel: socket.socket) -> int:
        """The seed of the connection's checksums, once the client has proved itself."""
        channel.settimeout(HANDSHAKE_S)
        nonce = secrets.token_bytes(NONCE_BYTES)
        channel.sendall(nonce)
        given = read(channel, NONCE_BYTES + PROOF_BYTES)
        theirs, proof = given[:NONCE_BYTES], given[NONCE_BYTES:]
        if not is_proof(proof, client_proof(self._key, nonce, theirs)):
            raise FetchRefused("it does not hold the deployment's key")
        channel.sendall(HELLO.pack(server_proof(self._key, nonce, theirs), self._kind, self._block_bytes))
        return checksum_seed(self._key, nonce, theirs)

    def _answer(self, channel: socket.socket, request: bytes, seed: int, buffer: bytearray) -> None:
        size, count = REQUEST.unpack(request)
        if not 0 < size <= NAME_BYTES_MAX or count > BLOCKS_MAX:
            raise FetchRefused(f"it asks for {count} blocks with names of {size} bytes")
        names = read(channel, size * count)
        for at in range(0, len(names), size):
            name = names[at : at + size]
            if not self._blocks.copy(name, buffer):
                channel.sendall(FOUND.pack(0, 0))
                return
            channel.sendall(FOUND.pack(1, checksum(seed, name, buffer)))
            channel.sendall(buffer)
            self.served += 1
