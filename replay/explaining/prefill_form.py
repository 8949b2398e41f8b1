"""Where a prompt was computed, as an explanation tells it: part of the keys of `contrail explain --json`.

Times are the log's clock; `after_ms` counts from when the log stored the asking. What workers measured on their own
clocks is said to be. `None` stands for what the log does not tell.
"""

from __future__ import annotations

import msgspec


class Hint(msgspec.Struct, frozen=True, kw_only=True):
    """The prefill worker that the router named to the chosen worker."""

    worker: str
    name: str
    tokens: int
    """How much of the prompt it held."""
    text: str
    """Why that one."""


class JobTry(msgspec.Struct, kw_only=True):
    """One prefill worker's try at a job."""

    attempt: int
    """The requester counts who takes the job, from 0; -1 for one that gave up without having the prompt."""
    worker: str
    name: str
    started_seq: int | None = None
    """In the jobs stream."""
    started: str | None = None
    after_ms: int | None = None
    """When it started."""
    delivery: int | None = None
    """How often the queue had handed it out; 0 if the requester offered it directly."""
    outcome: str = "unanswered"
    """`completed`, `failed`, `dead`: handed out too often; `unanswered`: the log tells of no answer."""
    ended_seq: int | None = None
    ended: str | None = None
    ended_after_ms: int | None = None
    compute_ms: int | None = None
    """By its own clock."""
    cached_tokens: int | None = None
    """Prompt tokens that it took from its cache."""
    blocks: int | None = None
    """In each group of layers."""
    keep_ms: int | None = None
    reason: str = ""
    """Why it failed, or how the worker ended that did not answer."""
    used: bool = False
    """Whether its blocks were pulled."""


class PrefillJob(msgspec.Struct, kw_only=True):
    """One job by its events."""

    job: str
    requester: str
    requester_name: str
    asked_seq: int | None = None
    """In the jobs stream; so are the others."""
    asked: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Those that the requester had."""
    wait_max_ms: int | None = None
    tries: list[JobTry] = msgspec.field(default_factory=list)
    outcome: str = "open"
    """`pulled`, `cancelled`; `requester_ended`: it has no other end; `open`: the log tells of none."""
    reason: str = ""
    """Why it was cancelled, or how the requester ended."""
    detail: str = ""
    ended_seq: int | None = None
    ended: str | None = None
    ended_after_ms: int | None = None
    worker: str | None = None
    """Whose blocks were pulled."""
    name: str | None = None
    blocks: int | None = None
    bytes: int | None = None
    tokens: int | None = None
    """Prompt tokens that the requester did not compute."""
    transport: str | None = None
    wait_ms: int | None = None
    """From asking to the answer, or to giving up, by the requester's clock."""
    pull_ms: int | None = None
    lacks: str = ""
    """What of it the log does not tell, and why."""


class Prefilled(msgspec.Struct, kw_only=True):
    """The verdict of the worker that was to decode, with its inputs, and what came of it."""

    remote: bool
    reason: str
    """`long`: asked for elsewhere; `short`, `no_prefill_worker`, `queue_full`, `log_away`, `busy`: computed there."""
    uncached_tokens: int
    queued: int
    workers: int
    min_tokens: int
    queue_max: int
    log_away: bool
    busy: bool
    outcome: str
    """`pulled`, or why the worker computed the prompt after all; empty if it asked nobody."""
    detail: str
    worker: str | None
    """The prefill worker that computed it."""
    name: str | None
    pulled_tokens: int
    wait_ms: int
    pull_ms: int
    text: str
    """The verdict in words."""
    came: str
    """What came of it in words."""
