"""SimulatedPool: a pool of blocks in a simulation: its files, the workers that use it, and the keeper's announcements.

As of a real pool (`actors.kv_pool`), in virtual time:

1. One worker keeps the pool. The pool is a source of its own in the log, with a new id for each keeper.
2. The keeper lists the folder every LIST_EVERY_S, or LIST_SHARE times as long as a listing takes. With a listing it
   announces the blocks that came, closed under prefixes, chooses blocks to go, and grants the workers what they may
   write. Chosen blocks leave the index with the listing, and their files FOLD_S later, unless they were used meanwhile.
3. A shared pool has a fence, its entries come to the keeper every SEND_EVERY_S, and another worker keeps it
   ELECT_EVERY_S after the keeper left, or after its lease has run out. A worker's own disk goes on with the next worker
   in its place.

A worker's own disk follows the rules of a shared folder with one worker.
"""

from __future__ import annotations

from functools import partial

import xxhash
from msgspec import UNSET

from actors.engines.simulated.simulated_disk_tier import SimulatedDiskTier
from actors.engines.simulated.simulated_pool_files import PoolFiles
from actors.kv_blocks.catalog_records import CatalogEntry
from actors.kv_cache.cache_events import merge_events
from actors.kv_pool.entry_outbox import SEND_EVERY_S
from actors.kv_pool.pool_keeper import FOLD_S, LIST_EVERY_S, LIST_SHARE
from actors.kv_pool.pool_mirror import PoolMirror
from actors.kv_pool.shared_pool import ELECT_EVERY_S
from actors.membership.worker_publisher import RESTATED_PART_BYTES
from core.events import Event, PoolJoined, PoolLeft, PoolLost
from core.events.kv import PoolAccess
from core.ids import LOST_SUFFIX, WorkerId
from replay.simulate.simulated_log import KV, SimulatedLog, SimulatedSource
from replay.simulate.simulated_request import MODEL
from replay.simulate.virtual_time import Agenda

US_PER_S = 1_000_000
OWN_LISTING_NS, SHARED_LISTING_NS = 2_000, 5_000
"""For each file: see `PoolFolder.listing` and `SharedPoolFolder.listing`."""
CLAIM_S = 10
"""The lease of a keeper's claim."""
TIER = "disk"


