"""KV blocks between vLLM engines, through vLLM's own NIXL connector: the prefill side keeps, the decode side pulls.

1. The lease is vLLM's. It starts in the step that ends the prefill and lasts `keep_ms`, rounded up to seconds; the
   blocks are free when a puller has said that it has them, or when the lease is over. Nothing on the holder's side
   ends it before: `release` only takes back our word. While blocks are held the engine goes on stepping.
2. vLLM checks that two engines fit (`NixlSideChannel`), not that blocks are those of the prompt, nor that they are held
   still: such a pull gives wrong text without an error, and the wrong blocks are found by later prompts. What was
   pulled must be confirmed by its holder, or else forgotten.
3. A pull that fails leaves nothing in the cache: blocks are entered there when they have come.
4. An engine with KV tiers copies pulled blocks to none of them before `confirm` says that they are right
   (`offloading_connector`).
5. `forget` makes vLLM compute all running requests again from their tokens; they go on as if nothing had been.
   It fails while blocks are on their way, so pulls to come wait for it, and it waits for those under way. Of an engine
   with KV tiers it empties the host, too; from its call on nothing is loaded from slower tiers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import msgspec

from actors.engines.engine import TransferTotals
from actors.engines.vllm import vllm_calls
from actors.engines.vllm.vllm_args import CONFIRMED_PARAMETER, FORGET_PARAMETER
from core.clock import SystemClock
from core.errors import EngineDead
from core.generation import GenerateRequest, Sampling
from core.ids import new_id
from core.kv_transfer import KvAddress, KvBlocks, KvPull
from core.models import GenerationFailed

KEEP_MS = 30_000
"""The lease of a prefill's blocks; vLLM's own default."""
KEEP_MARGIN_MS = 500
"""Blocks whose lease ends within this are not vouched for any more."""
FORGET_TIMEOUT_S = 30.0
"""Bound on `forget`'s wait for blocks on their way; vLLM gives up a silent peer after 5 s."""
FORGET_PAUSE_S = 0.05
"""Between two attempts, each of which makes the running requests start over."""
ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
"""The connector roles of an engine, by our names, in vLLM's."""
HELD = {"do_remote_decode": True, "do_remote_prefill": False}
"""Transfer parameters of a prompt with blocks that another engine will fetch."""
MOVED = "bytes_transferred"
"""A number that is in the statistics of vLLM's pull connector alone, and always."""
ONE_TOKEN = Sampling(max_tokens=1, temperature=0.0, ignore_eos=True)
"""A prefill makes a token too; it is not used."""

Results = Callable[[GenerateRequest, Mapping[str, Any]], AsyncGenerator[Any]]


