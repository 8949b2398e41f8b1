"""What vLLM is given on a CPU when nothing else is said, without vLLM."""

from __future__ import annotations

from typing import Any

import pytest

from actors.engines.vllm_args import (
    BIND_VARIABLE,
    EXECUTOR_CPU,
    RANKS_ARGUMENTS,
    UNBOUND,
    engine_arguments,
    environment_cpu,
)

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
