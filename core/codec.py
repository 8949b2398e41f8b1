"""Messages of the log: events sealed by their source, in order, in a keyed chain.

1. A message is a msgpack map, or a JSON object if all its events are of low rate; its content is fixed when it is
   sealed.
2. `n` counts the messages of one source in one stream, from 0; `prev` is the digest of the one before (zeros at 0).
3. The digest is BLAKE2b of the sealed bytes, 16 bytes, keyed with the deployment's chain key: without it,
   no message can be written that continues a chain. A message names the generation of its key, unless that is 0.
4. A decoder takes older versions, unknown fields, unknown types and newer versions; the last two become
   `UnknownEvent`. Bytes that are no message at all raise `Corrupt`.
5. Decisions of later versions, first tokens and ends are arrays (`core.events.compact_decision`,
   `core.events.compact_progress`), and so are a planner's events (`core.events.compact_scale`); this module turns them
   back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, Union

import msgspec
from msgspec.structs import replace

from core.errors import Corrupt
from core.events import (
    EVENT_TYPES,
    EVENT_VERSION,
    EVENT_VERSIONS,
    AdapterEvicted,
    AdapterLoaded,
    AdapterUnloaded,
    Event,
    PoolJoined,
    PoolLeft,
    PoolLost,
    ReplicaJoined,
    ReplicaLeft,
    ReplicaLost,
    RequestFinished,
    RequestPrefilled,
    RequestRejected,
    RequestRouted,
    SettingsChanged,
    UnknownEvent,
    WorkerJoined,
    WorkerLeft,
    WorkerLost,
)
from core.events.compact_decision import (
    COMPACT_TYPES,
    CompactDecision,
    ShortDecision,
    encode_compact,
    encode_short,
)
from core.events.compact_progress import (
    COMPACT_FINISHED,
    COMPACT_PREFILLED,
    CompactFinished,
    CompactPrefilled,
    FinishedMap,
    PrefilledMap,
    encode_finished,
    encode_prefilled,
)
from core.events.compact_scale import (
    SCALE_FORMS,
    SCALE_TYPES,
    encode_scale,
)
from core.events.jobs import (
    JobsRestated,
    PrefillCancelled,
    PrefillCompleted,
    PrefillFailed,
    PrefillPulled,
    PrefillRequested,
    PrefillStarted,
)
from core.events.routing import COMPACT_VERSION, SHORT_VERSION, Columns
from core.events.scale import SCALE_EVENTS, ScaleEvent
from core.ids import SourceId

DIGEST_BYTES = 16
CHAIN_START = bytes(DIGEST_BYTES)
MESSAGE_VERSION = 1
CHAIN_KEY_BYTES = 32
GENERATION_MAX = 99
"""The last generation of a deployment's key."""
_GENERATION = b"\xa1v\x01\xa1g"
_GENERATION_JSON = b'{"v":1,"g":'
JSON_START = b"{"
"""No msgpack map begins with this byte."""
READABLE: tuple[type[Event], ...] = (
    WorkerJoined,
    AdapterEvicted,
    AdapterLoaded,
    AdapterUnloaded,
    WorkerLeft,
    WorkerLost,
    PoolJoined,
    PoolLeft,
    PoolLost,
    ReplicaJoined,
    ReplicaLeft,
    ReplicaLost,
    SettingsChanged,
    PrefillRequested,
    PrefillPulled,
    PrefillCancelled,
    PrefillStarted,
    PrefillCompleted,
    PrefillFailed,
    JobsRestated,
    *SCALE_EVENTS,
)
"""Events of low rate: a message of nothing else is JSON."""
DECISIONS: frozenset[type[Event]] = frozenset({RequestRouted, RequestRejected})
"""Events that record a decision of a replica."""
DECISION_TYPES = COMPACT_TYPES | {kind.__name__ for kind in DECISIONS}
"""Their types on the wire."""
_DECISION = b"RequestR"
"""The types of DECISIONS begin with it, and no other event's type does."""
_FORMS = SCALE_FORMS | {CompactDecision, ShortDecision, CompactPrefilled, CompactFinished, PrefilledMap, FinishedMap}
"""Events as they stand in a message where that is not their class in memory."""
_COMPACT = COMPACT_TYPES | SCALE_TYPES | {COMPACT_PREFILLED, COMPACT_FINISHED}
"""Types on the wire of which the latest programs alone know the form."""
_MAPS = set(EVENT_TYPES.values()) - {RequestPrefilled, RequestFinished}
_AnyForm: Any = Union[(*_FORMS, *_MAPS)]


