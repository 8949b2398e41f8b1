"""vLLM as an engine: its AsyncLLM in this process, its scheduler and workers in processes of their own.

1. vLLM is imported when an engine starts, never before. Construction runs in a thread: it takes 10 s to minutes.
2. KV events come over ipc sockets in a private folder (`kv_event_feed`), followed from before the engine is up.
3. `settle`: vLLM hands the events of a step to their publisher before it sends the step's output; two round trips
   through the scheduler's own queue wait for a step that is under way, and `KvEventFeed.catch_up` for the publisher.
   Only a cache that was emptied by `reset_prefix_cache` is told with the step after it; `forget` makes one.
4. An engine that is to move blocks (`vllm_transfer`) is told where its side channel is by the environment of its
   processes alone, so ours differs while they start.
5. The engine's processes end with us: `stop` shuts down, waits and kills what is left; a guard does so if we are
   killed ourselves.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, aclosing, nullcontext
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from actors.engines.engine import (
    BlockTransfer,
    CacheChange,
    CacheGap,
    EngineInfo,
    EngineLoad,
    TierLoads,
    TransferFailed,
)
from actors.engines.engine_adapters import AdapterCopy, EngineAdapters
from actors.engines.kv_events.kv_batch import batch_handler
from actors.engines.kv_events.kv_event_reader import KvEventReader
from actors.engines.vllm import shared_memory, vllm_args, vllm_calls, vllm_side_channel
from actors.engines.vllm.tier_loads import HOST, HOST_FACTS_FILE, HostLoads, skip_parameters
from actors.engines.vllm.vllm_args import (
    DISK_KEY_VARIABLE,
    DISK_PARAMETER,
    FETCH_KEY_VARIABLE,
    FETCH_PARAMETER,
    GROUP_SUFFIX,
    HASH_BYTES,
    PULL_PARAMETER,
    WHOLE_NAMES_VARIABLE,
    DiskTier,
    FetchTier,
    guide_behind_reasoning,
)
from actors.engines.vllm.vllm_side_channel import NixlSideChannel
from actors.engines.vllm.vllm_transfer import KEEP_MS, ROLES, VllmTransfer, connector, pull_params
from actors.kv_blocks.block_store import BlockFolderLock, make_folder
from actors.kv_blocks.disk_counts import COUNTS_FILE, read_counts
from actors.kv_blocks.pool_facts import FACTS_FILE, read_pool
from actors.kv_blocks.pool_folder import PoolDescription, PoolShare
from actors.kv_blocks.weights_digest import weights_digest, weights_files
from actors.kv_fetch.fetch_facts import FETCH_FILE, read_fetch
from core.errors import CallerError, EngineDead, Unavailable
from core.generation import TASK_EMBED, GenerateRequest, Output
from core.kv_transfer import FetchAddress, KvPull
from core.models import GenerationFailed
from core.prompt import Prompt

START_TIMEOUT_S = 600.0
"""Bound on the loading of a model."""
SETTLE_TIMEOUT_S = 30.0
"""Bound on `settle`'s wait for a step that is under way."""
ABANDON_ROUNDS = 30
"""Number of searches, a second apart, for the processes of a failed start while its thread goes on."""
SHUTDOWN_TIMEOUT_S = 10.0
"""Bound on the end of the engine's processes by themselves."""
IPC_VARIABLE = "VLLM_RPC_BASE_PATH"
"""vLLM's variable for the folder of the sockets between its processes; its default is open to every user."""
TEMPORARY_VARIABLE = "TMPDIR"
"""The engine's temporary files lie in our folder, which goes after a kill, too. vLLM leaves one for each engine."""
KV_CONFIG = "kv_transfer_config"
"""vLLM's argument that says how blocks move."""
WEIGHTS_FILE = "weights.json"
"""Digests of model files that were read once: see `DiskTier.digests`."""
NO_ADAPTERS = "this engine serves no adapters: start it with one, or with enable_lora"

