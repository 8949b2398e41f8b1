"""vLLM's offloading connector beside a pull connector; vLLM imports this module in every process of an engine.

vLLM copies each block that a request fills or finds, pulled ones at once. Here no pulled block, and none behind it, is
copied until its holder has confirmed it (`unconfirmed_pulls`):

1. A request that pulls loads nothing from slower tiers.
2. What a request may store is vLLM's own limit (`max_offload_tokens`), set anew for each step while pulls are open.
   When a pull is confirmed, the request goes on storing where it stopped, if it runs still. Else the next request that
   finds its blocks on the device stores them.
3. That a pull is confirmed comes as a parameter of a request that ends before it begins; that the cache will be
   forgotten, too. From then on nothing is loaded, so that no block is on its way when the device is emptied.
4. Forgetting empties the host, and removes what was written to the disk since the oldest open pull began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1 import offloading_connector

from actors.engines.vllm.disk_tier import SealedDiskTier
from actors.engines.vllm.unconfirmed_pulls import UnconfirmedPulls
from actors.engines.vllm.vllm_args import CONFIRMED_PARAMETER, FORGET_PARAMETER, PULL_PARAMETER

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorRole
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import SchedulerOffloadConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

PULLS = "do_remote_prefill"
"""NIXL's parameter of a request whose blocks are still to be pulled."""


class OffloadingConnector(offloading_connector.OffloadingConnector):
    """See the module's text. Its name is vLLM's, by which statistics are told."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._forgetting = self._limited = False
        if self.connector_scheduler is not None:
            self._pulls = _unconfirmed_pulls(self.connector_scheduler.config)

    def on_new_request(self, request: Request) -> None:
        """The request is known; one that pulls loads nothing."""
        params: dict[str, Any] = request.kv_transfer_params or {}
        self._forgetting |= FORGET_PARAMETER in params
        if (confirmed := params.get(CONFIRMED_PARAMETER)) is not None:
            self._pulls.end(confirmed)
        super().on_new_request(request)
        if (pull := params.get(PULL_PARAMETER)) is not None:
            self._pulls.begin(pull, request.request_id)
            self._load_nothing(request)
        for tier in self._disks():
            tier.note_pulls(open_pulls=bool(self._pulls))

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """As vLLM's. Of a request that pulls it is known now which blocks."""
        if (request.kv_transfer_params or {}).get(PULLS):
            self._pulls.place(request.request_id, num_computed_tokens, request.block_hashes)
        if self._forgetting:
            self._load_nothing(request)
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """As vLLM's; no block that is unconfirmed is stored in this step."""
        if self._pulls or self._limited:
            for id_, status in self.scheduler._req_status.items():  # noqa: SLF001
                status.max_offload_tokens = self._pulls.limit(id_, status.req.block_hashes)
            self._limited = bool(self._pulls)
        return super().build_connector_meta(scheduler_output)

    def reset_cache(self) -> bool | None:
        """The host is empty, no event of before is told any more, and the disk has nothing that was written since the
        oldest open pull began."""
        done = super().reset_cache()
        for _ in self.scheduler.manager.take_events():
            pass
        for tier in self._disks():
            tier.remove_suspects()
        self._pulls.clear()
        self._forgetting = False
        return done

    def _load_nothing(self, request: Request) -> None:
        self.scheduler._req_status[request.request_id].max_load_tokens = 0  # noqa: SLF001

    def _disks(self) -> list[SealedDiskTier]:
        tiers = getattr(self.scheduler.manager, "secondary_tiers", [])
        return [tier for tier in tiers if isinstance(tier, SealedDiskTier)]


def _unconfirmed_pulls(config: SchedulerOffloadConfig) -> UnconfirmedPulls:
    """None is open. ValueError for a model of which vLLM stores parts of blocks: for those it takes no limit of 0."""
    if config.supports_partial_tail:
        raise ValueError("this model's KV tiers do not go together with remote prefill: leave one of the two out")
    return UnconfirmedPulls(config.tokens_per_hash)
