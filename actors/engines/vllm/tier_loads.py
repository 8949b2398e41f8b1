"""HostLoads: the blocks that vLLM loaded from its host tier, by vLLM's own statistics; and parameters against loads.

Statistics have bytes and seconds, summed over all ranks, with the steps of the scheduler. A block's bytes are in a
small file, which the scheduler's process writes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from actors.engines.engine import TierLoads
from core.settings import TIERS

HOST = TIERS[1]
SHARED_ARGUMENT = "shared_folder"
"""Of the offloading specification: a folder for small files between the engine's processes and ours."""
HOST_FACTS_FILE = "host-tier"
LOAD_BYTES, LOAD_TIME = "vllm:kv_offload_load_bytes", "vllm:kv_offload_load_time"
"""Names of vLLM's counters; the time is in seconds."""
US_PER_S = 1e6


class HostFacts(msgspec.Struct, frozen=True):
    """Known once the scheduler's process has made its tier."""

    rank_block_bytes: int
    """Bytes of a block that one rank holds."""
    ranks: int
    """They load side by side, and each counts its own bytes and time."""


def write_host(path: Path, facts: HostFacts) -> None:
    """The file has the facts. OSError if it cannot."""
    path.write_bytes(msgspec.json.encode(facts))


class HostLoads:
    """Sums since the engine's start, over its steps and all ranks."""

    def __init__(self) -> None:
        self._bytes = self._seconds = 0.0

    def __repr__(self) -> str:
        return f"<HostLoads {self._bytes:g} bytes in {self._seconds:g} s>"

    def note(self, statistics: Mapping[str, Any] | None) -> None:
        """The connector's statistics of a step are counted; None if it has none. They are one level deeper where the
        connector is one of several."""
        found = statistics or {}
        if "data" not in found:
            found = next((each for each in found.values() if "data" in each), {})
        data = found.get("data", {})
        self._bytes += sum(data.get(LOAD_BYTES, {}).values())
        self._seconds += sum(data.get(LOAD_TIME, {}).values())

    def sums(self, path: Path) -> TierLoads:
        """In blocks, by the facts in that file; none without them. Reads the file."""
        try:
            facts = msgspec.json.decode(path.read_bytes(), type=HostFacts)
        except (OSError, msgspec.DecodeError):
            return TierLoads(0, 0)
        if facts.rank_block_bytes < 1 or facts.ranks < 1:
            return TierLoads(0, 0)
        blocks = int(self._bytes) // (facts.rank_block_bytes * facts.ranks)
        return TierLoads(blocks, round(self._seconds / facts.ranks * US_PER_S))


def skip_parameters(skip: Collection[str], slower: str) -> dict[str, Any]:
    """vLLM's transfer parameters of a request for which nothing is loaded from these tiers; `slower` is the disk behind
    the host, empty if there is none. vLLM's filter is for tiers behind the host alone, which is the way of their
    blocks. It leaves the hosts of other engines, from which blocks may be fetched all the same."""
    if HOST in skip:
        return {"max_load_tokens": 0}
    return {"kv_load_tiers": [{"medium": "cpu"}]} if slower in skip else {}
