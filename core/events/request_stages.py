"""RequestStages: the time of one attempt at a request, from its arrival to its last token, in stages without a gap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

PER_MS = 10
"""Stages are in tenths of a millisecond: most take one byte in the log, those up to 6.5 s three."""
US_PER_TENTH = 100
UNREPORTED = -1
"""Stands for a stage that the worker did not report: the next one that has a time holds it, too."""


class RequestStages(NamedTuple):
    """The stages in their order, in tenths of a millisecond. An attempt behind another one begins when that one ended,
    so the stages of all attempts add up to the time of the request."""

    loop: int = 0
    """As of `core.generation.IntakeTimes`; so are the next two. They are 0 for further attempts."""
    body: int = 0
    prepare: int = 0
    queued: int = 0
    """In the router's queue, for a worker with a slot."""
    held: int = 0
    """Held for the worker that is best for it, while that one computed other prompts."""
    route: int = 0
    """Being decided, and waiting for any worker to be there."""
    link: int = 0
    """On the way to the worker and back, and in its process but not in its engine; or with the worker until it broke
    off, if no token came."""
    remote: int = 0
    """Until another worker had computed the prompt, or had not."""
    behind: int = 0
    """In the engine's queue. UNREPORTED by workers of earlier versions: `prefill` holds it, and `link`."""
    prefill: int = 0
    """From the engine's first pass of it to its first token."""
    decode: int = 0
    """From there to the last token that came."""

    @classmethod
    def of(cls, column: Sequence[int]) -> RequestStages | None:
        """The stages of a record; None where an earlier program left them out. Stages of later programs are cut."""
        return cls(*column[: len(cls._fields)]) if column else None

    @property
    def total(self) -> int:
        """The time of the attempt."""
        return sum(each for each in self if each > 0)

    @property
    def first_token(self) -> int:
        """The part of it before its first token."""
        return self.total - self.decode
