"""The host tier of an engine on a CPU: a copy of its blocks in another part of memory; vLLM imports this module.

vLLM's own offloading serves GPUs alone, but its manager, which knows what is kept and what goes, is for any device. So
an engine on a CPU has that manager, and this worker, which copies blocks from memory to memory. On a GPU vLLM's own
worker serves (`vllm_args.host_tier`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import torch
from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingManager,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

from actors.engines.vllm.tier_loads import HOST_FACTS_FILE, SHARED_ARGUMENT, HostFacts, write_host


class HostTierWorker(OffloadingWorker):
    """Copies blocks at once, in the order in which it is asked: a job has ended when its call returns."""

    def __init__(self, caches: CanonicalKVCaches, host: Sequence[torch.Tensor]) -> None:
        self._device = [each.tensor for each in caches.tensors]
        """Bytes: a row per block, one tensor per layer or per group of layers that lie together."""
        self._host = list(host)
        """The same, a row per chunk."""
        self._groups = [sorted({ref.tensor_idx for ref in refs}) for refs in caches.group_data_refs]
        """Of each group of the cache: its tensors."""
        self._finished: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        """The blocks stand in the host's memory."""
        assert isinstance(dst_spec, CPULoadStoreSpec)
        self._copy(job_id, src_spec, dst_spec, loads=False)
        return True

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        """The blocks stand on the device."""
        assert isinstance(src_spec, CPULoadStoreSpec)
        self._copy(job_id, dst_spec, src_spec, loads=True)
        return True

    def get_finished(self) -> list[TransferResult]:
        """The jobs since the last call."""
        found, self._finished = self._finished, []
        return found

    def wait(self, job_ids: set[int]) -> None:
        """Every job has ended already."""

    def shutdown(self) -> None:
        """The host's memory is given back."""
        self._device, self._host, self._groups = [], [], []

    def _copy(self, job_id: int, device: GPULoadStoreSpec, host: CPULoadStoreSpec, *, loads: bool) -> None:
        """Both have the blocks of the first group, then those of the next."""
        began, size, at = perf_counter(), 0, 0
        for tensors, blocks in zip(self._groups, device.group_sizes, strict=True):
            on_device = torch.from_numpy(device.block_ids[at : at + blocks]).long()
            on_host = torch.from_numpy(host.block_ids[at : at + blocks]).long()
            at += blocks
            for number in tensors:
                here, there = self._device[number], self._host[number]
                if loads:
                    here[on_device] = there[on_host]
                else:
                    there[on_host] = here[on_device]
                size += blocks * here.shape[1]
        took_s = perf_counter() - began
        self._finished.append(TransferResult(job_id, success=True, transfer_size=size, transfer_time=took_s))


def check_room(spec: CPUOffloadingSpec) -> None:
    """Returns if the host has room for a block, else raises ValueError."""
    if spec.num_chunks < 1:
        raise ValueError(f"the host tier holds no block: one takes {spec.kv_bytes_per_chunk} bytes")


def write_facts(spec: CPUOffloadingSpec) -> None:
    """The engine's worker can read the bytes of a block: vLLM's statistics count those of each rank."""
    facts = HostFacts(spec.config.worker_kv_bytes_per_block, spec.config.parallel.world_size)
    write_host(Path(spec.extra_config[SHARED_ARGUMENT], HOST_FACTS_FILE), facts)


class HostTierSpec(CPUOffloadingSpec):
    """vLLM's host tier, a chunk for each block; on a CPU with that worker."""

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        assert self.blocks_per_chunk == 1
        check_room(self)
        self._copier: HostTierWorker | None = None

    def get_manager(self) -> OffloadingManager:
        """The scheduler's manager."""
        write_facts(self)
        return super().get_manager()

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """The worker of this process."""
        if not current_platform.is_cpu():
            return super().get_worker(kv_caches)
        if self._copier is None:
            host = [
                torch.empty((self.num_chunks, each.tensor.shape[1]), dtype=torch.int8) for each in kv_caches.tensors
            ]
            self._copier = HostTierWorker(kv_caches, host)
        return self._copier
