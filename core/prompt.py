"""A prompt as its canonical bytes, and the hashes of its blocks.

A block hash is XXH3-64 (seeded per deployment) of the canonical bytes from the start up to and including the
block: first, if an adapter or a cache salt is set, 16 bytes BLAKE2b of both; then the token ids as little-endian
`uint32`. So an equal hash means an equal prefix in an equal scope, and one digest answers for all blocks before it.
A `HashedPrompt` has only its length and its block hashes, as the log records them.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache
from itertools import starmap

import xxhash

from core.ids import BlockHash

TOKEN_BYTES = 4
SCOPE_BYTES = 16
HASH_BYTES = 8
HASH_BITS = 64
ONE_SHOT_BYTES_MAX = 32 * 1024
"""A prefix up to this long is hashed from its start: cheaper than going on from a state that was kept."""
COLUMN_DIGEST_BYTES = 16
SHARES = 6
"""Depths between the first block and the last: a half, three quarters, seven eighths, …"""
STATES_MAX = 64
"""States kept per prompt, at some 640 bytes each; later ones go on from the nearest of these."""


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


SALT_SEPARATOR = ":"
"""Between tenant and salt, where tenants are isolated. No tenant has one in its name, so no salt of one is that of
another."""


def salt_of_tenant(tenant: str, given: str) -> str:
    """A salt that only this tenant's requests have: narrower if the request gave one of its own.

    Without a tenant it still has the separator, so that a request without a tenant cannot name the salt of one.
    """
    return f"{tenant}{SALT_SEPARATOR}{given}"


def tenant_of_salt(salt: str) -> str:
    """The tenant to which a prompt with that salt belongs; empty if it belongs to no tenant."""
    tenant, separator, _ = salt.partition(SALT_SEPARATOR)
    return tenant if separator else ""


class Prompt:
    """A prompt's canonical bytes with its block hashes computed at the depths that are asked for.

    `key(depth)` costs one digest the first time, a lookup after it. A short prefix is hashed from its start (about
    50 GB/s); a long one from the nearest shorter one that was asked for before, so that all the probes of a lookup
    together hash little more than the prompt twice. `key`, `block` and `hashes` say the same: a subclass that answers
    for one of them, out of a record for instance, answers for `key` and `hashes` alike.
    """

    __slots__ = (
        "_all", "_cache", "_canonical", "_ends", "_offset", "_states", "_step",
        "block_size", "blocks_reusable", "seed", "tokens",
    )  # fmt: skip

    def __init__(self, token_bytes: bytes, block_size: int, seed: int, scope: bytes = b"", hashes: bytes = b"") -> None:
        """`hashes` are all its block hashes, if they are known."""
        assert block_size > 0
        assert len(token_bytes) % TOKEN_BYTES == 0
        assert len(scope) in {0, SCOPE_BYTES}
        self._canonical = memoryview(scope + token_bytes)  # a view: slices are not copied
        self._offset = len(scope)
        self._step = block_size * TOKEN_BYTES
        self._cache: dict[int, BlockHash] = {}
        self._ends: list[int] = []
        self._states: list[xxhash.xxh3_64] = []
        """After the first `_ends[i]` bytes, ascending."""
        self._all = hashes
        self.block_size = block_size
        self.seed = seed
        self._measure(len(token_bytes) // TOKEN_BYTES)

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

    def _measure(self, tokens: int) -> None:
        self.tokens = tokens
        """Tokens of the prompt."""
        self.blocks_reusable = max(0, tokens - 1) // self.block_size
        """Blocks that an engine can take from its cache: the last token is always computed."""

    def key(self, depth: int) -> BlockHash:
        """The hash of block `depth - 1`, that is of the first `depth` blocks; depth from 1."""
        found = self._cache.get(depth)
        if found is None:
            found = self._cache[depth] = BlockHash(self._digest(depth))
        return found

    def block(self, depth: int) -> bytes:
        """The same as `hashes` has it: 8 bytes."""
        if self._all:
            end = depth * HASH_BYTES
            return self._all[end - HASH_BYTES : end]
        return self.key(depth).to_bytes(HASH_BYTES, "little")

    def hashes(self) -> bytes:
        """All block hashes as little-endian uint64, streamed once: about 0.1 us per block."""
        if not self._all:
            self._all = chain_column(self._canonical, self._offset, self.block_size, self.seed)
            self._ends, self._states = [], []
        return self._all

    def _digest(self, depth: int) -> int:
        end = self._offset + depth * self._step
        if self._all:
            return int.from_bytes(self._all[(depth - 1) * HASH_BYTES : depth * HASH_BYTES], "little")
        if end <= ONE_SHOT_BYTES_MAX:
            return xxhash.xxh3_64_intdigest(self._canonical[:end], self.seed)
        return self._state(end).intdigest()

    def _state(self, end: int) -> xxhash.xxh3_64:
        """After the first `end` bytes, from the nearest state before that; it is kept in its turn if it may."""
        at = bisect_right(self._ends, end)
        if at:
            start, state = self._ends[at - 1], self._states[at - 1].copy()
        else:
            start, state = 0, xxhash.xxh3_64(seed=self.seed)
        state.update(self._canonical[start:end])
        if len(self._ends) < STATES_MAX:
            self._ends.insert(at, end)
            self._states.insert(at, state)
        return state


def chain_column(canonical: bytes | memoryview, start: int, block_size: int, seed: int) -> bytes:
    """The hash of each full block of the canonical bytes from `start` on, where one begins, in order, as little-endian
    uint64; about 0.1 us each."""
    step = block_size * TOKEN_BYTES
    state = xxhash.xxh3_64(canonical[:start], seed=seed)
    digest = state.digest  # 8 bytes, big-endian: cheaper than integers
    full = (len(canonical) - start) // step * step
    pieces = struct.iter_unpack(f"{step}s", canonical[start : start + full])
    column = array("Q", b"".join([digest() for _ in starmap(state.update, pieces)]))
    column.byteswap()
    return column.tobytes()


def chain_hashes(canonical: bytes | memoryview, offset: int, block_size: int, seed: int) -> list[int]:
    """The same as integers."""
    return hashes_from_bytes(chain_column(canonical, offset, block_size, seed))


def hashes_to_bytes(hashes: Iterable[int]) -> bytes:
    """Block hashes as little-endian uint64."""
    return array("Q", hashes).tobytes()


def hashes_from_bytes(raw: bytes) -> list[int]:
    """The inverse of `hashes_to_bytes`."""
    return array("Q", raw).tolist()


class HashedPrompt(Prompt):
    """Answers for its hashes as the prompt itself did when it was routed."""

    __slots__ = ("_column", "_recorded")

    def __init__(self, tokens: int, block_size: int, hashes: bytes) -> None:
        super().__init__(b"", block_size, seed=0)
        self._measure(tokens)
        self._recorded = hashes
        self._column = memoryview(hashes)[: len(hashes) // HASH_BYTES * HASH_BYTES].cast("Q")

    def key(self, depth: int) -> BlockHash:
        """The hash of the first `depth` blocks; IndexError if it was not recorded."""
        return BlockHash(self._column[depth - 1])

    def hashes(self) -> bytes:
        """All of them, as they were recorded."""
        return self._recorded


@lru_cache(maxsize=16_384)
def known_depths(blocks: int) -> tuple[int, ...]:
    """Ascending depths, from 1 to `blocks`, of the hashes that stand for so many blocks: 8 at most."""
    return tuple(sorted({1, *(blocks - (blocks >> share) for share in range(1, SHARES + 1)), blocks}))


def sampled(hashes: bytes, blocks: int) -> bytes:
    """The hashes at these depths; `hashes` has at least so many blocks."""
    return b"".join(_samples(blocks).unpack_from(hashes))


@lru_cache(maxsize=16_384)
def _samples(blocks: int) -> struct.Struct:
    """The layout of the hashes at these depths among all."""
    depths = known_depths(blocks)
    gaps = [HASH_BYTES * (depth - before - 1) for before, depth in zip((0, *depths), depths, strict=False)]
    return struct.Struct("".join(f"{gap}x{HASH_BYTES}s" for gap in gaps))


def column_digest(hashes: bytes) -> bytes:
    """Digest (BLAKE2b, 16 bytes, no key) of all block hashes of a prompt; about 1 us per KiB."""
    return hashlib.blake2b(hashes, digest_size=COLUMN_DIGEST_BYTES).digest()
