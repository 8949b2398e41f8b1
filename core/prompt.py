"""A prompt as its canonical bytes, and the hashes of its blocks.

A block hash is XXH3-64 (seeded per deployment) of the canonical bytes from the start up to and including the
block: first, if an adapter or a cache salt is set, 16 bytes BLAKE2b of both; then the token ids as little-endian
`uint32`. So an equal hash means an equal prefix in an equal scope, and one digest answers for all blocks before it.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Iterable

import xxhash

from core.ids import BlockHash

TOKEN_BYTES = 4
SCOPE_BYTES = 16


def tokens_to_bytes(tokens: Iterable[int]) -> bytes:
    """Token ids as little-endian uint32; ValueError or OverflowError if one does not fit."""
    return array("I", tokens).tobytes()


def tokens_from_bytes(raw: bytes) -> list[int]:
    """The inverse of `tokens_to_bytes`."""
    return array("I", raw).tolist()


def scope_bytes(adapter: str | None, cache_salt: str | None) -> bytes:
    """16 bytes that keep caches of different adapters and salts apart; none when neither is set."""
    if not adapter and not cache_salt:
        return b""
    parts = [text.encode() for text in (adapter or "", cache_salt or "")]
    framed = b"".join(struct.pack("<I", len(part)) + part for part in parts)
    return hashlib.blake2b(framed, digest_size=SCOPE_BYTES).digest()


class Prompt:
    """A prompt's canonical bytes with its block hashes computed at the depths that are asked for.

    `key(depth)` costs one digest over the prefix (about 50 GB/s) the first time, a lookup after it.
    """

    __slots__ = ("_cache", "_canonical", "_offset", "block_size", "seed", "tokens")

    def __init__(self, token_bytes: bytes, block_size: int, seed: int, scope: bytes = b"") -> None:
        assert block_size > 0
        assert len(token_bytes) % TOKEN_BYTES == 0
        assert len(scope) in {0, SCOPE_BYTES}
        self._canonical = memoryview(scope + token_bytes)  # a view: slices are not copied
        self._offset = len(scope)
        self._cache: dict[int, int] = {}
        self.block_size = block_size
        self.seed = seed
        self.tokens = len(token_bytes) // TOKEN_BYTES
        """How many tokens the prompt has."""

    def __repr__(self) -> str:
        return f"<Prompt {self.tokens} tokens, {self.blocks} full blocks of {self.block_size}>"

    @property
    def blocks(self) -> int:
        """Full blocks."""
        return self.tokens // self.block_size

    @property
    def blocks_to_hold(self) -> int:
        """Blocks that its cache entries occupy, the last one partly filled."""
        return -(-self.tokens // self.block_size)

    @property
    def blocks_reusable(self) -> int:
        """Blocks that an engine can take from its cache: the last token is always computed."""
        return max(0, self.tokens - 1) // self.block_size

    def key(self, depth: int) -> BlockHash:
        """The hash of block `depth - 1`, that is of the first `depth` blocks; depth from 1."""
        found = self._cache.get(depth)
        if found is None:
            end = self._offset + depth * self.block_size * TOKEN_BYTES
            found = xxhash.xxh3_64_intdigest(self._canonical[:end], self.seed)
            self._cache[depth] = found
        return BlockHash(found)

    def hashes(self) -> bytes:
        """All block hashes as little-endian uint64, streamed: about 0.1 us per block."""
        return hashes_to_bytes(chain_hashes(self._canonical, self._offset, self.block_size, self.seed))


def chain_hashes(canonical: bytes | memoryview, offset: int, block_size: int, seed: int) -> list[int]:
    """The hash of each full block of the canonical bytes, in order."""
    step = block_size * TOKEN_BYTES
    state = xxhash.xxh3_64(canonical[:offset], seed=seed)
    out = []
    for start in range(offset, len(canonical) - step + 1, step):
        state.update(canonical[start : start + step])
        out.append(state.intdigest())
    return out


def hashes_to_bytes(hashes: Iterable[int]) -> bytes:
    """Block hashes as little-endian uint64."""
    return array("Q", hashes).tobytes()


def hashes_from_bytes(raw: bytes) -> list[int]:
    """The inverse of `hashes_to_bytes`."""
    return array("Q", raw).tolist()
