"""CatalogRecords: the form in which a pool's folder says which block of ours lies in which file.

A record has 48 bytes:

| bytes | |
|---|---|
| 16 | the file's name |
| 16 | our hash of the block and that of its parent (0 for none), under a pad |
| 16 | keyed digest of the bytes before |

Pad and digest have a key of the pool's kind. So a record of other weights, a forged one and a torn one are passed over.
There are no tokens in it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import NamedTuple

from actors.kv_blocks.block_seal import DIGEST_BYTES

_BLOCKS = struct.Struct("<QQ")
RECORD_BYTES = DIGEST_BYTES + _BLOCKS.size + DIGEST_BYTES


class CatalogEntry(NamedTuple):
    """A block as the index knows it."""

    block: int
    """Our hash."""
    parent: int | None
    """That of the block before it; None at the start of a prompt."""


class CatalogRecords:
    """Writes and reads records of one kind."""

    def __init__(self, key: bytes, kind: bytes) -> None:
        self._key = hashlib.blake2b(kind, key=key, person=b"catalogue").digest()

    def encode(self, entries: Mapping[bytes, CatalogEntry]) -> bytes:
        """A record for each entry, one behind the other. Some 10 us each."""
        return b"".join(self._record(name, entry) for name, entry in entries.items())

    def decode(self, raw: bytes) -> dict[bytes, CatalogEntry]:
        """The entries of all records that are whole and of this kind, by the names of their files. Some 10 us each."""
        found = {}
        for at in range(0, len(raw) - RECORD_BYTES + 1, RECORD_BYTES):
            record = raw[at : at + RECORD_BYTES]
            if entry := self._read(record):
                found[record[:DIGEST_BYTES]] = entry
        return found

    def _record(self, name: bytes, entry: CatalogEntry) -> bytes:
        body = name + _xor(_BLOCKS.pack(entry.block, entry.parent or 0), self._digest(name, b"pad"))
        return body + self._digest(body, b"proof")

    def _read(self, record: bytes) -> CatalogEntry | None:
        body, proof = record[:-DIGEST_BYTES], record[-DIGEST_BYTES:]
        if self._digest(body, b"proof") != proof:
            return None
        name = body[:DIGEST_BYTES]
        block, parent = _BLOCKS.unpack(_xor(body[DIGEST_BYTES:], self._digest(name, b"pad")))
        return CatalogEntry(block, parent or None)

    def _digest(self, data: bytes, use: bytes) -> bytes:
        return hashlib.blake2b(data, key=self._key, person=use, digest_size=DIGEST_BYTES).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
