"""Frames between a prefill worker and the decode workers that ask it; it connects to them, they never to it.

1. After `Hello` and `Welcome` it says who it is: `Introduce`.
2. It takes a job from the queue, or because it was offered, by `Claim`; `Prompt` says whether it is wanted still.
3. `Answered` or `Broke` is the end on its side; the same event goes to the log.
4. When the blocks are there, the decode worker asks `Confirm` before it trusts them. `Release` ends a job at any
   point: nothing more is computed for it, and its blocks are free.
"""

from __future__ import annotations

from actors.frame import Frame
from core.events.jobs import PrefillCompleted, PrefillFailed
from core.generation import GenerateRequest


class Introduce(Frame, frozen=True, tag="Introduce"):
    """Who computes prompts over this connection, and whose blocks it makes."""

    worker: str
    name: str
    model: str
    block_size: int
    layout: str


class Claim(Frame, frozen=True, tag="Claim"):
    """May I have this job?"""

    job: str
    delivery: int
    """How often the queue had handed it out; 0 if it was offered."""


class Answered(Frame, frozen=True, tag="Answered"):
    """The blocks are there."""

    event: PrefillCompleted


class Broke(Frame, frozen=True, tag="Broke"):
    """I give the job up."""

    event: PrefillFailed


class StillHeld(Frame, frozen=True, tag="StillHeld"):
    """Whether the blocks were held without a break until now."""

    job: str
    held: bool


class Prompt(Frame, frozen=True, tag="Prompt"):
    """The answer to a claim."""

    job: str
    attempt: int = 0
    request: GenerateRequest | None = None
    """None if the job is not to be had."""
    why: str = ""
    """Then: `taken` (another computes it), `over`, or `unknown`."""


class Offer(Frame, frozen=True, tag="Offer"):
    """This job is to be had: you hold most of it already, or who had it is gone."""

    job: str


class Confirm(Frame, frozen=True, tag="Confirm"):
    """Were the blocks held until now?"""

    job: str


class Release(Frame, frozen=True, tag="Release"):
    """The job is over for you."""

    job: str


FromPrefill = Introduce | Claim | Answered | Broke | StillHeld
ToPrefill = Prompt | Offer | Confirm | Release
