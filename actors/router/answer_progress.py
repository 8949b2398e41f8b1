"""AnswerProgress: the tokens that a client has of an answer, and how another worker continues it.

1. The next token is a function of all tokens before it, so prompt and answer so far are the prompt of the next attempt.
   That holds where nothing else is carried from token to token.
2. Penalties and forbidden texts look at the answer's own tokens, a grammar at its position in them, a seed at how many
   were drawn. Such an answer is made again from its start: tokens that were delivered before are compared and dropped.
   A token that differs is an error: going on from there could be a text that no worker would have made.
3. That takes an answer that comes out the same again: a greedy one, or one with a seed. An answer that has neither gets
   a seed of ours when it arrives, so that it can go on too.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import msgspec

from core.generation import GenerateRequest, Output, Sampling
from core.models import GenerationFailed
from core.prompt import TOKEN_BYTES, Prompt, scope_bytes, tokens_to_bytes

if TYPE_CHECKING:
    from actors.prompt_cache.hash_columns import HashColumns  # its library is for front ends alone
    from actors.prompt_cache.part_digests import NamedParts

SEED_BITS = 31
"""Of a seed that we give: every engine takes it."""
DIFFERS = "the answer cannot be continued: another worker made other tokens of the same request"


class AnswerProgress:
    """One request's answer as far as it was delivered, over all attempts."""

    def __init__(self, request: GenerateRequest, context_max: int, block_size: int, columns: HashColumns) -> None:
        """`context_max` is the longest prompt with answer that the model takes, in tokens. Its blocks have so many
        tokens."""
        self.tokens: list[int] = []
        self.compares = carries_state(request.sampling)
        """The next worker makes the answer again from its start, and its tokens are compared."""
        self._request = _repeatable(request) if self.compares else request
        self._block_size = block_size
        self._columns = columns
        self._scope = scope_bytes(request.adapter, request.cache_salt) if request.adapter or request.cache_salt else b""
        self._context_max = context_max
        self.parts: NamedParts | None = None
        """Parts of the present attempt's prompt, if it is long."""
        self.passthrough = True
        """The present attempt is the first one with output: all its tokens are new, and `accept` only appends them."""
        self._compared = 0
        self._to_compare = 0
        """Delivered tokens that the present attempt has to make again."""

    def __repr__(self) -> str:
        return f"<AnswerProgress {len(self.tokens)} tokens of {self._request.id}>"

    @property
    def delivered(self) -> int:
        """Tokens that the client has."""
        return len(self.tokens)

    @property
    def complete(self) -> bool:
        """True if the answer is as long as it may be and only its end was not delivered."""
        request = self._request
        tokens_max = min(request.sampling.max_tokens, self._context_max - len(request.tokens) // TOKEN_BYTES)
        return 0 < tokens_max <= len(self.tokens)

    @property
    def repeating(self) -> bool:
        """True while the present attempt has made some of the delivered tokens again, and not all of them."""
        return 0 < self._compared < self._to_compare

    def payload(self, deadline_ms: int | None = None) -> GenerateRequest:
        """The request of the next attempt: the rest of the answer, or the whole of it if its tokens are compared.

        `deadline_ms` is how long the client still waits. Call it once for each attempt, before its first output.
        """
        delivered = len(self.tokens)
        self._compared, self._to_compare = 0, delivered if self.compares else 0
        request = self._request
        if delivered:
            self.passthrough = False
            request = self._restart() if self.compares else self._continuation()
        return request if deadline_ms is None else msgspec.structs.replace(request, deadline_ms=deadline_ms)

    def prompt(self, payload: GenerateRequest) -> Prompt:
        """The prompt of the payload, with the blocks that a decision looks up."""
        prompt, self.parts = self._columns.prompt_and_parts(payload.tokens, self._block_size, self._scope)
        return prompt

    def keep(self, output: Output) -> None:
        """The new tokens of an attempt that passes through are part of the answer: the cheap half of `accept`."""
        self.tokens.extend(output.tokens)

    def accept(self, output: Output) -> Output | None:
        """The output as the client gets it; None if nothing in it is new. GenerationFailed if its tokens differ from
        delivered ones.

        Facts that come once, with the first tokens, are those of the first worker.
        """
        if self._compared < self._to_compare:
            output = self._without_repeated(output)
            if not output.tokens and output.finish is None:
                return None
        self.tokens += output.tokens
        if not self.passthrough and (
            output.cached_tokens is not None or output.prefill is not None or output.prompt_logprobs
        ):
            return msgspec.structs.replace(output, cached_tokens=None, prefill=None, prompt_logprobs=())
        return output

    def _without_repeated(self, output: Output) -> Output:
        """The output without the tokens that were delivered before. GenerationFailed if these differ."""
        first, delivered = self._compared, self.tokens
        again = output.tokens[: self._to_compare - first]
        self._compared += len(again)
        if list(again) != delivered[first : self._compared]:
            raise GenerationFailed(f"{DIFFERS} (the {_differing_position(first, again, delivered)}th one)")
        if output.finish is not None and self._compared < self._to_compare:
            raise GenerationFailed(f"{DIFFERS} (it ended after {self._compared} of {self._to_compare})")
        new, logprobs = output.tokens[len(again) :], output.logprobs[len(again) :]
        return msgspec.structs.replace(output, tokens=new, logprobs=logprobs)

    def _restart(self) -> GenerateRequest:
        sampling = msgspec.structs.replace(self._request.sampling, prompt_logprobs=-1)
        return msgspec.structs.replace(self._request, sampling=sampling)

    def _continuation(self) -> GenerateRequest:
        request, delivered = self._request, len(self.tokens)
        sampling = msgspec.structs.replace(
            request.sampling,
            max_tokens=request.sampling.max_tokens - delivered,
            min_tokens=max(0, request.sampling.min_tokens - delivered),
            prompt_logprobs=-1,
        )
        return msgspec.structs.replace(request, tokens=request.tokens + tokens_to_bytes(self.tokens), sampling=sampling)


def carries_state(sampling: Sampling) -> bool:
    """True if a next token depends on more than the tokens before it, wherever the answer begins in them.

    A repetition penalty counts prompt and answer alike, biases and allowed tokens count nothing; a text that must not
    appear is looked for in the answer alone, so its halves would not be found on both sides of a change.
    """
    drawn = sampling.seed is not None and sampling.temperature > 0
    counted = bool(sampling.presence_penalty or sampling.frequency_penalty or sampling.bad_words)
    return drawn or counted or sampling.guided is not None


def _repeatable(request: GenerateRequest) -> GenerateRequest:
    sampling = request.sampling
    if sampling.temperature == 0 or sampling.seed is not None:
        return request
    sampling = msgspec.structs.replace(sampling, seed=secrets.randbits(SEED_BITS))
    return msgspec.structs.replace(request, sampling=sampling)


def _differing_position(first: int, again: tuple[int, ...], delivered: list[int]) -> int:
    """Position of the first token of the answer that differs, counted from 1."""
    same = (new == old for new, old in zip(again, delivered[first:], strict=False))
    return first + 1 + next(i for i, equal in enumerate(same) if not equal)
