"""PoolPlace: where a pool of several workers lies: a folder, or a store of objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from actors.kv_blocks.catalog_records import CatalogEntry, CatalogRecords
from actors.kv_blocks.entry_batches import EntryBatches
from actors.kv_blocks.pool_folder import KeptPool, PoolDescription
from actors.kv_blocks.shared_pool_folder import SharedPoolFolder, shared_pool_id
from actors.kv_objects.object_pool import ObjectPool
from actors.kv_objects.object_store import ObjectStore
from actors.kv_objects.pool_objects import POOL_KEY, ObjectSeal, object_pool_id
from actors.kv_objects.report_batches import ReportBatches
from actors.kv_objects.s3_objects import S3Objects
from core.clock import Clock

CALL_S = 20.0
"""So long a call of the keeper to a store of objects may take."""


class FencedPool(KeptPool, Protocol):
    """A pool that one of several workers keeps."""

    @property
    def fence(self) -> int:
        """That of the keeper, once the pool is open."""


class WorkerBatches(Protocol):
    """The entries that a worker hands to the pool's keeper. All methods block, and one thread at a time calls them.
    They raise OSError if the place fails."""

    def beat(self) -> None:
        """The worker lives."""

    def there(self, names: Iterable[bytes]) -> set[bytes]:
        """Those of these blocks that lie in the pool."""

    def room(self) -> int:
        """Entries that can be written now."""

    def write(self, entries: Mapping[bytes, CatalogEntry]) -> None:
        """The keeper will read these entries, at most BATCH_ENTRIES_MAX, at the latest once `flush` was called."""

    def flush(self) -> None:
        """All that was written is on its way."""

    def end(self) -> None:
        """The worker has no share any more."""


class PoolPlace(Protocol):
    """All methods block, each for a bounded time if the place does not hang."""

    def pool_id(self) -> str:
        """The pool's id, which stands there from now on. CallerError if the place is none of this kind; OSError."""

    def probe(self) -> None:
        """Returns if the place answers. OSError."""

    def kept(self, claim: int) -> FencedPool:
        """The pool for a keeper whose claim has that revision. No I/O."""

    def batches(self) -> WorkerBatches:
        """The entries that this worker hands over. No I/O."""


class FolderPlace:
    """A folder that the workers of one machine, or of several, have."""

    def __init__(self, pool: PoolDescription, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock

    def pool_id(self) -> str:
        """As the protocol has it."""
        return shared_pool_id(self._pool)

    def probe(self) -> None:
        """As the protocol has it."""
        self._pool.folder.stat()

    def kept(self, claim: int) -> FencedPool:
        """As the protocol has it."""
        return SharedPoolFolder(self._pool, self._clock, claim)

    def batches(self) -> WorkerBatches:
        """As the protocol has it."""
        assert self._pool.share is not None
        records = CatalogRecords(self._pool.key, self._pool.kind)
        return EntryBatches(self._pool.folder, self._pool.share.writer, records, self._clock)


class ObjectsPlace:
    """A store of objects."""

    def __init__(self, pool: PoolDescription, objects: ObjectStore, clock: Clock) -> None:
        self._pool = pool
        self._objects = objects
        self._clock = clock

    def pool_id(self) -> str:
        """As the protocol has it."""
        return object_pool_id(self._pool, self._objects)

    def probe(self) -> None:
        """As the protocol has it."""
        self._objects.has(POOL_KEY)

    def kept(self, claim: int) -> FencedPool:
        """As the protocol has it."""
        return ObjectPool(self._pool, self._objects, self._clock, claim)

    def batches(self) -> WorkerBatches:
        """As the protocol has it."""
        pool = self._pool
        assert pool.share is not None
        seal, records = ObjectSeal(pool.key, pool.kind), CatalogRecords(pool.key, pool.kind)
        return ReportBatches(self._objects, pool.share.writer, seal, records, pool.shared, self._clock)


def place_of(pool: PoolDescription, clock: Clock) -> PoolPlace:
    """The place of a pool that several workers use. CallerError if its library is not installed."""
    assert pool.share is not None
    if pool.share.objects is not None:
        return ObjectsPlace(pool, S3Objects(pool.share.objects, CALL_S), clock)
    return FolderPlace(pool, clock)
