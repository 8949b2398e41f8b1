"""The fetch tier of an engine: blocks of other engines' host tiers, behind its own; vLLM imports this module.

1. A request may name one source, and how many leading blocks of its prompt that should have (FETCH_PARAMETER, which the
   worker alone sets). Those that the device and the host lack are read from there into the host, by threads.
2. vLLM's own tier for this lets the source write into this engine's memory: a source that stalls and wakes up writes
   into blocks that hold another prompt by then. Here the engine reads, so nothing is written after a job has ended.
3. A fetch ends after FETCH_S, or after a shorter silence (`BlockClient`). The blocks that came are kept, the others are
   misses, which the engine computes in the same request. So a dead source costs no more than that.
4. What is served is what stands in the host: a copy counts if the block stood there, unchanged, before and after.
5. Only prompts without an adapter fetch: other engines may have other weights under an adapter's path.
6. Beside a disk tier, that tier is asked first, for the blocks that the request's decision took to be the worker's own.
   One of them that went in the meantime is fetched as well, as far as the source has it.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition
from typing import ClassVar

from vllm.v1.kv_offload.base import (
    LookupResult,
    Medium,
    OffloadingManager,
    OffloadingSpec,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob
from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager, TieringOffloadingManager
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from actors.engines.vllm.disk_tier import LOADS_SHARE, DiskTierSpec, SealedDiskTier, keep_prefix, layout_facts
from actors.engines.vllm.vllm_args import FETCH_KEY_VARIABLE, FETCH_PARAMETER
from actors.kv_blocks.block_seal import engine_digest
from actors.kv_fetch.block_client import BlockClient
from actors.kv_fetch.block_server import BlockServer
from actors.kv_fetch.fetch_facts import FETCH_FILE, FetchFacts, write_fetch
from core.clock import SystemClock

FETCH_S = 2.0
"""Bound on one fetch, from its begin to its last block."""
FETCH_THREADS = 4
MILLI = 1000

_logger = logging.getLogger(__name__)


class FetchTierSpec(DiskTierSpec):
    """vLLM's tiers with other engines behind the host, alone or behind a disk tier."""

    def get_manager(self) -> OffloadingManager:
        """As that of a disk tier; other engines can fetch the host's blocks."""
        manager = super().get_manager()
        assert isinstance(manager, TieringOffloadingManager)
        disks = [tier for tier in manager.secondary_tiers if isinstance(tier, SealedDiskTier)]
        for tier in manager.secondary_tiers:
            if isinstance(tier, HostFetchTier):
                tier.serve(manager.primary_tier, disks[0] if disks else None)
        return manager


class HostCopies:
    """The blocks in the host of this engine, for threads that copy them (`HostBlocks`).

    The scheduler evicts a block before it gives its room to another one, and makes a new status for each block that it
    takes in. So a block whose status is the same one, and ready, before and after the copy was not written meanwhile.
    """

    def __init__(self, host: CPUPrimaryTierOffloadingManager, view: memoryview, row_bytes: int) -> None:
        self._policy, self._row_bytes = host._policy, row_bytes  # noqa: SLF001  (its blocks, by name)
        self._view: memoryview | None = view

    def close(self) -> None:
        """Nothing can be copied any more."""
        self._view = None

    def copy(self, name: bytes, into: bytearray) -> bool:
        """See `HostBlocks`."""
        key = OffloadKey(name)
        status, view = self._policy.get(key), self._view
        if view is None or status is None or not status.is_ready:
            return False
        at = status.chunk_id * self._row_bytes
        into[:] = view[at : at + self._row_bytes]
        return self._policy.get(key) is status and status.is_ready


@dataclass
class FetchingRequest:
    """One request of the engine that has a source."""

    address: tuple[str, int]
    blocks: int
    """Leading blocks of its prompt that the source should have."""
    promised: set[OffloadKey] = field(default_factory=set)
    """Blocks that it was to fetch: each once."""