_logger = logging.getLogger(__name__)
VLLM_PARTS = {
    "AsyncEngineArgs": "vllm.engine.arg_utils",
    "AsyncLLM": "vllm.v1.engine.async_llm",
    "EngineDeadError": "vllm.v1.engine.exceptions",
    "EngineGenerateError": "vllm.v1.engine.exceptions",
    "FlexibleArgumentParser": "vllm.utils.argparse_utils",
    "GracefulHTTPError": "vllm.exceptions",
    "KVEventsConfig": "vllm.config",
    "KVTransferConfig": "vllm.config",
    "LoRARequest": "vllm.lora.request",
    "PoolingParams": "vllm.pooling_params",
    "RequestOutputKind": "vllm.sampling_params",
    "SamplingParams": "vllm.sampling_params",
    "StatLoggerBase": "vllm.v1.metrics.loggers",
    "StructuredOutputsParams": "vllm.sampling_params",
    "UsageContext": "vllm.usage.usage_lib",
    "VLLMClientError": "vllm.exceptions",
    "__version__": "vllm",
    "current_platform": "vllm.platforms",
}
"""All that is used of vLLM: name to module."""


class VllmEngine:
    """One vLLM engine with one cache. `adapters` maps names of adapters (LoRA) to their folders: all are served once it
    is up. Without any, and without `enable_lora` among the arguments, no adapter can be loaded later.

    `moves_blocks` is `prefill` if others are to fetch blocks here, `decode` if it fetches them, empty if neither.
    Blocks move between engines with the same `transfer_key`.
    `reasoning_parser` is vLLM's name of how the model reasons: guided answers begin behind that.
    `host_tier_bytes` of memory hold copies of the cache's blocks, but of an engine from which others fetch; next is
    `disk_tier`, then, for one that moves no blocks, `fetch_tier`: the host tiers of other engines.
    """

    info: EngineInfo
    transfer: BlockTransfer | None

    def __init__(
        self,
        model: str,
        model_path: str,
        engine_args: Mapping[str, Any],
        *,
        adapters: Mapping[str, str] | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
        moves_blocks: str = "",
        keep_ms: int = KEEP_MS,
        transfer_key: bytes = b"",
        reasoning_parser: str = "",
        host_tier_bytes: int = 0,
        disk_tier: DiskTier | None = None,
        fetch_tier: FetchTier | None = None,
    ) -> None:
        assert not moves_blocks or moves_blocks in ROLES
        assert moves_blocks != "prefill" or not host_tier_bytes
        assert not moves_blocks or fetch_tier is None
        assert host_tier_bytes or (disk_tier is None and fetch_tier is None)
        self._model = model
        self._model_path = model_path
        self._engine_args = dict(engine_args)
        self._adapter_paths = dict(adapters or {})
        self.adapters: EngineAdapters | None = None
        if self._adapter_paths or engine_args.get("enable_lora"):
            self.adapters = EngineAdapters(self._attach, self._detach)
        self._start_timeout_s = start_timeout_s
        self._moves_blocks = moves_blocks
        self._transfer_key = transfer_key
        self._reasoning_parser = reasoning_parser
        self._host_tier_bytes = host_tier_bytes
        self._disk_tier = disk_tier
        self._fetch_tier = fetch_tier
        self._disk_lock: BlockFolderLock | None = None
        self._disk_counts: Mapping[str, int] = {}
        self._host_loads: HostLoads | None = None
        """Of one that has a host tier, once it is configured."""
        self._weights: dict[str, str] = {}
        tiers = bool(host_tier_bytes)
        self._transfer = VllmTransfer(self._results, keep_ms, has_tiers=tiers) if moves_blocks else None
        self.transfer = self._transfer
        self._side_channel: NixlSideChannel | None = None
        self._numbers = EngineLoad(running=0, waiting=0, blocks_used=0, blocks_total=0)
        self._processes: Any = None
        self._feed: Any = None
        self._llm: Any = None
        self._vllm: Any = None

    def __repr__(self) -> str:
        return f"<VllmEngine {self._model} {'up' if self._llm is not None else 'down'}>"

    async def start(self, on_cache: Callable[[CacheChange], None]) -> None:
        """The engine serves, or CallerError or EngineDead says why not and nothing of it is left.

        One engine at a time is started in a process.
        """
        assert self._llm is None
        vllm_args.set_defaults(vllm_args.environment(self._model_path))
        self._vllm = await asyncio.to_thread(_import_vllm)
        if self._transfer is not None:
            self._side_channel = _side_channel(self._engine_args, self._transfer_key)
        if self._disk_tier is not None or self._fetch_tier is not None:
            self._disk_lock = await asyncio.to_thread(self._claim_disk, self._disk_tier)
        self._prepare(on_cache)
        construction = asyncio.ensure_future(asyncio.to_thread(self._construct))
        try:
            done, _ = await asyncio.wait([construction], timeout=self._start_timeout_s)
            if not done:
                raise EngineDead(f"the engine did not start within {self._start_timeout_s:.0f} s")  # noqa: TRY301
            self._llm = construction.result()
            self.info = await asyncio.to_thread(self._describe)
            if self._transfer is not None:
                assert self._side_channel is not None
                asked = self._side_channel, self._llm.vllm_config, self._vllm.__version__
                self._transfer.up(self._llm, *await asyncio.to_thread(vllm_side_channel.address, *asked))
            self._processes.find()
            self._processes.guard()
            if self._transfer is not None and self._vllm.current_platform.is_cpu():
                from actors.engines import engine_processes  # noqa: PLC0415  (needs what comes with vLLM)

                await asyncio.to_thread(engine_processes.deprioritize_polling_threads, self._processes.pids)
            await self._feed.catch_up()
            for name, path in self._adapter_paths.items():
                assert self.adapters is not None
                await self.adapters.load(name, path)
            if self._weights and await asyncio.to_thread(self._read_weights) != self._weights:
                raise EngineDead(f"the model's files in {self._model_path} changed while the engine read them")  # noqa: TRY301
        except BaseException:  # a cancelled start, too, leaves no process behind
            await self._abandon(construction)
            raise
        finally:
            if self._side_channel is not None:
                self._side_channel.close()

    async def _abandon(self, construction: asyncio.Future[Any]) -> None:
        """Nothing is left of a start that failed, also if its thread is still at it: without processes it fails."""
        for _ in range(ABANDON_ROUNDS):
            self._processes.find()
            await self._processes.end(0.0)
            done, _ = await asyncio.wait([construction], timeout=1.0)
            if done:
                construction.exception()  # the caller gets the first failure
                break
        self._processes.find()
        await self.stop()

    def _prepare(self, on_cache: Callable[[CacheChange], None]) -> None:
        """Cache events are followed from the first on, and the engine's processes can be told from others."""
        from actors.engines.engine_processes import EngineProcesses  # noqa: PLC0415  (needs what comes with vLLM)
        from actors.engines.kv_events.kv_event_feed import KvEventFeed  # noqa: PLC0415  (likewise)

        self._processes = EngineProcesses()
        on_batch = batch_handler(KvEventReader(), on_cache)
        self._feed = KvEventFeed(on_batch, lambda detail: on_cache(CacheGap(detail)))
        self._feed.start()

    def _construct(self) -> Any:
        """AsyncLLM with its processes up; not on the event loop."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # vLLM's own, with no remedy here
            config = self._configure()
            variables = {IPC_VARIABLE: os.environ.get(IPC_VARIABLE) or self._feed.folder}
            variables |= {TEMPORARY_VARIABLE: self._feed.folder}
            variables |= self._side_channel.environment() if self._side_channel is not None else {}
            if self._disk_tier is not None:
                variables |= {DISK_KEY_VARIABLE: self._disk_tier.key.hex(), WHOLE_NAMES_VARIABLE: "0"}
            if self._fetch_tier is not None:
                variables |= {FETCH_KEY_VARIABLE: self._fetch_tier.key.hex()}
            try:
                with vllm_args.environment_with(variables), self._processes.starting():
                    loggers = [_numbers_to(self._note, self._vllm)]
                    return self._vllm.AsyncLLM.from_vllm_config(config, stat_loggers=loggers)
            except (RuntimeError, ValueError, OSError) as error:
                failure = EngineDead(f"the engine did not start, its own lines on stderr say why: {error}")
                failure.__cause__ = error.with_traceback(None)  # its frames hold sockets, which are given back here
            gc.collect()
            raise failure

    def _configure(self) -> Any:
        """vLLM's configuration; CallerError for a model or arguments that it refuses."""
        cpu = self._vllm.current_platform.is_cpu()
        if cpu:
            vllm_args.set_defaults(vllm_args.environment_cpu(len(os.sched_getaffinity(0))))
        given = vllm_args.adapter_arguments(self._adapter_paths, self._engine_args) | self._engine_args
        arguments = vllm_args.engine_arguments(given, self._model, self._model_path, cpu=cpu)
        arguments["kv_events_config"] = self._vllm.KVEventsConfig(
            enable_kv_cache_events=True,
            publisher="zmq",
            endpoint=self._feed.events_endpoint,
            replay_endpoint=self._feed.replay_endpoint,
            buffer_steps=self._feed.buffer_steps,
        )
        moving = self._moving()
        if moving:
            arguments[KV_CONFIG] = self._vllm.KVTransferConfig(**moving)
        try:
            # without a context vLLM has defaults for no hardware in particular
            server = self._vllm.UsageContext.OPENAI_API_SERVER
            config = self._vllm.AsyncEngineArgs(**arguments).create_engine_config(server)
        except (TypeError, ValueError, NotImplementedError, OSError) as error:
            why = vllm_args.reason(error)
            raise CallerError(f"vLLM refuses the model {self._model_path} or an argument: {why}") from error
        if cpu and vllm_args.sizes_cache(self._engine_args):
            vllm_args.grow_cache(config, self._vllm.current_platform.get_device_total_memory())
        guide_behind_reasoning(config, self._reasoning_parser)
        sealed = self._disk_tier or self._fetch_tier
        if sealed is not None:
            self._weights = self._read_weights()
            digest = weights_digest(Path(self._model_path), sealed.digests / WEIGHTS_FILE)
            device = f"{self._vllm.current_platform.get_device_name()} {vllm_args.cpu_kind() if cpu else ''}"
            vllm_args.set_disk_facts(config, self._vllm.__version__, device, digest)
        return config

    def _moving(self) -> dict[str, Any]:
        """The fields of vLLM's KVTransferConfig; none for an engine that moves no blocks and has no tiers."""
        pulls = {} if self._transfer is None else connector(self._moves_blocks, self._transfer.keep_ms)
        if not self._host_tier_bytes:
            return pulls
        if KV_CONFIG in self._engine_args:
            raise CallerError(f"{KV_CONFIG} is set by Contrail for an engine with a host tier: leave it out")
        self._host_loads = HostLoads()
        sizes = self._host_tier_bytes, _memory_bytes(), self._shared
        if self._fetch_tier is not None:
            tier = vllm_args.fetch_tier(self._fetch_tier, self._disk_tier, *sizes)
        elif self._disk_tier is not None:
            tier = vllm_args.disk_tier(self._disk_tier, *sizes)
        else:
            tier = vllm_args.host_tier(*sizes)
        return vllm_args.beside_pulls(pulls, tier) if pulls else tier

    def _claim_disk(self, tier: DiskTier | None) -> BlockFolderLock | None:
        """The tier's folder, if there is one, is ours, or that of workers that share it. Nothing of killed engines is
        left in memory. A folder of several machines has no lock: locks of files are another matter on each network
        file system. A store of objects has no folder.
        CallerError if it cannot be had, or if the model is none in a folder."""
        self._check_folder("an engine that fetches blocks" if tier is None else "a disk tier")
        shared_memory.remove_leftovers()
        if tier is None or tier.objects is not None:
            return None
        if tier.local is not None:
            make_folder(tier.folder)
            return None
        return BlockFolderLock(tier.folder, shared=bool(tier.writer))

    def _check_folder(self, part: str) -> None:
        """Returns if the model is in a folder, else raises CallerError."""
        if not Path(self._model_path).is_dir():
            raise CallerError(
                f"{part} needs the model's own folder, to know its weights by their content: {self._model_path} "
                "is none; download the model and give its folder"
            )

    def _read_weights(self) -> dict[str, str]:
        """The model's files, and what changes if they do."""
        return weights_files(Path(self._model_path))

    @property
    def _shared(self) -> Path:
        """The folder of small files between the tiers, the pool's keeper and this process."""
        return Path(self._feed.folder)

    def _pool(self, algorithm: str) -> PoolDescription | None:
        """The pool that the disk tier is; None if blocks in it cannot be announced. CallerError if several workers were
        to share such a pool: it would have no keeper, and without one nothing is stored."""
        tier, facts = self._disk_tier, read_pool(self._shared / FACTS_FILE)
        if tier is None or facts is None:
            return None
        if facts.groups != 1 or algorithm not in HASH_BYTES:
            cause = f"names them by {algorithm}" if facts.groups == 1 else f"has {facts.groups} kinds of caches"
            fault = f"the blocks of {self._model} on the disk cannot be announced, because the engine {cause}"
            if tier.writer:
                raise CallerError(f"{fault}: give each worker a disk of its own, or none")
            _logger.warning("%s: routing does not know them, and they have no tenants", fault)
            return None
        kind = bytes.fromhex(facts.kind)
        hash_bytes = HASH_BYTES[algorithm]
        share = PoolShare(tier.writer, tier.size_bytes, tier.local is not None, tier.objects) if tier.writer else None
        return PoolDescription(
            tier.folder, tier.key, kind, facts.load_blocks, hash_bytes, GROUP_SUFFIX, self._shared, share
        )

    def _fetch_address(self) -> FetchAddress | None:
        """The address of its blocks for others; None if they cannot be fetched. CallerError if its host holds less than
        its device: the index knows only the nearer one of a block's copies, and all that it says of the device must be
        in the host."""
        tier = self._fetch_tier
        facts = None if tier is None else read_fetch(self._shared / FETCH_FILE)
        if tier is None or facts is None:
            return None
        if facts.groups != 1:
            _logger.warning(
                "%s neither fetches blocks nor has them fetched, because its engine has %d kinds of caches: the index "
                "does not know its blocks",
                self._model,
                facts.groups,
            )
            return None
        if facts.host_blocks < self._numbers.blocks_total:
            raise CallerError(
                f"to have blocks fetched, the host tier must hold all of the device's {self._numbers.blocks_total} "
                f"blocks, and it holds {facts.host_blocks}: make it larger"
            )
        return FetchAddress(
            host=tier.host,
            port=facts.port,
            kind=facts.kind,
            block_bytes=facts.block_bytes,
            load_blocks=facts.load_blocks,
            mb_per_s=tier.mb_per_s,
        )

    def disk_counts(self) -> Mapping[str, int]:
        """The numbers of the disk tier (`actors.kv_blocks.disk_counts`), also after the engine's end; empty before its
        start. Reads a small file."""
        if self._feed is not None:
            self._disk_counts = read_counts(self._shared / COUNTS_FILE) or self._disk_counts
        return self._disk_counts

    def _tier_loads(self) -> Mapping[str, TierLoads]:
        if self._host_loads is None or self._feed is None:
            return {}
        found = {HOST: self._host_loads.sums(self._shared / HOST_FACTS_FILE)}
        if self._disk_tier is not None and (counts := self.disk_counts()):
            found[self._disk_tier.name] = TierLoads(counts["load_blocks"], counts["load_us"])
        return found

    def _note(self, stats: Any) -> None:
        if self._transfer is not None:
            self._transfer.note(stats)
        if self._host_loads is not None:
            self._host_loads.note(stats.kv_connector_stats)
        total = self.info.capacity_blocks
        self._numbers = EngineLoad(
            running=stats.num_running_reqs,
            waiting=stats.num_waiting_reqs,
            blocks_used=round(stats.kv_cache_usage * total),
            blocks_total=total,
            steps=self._numbers.steps + 1,
        )

    def _describe(self) -> EngineInfo:
        config = self._llm.vllm_config
        blocks = config.cache_config.num_gpu_blocks - 1  # the first is vLLM's null block, which holds nothing
        self._numbers = EngineLoad(running=0, waiting=0, blocks_used=0, blocks_total=blocks)
        return EngineInfo(
            engine=f"vllm {self._vllm.__version__}",
            model=self._model,
            model_path=vllm_args.tokenizer_folder(
                config.model_config.tokenizer, config.model_config.tokenizer_revision
            ),
            block_size=config.cache_config.block_size,
            capacity_blocks=blocks,
            context_max=config.model_config.max_model_len,
            slots=config.scheduler_config.max_num_seqs,
            cpu_s=self._processes.used_s if self._vllm.current_platform.is_cpu() else None,
            embedding_size=config.model_config.embedding_size if config.model_config.runner_type == "pooling" else 0,
            disk_counts=self.disk_counts if self._disk_tier is not None else None,
            pool=self._pool(config.cache_config.prefix_caching_hash_algo) if self._disk_tier is not None else None,
            tier_loads=self._tier_loads if self._host_tier_bytes else None,
            fetch=self._fetch_address(),
        )

    async def generate(self, request: GenerateRequest, pull: KvPull | None = None) -> AsyncIterator[Output]:
        """New tokens as they come, the last Output with `finish`; closing the iterator aborts within a step.

        With `pull` the first comes when the blocks have; TransferFailed instead if they do not. Of a prompt that lies
        in the host tier with its last block, vLLM computes one token again and counts none: that block is not counted.
        """
        first, moving = True, None
        async with AsyncExitStack() as until_first:
            if pull is not None:
                if self._transfer is None:
                    raise TransferFailed("this engine was not started to fetch blocks")
                moving = pull_params(pull)
                name = await until_first.enter_async_context(self._transfer.pulling(request.id))
                request = msgspec.structs.replace(request, id=name)
                if self._host_tier_bytes:
                    moving[PULL_PARAMETER] = pull.blocks.request
            async with aclosing(self._results(request, moving)) as results:
                async for result in results:
                    if first and pull is not None and self._transfer is not None:  # never for an embedding
                        result.num_cached_tokens = self._transfer.cached_here(request.id)
                        await until_first.aclose()
                        if result.outputs[0].finish_reason == "error":
                            raise TransferFailed("the engine could not fetch the blocks, its lines on stderr say why")
                    if first and self._host_tier_bytes and result.num_cached_tokens:
                        most = Prompt(request.tokens, self.info.block_size, 0).blocks_reusable * self.info.block_size
                        result.num_cached_tokens = min(result.num_cached_tokens, most)
                    if request.task == TASK_EMBED:
                        output = vllm_calls.embedding(result)
                    else:
                        output = vllm_calls.output(result, request.sampling, first=first)
                    first = False
                    yield output

    async def _results(self, request: GenerateRequest, moving: Mapping[str, Any] | None) -> AsyncGenerator[Any]:
        """vLLM's RequestOutputs, for an embedding its PoolingRequestOutput; `moving` is what it is to do with the
        prompt's blocks. Errors are ours."""
        if self._llm is None:
            raise EngineDead("the engine is not running")
        try:
            if self._host_tier_bytes:
                moving = {**(moving or {}), **self._of_tiers(request)} or None
            with self._adapter_of(request) as adapter:
                call = vllm_calls.arguments(request, self._vllm, self._llm, adapter, moving)
                ask = self._llm.encode if request.task == TASK_EMBED else self._llm.generate
                async with aclosing(ask(**call)) as results:
                    async for result in results:
                        yield result
        except self._vllm.EngineDeadError as error:
            raise EngineDead(f"the engine died: {error}") from error
        except self._vllm.GracefulHTTPError as error:
            raise Unavailable(f"the engine takes no more requests now: {error}") from error
        except (self._vllm.VLLMClientError, ValueError) as error:
            raise CallerError(vllm_calls.sentence(error)) from error
        except self._vllm.EngineGenerateError as error:
            if isinstance(error.__cause__, ValueError):  # of what was asked: it was not given to the engine yet
                raise CallerError(vllm_calls.sentence(error.__cause__)) from error
            raise GenerationFailed(f"the engine failed on this request: {error.__cause__}") from error

    def _of_tiers(self, request: GenerateRequest) -> Mapping[str, Any]:
        """Transfer parameters of a request to an engine with slower tiers."""
        found: dict[str, Any] = {}
        if self._disk_tier is not None:
            found[DISK_PARAMETER] = not request.adapter
        if self._fetch_tier is not None and request.fetch is not None and not request.adapter:
            found[FETCH_PARAMETER] = msgspec.to_builtins(request.fetch)
        slower = "" if self._disk_tier is None else self._disk_tier.name
        return found | skip_parameters(request.skip_tiers, slower)

    def _adapter_of(self, request: GenerateRequest) -> AbstractContextManager[AdapterCopy | None]:
        if not request.adapter:
            return nullcontext()
        if self.adapters is None:
            raise CallerError(NO_ADAPTERS)
        return self.adapters.using(request.adapter)

    async def _attach(self, copy: AdapterCopy) -> None:
        """vLLM has read the adapter; CallerError if it refuses it."""
        assert self._llm is not None
        try:
            await self._llm.add_lora(vllm_calls.lora_request(copy, self._vllm))
        except self._vllm.EngineDeadError as error:
            raise EngineDead(f"the engine died: {error}") from error
        except Exception as error:  # the engine's process reports each error of its loader as a type of its own
            raise CallerError(f"vLLM refuses the adapter {copy.name}: {vllm_calls.sentence(error)}") from error

    async def _detach(self, copy: AdapterCopy) -> None:
        if self._llm is not None:
            await self._llm.remove_lora(copy.number)

    def load(self) -> EngineLoad:
        """The numbers of the last step; an engine with no request left is idle, though no step said so.

        One that holds blocks for others goes on stepping and saying so.
        """
        if self._llm is None or self._llm.get_num_unfinished_requests() == 0:
            held = self._numbers.blocks_used if self._llm is not None and self._moves_blocks == "prefill" else 0
            return EngineLoad(running=0, waiting=0, blocks_used=held, blocks_total=self._numbers.blocks_total)
        return self._numbers

    async def check(self) -> None:
        """Returns if the engine is alive and its cache events are followed, else raises EngineDead."""
        if self._llm is None:
            raise EngineDead("the engine is not running")
        try:
            await self._llm.check_health()
        except self._vllm.EngineDeadError as error:
            raise EngineDead(f"the engine died: {error}") from error
        self._feed.check()

    async def settle(self) -> None:
        """Every cache change of steps begun before the call has been told. Unavailable if that takes too long."""
        await self.check()
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                for _ in range(2):  # requests are looked at between steps; a second batch may be scheduled ahead
                    await self._llm.is_paused()
                await self._feed.catch_up()
        except TimeoutError as error:
            raise Unavailable(f"the engine did not settle within {SETTLE_TIMEOUT_S:.0f} s") from error
        except self._vllm.EngineDeadError as error:
            raise EngineDead(f"the engine died: {error}") from error

    async def stop(self) -> None:
        """The engine's processes are gone, requests under way have failed with EngineDead; again: nothing to do."""
        llm, self._llm = self._llm, None
        if self._transfer is not None:
            self._transfer.down()
        if llm is not None:
            llm.output_processor.propagate_error(self._vllm.EngineDeadError())
            if llm.output_handler is not None:
                llm.output_handler.cancel()  # else it takes the end that we make for a failure
            await asyncio.to_thread(llm.shutdown, SHUTDOWN_TIMEOUT_S)
            await asyncio.to_thread(llm.engine_core.resources.ctx.destroy, 0)  # it would warn that it was not closed
        if self._processes is not None:
            await self._processes.end(SHUTDOWN_TIMEOUT_S if llm is not None else 0.0)
        if self._feed is not None:
            self.disk_counts()
            await self._feed.stop()
            self._feed = None
        if self.adapters is not None:
            self.adapters.close()
        if self._disk_lock is not None:
            await asyncio.to_thread(shared_memory.remove_leftovers)
            self._disk_lock.close()
            self._disk_lock = None


