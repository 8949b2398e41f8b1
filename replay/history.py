"""History: a running log asked for a moment, before anything of it is copied."""

from __future__ import annotations

from core.codec import decode_message
from core.errors import CallerError, Corrupt
from core.events import RequestRejected, RequestRouted
from core.events.routing import RequestTurnedAway
from core.ids import StreamName, StreamSeq
from core.moments import AtCursor, AtRequest, AtSequence, AtTime, Moment
from core.subjects import ROUTING
from streams.log import EventLog, Record

FIRST = StreamSeq(1)


async def position(log: EventLog, stream: StreamName, moment: Moment) -> StreamSeq:
    """The first sequence of the stream at or after the moment; CallerError if the log does not know it."""
    match moment:
        case AtTime(time_ms):
            return await log.seek(stream, time_ms)
        case AtSequence(named, seq):
            return seq if named == stream else await log.seek(stream, await _time_of(log, named, seq))
        case AtRequest(request):
            found = await routed(log, request)
            return found.seq if stream == ROUTING else await log.seek(stream, found.time_ms)
        case AtCursor():
            return StreamSeq(moment.seq(stream) + 1)


async def routed(log: EventLog, request: str) -> Record:
    """The message that says where the request went at first, or that it went nowhere; of the last request of that id.
    CallerError if the log knows none. Reads the whole routing stream."""
    named, found = request.encode(), None
    async for record in log.read(ROUTING, FIRST):
        if named in record.payload and _routes(record.payload, request):
            found = record
    if found is None:
        raise CallerError(
            f"{request!r} is no time, no sequence, and no request that the log knows; "
            "`contrail events --stream routing` lists them"
        )
    return found


def _routes(payload: bytes, request: str) -> bool:
    try:
        events = decode_message(payload).events
    except Corrupt:
        return False
    return any(
        (isinstance(event, RequestRouted | RequestRejected) and event.request == request and event.attempt == 0)
        or (isinstance(event, RequestTurnedAway) and event.request == request)
        for event in events
    )


async def _time_of(log: EventLog, stream: StreamName, seq: StreamSeq) -> int:
    async for record in log.read(stream, seq):
        return record.time_ms
    raise CallerError(f"{stream}:{seq} lies beyond the end of the log")
