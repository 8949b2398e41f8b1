"""BlockSeal: the header of a block's file, by which a reader proves that the bytes behind it are the block's.

A block on a disk outlives the engine that computed it. Bytes of other weights, of another block, or with a flipped bit
would give wrong text and no error. So each file begins with

| bytes | |
|---|---|
| 4 | `CKVB` |
| 2 | version of this form |
| 2 | zero |
| 16 | digest of all that the bytes depend on: weights, layout, block size, names, engine (`engine_digest`) |
| 16 | the block's name: a file under another block's name is a stranger |
| 8 | length of the payload |
| 16 | XXH3-128 of the payload |

XXH3 finds every accident, at several GB a second. It proves nothing against an attacker, who would have to write into a
folder of mode 0700.
"""

from __future__ import annotations

import hashlib
import struct

import xxhash

MAGIC, VERSION = b"CKVB", 1
DIGEST_BYTES = 16
_FORM = struct.Struct(f"<4sHH{DIGEST_BYTES}s{DIGEST_BYTES}sQ16s")
HEADER_BYTES = _FORM.size
REASONS = ("seal", "stranger", "short", "checksum", "missing", "unreadable")
"""Reasons for which a file is refused; the last two are those of files that cannot be read at all."""


def engine_digest(key: bytes, *facts: str) -> bytes:
    """The digest of the facts on which a block's bytes depend, keyed; no two lists of facts have one."""
    digest = hashlib.blake2b(key=key, digest_size=DIGEST_BYTES)
    for fact in facts:
        raw = fact.encode()
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.digest()


def block_name(key: bytes, block: bytes) -> bytes:
    """The name of a block's file, keyed: without the key no listing confirms that a prompt was here."""
    return hashlib.blake2b(block, key=key, digest_size=DIGEST_BYTES).digest()


class BlockSeal:
    """Makes and checks headers under one engine's digest."""

    def __init__(self, digest: bytes) -> None:
        assert len(digest) == DIGEST_BYTES
        self._digest = digest

    def header(self, name: bytes, payload: memoryview) -> bytes:
        """The header of that block with that payload."""
        return _FORM.pack(MAGIC, VERSION, 0, self._digest, name, payload.nbytes, xxhash.xxh3_128_digest(payload))

    def is_of(self, name: bytes, header: bytes, file_bytes: int) -> bool:
        """True if that header is of this block, of this engine, and of a file that is not cut. The payload is not
        proved."""
        if len(header) < HEADER_BYTES:
            return False
        magic, version, zero, digest, owner, length, _ = _FORM.unpack(header)
        is_ours = (magic, version, zero, digest) == (MAGIC, VERSION, 0, self._digest)
        return is_ours and owner == name and file_bytes == HEADER_BYTES + length

    def refusal(self, name: bytes, header: bytes | bytearray, payload: memoryview, file_bytes: int) -> str | None:
        """None if that payload was read whole from a file of so many bytes, and is the block's; else one of REASONS."""
        if file_bytes < HEADER_BYTES:
            return "short"
        magic, version, zero, digest, owner, length, checksum = _FORM.unpack(header)
        if (magic, version, zero, digest) != (MAGIC, VERSION, 0, self._digest):
            return "seal"
        if owner != name:
            return "stranger"
        if (length, file_bytes) != (payload.nbytes, HEADER_BYTES + payload.nbytes):
            return "short"
        return None if checksum == xxhash.xxh3_128_digest(payload) else "checksum"
