"""Moments: a time, a time of today, a time so long ago, a stream's sequence, a request id, or a cursor.

`parse_moment` reads a moment as people type it. `position_in_log` finds its place in a running log; a recording finds
it by `Recording.position`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from core.codec import decode_message
from core.errors import CallerError, Corrupt
from core.events import RequestRejected, RequestRouted
from core.events.routing import RequestTurnedAway
from core.ids import RequestId, StreamName, StreamSeq, given_id
from core.subjects import ROUTING, kv_stream
from replay.recording.request_history import several_tenants
from replay.recording.request_names import is_part, only_one, possible_ids
from streams.log import EventLog, Record

_AGO = re.compile(r"-(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SEQ = re.compile(r"(kv(?:_\d+)?|load|routing|jobs|scale):(\d+)")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?Z?")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_FIRST_MS = round(datetime(1, 1, 1, tzinfo=UTC).timestamp()) * 1000
_LAST_MS = round(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()) * 1000
"""Of the calendar: times beyond have no name."""


class AtTime(NamedTuple):
    """Milliseconds since 1970."""

    time_ms: int


class AtSequence(NamedTuple):
    """A stream's own position."""

    stream: StreamName
    seq: StreamSeq


class AtRequest(NamedTuple):
    """When a request was routed first."""

    request: RequestId


class AtCursor(NamedTuple):
    """Behind these messages, stream by stream; before the first of a stream that is not named."""

    seqs: tuple[tuple[StreamName, StreamSeq], ...]

    def seq(self, stream: StreamName) -> StreamSeq:
        """The last of the stream's messages that lie before the moment; 0 for none."""
        return dict(self.seqs).get(stream, StreamSeq(0))


Moment = AtTime | AtSequence | AtRequest | AtCursor


