"""What an answer says, in the terms of OpenAI's messages: text, reasoning, calls of tools; and who finds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from core.generation import TokenLogprobs


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


class Said(NamedTuple):
    """What of one choice may leave together."""

    text: str = ""
    reasoning: str = ""
    tools: tuple[ToolDelta, ...] = ()


NOTHING = Said()


class Interpreter(Protocol):
    """Reads one choice's text as it comes."""

    @property
    def keeps_special_tokens(self) -> bool:
        """Whether it must see special tokens in the text: then they are not skipped."""

    @property
    def called(self) -> bool:
        """Whether a call of a tool has been found: then the choice ends with `tool_calls` instead of `stop`."""

    def push(self, text: str, tokens: Sequence[int]) -> Said:
        """What the new text says for certain; `tokens` are those that came with it."""

    def finish(self) -> Said:
        """What was held back; nothing more will come. Never raises: what is no call is text."""


class Step(NamedTuple):
    """One choice of one request got on."""

    choice: int
    """Which choice of it, from 0."""
    said: Said
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the tokens whose text leaves, if the request asked for them; nan where none is known."""
    finish: str | None = None
    """`stop`, `length` or `tool_calls` with its last step."""
    tokens: tuple[int, ...] = ()
    """The answer's tokens whose text leaves, if something of it needs them."""
    completion_tokens: int = 0
    """Tokens of the choice until now."""
