"""What vLLM is given on a CPU when nothing else is said, without vLLM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.engines.vllm.vllm_args import (
    BIND_VARIABLE,
    BLOCKS_ARGUMENT,
    CACHE_SHARE_CPU,
    CACHE_VARIABLE,
    ENGINE_ID,
    EXECUTOR_CPU,
    KV_CACHE_BYTES_CPU,
    OFFLOADING_MODULE,
    RANKS_ARGUMENTS,
    UNBOUND,
    DiskTier,
    beside_pulls,
    disk_tier,
    engine_arguments,
    environment_cpu,
    grow_cache,
    host_tier,
    tier_fields,
)
from actors.engines.vllm.vllm_transfer import connector, nixl_stats

EXECUTOR = "distributed_executor_backend"


def arguments(given: dict[str, Any], *, cpu: bool = True) -> dict[str, Any]:
    return engine_arguments(given, "tiny", "/no/such/model", cpu=cpu)


def test_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank whose threads are not bound computes in the scheduler's process."""
    monkeypatch.setenv(BIND_VARIABLE, environment_cpu(2)[BIND_VARIABLE])
    assert arguments({})[EXECUTOR] == EXECUTOR_CPU
    assert arguments({"tensor_parallel_size": 1})[EXECUTOR] == EXECUTOR_CPU


@pytest.mark.parametrize("ranks", RANKS_ARGUMENTS)
def test_several_ranks(monkeypatch: pytest.MonkeyPatch, ranks: str) -> None:
    """Each has a process of its own."""
    monkeypatch.setenv(BIND_VARIABLE, UNBOUND)
    assert EXECUTOR not in arguments({ranks: 2})


def test_as_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another executor, threads on cores of their own, and a GPU are left to vLLM."""
    monkeypatch.setenv(BIND_VARIABLE, UNBOUND)
    assert arguments({EXECUTOR: "mp"})[EXECUTOR] == "mp"
    assert EXECUTOR not in arguments({}, cpu=False)
    monkeypatch.setenv(BIND_VARIABLE, "auto")
    assert EXECUTOR not in arguments({})


@pytest.mark.parametrize(
    ("given", "variable", "bytes", "length"),
    [
        ({}, "", KV_CACHE_BYTES_CPU, -1),
        ({"max_model_len": 4096}, "", KV_CACHE_BYTES_CPU, 4096),
        ({BLOCKS_ARGUMENT: 9}, "", KV_CACHE_BYTES_CPU, None),
        ({"kv_cache_memory_bytes": 1}, "", 1, None),
        ({"gpu_memory_utilization": 0.5}, "", None, None),
        ({}, "4", None, None),
    ],
)
def test_context_as_the_cache_holds(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], variable: str, bytes: int | None, length: int | None
) -> None:
    """Where the user says neither the cache's size nor the length, vLLM fits the length; else it does as it is told."""
    monkeypatch.setenv(CACHE_VARIABLE, variable)
    chosen = arguments(given)
    assert (chosen.get("kv_cache_memory_bytes"), chosen.get("max_model_len")) == (bytes, length)
    assert "max_model_len" not in arguments({}, cpu=False)


@pytest.mark.parametrize(
    ("length", "machine_bytes", "ranks", "bytes"),
    [
        (8192, 16 << 30, 1, KV_CACHE_BYTES_CPU),
        (65_536, 16 << 30, 1, (2048 + 1) * 32 * 8192),
        (65_536, 1 << 30, 1, KV_CACHE_BYTES_CPU),
        (1 << 20, 16 << 30, 1, (16 << 30) // CACHE_SHARE_CPU),
        (1 << 20, 16 << 30, 2, (16 << 30) // CACHE_SHARE_CPU // 2),
    ],
)
def test_cache_of_a_long_context(length: int, machine_bytes: int, ranks: int, bytes: int) -> None:
    """It holds one request of the model's length and vLLM's own block, up to the machine's share, and never less than
    for a small model."""
    model = SimpleNamespace(
        max_model_len=length,
        dtype=SimpleNamespace(itemsize=4),
        get_num_layers=lambda _: 4,
        get_num_kv_heads=lambda _: 4,
        get_head_size=lambda: 64,
    )
    cache = SimpleNamespace(block_size=32, kv_cache_memory_bytes=KV_CACHE_BYTES_CPU)
    parallel = SimpleNamespace(world_size=ranks)
    grow_cache(SimpleNamespace(model_config=model, cache_config=cache, parallel_config=parallel), machine_bytes)
    assert cache.kv_cache_memory_bytes == bytes


def test_without_what_vllm_brings() -> None:
    """The engine's module is there without psutil too, and can say what is to be installed."""
    program = "import sys; sys.modules['psutil'] = None; import actors.engines.vllm.vllm_engine"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_pulls_beside_tiers() -> None:
    """The pull connector comes first; the name of the engine stands once, above both; the tier is found again."""
    pulls = connector("decode", 1500)
    tier = disk_tier(DiskTier(Path("kv"), 1 << 30, b"k"), 1 << 20, 1 << 30, Path("shared"))
    both = beside_pulls(pulls, tier)
    first, second = both["kv_connector_extra_config"]["connectors"]
    assert (both["kv_connector"], both["kv_load_failure_policy"], both["engine_id"]) == (
        "MultiConnector",
        "fail",
        tier["engine_id"],
    )
    assert first == pulls
    assert (second["kv_connector"], second["kv_connector_module_path"]) == ("OffloadingConnector", OFFLOADING_MODULE)
    assert "engine_id" not in second
    for fields in (both, tier):
        found = tier_fields(SimpleNamespace(kv_transfer_config=SimpleNamespace(**fields)))
        assert found["secondary_tiers"] == tier["kv_connector_extra_config"]["secondary_tiers"]
    host = beside_pulls(pulls, host_tier(1 << 20, 1 << 30, Path("shared")))
    assert host["engine_id"].startswith(ENGINE_ID)


def test_statistics_of_several_connectors_lie_deeper() -> None:
    moved = {"bytes_transferred": [1], "num_failed_transfers": []}
    tiers = {"OffloadingConnector": {"stores": 1}}
    assert nixl_stats(moved) == nixl_stats({**tiers, "NixlPullConnector": moved}) == moved
    assert nixl_stats({}) == nixl_stats(tiers) == {}
