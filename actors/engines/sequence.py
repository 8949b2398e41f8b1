"""One request inside the simulated engine."""

from __future__ import annotations

from array import array

import xxhash

from actors.engines import made_up
from actors.engines.block_pool import TIER, BlockPool, PoolBlock, block_names, content_behind, content_root
from actors.engines.choosing import Choosing
from actors.engines.engine import CacheStored
from actors.engines.simulated_settings import SimulatedSettings
from core.generation import GenerateRequest, TokenLogprobs
from core.prompt import TOKEN_BYTES

_TOKEN_SEED = 0x70
_WRONG_SEED = 0x71


class Sequence:
    """Its tokens so far, the blocks that hold them, and what comes next.

    The next token is a function of what its blocks hold. As long as each holds what its tokens make, that is a
    function of all tokens before it and of nothing else (only what the request itself asks for can turn it to another),
    so who continues with the same tokens gets the same answer, here or elsewhere. If one does not, all text from there
    on is another, and so is all that is computed: without an error, because nobody can see it.
    """

    __slots__ = ("_choosing", "_drawn", "_names", "_reply", "_right", "_root", "_settings", "_text", "_wrong", "blocks",
                 "blocks_max", "cached_tokens", "computed", "contents", "hold", "nameless", "prompt_tokens", "pull",
                 "request", "tokens", "tokens_max")  # fmt: skip

    def __init__(
        self,
        request: GenerateRequest,
        settings: SimulatedSettings,
        *,
        hold: bool = False,
        pull: bool = False,
        reply: tuple[int, ...] = (),
    ) -> None:
        self._settings = settings
        self._choosing = Choosing(request.sampling, settings)
        self._reply = reply
        self._drawn = 0
        """What the newest token was drawn by."""
        self.request = request
        self.hold = hold
        """Its prompt is computed for others, and no answer is wanted."""
        self.pull = pull
        """Its prompt's blocks come from elsewhere."""
        self.contents: tuple[int, ...] = ()
        """What was fetched, on its way into its blocks."""
        self.tokens = array("I", request.tokens)
        """Prompt and answer."""
        self.prompt_tokens = len(self.tokens)
        self.tokens_max = min(self.prompt_tokens + request.sampling.max_tokens, settings.tokens_max(request.task))
        """When it has so many, it is finished."""
        self.blocks_max = -(-(self.tokens_max - 1) // settings.block_size)
        """Blocks that it may come to need; the last token is never computed."""
        self.blocks: list[PoolBlock] = []
        self.cached_tokens = 0
        """Prompt tokens that were found in the cache."""
        self.computed = 0
        """Tokens whose cache entries are in its blocks."""
        self.nameless = False
        """Whatever it fills is found by nobody else."""
        self._names = block_names(request.tokens, self._step, None, request.adapter, request.cache_salt)
        self._root = content_root(settings.vocab, settings.block_size, request.adapter)
        self._right: list[int] = []
        """What each full block holds if all is well."""
        self._wrong = b""
        """Not empty once a block held something else."""
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
    def blocks_to_fetch(self) -> int:
        """Blocks of the prompt, the last one partly filled, that were not found in the cache."""
        return len(self.blocks) - self.cached_tokens // self._settings.block_size

    @property
    def blocks_promised(self) -> int:
        """Blocks that it may still take."""
        return self.blocks_max - len(self.blocks)

    def settle_in(self, found: list[PoolBlock], pool: BlockPool) -> None:
        """The blocks found are its own too, and the rest of the prompt has blocks to go into."""
        pool.share(found)
        self.blocks = found
        self.cached_tokens = self.computed = len(found) * self._settings.block_size
        self._judge()
        while len(self.blocks) * self._settings.block_size < self.prompt_tokens:
            self.blocks.append(pool.take())

    def fill_in(self, pool: BlockPool) -> None:
        """What was fetched is in its blocks, taken as it is: all but the prompt's last token counts as computed."""
        first = self.cached_tokens // self._settings.block_size
        for block, content in zip(self.blocks[first:], self.contents, strict=True):
            block.content = content
        self.computed = self.prompt_tokens - 1
        self._judge()
        if len(self.names_reusable) > first:
            self._store(first, pool)

    def compute(self, pool: BlockPool) -> int:
        """All tokens are in the cache, blocks that got full are stored there, and the next token is known: this one."""
        if len(self.tokens) > len(self.blocks) * self._settings.block_size:
            self.blocks.append(pool.take())
        full_before = self.computed // self._settings.block_size
        prompt = self.computed < self.prompt_tokens
        self.computed = len(self.tokens)
        if prompt or self.computed % self._settings.block_size <= 1:  # an answer's block: when begun, and when full
            self._write(full_before)
        if self.computed // self._settings.block_size > full_before:
            self._store(full_before, pool)
        token = self._next()
        self.tokens.append(token)
        self._text.update(token.to_bytes(TOKEN_BYTES, "little"))
        return token

    def finish(self) -> str | None:
        """Why the answer ends with the newest token; None if it goes on."""
        if self._choosing.ends(self.tokens[-1]) and not self._too_short(len(self.tokens) - 1):
            return "stop"
        return "length" if len(self.tokens) >= self.tokens_max else None

    def logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Of the newest token, if they were asked for; made up."""
        top = self.request.sampling.logprobs
        if top < 0:
            return ()
        return (made_up.answer_logprobs(self._drawn, self.tokens[-1], top, self._settings.vocab),)

    def prompt_logprobs(self) -> tuple[TokenLogprobs | None, ...]:
        """Of the prompt's tokens, if they were asked for; made up. O(prompt)."""
        top = self.request.sampling.prompt_logprobs
        if top < 0:
            return ()
        return made_up.prompt_logprobs(self.tokens[: self.prompt_tokens], top, self._settings.vocab)

    def _next(self) -> int:
        settings, made = self._settings, len(self.tokens) - self.prompt_tokens
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
        return self._choosing.choose(token, drawn, early=self._too_short(len(self.tokens)))

    def _too_short(self, length: int) -> bool:
        """With so many tokens before it, no token may end the answer."""
        return length - self.prompt_tokens < self.request.sampling.min_tokens

    def _should_hold(self, number: int) -> int:
        """What this block of it holds if all is well; the last one with all of the tokens that it has now."""
        size, right = self._settings.block_size, self._right
        for full in range(len(right), min(number + 1, len(self.tokens) // size)):
            raw = self.tokens[full * size : (full + 1) * size].tobytes()
            right.append(content_behind(right[-1] if right else self._root, raw))
        if number < len(right):
            return right[number]
        assert number == len(right)
        return content_behind(right[-1] if right else self._root, self.tokens[number * size :].tobytes())

    def _judge(self) -> None:
        """Whether its blocks hold what its computed tokens make.

        A block with nothing of it but the prompt's last token does not count: that is computed here in any case.
        """
        blocks = self.blocks[: -(-self.computed // self._settings.block_size)]
        if any(block.content != self._should_hold(number) for number, block in enumerate(blocks)):
            contents = b"".join(block.content.to_bytes(8, "little") for block in blocks)
            self._wrong = xxhash.xxh3_64_digest(contents, _WRONG_SEED)

    def _write(self, first: int) -> None:
        """Its blocks from this one on hold what was computed, on top of what the others hold."""
        for number in range(first, len(self.blocks)):
            right = self._should_hold(number)
            self.blocks[number].content = content_behind(right, self._wrong) if self._wrong else right

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
        if self.nameless:
            return
        names = self._names[first:full]
        chain = CacheStored(tuple(names), parent, tuple(tokens), size, TIER, adapter, cache_salt, indexable=True)
        pool.store(self.blocks[first:full], names, chain)
