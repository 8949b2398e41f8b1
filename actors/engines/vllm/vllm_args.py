"""vLLM's arguments: environment and engine arguments where the operator sets none.

Of a model that reasons first, the grammar of a guided answer is for what comes behind the reasoning. vLLM makes its
reasoning parser in the scheduler, at the first guided request; a parser that does not fit the model's tokenizer would
end the engine there. So `guide_behind_reasoning` tries it before the engine starts.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from actors.engines.engine_adapters import adapter_rank
from actors.engines.vllm.tier_loads import SHARED_ARGUMENT
from actors.kv_blocks.pool_folder import ObjectPlace
from core.errors import CallerError
from core.ids import new_id

BLOCK_SIZE_CPU = 32
"""The smallest that vLLM's CPU attention likes; its own default, 128, shares little of short prompts."""
KV_CACHE_BYTES_CPU = 256 << 20
"""Enough for a small model, and it does not take the machine."""
CACHE_SHARE_CPU = 4
"""One request of a model's whole length may need more than that: then up to this part of the machine's memory, one
over it. Of all there is, not of what is free just now: workers of one model must have one context."""
CACHE_SIZE_ARGUMENTS = frozenset({"kv_cache_memory_bytes", "gpu_memory_utilization"})
CACHE_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"
"""Says the same to vLLM, in GiB."""
BLOCKS_ARGUMENT = "num_gpu_blocks_override"
MAX_NUM_SEQS_CPU = 32
EXECUTOR_CPU = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""Computes in the process of the scheduler. Under its short name vLLM takes a process more on a CPU, only to bind
threads to cores, which ours are not; the two then wait for each other without a pause, a core for a second after every
step: that costs half of the tokens of one stream, and other engines on the same cores stand still."""
RANKS_ARGUMENTS = ("tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size")
"""Their product is how many processes compute, and how many GPUs an engine takes."""
BIND_VARIABLE, UNBOUND = "VLLM_CPU_OMP_THREADS_BIND", "nobind"
TOKENIZER_FILES = [
    "tokenizer*",
    "*.model",
    "vocab*",
    "merges.txt",
    "*.jinja",
    "*config.json",
    "special_tokens_map.json",
]
"""The files of a model's folder that a front end needs."""
HOST_TIER_MODULE = "actors.engines.vllm.host_tier"
"""vLLM imports it in each of its processes."""
DISK_TIER_MODULE = "actors.engines.vllm.disk_tier"
"""Likewise."""
DISK_KEY_VARIABLE = "CONTRAIL_DISK_KEY"
"""The key of names and seals on the disk, in the environment of the engine's processes; hex digits."""
WHOLE_NAMES_VARIABLE = "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"
"""vLLM's variable that shortens the names of blocks in cache events to 64 bits; files are named by whole ones."""
HASH_BYTES = {"sha256": 32, "sha256_cbor": 32, "xxhash": 16, "xxhash_cbor": 16}
"""Lengths of vLLM's block hashes, by algorithm."""
GROUP_SUFFIX = bytes(4)
"""Behind a block's hash in vLLM's name of a copy: the number of its group, of which there is one."""
DISK_PARAMETER = "contrail_disk"
"""Of a request's `kv_transfer_params`: true if its blocks may lie on the disk."""
OFFLOADING_MODULE = "actors.engines.vllm.offloading_connector"
"""Likewise, in an engine that pulls blocks, too."""
PULL_PARAMETER = "contrail_pull"
"""Of a request's `kv_transfer_params`: the name of the pull of its blocks, which are unconfirmed from then on."""
CONFIRMED_PARAMETER = "contrail_confirmed"
"""Likewise: the pull of this name is unconfirmed no longer."""
FORGET_PARAMETER = "contrail_forget"
"""Likewise: the cache will be forgotten."""
FETCH_TIER_MODULE = "actors.engines.vllm.fetch_tier"
"""vLLM imports it in each of its processes."""
FETCH_KEY_VARIABLE = "CONTRAIL_FETCH_KEY"
"""The key by which engines prove themselves when they fetch blocks, in the environment of the engine's processes; hex
digits."""
FETCH_PARAMETER = "contrail_fetch"
"""Of a request's `kv_transfer_params`: `host`, `port` and `blocks` of the engine that has the start of its prompt."""
FETCH_MB_PER_S = 1000
"""Seen between two engines of one machine, over TCP."""
LOADS_SHARE_BESIDE = 4
"""Blocks that are read from the disk at once, and those that are fetched, are at most this part of the host where an
engine has both tiers: a quarter each."""
ENGINE_ID = "contrail-"
"""Begins vLLM's name of an engine with a disk tier, and so that of its file in /dev/shm."""
OURS = frozenset({"model", "served_model_name", "kv_events_config"})
"""Arguments that Contrail sets itself."""


