"""What an explanation says of a request that waited in its replica: keys of `contrail explain --json`."""

from __future__ import annotations

import msgspec


class Queued(msgspec.Struct, frozen=True, kw_only=True):
    """No worker had a place for it when it came, or the right one still computed other prompts."""

    time: str
    """When the log stored that."""
    why: str
    """Of `core.events.routing.WAITS_FOR`, or `prefill`: it was held."""
    priority: int
    tenant: str
    depth: int
    """How many waited already."""
    waited_ms: int | None
    """Until it was routed or ended; None if the log does not tell."""
