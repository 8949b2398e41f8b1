"""PoolObjects: the objects of a pool, their keys, and their seals.

| key | |
|---|---|
| `pool` | the pool's id and kind |
| `blocks/NAME` | a sealed block (`block_seal`); the name is keyed |
| `keepers/FENCE/credit` | how much each worker may write (`write_credit`) |
| `keepers/FENCE/NUMBER` | a part of the keeper's catalogue |
| `workers/WRITER/beat` | says that the worker lives, and its totals |
| `workers/WRITER/NUMBER` | a report of the worker, until the keeper has it (`report_batches`) |

All but the first have a keyed digest of key and content: an object of another pool, of another kind, or under another
key is passed over.
"""

from __future__ import annotations

import hashlib
import hmac
import re

from actors.kv_blocks.block_seal import DIGEST_BYTES
from actors.kv_blocks.pool_folder import PoolDescription
from actors.kv_objects.object_store import ObjectStore
from core.errors import CallerError
from core.ids import new_id

POOL_KEY = "pool"
BLOCKS, KEEPERS, WORKERS = "blocks", "keepers", "workers"
BEAT, CREDIT = "beat", "credit"
_ID = re.compile(r"[0-9a-f]{16}")


def block_key(name: bytes) -> str:
    """The key of the block of that name."""
    return f"{BLOCKS}/{name.hex()}"


class ObjectSeal:
    """Seals objects of one pool's kind."""

    def __init__(self, key: bytes, kind: bytes) -> None:
        self._key = hashlib.blake2b(kind, key=key, person=b"objects").digest()

    def seal(self, key: str, body: bytes) -> bytes:
        """The content of the object of that key with that body."""
        return self._digest(key, body) + body

    def open(self, key: str, content: bytes) -> bytes | None:
        """The body of the object of that key; None if the content does not prove it."""
        digest, body = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        return body if hmac.compare_digest(digest, self._digest(key, body)) else None

    def _digest(self, key: str, body: bytes) -> bytes:
        name = key.encode()
        digest = hashlib.blake2b(len(name).to_bytes(8, "little") + name, key=self._key, digest_size=DIGEST_BYTES)
        digest.update(body)
        return digest.digest()


def object_pool_id(pool: PoolDescription, objects: ObjectStore) -> str:
    """The id of the pool, which stands there from now on.

    CallerError if the objects are of another kind, or the id cannot be read; OSError if the store fails.
    """
    objects.create(POOL_KEY, f"{new_id()} {pool.kind.hex()}".encode())
    found, _, kind = objects.get(POOL_KEY).decode("ascii", "replace").partition(" ")
    place = pool.share.objects if pool.share else None
    if not _ID.fullmatch(found):
        raise CallerError(f"the object `pool` of the remote tier {place} cannot be read: remove it")
    if kind != pool.kind.hex():
        raise CallerError(
            f"the remote tier {place} has blocks of another model, layout, key or version of vLLM: choose another "
            "prefix, or remove its objects when no worker uses them"
        )
    return found