def environment(model_path: str) -> dict[str, str]:
    """Environment variables for vLLM, to be set before its import where the user set nothing else."""
    variables = {
        "NIXL_LOG_LEVEL": "WARN",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "2",  # an idle worker takes all of it
    }
    if Path(model_path).is_dir():
        variables |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return variables


def environment_cpu(cores: int) -> dict[str, str]:
    """The same for engines on a CPU: threads are not pinned, so that several engines share its cores."""
    return {BIND_VARIABLE: UNBOUND, "OMP_NUM_THREADS": str(max(1, cores // 2))}


@contextlib.contextmanager
def environment_with(variables: Mapping[str, str]) -> Iterator[None]:
    """These variables stand in our environment, and in that of processes that start meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def set_defaults(variables: Mapping[str, str]) -> None:
    """These variables stand in our environment and in that of processes to come, if they did not before."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)


LORA_RANKS = (16, 32, 64, 128, 256, 320, 512)
"""vLLM's ranks from its default on; memory is taken for the largest one of each adapter on the device."""


def engine_arguments(given: Mapping[str, Any], model: str, model_path: str, *, cpu: bool) -> dict[str, Any]:
    """The arguments of vLLM's AsyncEngineArgs but `kv_events_config`: those given as they stand, ours, and defaults.

    An engine on a CPU for which neither its cache's size nor a context length is given shortens its context to what
    its cache holds, where vLLM would refuse to start: `grow_cache` first makes it as large as the machine allows.
    CallerError if those given clash with ours.
    """
    if taken := sorted(OURS & given.keys()):
        raise CallerError(f"engine argument {taken[0]} is set by Contrail: leave it out")
    if given.get("data_parallel_size", 1) != 1:
        raise CallerError("data_parallel_size above 1 is not supported: start one worker per rank instead")
    if given.get("enable_prefix_caching") is False:
        raise CallerError("enable_prefix_caching must be on: routing rests on the prefix cache")
    defaults: dict[str, Any] = {
        "disable_log_stats": False,
        "seed": 0,
        "use_tqdm_on_load": False,
    }
    if cpu:
        defaults |= {"block_size": BLOCK_SIZE_CPU, "enforce_eager": True, "max_num_seqs": MAX_NUM_SEQS_CPU}
        defaults |= _own_dtype(model_path) | _own_executor(given)
        if sizes_cache(given):
            defaults |= {"kv_cache_memory_bytes": KV_CACHE_BYTES_CPU} | _own_length(given)
    ours = {
        "model": model_path,
        "served_model_name": model,
        "enable_prefix_caching": True,
    }
    return defaults | dict(given) | ours


def adapter_arguments(adapters: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's arguments for these adapters, by their folders; none without any. CallerError if a folder is none, or if
    the engine's own arguments turn adapters off."""
    if not adapters:
        return {}
    if given.get("enable_lora") is False:
        raise CallerError("engine argument enable_lora is false, and adapters are to be served: leave one of them out")
    rank = max(adapter_rank(Path(path)) for path in adapters.values())
    fitting = next((each for each in LORA_RANKS if each >= rank), rank)  # vLLM refuses a larger one
    return {"enable_lora": True, "max_loras": len(adapters), "max_lora_rank": fitting}


def host_tier(size: int, memory_bytes: int, shared: Path) -> dict[str, Any]:
    """The fields of vLLM's KVTransferConfig for an engine whose blocks have copies in so many bytes of the host.
    `shared` is a folder for small files between the engine's process and this one.

    CallerError if the machine has no more memory than that.
    """
    if size >= memory_bytes:
        raise CallerError(
            f"the host tier is to have {size >> 20} MiB, and the machine has {memory_bytes >> 20} MiB: make it smaller"
        )
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "HostTierSpec",
            "spec_module_path": HOST_TIER_MODULE,
            SHARED_ARGUMENT: str(shared),
            "cpu_bytes_to_use": size,
            "offload_prompt_only": False,
            "self_describing_kv_events": True,
        },
    }


class DiskTier(NamedTuple):
    """A folder with copies of an engine's blocks, which outlive the engine."""

    folder: Path
    """Of this engine's worker alone, or of several; for the digests of weights see `digests`."""
    size_bytes: int
    """Of all files in the folder."""
    key: bytes
    """Keys the names and seals of the files."""
    writer: str = ""
    """Of a folder that several workers use, this one's name there: 16 hex digits, new with each engine."""
    local: Path | None = None
    """If the folder lies on a network file system, or there is none: one of this machine, for what counts on this
    machine alone."""
    objects: ObjectPlace | None = None
    """The blocks lie in a store of objects; `folder` is not used."""

    @property
    def name(self) -> str:
        """The tier, of `core.settings.TIERS`."""
        return "disk" if self.local is None else "remote"

    @property
    def digests(self) -> Path:
        """The folder for digests of model files, which engines of several workers of this machine share."""
        if self.local is not None:
            return self.local
        return self.folder if self.writer else self.folder.parent


def disk_tier(tier: DiskTier, host_bytes: int, memory_bytes: int, shared: Path) -> dict[str, Any]:
    """The same as `host_tier`, with a disk behind it; `facts` are to be set once they are known (`set_disk_facts`)."""
    fields = host_tier(host_bytes, memory_bytes, shared)
    more = fields["kv_connector_extra_config"]
    more |= {"spec_name": "DiskTierSpec", "spec_module_path": DISK_TIER_MODULE}
    sealed = {"folder": str(tier.folder), "size": tier.size_bytes, "shared": str(shared), "writer": tier.writer}
    sealed |= {"remote": tier.local is not None}
    if tier.objects is not None:
        sealed |= {"objects": tier.objects._asdict()}
    more["secondary_tiers"] = [{"type": "SealedDiskTier", "module_path": DISK_TIER_MODULE, "facts": "", **sealed}]
    return fields | {"engine_id": f"{ENGINE_ID}{new_id()}"}


class FetchTier(NamedTuple):
    """Other engines fetch blocks from this one's host tier, and it from theirs."""

    host: str
    """Address of this machine at which it listens; others reach it there."""
    key: bytes
    """By which both ends prove themselves."""
    digests: Path
    """The folder for digests of model files, which engines of several workers of this machine share."""
    mb_per_s: int = FETCH_MB_PER_S
    """The speed at which it fetches, for decisions: in millions of bytes a second."""


def fetch_tier(
    tier: FetchTier, disk: DiskTier | None, host_bytes: int, memory_bytes: int, shared: Path
) -> dict[str, Any]:
    """The same as `disk_tier`, with other engines behind that disk, or in its place. Both read less at once then."""
    if disk is None:
        fields, share = host_tier(host_bytes, memory_bytes, shared), {}
    else:
        fields, share = disk_tier(disk, host_bytes, memory_bytes, shared), {"loads_share": LOADS_SHARE_BESIDE}
    more = fields["kv_connector_extra_config"]
    more |= {"spec_name": "FetchTierSpec", "spec_module_path": FETCH_TIER_MODULE}
    served = {"host": tier.host, "shared": str(shared)}
    fetch = {"type": "HostFetchTier", "module_path": FETCH_TIER_MODULE, "facts": "", **served}
    more["secondary_tiers"] = [each | share for each in (*more.get("secondary_tiers", ()), fetch)]
    return fields | {"engine_id": f"{ENGINE_ID}{new_id()}"}


def beside_pulls(pulls: Mapping[str, Any], tier: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of vLLM's KVTransferConfig for an engine with both: those of its pull connector, and of its tiers."""
    tier = dict(tier) | {"kv_connector_module_path": OFFLOADING_MODULE}
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": pulls["kv_load_failure_policy"],
        "engine_id": tier.pop("engine_id", f"{ENGINE_ID}{new_id()}"),
        "kv_connector_extra_config": {"connectors": [dict(pulls), tier]},  # of two that match, the first one counts
    }


def tier_fields(config: Any) -> dict[str, Any]:
    """The field `kv_connector_extra_config` of the connector with a tier behind the host, in vLLM's configuration."""
    fields: dict[str, Any] = config.kv_transfer_config.kv_connector_extra_config
    connectors = fields.get("connectors")
    return fields if connectors is None else connectors[-1]["kv_connector_extra_config"]


def set_disk_facts(config: Any, version: str, device: str, weights: str) -> None:
    """Disk tier and fetch tier of vLLM's configuration know all that its blocks' bytes depend on, but the
    layout, which the engine alone can say."""
    model, cache = config.model_config, config.cache_config
    facts = [
        version,
        device,
        weights,
        model.hf_config.to_json_string(),
        model.dtype,
        model.quantization,
        cache.cache_dtype,
        cache.prefix_caching_hash_algo,
        os.environ.get("PYTHONHASHSEED"),
        config.attention_config,
        config.speculative_config,
    ]
    for tier in tier_fields(config)["secondary_tiers"]:
        tier["facts"] = json.dumps([str(fact) for fact in facts])


def cpu_kind() -> str:
    """The instructions of this machine's CPU, on which its engines' layouts depend; empty if it does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def sizes_cache(given: Mapping[str, Any]) -> bool:
    """True if the user leaves the size of a CPU engine's cache to Contrail."""
    return not (CACHE_SIZE_ARGUMENTS & given.keys() or os.environ.get(CACHE_VARIABLE))


def grow_cache(config: Any, memory_bytes: int) -> None:
    """The cache of vLLM's configuration holds one request of the model's whole length, if that takes no more than a
    CACHE_SHARE_CPU-th of the machine's memory; it never shrinks.

    vLLM says what a request takes only when the model is loaded; this is for full attention in every layer.
    """
    model, ranks = config.model_config, config.parallel_config
    values = model.get_num_layers(ranks) * model.get_num_kv_heads(ranks) * model.get_head_size()
    block_bytes = 2 * values * model.dtype.itemsize * config.cache_config.block_size
    blocks = -(-model.max_model_len // config.cache_config.block_size) + 1  # vLLM keeps one for itself
    bound_bytes = memory_bytes // CACHE_SHARE_CPU // ranks.world_size
    cache = config.cache_config
    cache.kv_cache_memory_bytes = max(cache.kv_cache_memory_bytes, min(blocks * block_bytes, bound_bytes))


def _own_length(given: Mapping[str, Any]) -> dict[str, int]:
    """vLLM's word for the longest context that its cache holds, at most the model's own."""
    return {} if BLOCKS_ARGUMENT in given else {"max_model_len": -1}


def _own_executor(given: Mapping[str, Any]) -> dict[str, str]:
    """One process where one rank computes, and the user does not want its threads on cores of their own."""
    ranks = [name for name in RANKS_ARGUMENTS if given.get(name, 1) != 1]
    return {} if ranks or os.environ.get(BIND_VARIABLE) != UNBOUND else {"distributed_executor_backend": EXECUTOR_CPU}


def _own_dtype(model_path: str) -> dict[str, str]:
    """A model that says it is float32 stays so: vLLM would halve it unasked, and greedy text would then vary."""
    config = Path(model_path, "config.json")
    if not config.is_file():
        return {}
    config_values = json.loads(config.read_text())
    return {"dtype": "float32"} if "float32" in (config_values.get("dtype"), config_values.get("torch_dtype")) else {}


def model_digest(model_path: str, config_json: str, revision: str | None) -> str:
    """Names a model by what can be read of it quickly: its configuration, and names and sizes of its weights' files.

    Of one on the hub: name and revision. Equal names do not prove equal weights.
    """
    weights = sorted((file.name, file.stat().st_size) for file in Path(model_path).glob("*.safetensors"))
    described = json.dumps([config_json, weights or [model_path, revision]])
    return hashlib.blake2b(described.encode(), digest_size=8).hexdigest()


def reason(error: Exception) -> str:
    """vLLM's error text without pydantic's frame, on one line."""
    listed = getattr(error, "errors", None)
    if not callable(listed):
        return " ".join(str(error).split())
    return "; ".join(" ".join([*map(str, one["loc"]), one["msg"]]) for one in listed())


def tokenizer_folder(name: str, revision: str | None) -> str:
    """The local folder with the tokenizer's files, which vLLM has fetched already if `name` is one on the hub."""
    if Path(name).is_dir():
        return str(Path(name).resolve())
    hub = import_module("huggingface_hub")
    try:
        return str(hub.snapshot_download(name, revision=revision, allow_patterns=TOKENIZER_FILES))
    except (OSError, ValueError) as error:
        raise CallerError(f"the tokenizer files of {name} cannot be found: {error}") from error


def parse_flags(parser: argparse.ArgumentParser, flags: Sequence[str]) -> dict[str, Any]:
    """The values of the given flags, without defaults; CallerError with the parser's text."""
    for action in parser._actions:  # noqa: SLF001  (argparse has no public way to leave out what is not given)
        action.default = argparse.SUPPRESS
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return dict(vars(parser.parse_args(list(flags))))
    except SystemExit as error:
        reason = printed.getvalue().strip().rpartition("error: ")[2]
        raise CallerError(f"vLLM refuses its flags: {reason}") from error


_logger = logging.getLogger(__name__)


def guide_behind_reasoning(config: Any, name: str) -> None:
    """vLLM's configuration says so, if `name` is a reasoning parser of its own that fits; without one, all is guided.

    CallerError if the engine's own arguments name one that does not fit. Loads the tokenizer if there is one to try.
    """
    own = config.structured_outputs_config.reasoning_parser
    if not own and not name:
        return
    if (why := _objection(own or name, config)) is None:
        config.structured_outputs_config.reasoning_parser = own or name
    elif own:
        raise CallerError(f"engine argument reasoning_parser: {own} does not fit this model: {why}")
    else:
        _logger.warning("guided answers begin with the first token: vLLM has no fitting parser %s: %s", name, why)


def _objection(name: str, config: Any) -> str | None:
    tokenizer = import_module("vllm.tokenizers").cached_tokenizer_from_config(model_config=config.model_config)
    try:
        parser = import_module("vllm.reasoning").ReasoningParserManager.get_reasoning_parser(name)(tokenizer=tokenizer)
        parser.is_reasoning_end([0])
        parser.is_reasoning_end_streaming([0], [0])
    except Exception as error:  # noqa: BLE001 - each parser has its own way to find that its marks are missing
        return " ".join(str(error).split())
    return None