class Message(msgspec.Struct, frozen=True):
    """Message of the log: events that one source appended at once."""

    source: SourceId
    n: int
    prev: bytes
    sent_ms: int
    """The source's own wall clock, for people; nothing is computed from it."""
    events: tuple[Event | UnknownEvent, ...]


class _Sealed(msgspec.Struct, frozen=True, kw_only=True):
    v: int
    source: str
    n: int
    prev: bytes
    sent_ms: int
    events: list[msgspec.Raw]


class _SealedLater(msgspec.Struct, frozen=True, kw_only=True):
    """As `_Sealed`, under a later generation of the key. Readers skip `g` as a field that they do not know."""

    v: int
    g: int
    source: str
    n: int
    prev: bytes
    sent_ms: int
    events: list[msgspec.Raw]


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    v: int
    source: SourceId
    n: int
    prev: bytes
    sent_ms: int
    events: list[_AnyForm]


class _Head(msgspec.Struct, frozen=True):
    type: str
    v: int = 1


class _Decoder(Protocol):
    def decode(self, buf: Any, /) -> Any: ...


class _Form(NamedTuple):
    """Decoders of one encoding."""

    known: _Decoder
    sealed: _Decoder
    head: _Decoder
    event: _Decoder
    fields: _Decoder


def _form(decoder: Callable[[Any], _Decoder]) -> _Form:
    return _Form(*map(decoder, (_Known, _Sealed, _Head, _AnyForm, dict[str, Any])))


_encoder = msgspec.msgpack.Encoder()
_json_encoder = msgspec.json.Encoder()
_msgpack = _form(msgspec.msgpack.Decoder)
_json = _form(msgspec.json.Decoder)
_known_msgpack, _known_json = _msgpack.known.decode, _json.known.decode
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of the decoder for unreadable bytes: broken, not UTF-8, nested without end."""


def encode_event(event: Event) -> bytes:
    """The event's own bytes, in the form of its version; a message holds them as they are."""
    if type(event) is RequestRouted:
        if event.v == SHORT_VERSION:
            return encode_short(event)
        if event.v == COMPACT_VERSION:
            return encode_compact(event)
        if isinstance(event.columns, Columns):
            return _encoder.encode(replace(event, columns=dict(event.columns.items())))
    elif type(event) is RequestPrefilled:
        return encode_prefilled(event)
    elif type(event) is RequestFinished:
        return encode_finished(event)
    return _encoder.encode(event)


def is_encoding(encoding: bytes | None, event: Event) -> bool:
    """True if the bytes are the event as this program or an earlier one encodes it."""
    if encoding is None or encoding == encode_event(event):
        return encoding is not None
    try:
        return _decode_event(_msgpack, msgspec.Raw(encoding)) == event
    except _UNREADABLE:
        return False


def is_decision(encoding: bytes) -> bool:
    """True if the encoding, of `encode_event`, is of one of DECISIONS. The event's name stands behind the head of a
    map, of one or of three bytes, and the key `type`."""
    return encoding[9:17] == _DECISION or encoding[7:15] == _DECISION


def encode_message(
    source: SourceId, n: int, prev: bytes, sent_ms: int, events: Sequence[bytes], generation: int = 0
) -> bytes:
    """The sealed bytes of a message; its events are encoded already."""
    assert n >= 0
    assert len(prev) == DIGEST_BYTES
    head = _Sealed(v=MESSAGE_VERSION, source=source, n=n, prev=prev, sent_ms=sent_ms, events=[])
    empty = _encoder.encode(head if not generation else _later(head, generation))
    return b"".join((empty[:-1], _array_start(len(events)), *events))  # an empty array is one byte


def _array_start(length: int) -> bytes:
    """The head of a msgpack array of that length."""
    if length < 16:
        return bytes((0x90 | length,))
    return b"\xdc" + length.to_bytes(2) if length < 2**16 else b"\xdd" + length.to_bytes(4)


def _later(head: _Sealed, generation: int) -> _SealedLater:
    assert 0 < generation <= GENERATION_MAX
    return _SealedLater(
        v=head.v, g=generation, source=head.source, n=head.n, prev=head.prev, sent_ms=head.sent_ms, events=head.events
    )


def digest(payload: bytes, chain_key: bytes) -> bytes:
    """The chain digest of sealed bytes, by the key of the message's generation.

    `chain_key` holds a key for each generation, one behind the other, and zeros for one that was removed. The digest of
    a message without a key equals no digest that its source wrote, and cannot be guessed.
    """
    key, person = key_of(chain_key, generation_of(payload)), b""
    if key is None:
        key, person = newest_key(chain_key), b"no key"
    return hashlib.blake2b(payload, digest_size=DIGEST_BYTES, key=key, person=person).digest()


