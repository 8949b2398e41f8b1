"""The disk tier of an engine, behind its host tier; vLLM imports this module.

vLLM's manager copies each block from the device to the host, and hands it to the tier; a block that a request needs
goes back the same way. All of this runs in the scheduler's process, and no call of it waits for a disk: files are
written and read in threads (`BlockStore`; of a folder that several workers use `SharedBlockStore`), whose number and
queues are bounded.

1. Only blocks of plain prompts and of salted ones go to the disk, as the request itself says (DISK_PARAMETER): a block
   of an adapter is named by the adapter's path, and the weights there may change. The salt is part of a block's name.
2. A prompt that lies on the disk alone, and is longer than the host, would be loaded for ever, each block in place of
   another one of its own. So a request loads each block once, in all no more than LOADS_SHARE of the host, and vLLM
   takes no more for it than the host holds (`max_load_tokens`). Its blocks in the host count as used now. Requests
   whose blocks do not fit in that share together are read in turns (`ReadTurns`).
3. Writes and reads pin the host's blocks, so each has a share of the host; beyond it a block is not stored, or a miss.
4. Of a folder on a network file system, or a store of objects (`ObjectBlockStore`), the scheduler asks nothing: a
   request's blocks are looked up in a thread, and the request waits for that (`RemoteBlockStore`). A load that is not
   done in the store's `load_s` ends; blocks that were not read are misses.
5. A request that fetches blocks (FETCH_PARAMETER) reads from the disk only those that its decision took to be the
   worker's own. What it fetched is stored like what it computed: `fetch_tier` has proved each block, and its source is
   of this engine's kind.
6. While pulled blocks are unconfirmed (`offloading_connector`), none of them comes here. Still the tier notes what it
   writes meanwhile, at most SUSPECTS_MAX blocks: that goes when the cache is forgotten. Of a remote store it is found
   no more from then on, and removed in a thread, again and again until the store has done it.
7. The engine's events say nothing of the disk: the pool's keeper announces the files (`actors/kv_pool`).
"""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import dropwhile, islice, takewhile
from pathlib import Path
from threading import Condition
from time import perf_counter_ns
from typing import Any, ClassVar

from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    LookupResult,
    Medium,
    OffloadingManager,
    OffloadingSpec,
    OffloadingWorker,
    OffloadKey,
    OffloadPolicy,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob
from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager, TieringOffloadingManager
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from actors.engines.vllm.host_tier import HostTierWorker, check_room, write_facts
from actors.engines.vllm.read_turns import ReadTurns
from actors.engines.vllm.vllm_args import DISK_KEY_VARIABLE, DISK_PARAMETER, FETCH_PARAMETER
from actors.kv_blocks.block_seal import BlockSeal, block_name, engine_digest
from actors.kv_blocks.block_store import BlockStore
from actors.kv_blocks.bounded_calls import CALL_S, BoundedCalls
from actors.kv_blocks.disk_counts import COUNTS_FILE, DiskCounts
from actors.kv_blocks.pool_facts import FACTS_FILE, PoolFacts, write_pool
from actors.kv_blocks.pool_folder import ObjectPlace
from actors.kv_blocks.remote_block_store import RemoteBlockStore, SlowStore
from actors.kv_blocks.shared_block_store import SharedBlockStore
from actors.kv_blocks.tier_store import BlockLookup, TierStore
from actors.kv_objects.object_block_store import ObjectBlockStore
from actors.kv_objects.s3_objects import S3Objects
from core.clock import SystemClock

LOAD_THREADS, STORE_THREADS = 4, 2
OBJECTS_AT_ONCE = 2
"""So many times as many threads for a store of objects, whose calls wait longer than they work."""
LOADS_SHARE, STORES_SHARE = 2, 2
"""Blocks that are read at once, and those that are written, are at most this part of the host: one half each."""
STAMPS_MAX = 64
"""Ended requests whose blocks are still to be marked as used; more are not."""
SUSPECTS_MAX = 65_536
"""Blocks that are written while a pull is unconfirmed; beyond them none is until all pulls are confirmed."""

