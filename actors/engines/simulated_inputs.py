"""What the simulated engine's step function is told, and what it wants of others or has done for them."""

from __future__ import annotations

from typing import NamedTuple

from actors.engines.known_prompt import KnownPrompt
from core.generation import GenerateRequest
from core.ids import RequestId


class Submit(NamedTuple):
    """A request has come; `refuse` had nothing against it."""

    request: GenerateRequest
    hold: bool = False
    """Its prompt is computed for others, and no answer is wanted."""
    pull: bool = False
    """Its prompt's blocks come from elsewhere."""
    reply: tuple[int, ...] = ()
    """Tokens to answer with first, instead of made-up ones."""
    known: KnownPrompt | None = None
    """All that is known of its prompt; then the request has no tokens, and its answer is as long as it may be. The
    answer's first token is told when it is there, all others together with the last one or when it is given up."""


class Abort(NamedTuple):
    """Nobody wants this request any more; it may have finished already."""

    id: RequestId


class Arrived(NamedTuple):
    """What was fetched for a request that asked: taken as it is."""

    id: RequestId
    contents: tuple[int, ...]


class Free(NamedTuple):
    """Blocks held for others need not be held any longer; it may have been so for long."""

    id: RequestId
    fetched: bool


class Forget(NamedTuple):
    """Nothing that is cached now is found by requests to come, nor what those that run now will make of it."""


Input = Submit | Abort | Arrived | Free | Forget


class Fetch(NamedTuple):
    """This request wants the last so many of its prompt's blocks."""

    id: RequestId
    blocks: int


class Prefilled(NamedTuple):
    """A prompt was computed, and its blocks are held."""

    id: RequestId
    blocks: tuple[int, ...]
    tokens: int
    cached_tokens: int
