"""KnownPrompt: a prompt of which only its length and its blocks' hashes are known, as traces have them."""

from __future__ import annotations

from typing import NamedTuple

import xxhash

from core.ids import RequestId

_ANSWER_SEED = 0x72


class KnownPrompt(NamedTuple):
    """What stands in for the tokens of a request: a `GenerateRequest` with such a prompt has none itself."""

    tokens: int
    """How many it has."""
    hashes: bytes
    """Of each full block, in the engine's block size: uint64, little-endian; equal hash, equal prefix."""


def answer_hash(request: RequestId, place: int) -> int:
    """Of the block in this place that tokens of its answer fill: nobody else's prompt has it."""
    hashed: int = xxhash.xxh3_64_intdigest(f"{request}/{place}".encode(), _ANSWER_SEED)
    return hashed