def parse_moment(text: str, now_ms: int) -> Moment:
    """`2026-11-20T14:03:05Z`, `14:03` (UTC, today), `-15m`, `kv:1234`, a request id, or `kv_0:12,load:3,routing:7`.

    CallerError if empty, or outside of the calendar. Of a sequence, the moment before that message; of a cursor, the
    one behind all of them.
    """
    text = text.strip()
    if not text:
        raise CallerError("a moment is a time (2026-11-20T14:03:05Z, 14:03, -15m), kv:1234, or a request id")
    if ago := _AGO.fullmatch(text):
        return _at(text, now_ms - float(ago[1]) * _UNIT_MS[ago[2]])
    sequences = [_SEQ.fullmatch(part.strip()) for part in text.split(",")]
    if all(sequences):
        seqs = tuple(_sequence(match) for match in sequences if match)
        return AtSequence(*seqs[0]) if len(seqs) == 1 else AtCursor(seqs)
    if clock := _CLOCK.fullmatch(text):
        return AtTime(_today(now_ms, int(clock[1]), int(clock[2]), int(clock[3] or 0)))
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return AtRequest(RequestId(text))
    return _at(text, (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def _at(text: str, time_ms: float) -> AtTime:
    if not _FIRST_MS <= time_ms <= _LAST_MS:
        raise CallerError(f"{text} lies outside of the years 1 to 9999")
    return AtTime(round(time_ms))


def _sequence(match: re.Match[str]) -> tuple[StreamName, StreamSeq]:
    stream = kv_stream(0) if match[1] == "kv" else StreamName(match[1])
    return stream, StreamSeq(int(match[2]))


def _today(now_ms: int, hour: int, minute: int, second: int) -> int:
    try:
        at = datetime.fromtimestamp(now_ms / 1000, UTC).replace(hour=hour, minute=minute, second=second, microsecond=0)
    except ValueError as error:
        raise CallerError(f"{hour}:{minute:02}:{second:02} is no time of day") from error
    if at.timestamp() * 1000 > now_ms:
        at -= timedelta(days=1)  # the last time that the clock showed it
    return round(at.timestamp() * 1000)


FIRST = StreamSeq(1)
READ_BACK = 256
"""Messages that are read first for the last request, back from the end; each further time four times as many."""


async def position_in_log(log: EventLog, stream: StreamName, moment: Moment) -> StreamSeq:
    """The first sequence of the stream at or after the moment; CallerError if the log does not know it."""
    match moment:
        case AtTime(time_ms):
            return await log.seek(stream, time_ms)
        case AtSequence(named, seq):
            return seq if named == stream else await log.seek(stream, await _time_of(log, named, seq))
        case AtRequest(request):
            found = (await find_request(log, request)).record
            return found.seq if stream == ROUTING else await log.seek(stream, found.time_ms)
        case AtCursor():
            return StreamSeq(moment.seq(stream) + 1)


class FoundRequest(NamedTuple):
    """The message that says where a request went at first, or that it went nowhere."""

    request: str
    tenant: str
    """Empty for none."""
    record: Record


_Uses = tuple[dict[str, FoundRequest], dict[str, FoundRequest]]
"""Of one id, the last request of each tenant under it, and under the names that replicas made of it."""


async def find_request(log: EventLog, text: str, tenant: str | None = None) -> FoundRequest:
    """The tenant's request that a person means by the text, as `RequestHistory.named` reads it; of several of that id
    the last one. CallerError if the log knows none, or some of several tenants and none is named. Reads the whole
    routing stream."""
    ids = possible_ids(text)
    names = [each.encode() for each in ids]
    found: dict[str, _Uses] = {}
    async for record in log.read(ROUTING, FIRST):
        if any(name in record.payload for name in names):
            for event in _routing(record.payload):
                request, given = event.request, given_id(event.request)
                use = FoundRequest(request, event.tenant, record)
                if request in ids:
                    found.setdefault(request, ({}, {}))[0][event.tenant] = use
                elif given in ids or is_part(text, given):
                    found.setdefault(given, ({}, {}))[given != request][event.tenant] = use
    name = next((each for each in ids if each in found), None) or only_one(text, found)
    one, other = found.get(name or "", ({}, {}))
    tenants = one.keys() | other.keys()
    if tenant is None and len(tenants) > 1:
        raise several_tenants(text, sorted(tenants))
    for uses in (one, other):
        for whose, use in uses.items():
            if tenant in {None, whose}:
                return use
    raise CallerError(
        f"{text!r} is no time (14:03, 14:03:05Z, -15m), no sequence (routing:1234), and no request that the log knows"
        f"{'' if tenant is None else f' of tenant {tenant!r}'}; `contrail events --stream routing` lists them"
    )


async def last_request(log: EventLog, tenant: str | None = None) -> FoundRequest:
    """The tenant's request that was routed, or refused, last; CallerError if the log has none. Reads back from the
    end."""
    state = await log.state(ROUTING)
    behind, step = state.last_seq + 1, READ_BACK
    while behind > state.first_seq:
        start, found = max(state.first_seq, behind - step), None
        async for record in log.read(ROUTING, StreamSeq(start)):
            for event in _routing(record.payload):
                if tenant in {None, event.tenant}:
                    found = FoundRequest(event.request, event.tenant, record)
        if found is not None:
            return found
        behind, step = StreamSeq(start), step * 4
    of = "" if tenant is None else f" of tenant {tenant!r}"
    raise CallerError(f"no request{of} was routed yet: send one to /v1/chat/completions")


def _routing(payload: bytes) -> Iterator[RequestRouted | RequestRejected | RequestTurnedAway]:
    """First decisions, and ends without one."""
    try:
        events = decode_message(payload).events
    except Corrupt:
        return
    for event in events:
        if isinstance(event, RequestTurnedAway) or (
            isinstance(event, RequestRouted | RequestRejected) and event.attempt == 0
        ):
            yield event


async def _time_of(log: EventLog, stream: StreamName, seq: StreamSeq) -> int:
    async for record in log.read(stream, seq):
        return record.time_ms
    raise CallerError(f"{stream}:{seq} lies beyond the end of the log")
