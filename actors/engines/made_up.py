"""Numbers of a simulated engine that no model stands behind: logprobs and embeddings, valid in form, always the same.

At each place the likelihoods fall by one factor from rank to rank, so that all of them together make one.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import xxhash

from core.generation import TokenLogprobs
from core.prompt import TOKEN_BYTES

_PROMPT_SEED = 0x80
_EMBEDDING_SEED = 0x81
_PROMPT_RANKS = 4
"""A prompt's token is one of so many likeliest."""


def answer_logprobs(drawn: int, token: int, top: int, vocab: int) -> TokenLogprobs:
    """Of a token that was chosen: the likeliest in its place."""
    return _logprobs(drawn, token, 0, top, vocab)


def prompt_logprobs(tokens: Sequence[int], top: int, vocab: int) -> tuple[TokenLogprobs | None, ...]:
    """Of each token of the prompt but the first, by what stands before it."""
    before = xxhash.xxh3_64(seed=_PROMPT_SEED)
    told: list[TokenLogprobs | None] = []
    for token in tokens:
        drawn = before.intdigest()
        told.append(_logprobs(drawn, token, (drawn >> 16) % _PROMPT_RANKS, top, vocab) if told else None)
        before.update(token.to_bytes(TOKEN_BYTES, "little"))
    return tuple(told)


def embedding(tokens: bytes, dimensions: int) -> bytes:
    """A vector of length 1 for these token bytes: that many little-endian float32."""
    drawn = [
        xxhash.xxh3_64_intdigest(number.to_bytes(4, "little") + tokens, _EMBEDDING_SEED) / 2**63 - 1
        for number in range(dimensions)
    ]
    length = math.hypot(*drawn) or 1.0
    return struct.pack(f"<{dimensions}f", *(value / length for value in drawn))


def _logprobs(drawn: int, token: int, rank: int, top: int, vocab: int) -> TokenLogprobs:
    best = 0.3 + 0.4 * (drawn % 2**16) / 2**16
    falls = math.log(1 - best)
    others = [other % vocab for other in range(drawn >> 32, (drawn >> 32) + min(max(top, rank) + 1, vocab))]
    others = [other for other in others if other != token]
    rank = min(rank, len(others))
    logprobs = [math.log(best) + place * falls for place in range(max(top, rank + 1))]
    ranked = [*others[:rank], token, *others[rank:]]
    return TokenLogprobs(token, logprobs[rank], tuple(zip(ranked[:top], logprobs, strict=False)), rank + 1)