REMOVE_AGAIN_MS = 5000
"""So long after a removal from a remote store failed, the next request begins another one."""

_logger = logging.getLogger(__name__)


class DiskTierSpec(TieringOffloadingSpec):
    """vLLM's tiers, on a CPU with our worker behind them, a chunk for each block."""

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        assert self.blocks_per_chunk == 1
        check_room(self)
        self._copier: OffloadingWorker | None = None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """The worker of this process. Its part of the host's memory is shared with the scheduler's process."""
        if self._copier is None:
            if current_platform.is_cpu():
                self._copier = SharedHostWorker(kv_caches, self._region())
            else:
                copier: Any = super().get_worker(kv_caches)
                copier._mmap_region._creator = False  # noqa: SLF001  (its name goes in `get_manager`)
                self._copier = copier
        assert self._copier is not None
        return self._copier

    def get_manager(self) -> OffloadingManager:
        """The scheduler's manager. All workers have the host's memory by now, so its name in /dev/shm goes: no end of
        the engine, however sudden, leaves it behind."""
        manager = super().get_manager()
        write_facts(self)
        assert isinstance(manager, TieringOffloadingManager)
        region = self._scheduler_mmap
        assert region is not None
        if region._creator:  # noqa: SLF001
            raise RuntimeError("the scheduler came before the workers: vLLM's order has changed")
        with suppress(FileNotFoundError):
            os.unlink(region.mmap_path)  # noqa: PTH108
        for tier in manager.secondary_tiers:
            if isinstance(tier, SealedDiskTier):
                tier.host = manager.primary_tier
        return manager

    def _region(self) -> SharedOffloadRegion:
        region = SharedOffloadRegion(
            engine_id=self.config.engine_id,
            num_chunks=self.num_chunks,
            rank=0 if self.replicated_layout else self.config.parallel.rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        region._creator = False  # noqa: SLF001  (its name goes in `get_manager`)
        return region


class SharedHostWorker(HostTierWorker):
    """Copies blocks to memory that the scheduler's process sees."""

    def __init__(self, caches: CanonicalKVCaches, region: SharedOffloadRegion) -> None:
        super().__init__(caches, [region.create_next_worker_view(each.tensor.shape[1]) for each in caches.tensors])
        self._region = region

    def shutdown(self) -> None:
        """The host's memory is given back."""
        super().shutdown()
        self._region.cleanup()


@dataclass
class RequestBlocks:
    """One request of the engine."""

    allowed: bool
    """Its blocks may lie on the disk."""
    stamp: int
    """That of its first block."""
    own_blocks: int | None = None
    """If it fetches blocks, the leading ones that may be read from the disk."""
    promised: set[OffloadKey] = field(default_factory=set)
    """Blocks that it was to load from the disk: each once."""
    stamped: bool = False
    """Its blocks on the disk are marked as used."""
    lookup: BlockLookup | None = None
    """Says which of its blocks lie on the disk, once the tier was asked."""
    found: int | None = None
    """Its blocks there without a gap, from the first that was looked for on, once that is known."""


@dataclass
class BlockJob:
    """Blocks that are written or read in threads."""

    transfer: TransferJob
    left: int
    done: list[OffloadKey] = field(default_factory=list)
    counted_ns: int = field(default_factory=perf_counter_ns)
    """Its time up to here is counted."""


class SealedDiskTier(SecondaryTierManager):
    """Sealed files of blocks behind the host."""

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: None = None,
        *,
        folder: str,
        size: int,
        facts: str,
        shared: str,
        writer: str = "",
        remote: bool = False,
        objects: dict[str, str] | None = None,
        loads_share: int = LOADS_SHARE,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.host: CPUPrimaryTierOffloadingManager | None = None
        """The manager of the host's blocks, known once it is made."""
        config = offloading_spec.config
        self._bytes, self._row_bytes = primary_kv_view.cast("B"), self.block_size_bytes
        chunks = len(self._bytes) // self._row_bytes
        self._block_tokens = min(group.tokens_per_block for group in config.groups)
        self._load_tokens_max = max(1, chunks // len(config.groups)) * self._block_tokens
        self._loads_max = max(1, chunks // loads_share)
        self._stores_max = max(1, chunks // STORES_SHARE)
        self._turns = ReadTurns(self._loads_max)
        self._key = bytes.fromhex(os.environ[DISK_KEY_VARIABLE])
        self._counts = DiskCounts(Path(shared, COUNTS_FILE))
        digest = engine_digest(self._key, facts, layout_facts(config, self._row_bytes))
        seal, self._clock = self._seal(digest), SystemClock()
        more = self._counts, Path(shared), self._clock
        self._store: TierStore
        if remote:
            if objects is not None:
                # a call that its caller has left ends soon after
                place = S3Objects(ObjectPlace(**objects), 2 * CALL_S)
                inner: SlowStore = ObjectBlockStore(place, seal, *more)
            else:
                inner = SharedBlockStore(Path(folder), writer, seal, *more, remote=True)
            calls = BoundedCalls(self._counts, self._clock)
            self._store = RemoteBlockStore(inner, self._counts, self._clock, calls)
        elif writer:
            self._store = SharedBlockStore(Path(folder), writer, seal, *more)
        else:
            # before the keeper, which comes once the engine serves, announces what lies there
            self._store = BlockStore(Path(folder), size, seal, *more)
        write_pool(Path(shared, FACTS_FILE), PoolFacts(digest.hex(), self._loads_max, len(config.groups)))
        at_once = OBJECTS_AT_ONCE if objects is not None else 1
        self._loaders = ThreadPoolExecutor(at_once * LOAD_THREADS, "disk tier loads")
        self._storers = ThreadPoolExecutor(at_once * STORE_THREADS, "disk tier stores")
        self._changed = Condition()
        self._loading = self._storing = self._stamping = 0
        """Blocks that are read and written, and requests whose blocks are marked, in threads or in their queues."""
        self._promised = 0
        """Blocks that are to be read at the end of this step."""
        self._finished: deque[JobResult] = deque()
        self._suspects: dict[bytes, None] | None = None
        """Blocks that were written since the oldest pull that is unconfirmed; None if none is."""
        self._remote = remote
        self._forgotten: dict[bytes, None] = {}
        """Blocks that are still to be removed from a remote store, and that no request finds."""
        self._removing = False
        self._remove_at_ms = 0
        self._undecided: set[str] = set()
        """Requests of this step of which it is not known yet what lies on the disk, by id."""

    @staticmethod
    def _seal(digest: bytes) -> BlockSeal:
        return BlockSeal(digest)

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """The request is known; vLLM reads after this how much it may load."""
        self._remove_forgotten()
        params = req_context.kv_transfer_params or {}
        allowed = params.get(DISK_PARAMETER) is True
        if allowed:
            params["max_load_tokens"] = min(params.get("max_load_tokens", self._load_tokens_max), self._load_tokens_max)
        source = params.get(FETCH_PARAMETER)
        own_blocks = None if source is None else source["own_blocks"]
        req_context.set_state(RequestBlocks(allowed, self._store.stamp_now(), own_blocks))
        # vLLM hands over what stands in the host already only of requests of this policy
        fetches = allowed and source is not None
        return RequestOffloadingContext(OffloadPolicy.REQUEST_LEVEL if fetches else OffloadPolicy.CHUNK_LEVEL)

    def is_undecided(self, req_context: ReqContext) -> bool:
        """True if a lookup of the request in this step had no answer yet."""
        return req_context.req_id in self._undecided

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """HIT if the block lies on the disk and the request may load it now; RETRY while a network file system is
        asked, and while it is the turn of other requests. No I/O, but for a folder that workers of this machine share:
        there two calls of the system for each block, some 20 us each, up to the first that is missing."""
        request = req_context.get_state(RequestBlocks)
        if request is None or not self._may_load(key, req_context, request):
            return LookupResult.MISS
        found = self._find(key, req_context, request)
        if found is None or (found and not self._may_begin(key, req_context, request)):
            self._undecided.add(req_context.req_id)
            return LookupResult.RETRY
        if not found:
            return LookupResult.MISS
        if max(len(request.promised), self._loading + self._promised) >= self._loads_max:
            self._counts.add(loads_declined=1)
            return LookupResult.MISS
        if not request.promised and self.host is not None:
            keep_prefix(self.host, req_context)
        request.promised.add(key)
        self._promised += 1
        return LookupResult.HIT

    def submit_store(self, job_metadata: TransferJob) -> None:
        """The blocks will be written, as far as they may lie on the disk and there is room in the queue."""
        request = job_metadata.req_context.get_state(RequestBlocks)
        if request is None or not request.allowed:
            self._finished.append(JobResult(job_metadata.job_id, success=True))
            return
        self._stamp(job_metadata.req_context, request)
        blocks = []
        for key, chunk in zip(job_metadata.keys, job_metadata.chunk_ids.tolist(), strict=True):
            name = block_name(self._key, key)
            if name not in self._forgotten and self._store.may_store(name):
                blocks.append((key, name, chunk, self._stamp_of(key, job_metadata.req_context, request)))
        room = self._stores_max - self._storing
        if len(blocks) > room:
            self._counts.add(stores_dropped=len(blocks) - room)
            blocks = blocks[:room]

        def store(name: bytes, chunk: int, stamp: int) -> bool:
            return self._is_noted(name) and self._store.put(name, self._row(chunk), stamp)

        self._begin(self._storers, job_metadata, [(key, store, rest) for key, *rest in blocks])

    def submit_load(self, job_metadata: TransferJob) -> None:
        """The blocks will be read; those that are refused are misses."""

        until_ms = self._clock.monotonic_ms() + self._store.load_s * 1000

        def load(name: bytes, chunk: int) -> bool:
            if self._clock.monotonic_ms() > until_ms:
                return False
            return self._store.load(name, self._row(chunk))

        pairs = zip(job_metadata.keys, job_metadata.chunk_ids.tolist(), strict=True)
        blocks = [(key, load, [block_name(self._key, key), chunk]) for key, chunk in pairs]
        self._begin(self._loaders, job_metadata, blocks)

    def note_pulls(self, *, open_pulls: bool) -> None:
        """Unconfirmed pulls are open, or none is: then the blocks that were written meanwhile are right."""
        with self._changed:
            if not open_pulls:
                self._suspects = None
            elif self._suspects is None:
                self._suspects = {}

    def remove_suspects(self) -> None:
        """No request finds a block that was written since the oldest open pull, and no pull is open. Called while no
        block is being written. A few us for each; from a remote store they are removed in a thread."""
        with self._changed:
            names, self._suspects = [*(self._suspects or ())], None
            if self._remote:
                self._forgotten.update(dict.fromkeys(names))
        if self._remote:
            self._remove_forgotten()
        elif names:
            self._store.remove(names)

    def _remove_forgotten(self) -> None:
        """A thread removes what is still to be removed, unless one does, or the last one failed a short time ago."""
        if not self._forgotten or self._removing or self._clock.monotonic_ms() < self._remove_at_ms:
            return
        self._removing, names = True, [*self._forgotten]

        def remove() -> None:
            left = {*names}
            try:
                left = {*self._store.remove(names)}
            finally:
                with self._changed:
                    for name in names:
                        if name not in left:
                            del self._forgotten[name]
                    self._remove_at_ms = self._clock.monotonic_ms() + REMOVE_AGAIN_MS if left else 0
                    self._removing = False

        self._storers.submit(self._logged(remove))

    def _is_noted(self, name: bytes) -> bool:
        """False if the block may not be written now."""
        with self._changed:
            if self._suspects is None:
                return True
            if len(self._suspects) + len(self._forgotten) < SUSPECTS_MAX:
                self._suspects[name] = None
            noted = name in self._suspects
        if not noted:
            self._counts.add(stores_dropped=1)
        return noted

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Jobs that ended since the last call."""
        found = []
        while self._finished:
            found.append(self._finished.popleft())
        return found

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Blocks that were promised in this step are read by now, or had no room in the host."""
        self._promised = 0
        self._undecided.clear()
        self._turns.scheduled(context.new_req_ids)

    def on_request_finished(self, req_context: ReqContext) -> None:
        """The request's blocks on the disk are marked as used, and others have its turn."""
        self._turns.ended(req_context.req_id)
        request = req_context.get_state(RequestBlocks)
        if request is not None and request.allowed:
            self._stamp(req_context, request)

    def drain_jobs(self) -> None:
        """No thread reads or writes the host's memory."""
        with self._changed:
            self._changed.wait_for(lambda: not self._loading and not self._storing)

    def shutdown(self) -> None:
        """Writes and reads that have begun have ended, the others are given up; files carry their stamps."""
        for pool in (self._loaders, self._storers):
            pool.shutdown(wait=True, cancel_futures=True)
        self._store.save_stamps()
        self._store.close()
        self._counts.close()
        self._bytes.release()

    def _find(self, key: OffloadKey, req_context: ReqContext, request: RequestBlocks) -> bool | None:
        """True if the block lies on the disk, None if a network file system is being asked."""
        if request.lookup is None:
            rest = islice(dropwhile(lambda each: each != key, prefix(req_context)), self._loads_max)
            own = takewhile(lambda each: self._is_own(each, req_context, request), rest)
            request.lookup = self._store.find_prefix(block_name(self._key, each) for each in own)
        name = block_name(self._key, key)
        return name not in self._forgotten and request.lookup.holds(name)

    def _may_load(self, key: OffloadKey, req_context: ReqContext, request: RequestBlocks) -> bool:
        """True unless the request may not load the block from the disk, whether it lies there or not."""
        return request.allowed and key not in request.promised and self._is_own(key, req_context, request)

    def _may_begin(self, key: OffloadKey, req_context: ReqContext, request: RequestBlocks) -> bool:
        """True once it is the request's turn, which counts all of its blocks from that one on that lie on the disk."""
        if request.found is None:
            rest = islice(dropwhile(lambda each: each != key, prefix(req_context)), self._loads_max)
            own = takewhile(lambda each: self._is_own(each, req_context, request), rest)
            request.found = sum(1 for _ in takewhile(lambda each: self._find(each, req_context, request), own))
        return self._turns.may_begin(req_context.req_id, request.found, self._clock.monotonic_ms())

    def _is_own(self, key: OffloadKey, req_context: ReqContext, request: RequestBlocks) -> bool:
        """True if the request may read the block from the disk, wherever it lies."""
        if request.own_blocks is None:
            return True
        end = req_context.get_offload_key_position(key)
        return end is not None and end <= request.own_blocks * self._block_tokens

    def _row(self, chunk: int) -> memoryview:
        return self._bytes[chunk * self._row_bytes : (chunk + 1) * self._row_bytes]

    def _begin(
        self,
        pool: ThreadPoolExecutor,
        transfer: TransferJob,
        blocks: Collection[tuple[OffloadKey, Callable[..., bool], list[Any]]],
    ) -> None:
        """Each block's call is made in a thread; the job ends with the last of them."""
        if not blocks:
            self._finished.append(JobResult(transfer.job_id, success=True))
            return
        job = BlockJob(transfer, len(blocks))
        self._count(transfer, len(blocks))
        for key, call, arguments in blocks:
            pool.submit(self._run, job, key, call, arguments)

    def _run(self, job: BlockJob, key: OffloadKey, call: Callable[..., bool], arguments: list[Any]) -> None:
        done = False
        try:
            done = call(*arguments)
        except Exception:  # a job that never ends would hold the host's blocks for ever
            _logger.exception("a block of the disk tier failed")
        with self._changed:
            if done:
                job.done.append(key)
            if job.transfer.is_promotion:  # with each block: a slow load is known before its end
                more_us = (perf_counter_ns() - job.counted_ns) // 1000
                job.counted_ns += more_us * 1000
                self._counts.add(load_blocks=int(done), load_us=more_us)
            job.left -= 1
            if not job.left:
                whole = len(job.done) == len(job.transfer.keys) or not job.transfer.is_promotion
                self._finished.append(
                    JobResult(job.transfer.job_id, success=whole, successful_keys=None if whole else tuple(job.done))
                )
        self._count(job.transfer, -1)

    def _count(self, transfer: TransferJob, blocks: int) -> None:
        with self._changed:
            if transfer.is_promotion:
                self._loading += blocks
            else:
                self._storing += blocks
            self._changed.notify_all()

    def _stamp(self, req_context: ReqContext, request: RequestBlocks) -> None:
        """The request's blocks on the disk will be marked as used, once for each request."""
        if request.stamped or self._stamping >= STAMPS_MAX:
            return
        request.stamped = True
        stamps = [(key, self._stamp_of(key, req_context, request)) for key in prefix(req_context)]

        def mark() -> None:
            self._store.touch((block_name(self._key, key), stamp) for key, stamp in stamps)
            self._store.save_stamps()
            with self._changed:
                self._stamping -= 1

        with self._changed:
            self._stamping += 1
        self._storers.submit(self._logged(mark))

    def _stamp_of(self, key: OffloadKey, req_context: ReqContext, request: RequestBlocks) -> int:
        """The deeper a block lies in its prompt, the older it counts."""
        return request.stamp - (req_context.get_offload_key_position(key) or 0) // self._block_tokens

    @staticmethod
    def _logged(call: Callable[[], None]) -> Callable[[], None]:
        """The call, for a thread: a failure ends in the engine's log."""

        def logged() -> None:
            try:
                call()
            except Exception:  # its thread has no caller: without this, the failure would be in no log
                _logger.exception("the disk tier failed beside its blocks")

        return logged


def layout_facts(config: OffloadingConfig, row_bytes: int) -> str:
    """All of the engine's layout on which a block's bytes depend, as the engine itself says it."""
    parallel = asdict(config.parallel)
    for name in ("rank", "data_parallel_index", "data_parallel_size", "data_parallel_rank_local"):
        parallel.pop(name)
    return json.dumps(
        [
            [asdict(group) for group in config.groups],
            config.worker_kv_bytes_per_block,
            row_bytes,
            config.model.dtype,
            asdict(config.cache),
            parallel,
            config.replicated_layout,
            config.canonical_layout,
            config.kv_cache_layout,
        ]
    )


def keep_prefix(host: CPUPrimaryTierOffloadingManager, req_context: ReqContext) -> None:
    """The request's blocks in the host count as used now: what is read for it pushes out others first."""
    held = [each for each in prefix(req_context) if host.lookup(each, req_context) is LookupResult.HIT]
    host.touch(held, req_context)


def prefix(req_context: ReqContext) -> list[OffloadKey]:
    """The names of the request's blocks so far, from its first on."""
    positions = req_context._offload_key_positions  # noqa: SLF001  (vLLM shows a position for a name, not the names)
    return sorted(positions, key=positions.__getitem__)
