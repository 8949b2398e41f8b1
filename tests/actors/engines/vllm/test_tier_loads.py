"""Loads by vLLM's statistics, and the parameters of a request that skips tiers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.engines.engine import TierLoads
from actors.engines.vllm.tier_loads import (
    HOST_FACTS_FILE,
    LOAD_BYTES,
    LOAD_TIME,
    HostFacts,
    HostLoads,
    skip_parameters,
    write_host,
)


def step(bytes_: list[int], seconds: float) -> dict[str, Any]:
    """A step's statistics of an offloading connector, with the bytes of each rank."""
    return {"types": {}, "data": {LOAD_BYTES: dict(enumerate(bytes_)), LOAD_TIME: {(): seconds}}}


def test_bytes_of_all_ranks_become_blocks(tmp_path: Path) -> None:
    """Of an engine with tiers alone, and of one whose pulls have statistics beside them. Ranks load side by side."""
    loads, path = HostLoads(), tmp_path / HOST_FACTS_FILE
    pulled = {"transfer_duration": [0.5]}
    nothing: list[dict[str, Any] | None] = [None, {}, {"types": {}, "data": {}}, {"NixlPullConnector": pulled}]
    for statistics in nothing:
        loads.note(statistics)
    loads.note(step([300, 300], 0.2))
    loads.note({"NixlPullConnector": pulled, "OffloadingConnector": step([100, 100], 0.1)})
    write_host(path, HostFacts(rank_block_bytes=100, ranks=2))
    assert loads.sums(path) == TierLoads(4, 150_000)
    assert repr(loads) == "<HostLoads 800 bytes in 0.3 s>"


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"rank_block_bytes":0,"ranks":1}'])
def test_without_the_bytes_of_a_block_there_are_no_sums(tmp_path: Path, content: bytes | None) -> None:
    """Before the scheduler's process has made its tier, say."""
    loads, path = HostLoads(), tmp_path / HOST_FACTS_FILE
    loads.note(step([300], 0.2))
    if content is not None:
        path.write_bytes(content)
    assert loads.sums(path) == TierLoads(0, 0)


def test_parameters_of_a_request_that_skips_tiers() -> None:
    """vLLM's filter leaves the hosts of other engines. Without the host there is no way from any tier."""
    assert skip_parameters((), "disk") == {}
    assert skip_parameters(("remote",), "disk") == {}
    assert skip_parameters(("disk",), "disk") == {"kv_load_tiers": [{"medium": "cpu"}]}
    assert skip_parameters(("disk", "host"), "disk") == {"max_load_tokens": 0}
    assert skip_parameters(("disk", "remote"), "") == {}
