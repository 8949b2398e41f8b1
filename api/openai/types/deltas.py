"""New parts of an answer, in the terms of OpenAI's messages: text, reasoning, calls of tools; and its token usage."""

from __future__ import annotations

from typing import NamedTuple

from core.generation import TokenLogprobs


class Usage(NamedTuple):
    """Tokens of one request: each prompt once, the answers of all its choices together."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0

    def as_json(self) -> bytes:
        """OpenAI's `usage`; from a template, because every answer has one."""
        prompt, completion, cached, reasoning = self
        return (
            b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d},'
            b'"completion_tokens_details":{"reasoning_tokens":%d}}'
        ) % (prompt, completion, prompt + completion, cached, reasoning)


class ToolDelta(NamedTuple):
    """More of one call of a tool."""

    call: int
    """Which of the answer's calls, from 0."""
    id: str = ""
    """With the call's first delta only."""
    name: str = ""
    """Likewise."""
    arguments: str = ""
    """The next piece of its arguments, which together are JSON text."""


class Delta(NamedTuple):
    """New text, reasoning and calls of one choice."""

    text: str = ""
    reasoning: str = ""
    tools: tuple[ToolDelta, ...] = ()

    def then(self, other: Delta) -> Delta:
        """Both as one."""
        tools, more = self.tools, other.tools
        if tools and more and tools[-1].call == more[0].call:
            last = tools[-1]._replace(arguments=tools[-1].arguments + more[0].arguments)
            tools, more = (*tools[:-1], last), more[1:]
        return Delta(self.text + other.text, self.reasoning + other.reasoning, tools + more)


EMPTY_DELTA = Delta()


class ChoiceDelta(NamedTuple):
    """The new part of one choice of a request."""

    choice: int
    """Which choice of it, from 0."""
    delta: Delta
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the tokens whose text leaves, if the request asked for them; nan where none is known."""
    finish: str | None = None
    """`stop`, `length` or `tool_calls` with its last delta."""
    tokens: tuple[int, ...] = ()
    """The answer's tokens whose text leaves, if something of it needs them."""
    completion_tokens: int = 0
    """Tokens of the choice until now."""
