"""Partial decoding: a few fields of a message's events, at a fraction of the price of a full decoding.

`ChainHeads` finds digests of messages in the messages behind them, where there is no key to compute the digests.

Nearly all of the routing stream is four events; messages of nothing but these are decoded by `decode_frequent`, all
others by a `partial_reader`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

from core.codec import CHAIN_START, JSON_START
from core.events import Points, RequestFinished, RequestPrefilled
from core.events.compact_decision import COMPACT_DECISION, SHORT_DECISION, partial_values
from core.events.compact_progress import CompactFinished, CompactPrefilled
from core.ids import StreamName
from streams.archive.archive_reader import ArchiveReader
from streams.log import Record

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of decoding bytes that are no Contrail message."""

Row = tuple[int, int, str, bytes]
"""Sequence, time in ms, the subject's owner, payload: as the archive's own `Row`."""


class RemoteFlag(msgspec.Struct, gc=False):
    """Of a report on a prefill, whether a prefill worker computed it."""

    remote: bool = False


class TypedEvent(msgspec.Struct, gc=False):
    """Any event, by its type alone."""

    type: str


class PartialEvent(TypedEvent, gc=False):
    """Any event, by the fields that histories and timelines show; a field has its default where the event has no such
    field."""

    request: str = ""
    attempt: int = 0
    model: str = ""
    worker: str = ""
    prompt_tokens: int = 0
    predicted_cached_tokens: int = 0
    blocks: int | tuple[int, ...] = 0
    """A column, in a restatement; so is the next."""
    prefill_tokens: int | tuple[int, ...] = 0
    now_ms: int = 0
    cached_tokens: int = -1
    ttft_ms: int = -1
    prefill: RemoteFlag | None = None
    duration_ms: int = -1
    output_tokens: int = 0
    outcome: str = ""
    status: int = 0
    name: str = ""
    version: str = ""
    tenant: str = ""
    session: str = ""
    revision: int = 0
    reasons: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()
    attempts: tuple[int, ...] = ()
    settings: dict[str, Any] | None = None
    address: str = ""
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
    d: msgspec.Raw = msgspec.Raw()
    """The values of a compact decision (`CompactFields`)."""
    e: msgspec.Raw = msgspec.Raw()
    """Those of a first token or an end (`core.events.compact_progress`)."""


class RoutedFields(msgspec.Struct, gc=False, tag_field="type", tag="RequestRouted"):
    """One of the four events that nearly all of the routing stream is, in a shape of its own; fields as there."""

    request: str
    attempt: int
    model: str
    worker: str
    prompt_tokens: int
    predicted_cached_tokens: int
    blocks: int
    prefill_tokens: int
    now_ms: int
    tenant: str = ""
    session: str = ""


DecisionFields = partial_values(*RoutedFields.__struct_fields__)
decode_decision = msgspec.msgpack.Decoder(DecisionFields).decode
"""The values of a compact decision."""


class CompactFields(msgspec.Struct, gc=False, tag_field="type", tag=COMPACT_DECISION):
    """A compact decision."""

    event: DecisionFields = msgspec.field(name="d")  # type: ignore[valid-type]
    """It has all fields of RoutedFields."""


class ShortFields(CompactFields, gc=False, tag=SHORT_DECISION):
    """The same of the latest version."""


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
    prefill: RemoteFlag | None = None


class FinishedFields(msgspec.Struct, gc=False, tag_field="type", tag="RequestFinished"):
    """See `RoutedFields`."""

    request: str
    attempt: int
    outcome: str
    cached_tokens: int
    ttft_ms: int
    duration_ms: int
    output_tokens: int


FREQUENT_FORMS = frozenset({CompactFields, ShortFields, CompactPrefilled, CompactFinished})
"""Those of them whose fields are in an array, their `event`."""


class FrequentMessage(msgspec.Struct, gc=False):
    """A message of nothing but these."""

    source: str
    n: int
    events: list[
        RoutedFields
        | CompactFields
        | ShortFields
        | QueuedFields
        | PrefilledFields
        | CompactPrefilled
        | FinishedFields
        | CompactFinished
    ]


decode_prefilled = msgspec.msgpack.Decoder(RequestPrefilled).decode
decode_finished = msgspec.msgpack.Decoder(RequestFinished).decode
"""Values of a first token, and of an end."""
decode_frequent = msgspec.msgpack.Decoder(FrequentMessage).decode
"""The message, if it holds only frequent events; else one of UNREADABLE is raised. About 0.6 us."""