def _memory_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _side_channel(engine_args: Mapping[str, Any], key: bytes) -> NixlSideChannel:
    """A port for an engine that is to move blocks; CallerError if it cannot be one."""
    if KV_CONFIG in engine_args:
        raise CallerError(f"{KV_CONFIG} is set by Contrail for an engine that moves blocks: leave it out")
    if find_spec("nixl") is None:
        raise CallerError("blocks are moved by NIXL, which is not installed: `pip install nixl`")
    return NixlSideChannel(os.environ, key)


def _numbers_to(note: Callable[[Any], None], vllm: Any) -> Callable[..., Any]:
    """A factory as vLLM wants it, of an object that it calls with its numbers after each step."""

    class Numbers(vllm.StatLoggerBase):  # type: ignore[misc]  # the base comes with vLLM
        def __init__(self) -> None:
            pass

        def record(self, scheduler_stats: Any, *_: Any, **__: Any) -> None:
            if scheduler_stats is not None:
                note(scheduler_stats)

        def log_engine_initialized(self) -> None:
            pass

    return lambda *_, **__: Numbers()


def parse_flags(flags: Sequence[str]) -> dict[str, Any]:
    """vLLM's own command line flags (`--max-model-len 4096`) as engine arguments; CallerError in vLLM's words."""
    vllm = _import_vllm()
    return vllm_args.parse_flags(vllm.AsyncEngineArgs.add_cli_args(vllm.FlexibleArgumentParser()), flags)


def _import_vllm() -> SimpleNamespace:
    """The parts of vLLM that are used here; CallerError if it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vLLM's own, with no remedy here
        try:
            return SimpleNamespace(
                **{name: getattr(import_module(module), name) for name, module in VLLM_PARTS.items()}
            )
        except ModuleNotFoundError as error:
            raise CallerError(
                f"vLLM is not installed ({error.name} is missing): install Contrail with the extra `cpu` or `gpu`, "
                "or choose `--engine simulated`"
            ) from error
