"""Partial decoding: a few fields of a message's events, at a fraction of the price of a full decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

from core.codec import JSON_START

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What is raised for bytes that are none of ours."""


class RoutingEvent(msgspec.Struct, gc=False):
    """Any event of the routing stream, by what tells of requests, replicas and their settings; a field has its default
    where the event has no such field."""

    type: str
    request: str = ""
    attempt: int = 0
    model: str = ""
    worker: str = ""
    prompt_tokens: int = 0
    predicted_cached_tokens: int = 0
    blocks: int | tuple[int, ...] = 0
    """A column, in a restatement; so is the next."""
    prefill_tokens: int | tuple[int, ...] = 0
    cached_tokens: int = -1
    ttft_ms: int = -1
    duration_ms: int = -1
    output_tokens: int = 0
    outcome: str = ""
    status: int = 0
    name: str = ""
    tenant: str = ""
    revision: int = 0
    reasons: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()
    attempts: tuple[int, ...] = ()
    settings: dict[str, Any] | None = None


E = TypeVar("E", bound=RoutingEvent)


class PartialMessage(msgspec.Struct, Generic[E], gc=False):
    """Any message."""

    source: str
    events: list[E]


class _Raw(msgspec.Struct):
    source: str
    events: list[msgspec.Raw]


_packed_raw = msgspec.msgpack.Decoder(_Raw)
_json_raw = msgspec.json.Decoder(_Raw)


def partial_reader(event: type[E]) -> Callable[[bytes], PartialMessage[E] | None]:
    """What reads a message for the fields of these events, at about 1 us per event; None for what is no message of
    ours. An event that this program does not know keeps its place, and of one that it cannot read that is all."""
    message: type[PartialMessage[E]] = PartialMessage.__class_getitem__(event)  # type: ignore[attr-defined]
    packed, json = msgspec.msgpack.Decoder(message), msgspec.json.Decoder(message)
    packed_event, json_event = msgspec.msgpack.Decoder(event), msgspec.json.Decoder(event)

    def one_by_one(payload: bytes, is_json: bool) -> PartialMessage[E] | None:
        try:
            found = (_json_raw if is_json else _packed_raw).decode(payload)
        except UNREADABLE:
            return None
        return PartialMessage(found.source, list(known(found.events, (json_event if is_json else packed_event).decode)))

    def known(events: list[msgspec.Raw], decode: Callable[[msgspec.Raw], E]) -> Iterator[E]:
        for raw in events:
            try:
                yield decode(raw)
            except UNREADABLE:
                yield event(type="")

    def read(payload: bytes) -> PartialMessage[E] | None:
        is_json = payload[:1] == JSON_START
        try:
            return (json if is_json else packed).decode(payload)
        except msgspec.ValidationError:
            return one_by_one(payload, is_json)
        except UNREADABLE:
            return None

    return read