class HostFetchTier(SecondaryTierManager):
    """Blocks of other engines, by the names that vLLM gives them."""

    medium: ClassVar[Medium] = Medium.CPU
    cache_hit_source: ClassVar[CacheHitSource] = CacheHitSource.P2P
    """In vLLM's statistics these are no blocks of the own host."""

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: None = None,
        *,
        host: str,
        facts: str,
        shared: str,
        loads_share: int = LOADS_SHARE,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        config = offloading_spec.config
        self._bytes, self._row_bytes = primary_kv_view.cast("B"), self.block_size_bytes
        chunks = len(self._bytes) // self._row_bytes
        self._block_tokens = min(group.tokens_per_block for group in config.groups)
        self._load_tokens_max = max(1, chunks // len(config.groups)) * self._block_tokens
        self._loads_max = max(1, chunks // loads_share)
        self._key = bytes.fromhex(os.environ[FETCH_KEY_VARIABLE])
        self._kind = engine_digest(self._key, facts, layout_facts(config, self._row_bytes))
        self._groups, self._host, self._shared = len(config.groups), host, Path(shared)
        self._clock = SystemClock()
        self._client = BlockClient(self._key, self._kind, self._row_bytes, self._clock)
        self._disk: SealedDiskTier | None = None
        """That of this engine, if it has one."""
        self._manager: CPUPrimaryTierOffloadingManager | None = None
        """That of the host's blocks, once it is made."""
        self._copies: HostCopies | None = None
        self._server: BlockServer | None = None
        self._threads = ThreadPoolExecutor(FETCH_THREADS, "fetches")
        self._changed = Condition()
        self._loading = 0
        """Blocks that are fetched in threads, or in their queue."""
        self._promised = 0
        """Blocks that are to be fetched at the end of this step."""
        self._finished: deque[JobResult] = deque()

    def serve(self, host: CPUPrimaryTierOffloadingManager, disk: SealedDiskTier | None = None) -> None:
        """Other engines can fetch the host's blocks, and this engine's worker knows where."""
        self._manager, self._disk = host, disk
        self._copies = HostCopies(host, self._bytes, self._row_bytes)
        self._server = BlockServer(self._host, self._key, self._kind, self._row_bytes, self._copies)
        port, kind = self._server.port, self._kind.hex()
        chunks = len(self._bytes) // self._row_bytes
        facts = FetchFacts(port, kind, self._row_bytes, self._loads_max, chunks, self._groups)
        write_fetch(self._shared / FETCH_FILE, facts)

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """The request is known; vLLM reads after this how much it may load."""
        params = req_context.kv_transfer_params or {}
        source = params.get(FETCH_PARAMETER)
        if source is not None:
            params["max_load_tokens"] = min(params.get("max_load_tokens", self._load_tokens_max), self._load_tokens_max)
            req_context.set_state(FetchingRequest((source["host"], source["port"]), source["blocks"]))
        return RequestOffloadingContext()

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """HIT if the request may fetch the block now; RETRY while the disk tier looks for blocks before it. No I/O: the
        source is taken at its router's word."""
        request = req_context.get_state(FetchingRequest)
        if request is None or key in request.promised:
            return LookupResult.MISS
        if self._disk is not None and self._disk.is_undecided(req_context):
            return LookupResult.RETRY
        end = req_context.get_offload_key_position(key)
        if end is None or end > request.blocks * self._block_tokens:
            return LookupResult.MISS
        if max(len(request.promised), self._loading + self._promised) >= self._loads_max:
            return LookupResult.MISS
        if not request.promised and self._manager is not None:
            keep_prefix(self._manager, req_context)
        request.promised.add(key)
        self._promised += 1
        return LookupResult.HIT

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Nothing: others read from the host."""
        self._finished.append(JobResult(job_metadata.job_id, success=True))

    def submit_load(self, job_metadata: TransferJob) -> None:
        """The blocks will be fetched; those that do not come are misses."""
        request = job_metadata.req_context.get_state(FetchingRequest)
        assert request is not None
        self._count(len(job_metadata.keys))
        until_ms = self._clock.monotonic_ms() + int(FETCH_S * MILLI)
        self._threads.submit(self._fetch, job_metadata, request, until_ms)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Jobs that ended since the last call."""
        found = []
        while self._finished:
            found.append(self._finished.popleft())
        return found

    def on_schedule_end(self, context: ScheduleEndContext) -> None:  # noqa: ARG002
        """Blocks that were promised in this step are fetched by now, or had no room in the host."""
        self._promised = 0

    def drain_jobs(self) -> None:
        """No thread writes the host's memory."""
        with self._changed:
            self._changed.wait_for(lambda: not self._loading)

    def shutdown(self) -> None:
        """Nothing is served any more; fetches that have begun have ended, the others are given up."""
        if self._server is not None and self._copies is not None:
            self._copies.close()
            self._server.close()
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._client.close()
        self._bytes.release()

    def _fetch(self, job: TransferJob, request: FetchingRequest, until_ms: int) -> None:
        done, keys = 0, list(job.keys)
        try:
            rows = [self._row(chunk) for chunk in job.chunk_ids.tolist()]
            done, why = self._client.fetch(request.address, keys, rows, until_ms)
            if why:
                _logger.info("%d of %d blocks came from %s:%d: %s", done, len(keys), *request.address, why)
        except Exception:  # a job that never ends would hold the host's blocks for ever
            _logger.exception("blocks could not be fetched")
        whole = done == len(keys)
        with self._changed:
            came = None if whole else tuple(keys[:done])
            self._finished.append(JobResult(job.job_id, success=whole, successful_keys=came))
        self._count(-len(keys))

    def _row(self, chunk: int) -> memoryview:
        return self._bytes[chunk * self._row_bytes : (chunk + 1) * self._row_bytes]

    def _count(self, blocks: int) -> None:
        with self._changed:
            self._loading += blocks
            self._changed.notify_all()
