"""The events of waiting, in the routing stream: what happens to a request before a decision about it, and without one.

They inform: no fold keeps anything of them, no decision rests on them, and a request that finds a free place when it
arrives has neither.
"""

from __future__ import annotations

from core.event import EventBase

WAITS_FOR = ("full", "overloaded", "behind")
"""Why a request waits: workers have all that they may have; too much waits in their engines; others came first."""
HELD = "prefill"
"""The same of a request that has a place: the worker that is best for it still computes other prompts."""
INTERNAL = "internal"
TURNED_AWAY = {
    "queue_full": 503,
    "tenant_share": 429,
    "queue_wait": 503,
    "stopping": 503,
    "deadline": 504,
    "client_gone": 499,
    INTERNAL: 500,
}
"""Why a request ended without a decision, with the HTTP status that the client got: the queue is full; it is, and most
of it this tenant's; the wait was too long, or would have been; the replica ends; the client's deadline passed; the
client hung up, and got none; it failed inside its replica's process, in whatever part of it."""


class RequestQueued(EventBase, frozen=True):
    """No worker had a place for the request when it came, or the right one no time, so it waits in its replica. A
    RequestRouted or RequestRejected of it, or a RequestTurnedAway, ends that."""

    request: str
    model: str
    priority: int
    """Lower is served first."""
    tenant: str
    prompt_tokens: int
    why: str
    """Of WAITS_FOR, or HELD."""
    depth: int
    """How many waited already, those that come after it included."""
    now_ms: int
    """The replica's wall clock."""


class RequestTurnedAway(EventBase, frozen=True):
    """The request ended without a decision: refused when it came, or while it waited."""

    request: str
    model: str
    reason: str
    """Of TURNED_AWAY …"""
    status: int
    """… and its status."""
    waited_ms: int
    """-1 if it was refused when it came."""
    tenant: str = ""
    detail: str = ""
    """Of `internal`: what failed, and where (`core.failure.detail_of`)."""


QueueEvent = RequestQueued | RequestTurnedAway