class SimulatedPool:
    """See the module's text."""

    def __init__(
        self, name: str, capacity_blocks: int, agenda: Agenda, log: SimulatedLog, *, shared: bool, block_size: int
    ) -> None:
        """`name` tells it from the other pools of the run, and from those of other seeds."""
        self.id = _drawn(name)
        self.files = PoolFiles(capacity_blocks)
        self._kind = 2 * _drawn(f"{MODEL}/{block_size}")
        self._block_size = block_size
        self._shared = shared
        self._agenda = agenda
        self._log = log
        self._workers: dict[WorkerId, str] = {}
        """Names of the workers that use it and are alive, in the order in which they joined."""
        self._keeper: WorkerId | None = None
        self._number = 0
        """Of the present keeper, from 1: its fence."""
        self._sources: dict[WorkerId, SimulatedSource] = {}
        """By keepers of which the log does not show the end."""
        self._mirror = PoolMirror(TIER)
        self._entries: dict[int, CatalogEntry] = {}
        """Of the blocks that are announced, or would be if those before them were."""
        self._chosen: dict[int, CatalogEntry] = {}
        """Those of the last listing that are to go."""

    def __repr__(self) -> str:
        return f"<SimulatedPool {self.id}, {self._mirror.reported} of {len(self.files)} blocks announced>"

    def tier(self, worker: WorkerId, us_per_block: int, host_blocks: int) -> SimulatedDiskTier:
        """The way of that worker's engine to the files."""
        return SimulatedDiskTier(self.files, worker, us_per_block, host_blocks)

    def access(self, tier: SimulatedDiskTier) -> PoolAccess:
        """The pool as `WorkerJoined` has it."""
        return PoolAccess(ids=(self.id,), kind=self._kind, load_blocks=tier.load_blocks)

    def on_worker_joined(self, worker: WorkerId, name: str) -> None:
        """The log shows the worker. It keeps the pool if no other does or will."""
        self._workers[worker] = name
        if self._keeper is None and (not self._shared or not self._number):
            self._keep(worker)

    def on_worker_ended(self, worker: WorkerId) -> None:
        """The worker has crashed."""
        self.files.end_writer(worker, self._agenda.now_us)
        self._workers.pop(worker, None)
        if self._keeper == worker:
            self._keeper = None
            self._put_election(CLAIM_S + ELECT_EVERY_S)

    def on_worker_left(self, worker: WorkerId, reason: str) -> None:
        """The worker has ended by itself: what it kept, it announced, and the log shows that it keeps the pool no
        more."""
        source = self._sources.pop(worker, None)
        if source is not None:
            source.append([PoolLeft(reason=reason)])
            self._put_election(ELECT_EVERY_S)

    def write_loss(self, worker: WorkerId, by: str) -> None:
        """The log shows that the worker's announcements have ended, as the replica `by` found."""
        source = self._sources.pop(worker, None)
        if source is not None:
            ended = source.ended_by(source.source + LOST_SUFFIX)
            ended.append([PoolLost(by=by, reason="no lease, no answer")])

    def _put_election(self, after_s: float) -> None:
        if self._shared:
            at_us = self._agenda.now_us + round(after_s * US_PER_S)
            self._agenda.put(at_us, partial(self._elect, self._number))

    def _elect(self, number: int) -> None:
        """Some worker keeps the pool; tried again while there is none."""
        if self._number != number:
            return
        if self._workers:
            self._keep(next(iter(self._workers)))
        else:
            self._put_election(ELECT_EVERY_S)

    def _keep(self, worker: WorkerId) -> None:
        """The worker announces what the catalogue has, and follows the folder."""
        self._keeper, self._number = worker, self._number + 1
        source = WorkerId(_drawn(f"{self.id}/{self._number}"))
        self._sources[worker] = SimulatedSource(self._log, KV, source)
        joined = PoolJoined(
            pool=self.id,
            keeper=worker,
            name=self._workers[worker],
            model=MODEL,
            kind=self._kind,
            block_size=self._block_size,
            fence=self._number if self._shared else UNSET,
        )
        known = {**self._entries, **self._chosen}
        self._entries, self._chosen = {name: known[name] for name in known if name in self.files}, {}
        self._mirror = PoolMirror(TIER)
        self._mirror.store(self._entries.values())
        content = self._mirror.restate(RESTATED_PART_BYTES) if self._mirror.reported else []
        self._append([joined, *content])
        self._list(self._number)

    def _list(self, number: int) -> None:
        """The folder is listed, and the next listing put on the agenda."""
        if self._number != number or self._keeper is None:
            return
        now_us = self._agenda.now_us
        came = {entry.block: entry for entry in self.files.take_new(self._handed_over_us(now_us), now_us)}
        stayed = {name: entry for name, entry in self._chosen.items() if name in self.files}
        stamps = self.files.choose(now_us)
        ready = {name: entry for name, entry in {**stayed, **came}.items() if name not in stamps}
        gone = [self._entries.pop(name) for name in stamps if name in self._entries]
        self._chosen = {entry.block: entry for entry in gone}
        self._chosen |= {name: entry for name, entry in {**stayed, **came}.items() if name in stamps}
        self._entries |= ready
        self._append([*self._mirror.remove(gone), *self._mirror.store(ready.values())])
        self.files.grant([*self._workers], now_us)
        if stamps:
            self._agenda.put(now_us + round(FOLD_S * US_PER_S), partial(self.files.remove, stamps))
        took_us = len(self.files) * (SHARED_LISTING_NS if self._shared else OWN_LISTING_NS) // 1000
        pause_us = max(round(LIST_EVERY_S * US_PER_S), LIST_SHARE * took_us)
        self._agenda.put(now_us + took_us + pause_us, partial(self._list, number))

    def _handed_over_us(self, now_us: int) -> int:
        """Entries of blocks that came before this time are with the keeper."""
        if not self._shared:
            return now_us + 1
        every_us = round(SEND_EVERY_S * US_PER_S)
        return now_us // every_us * every_us

    def _append(self, events: list[Event]) -> None:
        assert self._keeper is not None
        if merged := merge_events(events):
            self._sources[self._keeper].append(merged)


def _drawn(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode())
