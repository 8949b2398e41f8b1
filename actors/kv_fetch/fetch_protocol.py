"""The wire between an engine that fetches blocks and the one that has them: plain TCP, both ends proved.

1. The server sends a nonce. The client answers with its own nonce and its proof, and the server with its proof, the
   kind of its blocks and the bytes of one. A proof is a keyed digest of both nonces; the key is never sent.
2. A request names blocks, in the order of the prompt. The answer has each of them behind its checksum, up to the first
   that the server lacks: an empty frame ends it there.
3. A checksum covers the block's name and its bytes, and begins with a seed of both nonces and the key. So neither
   another block nor an answer on another connection passes. It finds accidents; it is no signature of the bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
from collections.abc import Callable

import xxhash

NONCE_BYTES = PROOF_BYTES = 32
KIND_BYTES = 16
MAGIC = b"contrail fetch 1"
HELLO = struct.Struct(f"<{PROOF_BYTES}s{KIND_BYTES}sQ")
"""The server's proof, the kind of its blocks, and the bytes of one."""
REQUEST = struct.Struct("<HI")
"""Bytes of a name, and the number of names that follow."""
FOUND = struct.Struct("<BQ")
"""1 and the checksum of the block that follows; 0 if the server lacks it."""
NAME_BYTES_MAX = 256
BLOCKS_MAX = 1 << 16
"""Blocks of one request."""
HANDSHAKE_S = 0.5
"""Bound on each read and write until both ends are proved, and on the connection itself."""
_CLIENT, _SERVER, _SEED = b"client", b"server", b"checksums"


class FetchRefused(Exception):
    """The other end is none of this deployment, has blocks of another kind, or sent bytes that prove no block."""


def client_proof(key: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """The client's proof that it holds the key."""
    return _digest(key, _CLIENT, server_nonce, client_nonce, PROOF_BYTES)


def server_proof(key: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """The server's."""
    return _digest(key, _SERVER, server_nonce, client_nonce, PROOF_BYTES)


def checksum_seed(key: bytes, server_nonce: bytes, client_nonce: bytes) -> int:
    """The seed of all checksums of one connection."""
    return int.from_bytes(_digest(key, _SEED, server_nonce, client_nonce, 8), "little")


def is_proof(given: bytes, expected: bytes) -> bool:
    """True if they are equal, in a time that tells nothing of where they differ."""
    return hmac.compare_digest(given, expected)


def checksum(seed: int, name: bytes, block: memoryview | bytearray) -> int:
    """That of this block under this name."""
    state = xxhash.xxh3_64(name, seed=seed)
    state.update(block)
    found: int = state.intdigest()
    return found


def read_into(channel: socket.socket, view: memoryview, before_each: Callable[[], None] | None = None) -> None:
    """The view is full. OSError if the connection ends, or is silent for longer than its timeout; `before_each` piece
    may set that, or raise."""
    at = 0
    while at < len(view):
        if before_each is not None:
            before_each()
        read = channel.recv_into(view[at:])
        if not read:
            raise ConnectionResetError("the other end hung up")
        at += read


def read(channel: socket.socket, count: int, before_each: Callable[[], None] | None = None) -> bytes:
    """So many bytes; the rest as of `read_into`."""
    buffer = bytearray(count)
    read_into(channel, memoryview(buffer), before_each)
    return bytes(buffer)


def _digest(key: bytes, side: bytes, server_nonce: bytes, client_nonce: bytes, size: int) -> bytes:
    return hashlib.blake2b(MAGIC + side + server_nonce + client_nonce, key=key, digest_size=size).digest()