E = TypeVar("E", bound=TypedEvent)


class PartialMessage(msgspec.Struct, Generic[E], gc=False):
    """Any message."""

    source: str
    n: int
    events: list[E]


class _Raw(msgspec.Struct):
    source: str
    n: int
    events: list[msgspec.Raw]


_packed_raw = msgspec.msgpack.Decoder(_Raw)
_json_raw = msgspec.json.Decoder(_Raw)


def partial_reader(event: type[E]) -> Callable[[bytes], PartialMessage[E] | None]:
    """A function that decodes these fields of a message's events, at about 1 us per event; it gives None for bytes
    that are no Contrail message. An unreadable event keeps its place, with an empty type."""
    message: type[PartialMessage[E]] = PartialMessage.__class_getitem__(event)  # type: ignore[attr-defined]
    packed, json = msgspec.msgpack.Decoder(message), msgspec.json.Decoder(message)
    packed_event, json_event = msgspec.msgpack.Decoder(event), msgspec.json.Decoder(event)

    def one_by_one(payload: bytes, is_json: bool) -> PartialMessage[E] | None:
        try:
            found = (_json_raw if is_json else _packed_raw).decode(payload)
        except UNREADABLE:
            return None
        events = list(known(found.events, (json_event if is_json else packed_event).decode))
        return PartialMessage(found.source, found.n, events)

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


decode_any = partial_reader(PartialEvent)
"""Any message."""


HEADS_KEPT = 4096
"""Digests are kept for so many messages before the last place that was asked for."""


class ChainHeads:
    """Digests of one stream's messages. Reads forward to the next message of the source in question, and keeps the
    digests of the messages between."""

    def __init__(self, archive: ArchiveReader, stream: StreamName) -> None:
        self._archive = archive
        self._stream = stream
        self._last = archive.contents.heads.get(stream, {})
        self._known: dict[tuple[str, int], bytes] = {}
        self._newest: dict[str, int] = {}
        """Per source the number of its last message with a known digest."""
        self._named_at: deque[tuple[int, tuple[str, int]]] = deque()
        """The known digests by the sequence of the message that names them, in the order of the stream."""
        self._start, self._place = 0, -1
        """The stretch of the stream that is read; `_place` is its last sequence."""
        self._unread: Iterator[Record] = iter(())

    def __repr__(self) -> str:
        return f"<ChainHeads of {self._stream}: {len(self._known)} from {self._start} on>"

    def of(self, seq: int, source: str, n: int) -> bytes:
        """The digest of that message; CHAIN_START if no message names it."""
        last = self._last.get(source)
        if last is not None and last.n == n:
            return bytes.fromhex(last.digest)  # from the archive's table of last messages
        if not self._start <= seq <= self._place + 1:
            self._begin(seq)
        self._forget(seq - HEADS_KEPT)
        while (source, n) not in self._known and self._newest.get(source, -1) < n:
            if not self._read():
                break
        return self._known.get((source, n), CHAIN_START)

    def _begin(self, seq: int) -> None:
        self._start, self._place, self._unread = seq, seq - 1, self._archive.read(self._stream, seq)
        self._known.clear()
        self._newest.clear()
        self._named_at.clear()

    def _forget(self, before: int) -> None:
        """Digests named before that sequence are dropped."""
        self._start = max(self._start, before)
        while self._named_at and self._named_at[0][0] <= before:
            self._known.pop(self._named_at.popleft()[1], None)

    def _read(self) -> bool:
        record = next(self._unread, None)
        if record is None:
            return False
        self._place = record.seq
        decoder = _json_fields if record.payload[:1] == JSON_START else _packed_fields
        try:
            fields = decoder.decode(record.payload)
        except UNREADABLE:
            return True  # no Contrail message
        self._known[fields.source, fields.n - 1] = fields.prev
        self._named_at.append((record.seq, (fields.source, fields.n - 1)))
        self._newest[fields.source] = fields.n - 1
        return True


class _ChainFields(msgspec.Struct, gc=False):
    """The chain fields of a message."""

    source: str
    n: int
    prev: bytes


_packed_fields = msgspec.msgpack.Decoder(_ChainFields)
_json_fields = msgspec.json.Decoder(_ChainFields)
