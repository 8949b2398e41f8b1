"""KV blocks on their way from one engine to another: where they are, what they hold, and what must be so to use them.

A transfer that does not fit gives wrong text without an error, and the wrong blocks stay in the cache. So nothing is
pulled before `mismatch` found nothing.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import msgspec

DIGEST_BYTES = 16
TRANSPORTS = ("rdma", "shared_memory", "tcp", "simulated")
"""Ways for blocks to travel, the best first; a prompt without one is computed again."""
RECOMPUTED = (
    "deadline",
    "log_away",
    "prefill_failed",
    "worker_gone",
    "mismatch",
    "lease",
    "no_slot",
    "transfer_failed",
    "unconfirmed",
    "dead_letter",
)
"""Reasons of a requester that computed a prompt itself after it had opened a job: no answer in time; the job could not
be published; the prefill worker gave up, or went away with its answer; the answer was for another prompt, model or kind
of block; the time left was too short to pull; no slot came free in the engine; the transfer broke; it ended, without a
confirmation that the blocks had been held until then; the job had been handed out too often."""


class KvAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Address from which an engine's blocks can be pulled; the registry has it beside the worker."""

    engine_id: str
    """The engine's own name of itself, new at every start."""
    host: str
    port: int
    """Port of its side channel."""
    layout: str
    """Equal if blocks of both mean the same bytes: model, type and shape of the cache, attention, versions."""
    block_bytes: int
    """Of one block in all layers."""
    transport: str
    """The best of TRANSPORTS that it offers."""
    details: dict[str, int] = {}
    """Further facts for the engine's connector."""


class FetchAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address of the blocks in an engine's host tier for other engines, and how it fetches theirs."""

    host: str
    port: int
    kind: str
    """Digest of all that a block's bytes depend on, the weights' content included, keyed; 32 hex digits. Only blocks of
    one kind fit."""
    block_bytes: int
    """Of one block in all layers of all ranks."""
    load_blocks: int
    """Blocks that a request of this engine fetches at most."""
    mb_per_s: int
    """The speed at which it fetches, in millions of bytes a second, as its operator says it."""


class FetchSource(msgspec.Struct, frozen=True, kw_only=True):
    """The engine from which a request's worker fetches the start of its prompt."""

    host: str
    port: int
    blocks: int
    """Leading blocks of the prompt that the source should have."""
    own_blocks: int = 0
    """Leading blocks of the prompt that the worker was taken to have, in one of its tiers: those behind them are read
    from the source alone."""


class KvBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt's blocks inside the engine that computed them."""

    request: str
    """That engine's name of the request that holds them."""
    ids: tuple[tuple[int, ...], ...]
    """Block ids per group of layers."""
    tokens: int
    """Prompt tokens that they hold."""


class KvPull(NamedTuple):
    """Blocks that an engine is to fetch before it continues."""

    address: KvAddress
    blocks: KvBlocks


class Expected(NamedTuple):
    """Facts about a job that its requester expects in the answer."""

    digest: str
    """`answer_digest` of its own prompt for the present attempt."""
    model: str
    block_size: int
    layout: str
    """Of its own engine."""
    prompt_tokens: int


def prompt_digest(canonical: bytes) -> bytes:
    """Names a prompt in its scope: BLAKE2b of its canonical bytes (`core.prompt`)."""
    return hashlib.blake2b(canonical, digest_size=DIGEST_BYTES).digest()


def answer_digest(canonical: bytes, job: str, attempt: int) -> str:
    """The same for one attempt at one job, as hex: an answer that carries it was computed from this prompt for it."""
    of = hashlib.blake2b(digest_size=DIGEST_BYTES, person=b"contrail-prefill")
    of.update(f"{job}:{attempt}:".encode())
    of.update(canonical)
    return of.hexdigest()


def mismatch(expected: Expected, *, digest: str, model: str, block_size: int, layout: str, blocks: KvBlocks) -> str:
    """Why blocks that are said to be of this kind must not be pulled; empty if they may."""
    facts = (
        ("prompt", expected.digest, digest),
        ("model", expected.model, model),
        ("block size", expected.block_size, block_size),
        ("layout", expected.layout, layout),
        ("prompt tokens", expected.prompt_tokens, blocks.tokens),
    )
    for what, ours, theirs in facts:
        if ours != theirs:
            return f"{what}: {theirs!r} there, {ours!r} here"
    needed = -(-expected.prompt_tokens // expected.block_size)
    if any(len(group) != needed for group in blocks.ids) or not blocks.ids:
        return f"{[len(group) for group in blocks.ids]} blocks there, {needed} per group here"
    return ""