def known_digest(payload: bytes, chain_key: bytes) -> bytes | None:
    """The chain digest of sealed bytes; None without the key of the message's generation."""
    key = key_of(chain_key, generation_of(payload))
    return None if key is None else hashlib.blake2b(payload, digest_size=DIGEST_BYTES, key=key).digest()


def generation_of(payload: bytes) -> int:
    """The generation of the key that sealed the message, as the message says."""
    if payload[1:6] == _GENERATION:
        return payload[6] if len(payload) > 6 else 0
    if payload.startswith(_GENERATION_JSON):
        text = payload[len(_GENERATION_JSON) :][:3].partition(b",")[0]
        return int(text) if text.isdigit() else 0
    return 0


def key_of(chain_key: bytes, generation: int) -> bytes | None:
    """The generation's key; None if it is not known (any more)."""
    if generation == 0 and len(chain_key) <= CHAIN_KEY_BYTES:
        return chain_key
    key = chain_key[CHAIN_KEY_BYTES * generation :][:CHAIN_KEY_BYTES]
    return key if any(key) else None


def known_keys(chain_key: bytes) -> list[bytes]:
    """The keys of all generations that are known, the newest first."""
    keys = (key_of(chain_key, generation) for generation in range(newest_generation(chain_key), -1, -1))
    return [key for key in keys if key is not None]


def newest_key(chain_key: bytes) -> bytes:
    """The key that seals."""
    return chain_key[-CHAIN_KEY_BYTES:]


def newest_generation(chain_key: bytes) -> int:
    """The generation that seals."""
    return max(0, len(chain_key) // CHAIN_KEY_BYTES - 1)


def through(chain_key: bytes, generation: int) -> bytes:
    """The chain key as it was when that generation was the newest."""
    return chain_key if generation == newest_generation(chain_key) else chain_key[: CHAIN_KEY_BYTES * (generation + 1)]


def encode_readable(
    source: SourceId, n: int, prev: bytes, sent_ms: int, events: Sequence[Event], generation: int = 0
) -> bytes:
    """The same as JSON, which a person can read in any NATS client; for events of low rate (READABLE)."""
    assert n >= 0
    assert len(prev) == DIGEST_BYTES
    raw = [msgspec.Raw(_json_encoder.encode(event)) for event in events]
    head = _Sealed(v=MESSAGE_VERSION, source=source, n=n, prev=prev, sent_ms=sent_ms, events=raw)
    return _json_encoder.encode(head if not generation else _later(head, generation))


def encode_planned(
    source: SourceId, n: int, prev: bytes, sent_ms: int, events: Sequence[ScaleEvent], generation: int = 0
) -> bytes:
    """The same of a planner's events, in their shortest form: a planner writes every few seconds, for ever."""
    return encode_message(source, n, prev, sent_ms, [encode_scale(event) for event in events], generation)


def decode_message(payload: bytes) -> Message:
    """The message; events that this program does not know are `UnknownEvent`. Raises Corrupt."""
    is_json = payload[:1] == JSON_START
    try:
        known = (_known_json if is_json else _known_msgpack)(payload)
        events = known.events
        for place, event in enumerate(events):
            if event.v > EVENT_VERSION:
                if type(event) in _FORMS:
                    events[place] = event.event
                elif event.v > EVENT_VERSIONS.get(type(event), EVENT_VERSION):
                    break
        else:
            return Message(known.source, known.n, known.prev, known.sent_ms, tuple(events))
    except msgspec.ValidationError:
        pass  # an event of another type or shape: looked at one by one below
    except _UNREADABLE as error:
        raise Corrupt(f"not a message of the log: {error}") from error
    form = _json if is_json else _msgpack
    try:
        sealed = form.sealed.decode(payload)
        events = tuple(_decode_event(form, raw) for raw in sealed.events)
    except _UNREADABLE as error:
        raise Corrupt(f"not a message of the log: {error}") from error
    return Message(source=SourceId(sealed.source), n=sealed.n, prev=sealed.prev, sent_ms=sealed.sent_ms, events=events)


def _decode_event(form: _Form, raw: msgspec.Raw) -> Event | UnknownEvent:
    head = form.head.decode(raw)
    if head.type in _COMPACT:
        return form.event.decode(raw).event  # type: ignore[no-any-return]
    kind = EVENT_TYPES.get(head.type)
    if kind is not None and head.v <= EVENT_VERSIONS.get(kind, EVENT_VERSION):
        event = form.event.decode(raw)
        return event.event if type(event) in _FORMS else event  # type: ignore[no-any-return]
    return UnknownEvent(name=head.type, fields=form.fields.decode(raw))
