"""SharedPool: a worker's part in a pool that several workers use: it hands over entries, and may be the pool's keeper.

1. One of the workers keeps the pool: the one that has the claim `pools/{id}` in the registry. Each tries to claim it
   every ELECT_EVERY_S; the claim goes with its process's lease.
2. The revision of the claim is the keeper's fence, in the folder (`write_grant`) and in its events (`PoolJoined`).
   A keeper that lost its claim, or finds a newer fence, stops, and stands for election again. Until it finds out, its
   changes of the folder are refused by the fence, and its events count no more once the newer keeper's are folded.
3. Without the registry the keeper goes on, and no other can come.
4. A worker whose file system does not answer within HANG_S does not keep the pool: another machine's may.
5. Without a keeper workers read on, and write until the last grant is spent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from msgspec.structs import replace

from actors.kv_blocks.pool_folder import PoolDescription
from actors.kv_blocks.write_grant import KeeperSuperseded
from actors.kv_cache.cache_mirror import NamedBlock
from actors.kv_pool.entry_outbox import EntryOutbox
from actors.kv_pool.pool_keeper import ErasedBlocks, PoolKeeper, TenantBlocks
from actors.kv_pool.pool_place import PoolPlace
from core.clock import Clock
from core.errors import CallerError, PeerError
from core.events import PoolJoined
from core.ids import WorkerId
from core.keys import DeploymentKey
from streams.log import EventLog
from streams.registry import Registry

ELECT_EVERY_S = 3.0
"""Between two tries to claim the pool, or two looks of the keeper at its claim."""
HANG_S = 60.0
"""So long the folder may take to be opened or listed: a million files, or 100 000 on a network file system."""
CLAIMS = "pools/"
"""Path of the claims in the registry."""

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class SharedPool:
    """See the module's text. `joined` has the pool's id, and no keeper and fence yet."""

    def __init__(
        self,
        namespace: str,
        log: EventLog,
        registry: Registry,
        clock: Clock,
        key: DeploymentKey,
        described: PoolDescription,
        place: PoolPlace,
        joined: PoolJoined,
        *,
        partitions: int,
        spawn: Callable[[Coroutine[None, None, None]], None],
    ) -> None:
        self._namespace = namespace
        self._log = log
        self._registry = registry
        self._clock = clock
        self._key = key
        self._described = described
        self._place = place
        self._joined = joined
        self._partitions = partitions
        self._spawn = spawn
        self._claim = f"{CLAIMS}{joined.pool}"
        self._worker = WorkerId("")
        self._stood = False
        """It tried to claim the pool, and may have the claim."""
        self._outbox = EntryOutbox(place.batches(), described.name_of, described.tenant_of, clock)
        self.keeper: PoolKeeper | None = None
        """While this worker keeps the pool."""
        self._opener = ThreadPoolExecutor(1, "pool opener")
        """One: a folder that hangs takes no further thread."""
        self._totals: dict[str, int] = {}
        """Of keepers that this worker was before."""

    def __repr__(self) -> str:
        return f"<SharedPool {self.id}, {'kept here' if self.keeper else 'kept by another worker'}>"

    @property
    def id(self) -> str:
        """The pool's id."""
        return self._joined.pool

    @property
    def tier(self) -> str:
        """That of its blocks, one of `core.settings.TIERS`."""
        return self._described.tier

    @property
    def blocks(self) -> int:
        """Blocks that this worker announces as the keeper; 0 while it is not."""
        return self.keeper.blocks if self.keeper else 0

    def describe(self) -> dict[str, object]:
        """The pool's id, entries that wait for their files, and the keeper if it is here, for `/state`."""
        kept = self.keeper.describe() if self.keeper else {"id": self.id}
        return {**kept, "shared": True, "keeps": self.keeper is not None, "entries_unsent": len(self._outbox.waiting)}

    def totals(self) -> dict[str, int]:
        """Counts since the start, by the names of `actors.metrics.worker_metrics.TOTALS`."""
        kept = self.keeper.totals() if self.keeper else {}
        sent = {"pool_entries_dropped": self._outbox.waiting.dropped, "pool_refreshes_failed": self._outbox.failures}
        names = self._totals.keys() | kept.keys() | sent.keys()
        return {name: sum(counts.get(name, 0) for counts in (self._totals, kept, sent)) for name in sorted(names)}

    def start(self, worker: WorkerId) -> None:
        """The worker with that id hands over entries, and stands for election."""
        self._worker = worker
        self._spawn(self._outbox.run())
        self._spawn(self._elect())

    def kept_by(self, worker: WorkerId) -> None:
        """The worker goes on under another id."""
        self._worker = worker
        if self.keeper is not None:
            self.keeper.kept_by(worker)

    def restate(self) -> None:
        """The pool and all its content go to the log again, if it is kept here."""
        if self.keeper is not None:
            self.keeper.restate()

    def note(self, named: Iterable[NamedBlock]) -> None:
        """The engine has these blocks, and may write them. Some 2 us each; no I/O."""
        self._outbox.note(named)

    async def tenants(self) -> list[TenantBlocks] | None:
        """As the keeper has it, if the pool is kept here; else None."""
        return None if self.keeper is None else await self.keeper.tenants()

    async def erase(self, tenant: bytes, *, unknown: bool) -> ErasedBlocks | None:
        """As the keeper has it, if the pool is kept here; else None."""
        return None if self.keeper is None else await self.keeper.erase(tenant, unknown=unknown)

    async def leave(self, reason: str) -> None:
        """Entries of files that lie there are handed over, and another worker may keep the pool. The tasks of `start`
        are over."""
        await self._outbox.leave()
        self._opener.shutdown(wait=False, cancel_futures=True)
        await self._step_down(reason)

    async def _elect(self) -> None:
        while True:
            try:
                await self._in_time(self._place.probe)  # the claim would keep others from the pool
                self._stood = True
                claim = await self._registry.claim(self._claim, self._worker.encode())
                if claim is not None:
                    await self._keep(claim)
            except PeerError as error:
                _logger.debug("the registry cannot be asked for the pool: %s", error)
            except (OSError, CallerError, KeeperSuperseded) as error:
                _logger.warning("the pool cannot be kept here: %s", error)
                await self._step_down("another worker may keep the pool")
            await asyncio.sleep(ELECT_EVERY_S)

    async def _keep(self, claim: int) -> None:
        """This worker keeps the pool until it loses the claim. KeeperSuperseded once a newer keeper comes; OSError and
        CallerError if the folder cannot be opened, TimeoutError if it does not answer."""
        folder = self._place.kept(claim)
        _, entries = await self._in_time(folder.open)
        tasks: set[asyncio.Task[None]] = set()
        self.keeper = PoolKeeper(
            self._namespace,
            self._log,
            self._clock,
            self._key,
            folder,
            entries,
            replace(self._joined, fence=folder.fence),
            partitions=self._partitions,
            spawn=lambda coroutine: tasks.add(asyncio.create_task(coroutine)),
        )
        _logger.info("this worker keeps the pool %s, as number %d", self.id, folder.fence)
        self.keeper.start(self._worker)
        try:
            while await self._is_ours(claim):
                if self.keeper.listing_s > HANG_S:
                    raise TimeoutError(f"the folder was not listed in {HANG_S:.0f} s")
                done, _ = await asyncio.wait(tasks, timeout=ELECT_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    tasks.remove(task)
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
        await self._step_down("another worker keeps the pool")

    async def _in_time(self, call: Callable[[], T]) -> T:
        """The result of a call of the folder. TimeoutError after HANG_S."""
        # not wait_for: before Python 3.12 it can lose a cancellation, and the worker's end would wait for ever
        async with asyncio.timeout(HANG_S):
            return await asyncio.get_running_loop().run_in_executor(self._opener, call)

    async def _is_ours(self, claim: int) -> bool:
        """True if the claim is still the one of then, or the registry is away: then no other can have it."""
        try:
            return await self._registry.claim(self._claim, self._worker.encode()) == claim
        except PeerError:
            return True

    async def _step_down(self, reason: str) -> None:
        """This worker does not keep the pool, and another may."""
        keeper, self.keeper = self.keeper, None
        if keeper is not None:
            await keeper.leave(reason)
            for name, count in keeper.totals().items():
                self._totals[name] = self._totals.get(name, 0) + count
        if not self._stood:  # a claim that is another's must not go
            return
        try:
            await self._registry.unregister(self._claim)
        except PeerError as error:
            _logger.debug("the pool's claim goes with the lease: %s", error)
