"""Timeline events: the fields that a timeline shows of an event; nothing else is read of it (see
`replay.recording.messages`)."""

from __future__ import annotations

import msgspec

from core.events import Points
from replay.recording.messages import RoutingEvent, partial_reader

Row = tuple[int, int, str, bytes]
"""Sequence, time in ms, whose subject, payload: as the archive's own `Row`."""


class TimelineEvent(RoutingEvent, gc=False):
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


class RoutedFields(msgspec.Struct, gc=False, tag_field="type", tag="RequestRouted"):
    """One of the four events that nearly all of the routing stream is, in a shape of its own; fields as there."""

    request: str
    attempt: int
    worker: str
    prompt_tokens: int
    predicted_cached_tokens: int
    now_ms: int


class QueuedFields(msgspec.Struct, gc=False, tag_field="type", tag="RequestQueued"):
    """See `RoutedFields`."""

    request: str
    now_ms: int


class PrefilledFields(msgspec.Struct, gc=False, tag_field="type", tag="RequestPrefilled"):
    """See `RoutedFields`."""

    request: str
    attempt: int
    cached_tokens: int
    ttft_ms: int


class FinishedFields(msgspec.Struct, gc=False, tag_field="type", tag="RequestFinished"):
    """See `RoutedFields`."""

    request: str
    attempt: int
    outcome: str
    cached_tokens: int
    ttft_ms: int
    duration_ms: int


class FrequentMessage(msgspec.Struct, gc=False):
    """A message of nothing but these."""

    source: str
    events: list[RoutedFields | QueuedFields | PrefilledFields | FinishedFields]


decode_frequent = msgspec.msgpack.Decoder(FrequentMessage).decode
"""The message, if it is of nothing but usual events; else one of `replay.recording.messages.UNREADABLE` is raised.
About 0.6 us."""
decode_any = partial_reader(TimelineEvent)
"""Any message."""
