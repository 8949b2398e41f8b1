"""Slim: messages read for what a timeline shows, and for nothing else; a fraction of the price of decoding all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from core.codec import JSON_START
from core.events import Points


class SlimEvent(msgspec.Struct, gc=False):
    """Any event of the log; a field has its default where the event has no such field."""

    type: str
    request: str = ""
    attempt: int = 0
    worker: str = ""
    model: str = ""
    prompt_tokens: int = 0
    predicted_cached_tokens: int = 0
    cached_tokens: int = 0
    ttft_ms: int = -1
    duration_ms: int = -1
    told_tokens: int = 0
    outcome: str = ""
    name: str = ""
    address: str = ""
    version: str = ""
    role: str = ""
    capacity_blocks: int = 0
    reason: str = ""
    by: str = ""
    status: int = 0
    running: int = 0
    waiting: int = 0
    blocks_used: int = 0
    blocks_total: int = 0
    draining: bool = False
    revision: int = 0
    settings: dict[str, Any] | None = None
    reasons: tuple[str, ...] = ()
    fold_version: int = 0
    points: dict[str, Points] | None = None
    incomplete: tuple[str, ...] = ()
    stream: str = ""
    seq: int = 0
    other: str = ""
    verdict: str = ""


class Routed(msgspec.Struct, gc=False, tag_field="type", tag="RequestRouted"):
    """One of the three events that nearly all of the routing stream is, in a shape of its own; fields as there."""

    request: str
    attempt: int
    worker: str
    prompt_tokens: int
    predicted_cached_tokens: int


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
    events: list[Routed | Prefilled | Finished]


class Slim(msgspec.Struct, gc=False):
    """Any message."""

    source: str
    events: list[SlimEvent]


class _Raw(msgspec.Struct):
    source: str
    events: list[msgspec.Raw]


usual = msgspec.msgpack.Decoder(Usual).decode
"""The message, if it is of nothing but usual events; else one of `UNREADABLE` is raised. About 0.6 us."""
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_packed = msgspec.msgpack.Decoder(Slim)
_packed_raw = msgspec.msgpack.Decoder(_Raw)
_packed_event = msgspec.msgpack.Decoder(SlimEvent)
_json = msgspec.json.Decoder(Slim)
_json_raw = msgspec.json.Decoder(_Raw)
_json_event = msgspec.json.Decoder(SlimEvent)


def slim(payload: bytes) -> Slim | None:
    """The message; None for what is no message of ours. About 1 us per event.

    An event that this program does not know keeps its place, as a `SlimEvent` of no type.
    """
    is_json = payload[:1] == JSON_START
    try:
        return (_json if is_json else _packed).decode(payload)
    except msgspec.ValidationError:
        return _one_by_one(payload, is_json)
    except UNREADABLE:
        return None


def _one_by_one(payload: bytes, is_json: bool) -> Slim | None:
    try:
        found = (_json_raw if is_json else _packed_raw).decode(payload)
    except UNREADABLE:
        return None
    return Slim(found.source, list(_known(found.events, _json_event if is_json else _packed_event)))


def _known(events: list[msgspec.Raw], decoder: Any) -> Iterator[SlimEvent]:
    for raw in events:
        try:
            yield decoder.decode(raw)
        except UNREADABLE:
            yield SlimEvent(type="")
