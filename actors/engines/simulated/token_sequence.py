"""A request inside the simulated engine whose prompt's tokens are known, and the tokens of its answer.

`TokenBounds` says which tokens may be chosen, and which one takes the place of a token outside the bounds. Logprobs
and embeddings have no model behind them: they are valid in form, and always the same. At each place the likelihoods
fall by one factor from rank to rank, so that all of them together make one.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Sequence

import xxhash

from actors.engines.engine import CacheStored
from actors.engines.simulated.block_hash_cache import BlockHashCache, content_behind, content_root, name_turn
from actors.engines.simulated.block_pool import TIER
from actors.engines.simulated.sequence import EngineSequence
from actors.engines.simulated.simulated_settings import SimulatedSettings
from core.errors import CallerError
from core.generation import TASK_EMBED, GenerateRequest, Output, Sampling, TokenLogprobs
from core.prompt import TOKEN_BYTES, scope_bytes

BIAS_DECIDES = 100.0
"""A bias of so much forces a token, of minus so much it forbids it; one between has no meaning without logits."""


class TokenBounds:
    """One request's bounds. With neither biases nor allowed tokens, all that can be avoided is an end that is early."""

    __slots__ = ("_avoided", "_forbidden", "_ignore_eos", "_only", "_settings", "_stops")

    def __init__(self, sampling: Sampling, settings: SimulatedSettings) -> None:
        self._settings = settings
        self._stops = sampling.stop_token_ids
        self._ignore_eos = sampling.ignore_eos
        self._forbidden = frozenset(token for token, bias in sampling.logit_bias if bias <= -BIAS_DECIDES)
        self._avoided = len(self._stops) + len(self._forbidden)
        allowed = [token for token in sampling.allowed_token_ids if token not in self._forbidden]
        forced = [token for token, bias in sampling.logit_bias if bias >= BIAS_DECIDES]
        if allowed:
            forced = [token for token in forced if token in allowed]
        self._only = forced or sorted(allowed)
        """If any: no other token is chosen."""

    def ends(self, token: int) -> bool:
        """True if the answer ends with this token, unless it is too early for that."""
        return token in self._stops or (token == self._settings.eos_token and not self._ignore_eos)

    def choose(self, preferred: int, drawn: int, *, early: bool) -> int:
        """The preferred token if it is within bounds, else one that is, by `drawn`.

        It ends the answer too early only if no other token is within bounds.
        """
        if self._only:
            fitting = [token for token in self._only if not (early and self.ends(token))] or self._only
            return preferred if preferred in fitting else fitting[(drawn >> 16) % len(fitting)]
        first = self._settings.token_min
        for _ in range(self._avoided + 1):  # enough to get past all that are avoided
            if preferred not in self._forbidden and not (early and self.ends(preferred)):
                break
            preferred = first + (preferred + 1 - first) % (self._settings.vocab - first)
        return preferred


def check_bounds(settings: SimulatedSettings, sampling: Sampling) -> None:
    """Returns if there is a token within the request's bounds, and no other than the engine's own are named."""
    biased = {token for token, _ in sampling.logit_bias}
    strange = [token for token in (*biased, *sampling.allowed_token_ids) if not 0 <= token < settings.vocab]
    if strange:
        raise CallerError(
            f"logit_bias and allowed_token_ids name {strange[0]}, but token ids are 0 to {settings.vocab - 1}"
        )
    forbidden = {token for token, bias in sampling.logit_bias if bias <= -BIAS_DECIDES}
    usual = sampling.allowed_token_ids or range(settings.token_min, settings.vocab)
    if forbidden and all(token in forbidden for token in usual):
        raise CallerError("logit_bias and allowed_token_ids leave no token to answer with")


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
    found: list[TokenLogprobs | None] = []
    for token in tokens:
        drawn = before.intdigest()
        found.append(_logprobs(drawn, token, (drawn >> 16) % _PROMPT_RANKS, top, vocab) if found else None)
        before.update(token.to_bytes(TOKEN_BYTES, "little"))
    return tuple(found)


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


_TOKEN_SEED = 0x70
_WRONG_SEED = 0x71


