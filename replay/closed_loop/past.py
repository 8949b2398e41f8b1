"""Past: one request as the record tells of it, from its arrival to the end of its answer."""

from __future__ import annotations

import msgspec

from core.events import RequestRouted
from core.ids import RequestId

UNTOLD = -1
"""A time that the record does not tell."""


class Stint(msgspec.Struct, gc=False):
    """One attempt: what a worker did for a request, in milliseconds of its replica's clock."""

    worker: str
    sent_ms: int
    prompt_tokens: int
    """With what the client had of the answer already."""
    cached_tokens: int = 0
    output_tokens: int = 0
    first_ms: int = UNTOLD
    """Of its first token."""
    end_ms: int = UNTOLD
    declined: bool = False
    """The worker would not take it."""

    @property
    def computed_tokens(self) -> int:
        """Of the prompt."""
        return self.prompt_tokens - self.cached_tokens


class Past(msgspec.Struct, gc=False):
    """See the module's text."""

    id: RequestId
    """Of its own: ids that are used again get a number behind them."""
    replica: str
    seq: int
    """Of the message with its first decision."""
    routed: RequestRouted
    """The first decision."""
    came_ms: int
    """When it was decided about first, or began to wait in its replica."""
    stints: list[Stint] = msgspec.field(default_factory=list)
    outcome: str = ""
    """Of its last attempt; empty while it has not ended."""
    predicted_tokens: int = 0
    """What the decision before its first token expected in the cache."""

    @property
    def attempt(self) -> int:
        """The number of the last one."""
        return self.routed.attempt + len(self.stints) - 1

    @property
    def output_tokens(self) -> int:
        """What its client got of the answer. An attempt that goes on with it has the tokens so far behind its prompt;
        one that has to make them again counts them among its own."""
        prompt = self.routed.prompt_tokens
        return max((stint.prompt_tokens - prompt + stint.output_tokens for stint in self.stints), default=0)

    @property
    def served(self) -> Stint | None:
        """The attempt that gave the first token, if one came."""
        return next((stint for stint in self.stints if stint.first_ms != UNTOLD), None)

    @property
    def end_ms(self) -> int:
        """Of its last attempt."""
        return self.stints[-1].end_ms
