"""CatalogRecords: the form in which a pool's folder says which block of ours lies in which file, and of which tenant.

A record has 48 bytes. There are two kinds, each with a proof of its own:

| bytes | of a block | of the block's tenant |
|---|---|---|
| 16 | the file's name | the file's name |
| 16 | our hash of the block and that of its parent (0 for none), under a pad | the tenant's digest, under a pad |
| 16 | keyed digest of the bytes before | keyed digest of the bytes before |

The tenant's record stands right behind the block's. Pads and proofs have a key of the pool's kind. So a record of other
weights, a forged one and a torn one are passed over. Versions that know no tenants pass over records of tenants.
There are no tokens in them, and no names of tenants: a tenant's digest (`tenant_digest`) is keyed by the deployment's
key.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from actors.kv_blocks.block_seal import DIGEST_BYTES
from core.prompt import tenant_of_salt

_BLOCKS = struct.Struct("<QQ")
RECORD_BYTES = DIGEST_BYTES + _BLOCKS.size + DIGEST_BYTES
UNKNOWN_TENANT = b""
"""Stands for the tenant of a block that a version without tenants named."""
SALTS_KNOWN = 4096
"""Salts whose tenants' digests are remembered, at some 300 bytes each."""


class CatalogEntry(NamedTuple):
    """A block as the index knows it."""

    block: int
    """Our hash."""
    parent: int | None
    """That of the block before it; None at the start of a prompt."""
    tenant: bytes = UNKNOWN_TENANT
    """Digest of the tenant to which its prompt belongs (`tenant_digest`), of "" if it belongs to none."""


def tenant_digest(key: bytes, tenant: str) -> bytes:
    """The digest of a tenant's name under the key of the pool; that of "" stands for blocks of no tenant."""
    return hashlib.blake2b(tenant.encode(), key=key, person=b"tenant", digest_size=DIGEST_BYTES).digest()


@lru_cache(SALTS_KNOWN)
def digest_of_salt(key: bytes, salt: str) -> bytes:
    """The digest of the tenant to which prompts with that salt belong."""
    return tenant_digest(key, tenant_of_salt(salt))


class CatalogRecords:
    """Writes and reads records of one kind."""

    def __init__(self, key: bytes, kind: bytes) -> None:
        self._key = hashlib.blake2b(kind, key=key, person=b"catalogue").digest()

    def encode(self, entries: Mapping[bytes, CatalogEntry]) -> bytes:
        """The records of each entry, one behind the other. Some 5 us each."""
        return b"".join(self._records(name, entry) for name, entry in entries.items())

    def decode(self, raw: bytes) -> dict[bytes, CatalogEntry]:
        """The entries of all records that are whole and of this kind, by the names of their files. Some 7 us each."""
        found: dict[bytes, CatalogEntry] = {}
        tenants: dict[bytes, bytes] = {}  # entries of one tenant have one digest in memory
        before = b""
        for at in range(0, len(raw) - RECORD_BYTES + 1, RECORD_BYTES):
            record = raw[at : at + RECORD_BYTES]
            name = record[:DIGEST_BYTES]
            if name == before and (tenant := self._open(record, b"tenant")):
                found[name] = CatalogEntry(*found[name][:2], tenants.setdefault(tenant, tenant))
            elif blocks := self._open(record, b"proof"):
                block, parent = _BLOCKS.unpack(blocks)
                found[name] = CatalogEntry(block, parent or None)
                before = name
        return found

    def _records(self, name: bytes, entry: CatalogEntry) -> bytes:
        block = self._seal(name, _BLOCKS.pack(entry.block, entry.parent or 0), b"proof")
        return block + self._seal(name, entry.tenant, b"tenant") if entry.tenant else block

    def _seal(self, name: bytes, content: bytes, use: bytes) -> bytes:
        body = name + _xor(content, self._digest(name, _PADS[use]))
        return body + self._digest(body, use)

    def _open(self, record: bytes, use: bytes) -> bytes | None:
        """The content of a record for that use; None if it is none."""
        body, proof = record[:-DIGEST_BYTES], record[-DIGEST_BYTES:]
        if self._digest(body, use) != proof:
            return None
        return _xor(body[DIGEST_BYTES:], self._digest(body[:DIGEST_BYTES], _PADS[use]))

    def _digest(self, data: bytes, use: bytes) -> bytes:
        return hashlib.blake2b(data, key=self._key, person=use, digest_size=DIGEST_BYTES).digest()


_PADS = {b"proof": b"pad", b"tenant": b"tenant pad"}
"""The use of each pad, by that of the record."""


def catalog_bytes(entries: Mapping[bytes, CatalogEntry]) -> int:
    """Bytes of the records of all these entries."""
    return (len(entries) + sum(entry.tenant != UNKNOWN_TENANT for entry in entries.values())) * RECORD_BYTES


def _xor(one: bytes, other: bytes) -> bytes:
    assert len(one) == len(other)
    return (int.from_bytes(one, "little") ^ int.from_bytes(other, "little")).to_bytes(len(one), "little")
