"""PoolFacts: what the engine's process alone knows of its disk tier, for its worker's process, in a small file."""

from __future__ import annotations

from pathlib import Path

import msgspec

FACTS_FILE = "disk-pool"


class PoolFacts(msgspec.Struct, frozen=True):
    """Known once the engine's process has made its tier."""

    kind: str
    """Digest in the seals of its blocks, as hex digits."""
    load_blocks: int
    """Blocks that it reads at once."""
    groups: int
    """Kinds of caches that the model has; a block has a file for each."""


def write_pool(path: Path, facts: PoolFacts) -> None:
    """The file has the facts. OSError if it cannot."""
    path.write_bytes(msgspec.json.encode(facts))


def read_pool(path: Path) -> PoolFacts | None:
    """The facts in that file; None if there are none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=PoolFacts)
    except (OSError, msgspec.DecodeError):
        return None