def connector(moves_blocks: str, keep_ms: int) -> dict[str, Any]:
    """The arguments of vLLM's KVTransferConfig."""
    return {
        "kv_connector": "NixlConnector",
        "kv_connector_module_path": "actors.engines.vllm.nixl_connector",
        "kv_role": ROLES[moves_blocks],
        "kv_load_failure_policy": "fail",  # else vLLM computes the prompt itself without a word
        "kv_connector_extra_config": {"kv_lease_duration": -(-keep_ms // 1000)},
    }


def pull_params(pull: KvPull) -> dict[str, Any]:
    """A pull in the connector's words."""
    address, blocks = pull
    return {
        **address.details,
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "remote_block_ids": [list(group) for group in blocks.ids],
        "remote_engine_id": address.engine_id,
        "remote_host": address.host,
        "remote_num_tokens": blocks.tokens,
        "remote_port": address.port,
        "remote_request_id": blocks.request,
        "transfer_mode": "pull",
    }


def nixl_stats(stats: Mapping[str, Any]) -> Mapping[str, Any]:
    """The numbers of the pull connector; one level deeper where it is one of several. Empty if a step has none."""
    return stats if MOVED in stats else next((each for each in stats.values() if MOVED in each), {})


class VllmTransfer:
    """The moving side of one engine. `results` asks it: RequestOutputs, with errors as of `Engine.generate`."""

    address: KvAddress

    def __init__(self, results: Results, keep_ms: int, *, has_tiers: bool = False) -> None:
        self.keep_ms = keep_ms
        self._has_tiers = has_tiers
        self._results = results
        self._clock = SystemClock()
        self._llm: Any = None
        self._ranks = 1
        self._held: dict[str, int] = {}  # request to the moment until which we vouch for its blocks
        self._fetched: set[str] = set()  # of those: known to be free, for the engine uses no block at all
        self._totals = TransferTotals()
        self._transfers = 0
        self._cached: dict[str, int] = {}  # pull under way, by its name, to tokens of its prompt that were here
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._open = asyncio.Event()
        self._open.set()
        self._forgetting = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<VllmTransfer {self.totals()}>"

    def up(self, llm: Any, address: KvAddress, ranks: int) -> None:
        """The engine serves; its blocks are spread over so many ranks."""
        self._llm, self.address, self._ranks = llm, address, ranks
        self._see_prefills(llm.output_processor)

    def down(self) -> None:
        """The engine is stopped or about to be."""
        self._llm = None

    async def prefill(self, request: GenerateRequest) -> tuple[KvBlocks, int]:
        """The prompt's blocks, and how many of its tokens were cached; held until fetched or `keep_ms` is over.

        Cancelled before the engine is done, nothing is held; in the moment after, until the lease is over.
        """
        asked = msgspec.structs.replace(request, sampling=ONE_TOKEN)
        result, since_ms = None, self._clock.monotonic_ms()
        async with aclosing(self._results(asked, HELD)) as results:
            async for result in results:
                vllm_calls.output(result, ONE_TOKEN, first=True)
        params = getattr(result, "kv_transfer_params", None)
        if result is None or not params:
            raise GenerationFailed("the engine holds no blocks of this prompt")
        if result.metrics is not None and result.metrics.last_token_ts:  # of the step in which the lease began
            since_ms = int(result.metrics.last_token_ts * 1000)
        self._expire()
        self._held[params["remote_request_id"]] = since_ms + self.keep_ms - KEEP_MARGIN_MS
        blocks = KvBlocks(
            request=params["remote_request_id"],
            ids=tuple(map(tuple, params["remote_block_ids"])),
            tokens=params["remote_num_tokens"],
        )
        return blocks, params.get("remote_prefill_cached_tokens") or 0

    def still_held(self, blocks: KvBlocks) -> bool:
        """True if the blocks' lease has not ended, less a margin; also of blocks that were pulled already."""
        return self._held.get(blocks.request, 0) > self._clock.monotonic_ms()

    async def release(self, blocks: KvBlocks) -> None:
        """We do not vouch for them any more; vLLM holds them until its lease is over, it has no call to end it."""
        self._held.pop(blocks.request, None)

    async def decline(self, pull: KvPull) -> None:
        """Their holder is told in the background that it can free them; unheard, its lease ends it."""
        await self._reject(pull_params(pull))

    async def confirm(self, pull: KvPull) -> None:
        """The pulled blocks may be copied to slower tiers: they are right, or none of them is in the cache. Nothing
        without tiers, and of an engine that is down or dead, which copies nothing."""
        if self._has_tiers and self._llm is not None:
            with suppress(EngineDead):
                await self._reject({CONFIRMED_PARAMETER: pull.blocks.request})

    async def _reject(self, params: dict[str, Any]) -> None:
        """A request that ends before it begins."""
        llm = self._running()
        try:
            await llm.notify_kv_transfer_request_rejected(new_id(), params)
        except Exception as error:
            raise EngineDead(f"the engine died: {error}") from error

    async def forget(self) -> None:
        """Nothing that was in the cache is found by requests to come, and that is told; running ones start over unseen.

        EngineDead if blocks that are on their way do not arrive in time: an engine with wrong blocks must not serve.
        """
        async with self._forgetting:
            self._open.clear()
            try:
                if self._has_tiers:
                    await self._reject({FORGET_PARAMETER: True})
                async with asyncio.timeout(FORGET_TIMEOUT_S):
                    await self._quiet.wait()
                    emptied = await self._reset()
                    while not emptied:
                        await asyncio.sleep(FORGET_PAUSE_S)
                        emptied = await self._reset()
            except TimeoutError as error:
                raise EngineDead(f"the engine's cache cannot be emptied for {FORGET_TIMEOUT_S:.0f} s") from error
            finally:
                self._open.set()
        await self._reject(
            {}
        )  # what changed is told with the next step, and an idle engine takes one only for a request

    async def _reset(self) -> bool:
        """False if blocks are in use that belong to no running request: on their way, or held for others."""
        llm = self._running()
        try:
            tiers = {"reset_connector": True} if self._has_tiers else {}
            return bool(await llm.reset_prefix_cache(reset_running_requests=True, **tiers))
        except Exception as error:  # vLLM raises a bare one for what failed in its core
            if llm.errored:
                raise EngineDead(f"the engine died: {error}") from error
            return False

    def _running(self) -> Any:
        if self._llm is None:
            raise EngineDead("the engine is not running")
        return self._llm

    @asynccontextmanager
    async def pulling(self, request: str) -> AsyncIterator[str]:
        """Its blocks are on their way in here, or not yet asked for; not while the cache is being emptied.

        Gives the name under which the engine is to be asked: two clients may have given their requests the same id.
        """
        while not self._open.is_set():
            await self._open.wait()
        name = f"{request}-{new_id()}"
        self._cached[name] = 0
        self._quiet.clear()
        try:
            yield name
        finally:
            del self._cached[name]
            if not self._cached:
                self._quiet.set()

    def cached_here(self, name: str) -> int:
        """Tokens of the prompt that were in the cache before the pull, known with its first token, while `pulling`."""
        return self._cached[name]

    def _see_prefills(self, processor: Any) -> None:
        """The core's report on each prefill is read; vLLM passes on only the sum of cached and pulled tokens."""
        process = processor.process_outputs

        def see(outputs: list[Any], *more: Any, **named: Any) -> Any:
            for output in outputs:
                request = output.request_id.rpartition("-")[0]  # the core's name of it has a suffix
                if output.prefill_stats is not None and request in self._cached:
                    self._cached[request] = output.prefill_stats.num_local_cached_tokens
            return process(outputs, *more, **named)

        processor.process_outputs = see

    def note(self, stats: Any) -> None:
        """The engine's numbers of one step."""
        if self._held and not stats.kv_cache_usage:
            self._fetched.update(self._held)
        moved = nixl_stats(stats.kv_connector_stats or {})
        if not moved:
            return
        self._transfers += len(moved["bytes_transferred"])
        total_bytes = self._totals.bytes + sum(moved["bytes_transferred"])
        failed = sum(moved["num_failed_transfers"]) + sum(moved["num_failed_handshakes"])
        self._totals = self._totals._replace(
            pulls=self._transfers // self._ranks,
            blocks=total_bytes // self.address.block_bytes,
            bytes=total_bytes,
            failures=self._totals.failures + failed,
            expired=self._totals.expired + sum(moved["num_kv_expired_reqs"]),
        )

    def totals(self) -> TransferTotals:
        """Totals of the engine. It does not report which blocks were fetched: `held` are prefills with a running lease,
        none once it uses no block.

        It does not say whose blocks were fetched: `held` are prefills whose lease runs, none once it uses no block.
        """
        self._expire()
        return self._totals._replace(held=len(self._held.keys() - self._fetched))

    def _expire(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self._held = {request: until_ms for request, until_ms in self._held.items() if until_ms > now_ms}
        self._fetched &= self._held.keys()
