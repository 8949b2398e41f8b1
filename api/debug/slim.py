"""What a timeline shows of an event, and nothing else is read of it (see `replay.recording.messages`)."""

from __future__ import annotations

import msgspec

from core.events import Points
from replay.recording.messages import RoutingEvent, partial_reader


class SlimEvent(RoutingEvent, gc=False):
    """Any event of the log; a field has its default where the event has no such field."""

    told_tokens: int = 0
    now_ms: int = 0
    address: str = ""
    version: str = ""
    role: str = ""
    capacity_blocks: int = 0
    reason: str = ""
    by: str = ""
    running: int = 0
    waiting: int = 0
    blocks_used: int = 0
    blocks_total: int = 0
    draining: bool = False
    fold_version: int = 0
    points: dict[str, Points] | None = None
    incomplete: tuple[str, ...] = ()
    stream: str = ""
    seq: int = 0
    other: str = ""
    verdict: str = ""


class Routed(msgspec.Struct, gc=False, tag_field="type", tag="RequestRouted"):
    """One of the four events that nearly all of the routing stream is, in a shape of its own; fields as there."""

    request: str
    attempt: int
    worker: str
    prompt_tokens: int
    predicted_cached_tokens: int
    now_ms: int


class Queued(msgspec.Struct, gc=False, tag_field="type", tag="RequestQueued"):
    """See `Routed`."""

    request: str
    now_ms: int


class Prefilled(msgspec.Struct, gc=False, tag_field="type", tag="RequestPrefilled"):
    """See `Routed`."""

    request: str
    attempt: int
    cached_tokens: int
    ttft_ms: int


class Finished(msgspec.Struct, gc=False, tag_field="type", tag="RequestFinished"):
    """See `Routed`."""

    request: str
    attempt: int
    outcome: str
    cached_tokens: int
    ttft_ms: int
    duration_ms: int


class Usual(msgspec.Struct, gc=False):
    """A message of nothing but these."""

    source: str
    events: list[Routed | Queued | Prefilled | Finished]


usual = msgspec.msgpack.Decoder(Usual).decode
"""The message, if it is of nothing but usual events; else one of `replay.recording.messages.UNREADABLE` is raised.
About 0.6 us."""
slim = partial_reader(SlimEvent)
"""Any message."""
