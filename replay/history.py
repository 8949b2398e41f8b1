"""History: the log read for people: messages in order, from one moment to another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from core.codec import Message, decode_message
from core.errors import CallerError, Corrupt
from core.events import RequestRouted
from core.ids import StreamName, StreamSeq
from core.moments import AtRequest, AtSequence, AtTime, Moment
from core.subjects import ROUTING
from streams.log import EventLog

FIRST = StreamSeq(1)


class Entry(NamedTuple):
    """One message where it stands."""

    stream: StreamName
    seq: StreamSeq
    time_ms: int
    subject: str
    message: Message


class Range(NamedTuple):
    """From a sequence on, up to one (not included); None is open."""

    start: StreamSeq
    end: StreamSeq | None


async def entries(log: EventLog, stream: StreamName, start: StreamSeq = FIRST) -> AsyncIterator[Entry]:
    """The stream's messages from there to its present end; what is no message of ours is passed over."""
    async for record in log.read(stream, start):
        try:
            message = decode_message(record.payload)
        except Corrupt:
            continue
        yield Entry(stream, record.seq, record.time_ms, record.subject, message)


async def position(log: EventLog, stream: StreamName, moment: Moment) -> StreamSeq:
    """The first sequence of the stream at or after the moment; CallerError if the log does not know it."""
    match moment:
        case AtTime(time_ms):
            return await log.seek(stream, time_ms)
        case AtSequence(named, seq):
            return seq if named == stream else await log.seek(stream, await _time_of(log, named, seq))
        case AtRequest(request):
            async for entry in entries(log, ROUTING):
                for event in entry.message.events:
                    if isinstance(event, RequestRouted) and event.request == request:
                        return entry.seq if stream == ROUTING else await log.seek(stream, entry.time_ms)
    raise CallerError(f"{request!r} is no time, no sequence, and no request that the log knows")


async def _time_of(log: EventLog, stream: StreamName, seq: StreamSeq) -> int:
    async for record in log.read(stream, seq):
        return record.time_ms
    raise CallerError(f"{stream}:{seq} lies beyond the end of the log")
