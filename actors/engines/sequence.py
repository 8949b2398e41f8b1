"""One request inside the simulated engine."""

from __future__ import annotations

from array import array

import xxhash

from actors.engines.block_pool import TIER, BlockPool, PoolBlock, block_names
from actors.engines.engine import CacheStored
from actors.engines.simulated_settings import SimulatedSettings
from core.generation import GenerateRequest
from core.prompt import TOKEN_BYTES

_TOKEN_SEED = 0x70


class Sequence:
    """Its tokens so far, the blocks that hold them, and what comes next.

    The next token is a function of all tokens before it and of nothing else (only `min_tokens` and `ignore_eos` can
    turn it away from an end), so who continues with the same tokens gets the same answer, here or elsewhere.
    """

    __slots__ = ("_names", "_settings", "_text", "blocks", "blocks_max", "cached_tokens", "computed", "prompt_tokens",
                 "request", "tokens", "tokens_max")  # fmt: skip

    def __init__(self, request: GenerateRequest, settings: SimulatedSettings) -> None:
        self._settings = settings
        self.request = request
        self.tokens = array("I", request.tokens)
        """Prompt and answer."""
        self.prompt_tokens = len(self.tokens)
        self.tokens_max = min(self.prompt_tokens + request.sampling.max_tokens, settings.context_max)
        """When it has so many, it is finished."""
        self.blocks_max = -(-(self.tokens_max - 1) // settings.block_size)
        """Blocks that it may come to need; the last token is never computed."""
        self.blocks: list[PoolBlock] = []
        self.cached_tokens = 0
        """Prompt tokens that were found in the cache."""
        self.computed = 0
        """Tokens whose cache entries are in its blocks."""
        self._names = block_names(request.tokens, self._step, None, request.adapter, request.cache_salt)
        self._text = xxhash.xxh3_64(request.tokens, seed=_TOKEN_SEED)

    def __repr__(self) -> str:
        made = len(self.tokens) - self.prompt_tokens
        return f"<Sequence {self.request.id} of {self.prompt_tokens} + {made} tokens, {len(self.blocks)} blocks>"

    @property
    def _step(self) -> int:
        return self._settings.block_size * TOKEN_BYTES

    @property
    def names_reusable(self) -> list[int]:
        """Names of the prompt's blocks that may come from the cache: its last token is always computed."""
        return self._names[: (self.prompt_tokens - 1) // self._settings.block_size]

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens to compute."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def blocks_promised(self) -> int:
        """Blocks that it may still take."""
        return self.blocks_max - len(self.blocks)

    def settle_in(self, found: list[PoolBlock], pool: BlockPool) -> None:
        """The blocks found are its own too, and the rest of the prompt has blocks to go into."""
        pool.share(found)
        self.blocks = found
        self.cached_tokens = self.computed = len(found) * self._settings.block_size
        while len(self.blocks) * self._settings.block_size < self.prompt_tokens:
            self.blocks.append(pool.take())

    def compute(self, pool: BlockPool) -> int:
        """All tokens are in the cache, blocks that got full are stored there, and the next token is known: this one."""
        if len(self.tokens) > len(self.blocks) * self._settings.block_size:
            self.blocks.append(pool.take())
        full_before = self.computed // self._settings.block_size
        self.computed = len(self.tokens)
        if self.computed // self._settings.block_size > full_before:
            self._store(full_before, pool)
        token = self._next()
        self.tokens.append(token)
        self._text.update(token.to_bytes(TOKEN_BYTES, "little"))
        return token

    def finish(self) -> str | None:
        """Why the answer ends with the newest token; None if it goes on."""
        if self._ends(self.tokens[-1]) and not self._too_short(len(self.tokens) - 1):
            return "stop"
        return "length" if len(self.tokens) >= self.tokens_max else None

    def _next(self) -> int:
        settings = self._settings
        drawn: int = self._text.intdigest()
        usual = settings.vocab - settings.token_min
        token = settings.token_min + (drawn >> 16) % usual
        if settings.eos_every and drawn % settings.eos_every == 0:
            token = settings.eos_token
        if self._too_short(len(self.tokens)):
            for _ in range(len(self.request.sampling.stop_token_ids) + 1):  # enough to get past all of them
                if not self._ends(token):
                    break
                token = settings.token_min + (token + 1 - settings.token_min) % usual
        return token

    def _ends(self, token: int) -> bool:
        sampling = self.request.sampling
        return token in sampling.stop_token_ids or (token == self._settings.eos_token and not sampling.ignore_eos)

    def _too_short(self, length: int) -> bool:
        """With so many tokens before it, no token may end the answer."""
        return length - self.prompt_tokens < self.request.sampling.min_tokens

    def _store(self, first: int, pool: BlockPool) -> None:
        size = self._settings.block_size
        full = self.computed // size
        tokens = self.tokens[first * size : full * size]
        parent = self._names[first - 1] if first else None
        adapter, cache_salt = self.request.adapter, self.request.cache_salt
        if full > len(self._names):
            last = self._names[-1] if self._names else None
            rest = self.tokens[len(self._names) * size : full * size].tobytes()
            self._names += block_names(rest, self._step, last, adapter, cache_salt)
        names = self._names[first:full]
        chain = CacheStored(tuple(names), parent, tuple(tokens), size, TIER, adapter, cache_salt, indexable=True)
        pool.store(self.blocks[first:full], names, chain)
