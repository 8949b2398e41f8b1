"""KnownPrompt: a prompt of which only its length and its blocks' hashes are known, as traces have them."""

from __future__ import annotations

from typing import NamedTuple


class KnownPrompt(NamedTuple):
    """What stands in for the tokens of a request: a `GenerateRequest` with such a prompt has none itself."""

    tokens: int
    """How many it has."""
    hashes: bytes
    """Of each full block, in the engine's block size: uint64, little-endian; equal hash, equal prefix."""