class TokenSequence(EngineSequence):
    """Its tokens so far, and what comes next.

    The next token is a function of what its blocks hold. As long as each holds what its tokens make, that is a
    function of all tokens before it and of nothing else (only what the request itself asks for can turn it to another),
    so who continues with the same tokens gets the same answer, here or elsewhere. If one does not, all text from there
    on is another, and so is all that is computed: without an error, because it cannot be seen.
    """

    __slots__ = ("_choosing", "_drawn", "_reply", "_right", "_root", "_settings", "_text", "_turn", "_wrong", "tokens")

    def __init__(
        self,
        request: GenerateRequest,
        settings: SimulatedSettings,
        hash_cache: BlockHashCache,
        *,
        hold: bool = False,
        pull: bool = False,
        reply: tuple[int, ...] = (),
    ) -> None:
        self._root = content_root(settings.vocab, settings.block_size, request.adapter)
        self._turn = name_turn(request.cache_salt)
        """Makes names of contents."""
        self._right, names = hash_cache.of(request.tokens, self._root, self._turn)
        """The right content of each full block."""
        super().__init__(request, settings, len(request.tokens) // TOKEN_BYTES, names, hold=hold, pull=pull)
        self._settings = settings
        self._choosing = TokenBounds(request.sampling, settings)
        self._reply = reply
        self._drawn = 0
        """The value that the newest token was drawn by."""
        self.tokens = array("I", request.tokens)
        """Prompt and answer."""
        self._wrong = b""
        """Not empty once a block held something else."""
        self._text = xxhash.xxh3_64(scope_bytes(request.adapter, None) + request.tokens, seed=_TOKEN_SEED)

    def go_on(self) -> Output:
        """As of `EngineSequence`; an embedding if that is asked for. Every token is delivered at once."""
        first = self.length == self.prompt_tokens
        cached_tokens = self.cached_tokens if first else None
        if self.request.task == TASK_EMBED:
            vector = embedding(self.request.tokens, self._settings.embedding_dimensions)
            return Output(embedding=vector, finish="stop", cached_tokens=cached_tokens)
        token = self._next()
        self.tokens.append(token)
        self.length += 1
        self._text.update(token.to_bytes(TOKEN_BYTES, "little"))
        return Output(
            tokens=(token,),
            finish=self._finish(),
            cached_tokens=cached_tokens,
            logprobs=self._logprobs(),
            prompt_logprobs=self._prompt_logprobs() if first else (),
        )

    def untold(self) -> tuple[int, ...]:
        """None: every token was delivered when it was there."""
        return ()

    def _finish(self) -> str | None:
        if self._choosing.ends(self.tokens[-1]) and not self._too_short(self.length - 1):
            return "stop"
        return "length" if self.length >= self.tokens_max else None

    def _logprobs(self) -> tuple[TokenLogprobs, ...]:
        top = self.request.sampling.logprobs
        if top < 0:
            return ()
        return (answer_logprobs(self._drawn, self.tokens[-1], top, self._settings.vocab),)

    def _prompt_logprobs(self) -> tuple[TokenLogprobs | None, ...]:
        top = self.request.sampling.prompt_logprobs
        if top < 0:
            return ()
        return prompt_logprobs(self.tokens[: self.prompt_tokens], top, self._settings.vocab)

    def _next(self) -> int:
        settings, made = self._settings, self.length - self.prompt_tokens
        drawn: int = self._text.intdigest()
        if self._wrong:
            drawn = xxhash.xxh3_64_intdigest(self._wrong + drawn.to_bytes(8, "little"), _WRONG_SEED)
        self._drawn = drawn
        usual = settings.vocab - settings.token_min
        token = settings.token_min + (drawn >> 16) % usual
        if settings.eos_every and drawn % settings.eos_every == 0:
            token = settings.eos_token
        if made < len(self._reply) and not self._wrong:
            token = self._reply[made]
        return self._choosing.choose(token, drawn, early=self._too_short(self.length))

    def _too_short(self, length: int) -> bool:
        """With so many tokens before it, no token may end the answer."""
        return length - self.prompt_tokens < self.request.sampling.min_tokens

    def _right_contents(self, first: int, end: int, until: int) -> list[int]:
        """The right contents of the blocks [first, end), with all of their tokens before `until`."""
        size, right = self.size, self._right
        for full in range(len(right), min(end, until // size)):
            raw = self.tokens[full * size : (full + 1) * size].tobytes()
            right.append(content_behind(right[-1] if right else self._root, raw))
        found = right[first:end]
        if end > len(right):  # the last one is not full yet
            assert end == len(right) + 1
            raw = self.tokens[(end - 1) * size : until].tobytes()
            found.append(content_behind(right[-1] if right else self._root, raw))
        return found

    def _judge(self) -> None:
        """A block with nothing of it but the last token does not count: that is computed here in any case."""
        blocks = self.blocks[: -(-self.computed // self.size)]
        self._wrong = b""
        right = self._right_contents(0, len(blocks), self.length)
        if [block.content for block in blocks] != right:
            contents = b"".join(block.content.to_bytes(8, "little") for block in blocks)
            self._wrong = xxhash.xxh3_64_digest(contents, _WRONG_SEED)

    def _write(self, before: int) -> None:
        if before >= self.prompt_tokens and self.computed == before + 1 and self.computed % self.size > 1:
            return  # an answer's block is written when it is begun, and when it is full
        first, end = before // self.size, -(-self.computed // self.size)
        right = self._right_contents(first, end, self.computed)
        for block, content in zip(self.blocks[first:end], right, strict=True):
            block.content = content_behind(content, self._wrong) if self._wrong else content

    def _stored(self, first: int, full: int) -> CacheStored:
        size, names = self.size, self.names
        if full > len(names):
            names += [content ^ self._turn for content in self._right_contents(len(names), full, full * size)]
        tokens = self.tokens[first * size : full * size]
        parent = names[first - 1] if first else None
        adapter, cache_salt = self.request.adapter, self.request.cache_salt
        return CacheStored(tuple(names[first:full]), parent, tokens, size, TIER, adapter, cache_salt, indexable=True)
