"""PoolKeeper: knows which blocks lie in a pool's folder, and announces them as a source of its own.

1. The mirror of the worker's cache names blocks (`NamedBlock`). Of each follow a file's name and our hash: an entry of
   the catalogue. It waits for its file, in a bounded queue; the oldest go, and their files are announced when a
   request names them again. In a folder that several workers use, all of them hand entries over through the folder.
2. While the folder changes it is listed (`PoolFolder.listing`) in a thread: every LIST_EVERY_S, or LIST_SHARE times as
   long as a listing takes. Of a file with an entry the seal is read, and the entry goes into the catalogue; then the
   block is announced. Others are not.
3. A block whose file goes or is gone, or is one that the engine refused and cannot remove, is announced as removed,
   with those behind it. Its entry waits again: the file may return.
4. Files that go are removed FOLD_S after the log has acknowledged that. So a block that the log has as stored can be
   read, but for a refused file, and for one that the engine removed after the end of the keeper's lease. The lease
   (`keeper_lease`) is renewed before a listing, if the one before succeeded and the log has all that was announced.
5. At an operator's command the blocks of one tenant are erased, ERASED_AT_ONCE at a time, in the same order: the log
   has their removal first. The catalogue is written anew behind the last of them.
6. A folder or catalogue that cannot be read or written is tried again. Meanwhile nothing new is announced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from actors.kv_blocks.catalog_records import UNKNOWN_TENANT, CatalogEntry
from actors.kv_blocks.pool_folder import KeptPool, Listing
from actors.kv_blocks.write_grant import KeeperSuperseded
from actors.kv_cache.cache_mirror import NamedBlock
from actors.kv_pool.pool_mirror import PoolMirror
from actors.kv_pool.pool_publisher import PoolPublisher
from actors.kv_pool.waiting_entries import WaitingEntries, entries_of
from actors.membership.worker_publisher import LEAVE_TIMEOUT_S
from core.clock import Clock
from core.errors import Unavailable
from core.events import PoolJoined
from core.ids import SourceId, WorkerId, new_id
from core.keys import DeploymentKey
from streams.log import EventLog

LIST_EVERY_S = 1.0
"""Between two listings of the folder …"""
LIST_SHARE = 20
"""… and at least so many times as long as the last listing took."""
ACKNOWLEDGED_S = 5.0
"""So long a listing waits for the log before its files that go are left for the next one."""
FOLD_S = 0.25
"""Between the log's acknowledgement of removals and the removal of their files: replicas fold them, and requests that
were sent before come to the engine."""
ERASED_AT_ONCE = 4096
"""Blocks of a tenant that are erased between two listings: at most some seconds in a store of objects."""

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class TenantBlocks(NamedTuple):
    """The blocks of one tenant in a pool."""

    tenant: bytes
    """Its digest (`catalog_records.tenant_digest`); UNKNOWN_TENANT for blocks of which no tenant is known."""
    blocks: int
    size_bytes: int


class ErasedBlocks(NamedTuple):
    """Blocks that were erased by one call."""

    blocks: int
    size_bytes: int
    failed: int
    """Blocks that could not be removed; they are announced again."""
    left: int
    """Blocks of the tenant that another call will erase."""


class PoolKeeper:
    """See the module's text. One per folder: its owner has the folder's lock, or the newest fence."""

    def __init__(
        self,
        namespace: str,
        log: EventLog,
        clock: Clock,
        key: DeploymentKey,
        folder: KeptPool,
        entries: dict[bytes, CatalogEntry],
        joined: PoolJoined,
        *,
        partitions: int,
        spawn: Callable[[Coroutine[None, None, None]], None],
    ) -> None:
        """`entries` are those of the folder as it was opened; `joined` has the keeper's id once the pool is started."""
        self.mirror = PoolMirror(folder.tier)
        self.mirror.store(entries.values())
        self._namespace = namespace
        self._log = log
        self._clock = clock
        self._key = key
        self._folder = folder
        self._joined = joined
        self._partitions = partitions
        self._spawn = spawn
        self._entries = entries
        """Of the files that are announced, or would be if those before them were."""
        self._waiting = WaitingEntries()
        """Entries without a file that is known to be of this kind."""
        self._listing = Listing(frozenset(entries))
        """The last one, without the files that were removed since."""
        self._stuck: set[bytes] | None = set()
        """Refused files at the last listing that the engine cannot remove; None if they are all."""
        self._unproved: set[bytes] = set()
        """Files that are no blocks of this kind, since the folder changed last."""
        self._thread = ThreadPoolExecutor(1, "pool keeper")
        """One, so that what a cancelled task began there ends before the next call."""
        self._refreshing = asyncio.Lock()
        self._failed = False
        """The last listing failed, or is under way."""
        self._pause_s = LIST_EVERY_S
        """Between the last listing and the next one."""
        self._since_ms: int | None = None
        """Time at which the listing, or the erasure, that is under way began."""
        self.failures = 0
        """Listings of the folder that failed."""
        self.removals_failed = 0
        """Tries to remove a file that goes; each is tried again with the next listing."""
        self.publisher = self._new_publisher()

    def __repr__(self) -> str:
        return f"<PoolKeeper of {self.id}, {self.blocks} of {len(self._listing.stays)} blocks announced>"

    @property
    def id(self) -> str:
        """The pool's id."""
        return self._joined.pool

    @property
    def tier(self) -> str:
        """That of its blocks, one of `core.settings.TIERS`."""
        return self._folder.tier

    @property
    def blocks(self) -> int:
        """Blocks that are announced."""
        return self.mirror.reported

    @property
    def listing_s(self) -> float:
        """Seconds since the listing, or the erasure, that is under way began; 0 without one."""
        return 0.0 if self._since_ms is None else (self._clock.monotonic_ms() - self._since_ms) / 1000

    def describe(self) -> dict[str, object]:
        """The pool's id and source and the sizes of its parts, for `/state`."""
        return {
            "id": self.id,
            "source": self.publisher.id,
            "blocks": self.blocks,
            "files": len(self._listing.stays),
            "files_going": len(self._listing.goes),
            "removals_failed": self.removals_failed,
            "entries": len(self._entries),
            "entries_waiting": len(self._waiting),
            "outbox": {"events": self.publisher.outbox.depth, "bytes": self.publisher.outbox.bytes},
        }

    def start(self, keeper: WorkerId) -> None:
        """The pool is announced, as kept by the worker with that id, and its folder is followed."""
        self._set_keeper(keeper)
        self.publisher.start()
        self._spawn(self._follow())

    def kept_by(self, keeper: WorkerId) -> None:
        """The worker goes on under another id."""
        self._set_keeper(keeper)
        self.restate()

    def restate(self) -> None:
        """The pool and all its content go to the log again."""
        self.publisher.restate()

    def totals(self) -> dict[str, int]:
        """Counts since the start, by the names of `actors.metrics.worker_metrics.TOTALS`."""
        return {
            "pool_entries_dropped": self._waiting.dropped,
            "pool_refreshes_failed": self.failures,
            "pool_removals_failed": self.removals_failed,
        }

    def note(self, named: Iterable[NamedBlock]) -> None:
        """The engine has these blocks, and may write them. Some 2 us each; no I/O."""
        self._expect(entries_of(named, self._folder.name_of, self._folder.tenant_of))

    async def refresh(self) -> None:
        """Files of the folder that have an entry are in the catalogue and announced; those that are gone are not, and
        those that go are removed, if the log acknowledges it in time."""
        async with self._refreshing:  # else a file that goes again could be removed by the call before
            with self._timed():
                await self._list()
                self._pause_s = max(LIST_EVERY_S, LIST_SHARE * self.listing_s)
            if self._listing.goes and await self.publisher.acknowledged(ACKNOWLEDGED_S):
                await asyncio.sleep(FOLD_S)
                await self._remove_going()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """`listing_s` counts from now on, until the block ends."""
        self._since_ms = self._clock.monotonic_ms()
        try:
            yield
        finally:
            self._since_ms = None

    async def _list(self) -> None:
        failed_before, self._failed = self._failed, True
        if self.publisher.holds_all and not failed_before:
            await self._in_thread(partial(self._folder.renew, self._pause_s))
        received = await self._in_thread(self._folder.receive)
        self._expect(received.items())
        listing = await self._in_thread(self._folder.listing)  # their files lay there before, unless they went
        stuck = await self._in_thread(self._folder.stuck)
        if listing is not None or stuck != self._stuck:
            self._listing, self._stuck = listing or self._listing, stuck
            self._unproved.clear()
            self._announce_gone()
        there = self._readable() - self._unproved
        if ready := {file: entry for file, entry in self._waiting.items() if file in there}:
            await self._keep(ready)
        if received:
            await self._in_thread(self._folder.acknowledge)
        if self._folder.is_wasteful(len(self._entries)):
            await self._in_thread(partial(self._folder.rewrite, dict(self._entries)))
        self._failed = False

    def _readable(self) -> frozenset[bytes]:
        return frozenset() if self._stuck is None else self._listing.stays - self._stuck

    def _announce_gone(self) -> None:
        there = self._readable()
        gone = [file for file in self._entries if file not in there]
        removed = [self._entries.pop(file) for file in gone]
        for file, entry in zip(gone, removed, strict=True):
            self._waiting.wait(file, entry)
        self.publisher.publish(self.mirror.remove(removed))

    async def _remove_going(self) -> None:
        failed = await self._in_thread(partial(self._folder.remove_going, self._listing.goes))
        self.removals_failed += failed
        if not failed:
            self._listing = Listing(self._listing.stays)

    async def tenants(self) -> list[TenantBlocks]:
        """The blocks that lay there at the last listing, by tenant, sorted by its digest. Each block counts with the
        bytes of one of its tenant: all blocks of a pool have one size."""
        by_tenant: dict[bytes, list[bytes]] = {}
        for file in self._there():
            by_tenant.setdefault(self._tenant_of(file), []).append(file)
        sizes = await self._in_thread(lambda: {tenant: self._size_of(files) for tenant, files in by_tenant.items()})
        return [
            TenantBlocks(tenant, len(files), len(files) * sizes[tenant]) for tenant, files in sorted(by_tenant.items())
        ]

    async def erase(self, tenant: bytes, *, unknown: bool) -> ErasedBlocks:
        """At most ERASED_AT_ONCE blocks of this tenant are gone; the log had their removal first. With `unknown` also
        those of which no tenant is known: they may be this one's.

        If none of them is known, all names are read again. OSError if the pool cannot be read, Unavailable if the log
        acknowledges nothing: then nothing is removed. KeeperSuperseded.
        """
        async with self._refreshing:
            found = self._blocks_of(tenant, unknown=unknown)
            if not found:
                self._folder.read_again()
                with self._timed():
                    await self._list()
                found = self._blocks_of(tenant, unknown=unknown)
            part = found[:ERASED_AT_ONCE]
            size = await self._in_thread(partial(self._size_of, part))
            failed = await self._erase(part) if part else set[bytes]()
            if part and len(part) == len(found):
                await self._in_thread(partial(self._folder.rewrite, dict(self._entries)))
        erased = len(part) - len(failed)
        return ErasedBlocks(erased, erased * size, len(failed), len(found) - len(part))

    async def _erase(self, files: list[bytes]) -> set[bytes]:
        """These files are gone; returns those that cannot be removed. Their entries wait: an engine may be writing one
        of them at this moment, and it is this tenant's then."""
        for file in files:
            if (entry := self._entries.get(file) or self._waiting.get(file)) is not None:
                self._waiting.wait(file, entry)
        announced = [entry for file in files if (entry := self._entries.pop(file, None)) is not None]
        self.publisher.publish(self.mirror.remove(announced))
        if not await self.publisher.acknowledged(ACKNOWLEDGED_S):
            raise Unavailable(f"the log acknowledges nothing within {ACKNOWLEDGED_S:g} s")
        await asyncio.sleep(FOLD_S)
        with self._timed():
            failed = await self._in_thread(partial(self._folder.erase, files))
        gone = {*files} - failed
        self._listing = Listing(self._listing.stays - gone, self._listing.goes - gone)
        return failed

    def _there(self) -> frozenset[bytes]:
        return self._listing.stays | self._listing.goes

    def _tenant_of(self, file: bytes) -> bytes:
        entry = self._entries.get(file) or self._waiting.get(file)
        return UNKNOWN_TENANT if entry is None else entry.tenant

    def _blocks_of(self, tenant: bytes, *, unknown: bool) -> list[bytes]:
        tenants = {tenant, UNKNOWN_TENANT} if unknown else {tenant}
        return [file for file in self._there() if self._tenant_of(file) in tenants]

    def _size_of(self, files: Iterable[bytes]) -> int:
        """Bytes of the first of these that is there."""
        return next(filter(None, map(self._folder.size_of, files)), 0)

    async def leave(self, reason: str) -> None:
        """The catalogue has the files that lie there now, and PoolLeft is in the log, if that was possible in time."""
        with suppress(TimeoutError, KeeperSuperseded):  # a disk that hangs; a newer keeper's folder
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._try()
        self._thread.shutdown(wait=False)
        await self.publisher.leave(reason)
        self._folder.end()

    async def _follow(self) -> None:
        while True:
            await self._try()
            await asyncio.sleep(self._pause_s)

    async def _try(self) -> None:
        try:
            await self.refresh()
        except OSError as error:
            self.failures += 1
            _logger.warning("the folder of the pool cannot be followed now: %s", error)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def _keep(self, ready: dict[bytes, CatalogEntry]) -> None:
        proved = await self._in_thread(partial(self._folder.keep, ready))
        self._unproved |= ready.keys() - proved
        kept = {file: entry for file, entry in ready.items() if file in proved}
        for file in kept:
            self._waiting.pop(file, None)
        new = [entry for file, entry in kept.items() if file not in self._entries]
        self._entries |= kept
        self.publisher.publish(self.mirror.store(new))

    def _expect(self, entries: Iterable[tuple[bytes, CatalogEntry]]) -> None:
        for file, entry in entries:
            known = self._entries.get(file)
            if known is None or known == entry._replace(tenant=UNKNOWN_TENANT) != entry:
                self._waiting.wait(file, entry)

    def _rejoin(self) -> None:
        """Lost is final for a source, not for the pool."""
        before, self.publisher = self.publisher, self._new_publisher()
        self.publisher.start()
        self._spawn(before.end())

    def _set_keeper(self, keeper: WorkerId) -> None:
        self._joined = replace(self._joined, keeper=keeper)
        self.publisher.joined = replace(self.publisher.joined, keeper=keeper)

    def _new_publisher(self) -> PoolPublisher:
        """Under a new id, which may have another kv stream."""
        source = SourceId(new_id())
        joined = replace(self._joined, partition=int(source, 16) % self._partitions)
        return PoolPublisher(
            self._namespace, self._log, self._clock, self._key, source, joined, self.mirror, self._rejoin
        )
