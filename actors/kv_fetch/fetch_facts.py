"""FetchFacts: what the engine's process alone knows of the blocks that others may fetch, for its worker's process."""

from __future__ import annotations

from pathlib import Path

import msgspec

FETCH_FILE = "fetches"


class FetchFacts(msgspec.Struct, frozen=True):
    """Known once the engine's process serves its blocks."""

    port: int
    kind: str
    """Digest of all that a block's bytes depend on, keyed; hex digits. Equal ones fit."""
    block_bytes: int
    load_blocks: int
    """Blocks that the engine fetches at once."""
    host_blocks: int
    """Blocks for which its host has room."""
    groups: int
    """Kinds of caches that the model has."""


def write_fetch(path: Path, facts: FetchFacts) -> None:
    """The file has the facts. OSError if it cannot."""
    path.write_bytes(msgspec.json.encode(facts))


def read_fetch(path: Path) -> FetchFacts | None:
    """The facts in that file; None if there are none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=FetchFacts)
    except (OSError, msgspec.DecodeError):
        return None
