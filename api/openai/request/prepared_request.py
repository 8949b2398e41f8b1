"""A request that can be sent to workers, with what its answer needs."""

from __future__ import annotations

import msgspec

from api.openai.request.choice import Choice
from api.openai.types.deltas import Usage
from api.tokenizer.token_texts import TokenTexts


class ResponseOptions(msgspec.Struct, frozen=True):
    """What an answer shows beside its text."""

    texts: TokenTexts
    logprobs: int = -1
    """-1: none; else of each token, and of so many of the likeliest in its place."""
    as_ids: bool = False
    """Tokens are written as `token_id:5` in logprobs."""
    prompt_logprobs: bool = False
    token_ids: bool = False
    special_tokens: bool = False
    """Special tokens are part of the text."""
    service_tier: str | None = None
    include_usage: bool = False
    continuous_usage: bool = False
    best_of: int = 1
    """Choices that are made for each prompt; the best `n` of them are shown."""
    n: int = 1
    as_function: bool = False
    """A call is told in OpenAI's deprecated form, as `function_call`."""


class PreparedRequest(msgspec.Struct, frozen=True):
    """A request that can be sent to workers."""

    model: str
    choices: tuple[Choice, ...]
    """All answers to the first prompt, then those to the next."""
    prompt_tokens: int
    """Of all prompts, each counted once."""
    stream: bool
    options: ResponseOptions
    plain: bool
    """One choice that is nothing but text: its transcript can be read without deltas."""

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.options.include_usage

    @property
    def finish(self) -> str | None:
        """How the first choice ended; None if one of them has not."""
        if len(self.choices) == 1:
            return self.choices[0].finish
        ends = [choice.finish for choice in self.choices]
        return None if None in ends else ends[0]

    def usage(self) -> Usage:
        """What was used until now; a prompt's cached tokens are those of its first choice."""
        if len(self.choices) == 1:
            (only,) = self.choices
            return Usage(
                self.prompt_tokens, only.completion_tokens, only.transcript.cached_tokens, only.reasoning_tokens
            )
        firsts = {choice.prompt: choice for choice in reversed(self.choices)}
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=sum([choice.completion_tokens for choice in self.choices]),
            cached_tokens=sum([choice.transcript.cached_tokens for choice in firsts.values()]),
            reasoning_tokens=sum([choice.reasoning_tokens for choice in self.choices]),
        )
