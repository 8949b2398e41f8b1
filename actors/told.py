"""Told: what a client has of an answer, and how another worker goes on from there.

The next token is a function of all tokens before it, so prompt and answer so far are the prompt of whoever goes on.
That holds where no other state is carried from token to token: not for a seed's random numbers under a temperature,
and not for penalties that count the answer's own tokens.
"""

from __future__ import annotations

import msgspec

from core.generation import GenerateRequest, Output
from core.prompt import tokens_to_bytes


class Told:
    """One request's answer as far as it was told."""

    def __init__(self, request: GenerateRequest) -> None:
        self.tokens: list[int] = []
        self._request = request

    def __repr__(self) -> str:
        return f"<Told {len(self.tokens)} tokens of {self._request.id}>"

    @property
    def resumable(self) -> bool:
        """Whether another worker can go on as this one would have."""
        sampling = self._request.sampling
        drawn = sampling.seed is not None and sampling.temperature > 0
        return not (drawn or sampling.presence_penalty or sampling.frequency_penalty)

    @property
    def complete(self) -> bool:
        """Whether the answer is as long as it may be; only its end was not told."""
        return len(self.tokens) >= self._request.sampling.max_tokens

    def tell(self, output: Output) -> Output:
        """The output as the client gets it: what came from a cache is the first worker's to say."""
        first = not self.tokens
        self.tokens += output.tokens
        return output if first or output.cached_tokens is None else msgspec.structs.replace(output, cached_tokens=None)

    def rest(self) -> GenerateRequest:
        """What is still to be generated, behind what was told."""
        request, told = self._request, len(self.tokens)
        if not told:
            return request
        sampling = msgspec.structs.replace(
            request.sampling,
            max_tokens=request.sampling.max_tokens - told,
            min_tokens=max(0, request.sampling.min_tokens - told),
        )
        return msgspec.structs.replace(request, tokens=request.tokens + tokens_to_bytes(self.tokens), sampling=sampling)
