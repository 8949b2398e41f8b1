"""Recording copy: a range of a deployment's log, or of an export, written to a file of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import aclosing, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from api.cli.options import RecordingRange
from api.cli.output import show_progress
from core.clock import SystemClock
from core.codec import decode_message
from core.errors import CallerError, Corrupt
from core.event_json import time_text
from core.events import RequestFinished, RequestRejected, RequestRouted
from core.ids import StreamName, StreamSeq
from core.keys import DeploymentKey
from core.subjects import ROUTING, SNAPSHOTS
from projections.digest import READ_FOLD_VERSIONS
from replay.recording.moment import AtCursor, AtRequest, AtSequence, AtTime, Moment, position_in_log
from replay.recording.request_history import TRIED_AGAIN
from streams.archive.archive_export import ExportedRange, Progress, Range, archive, cut
from streams.archive.archive_format import is_key_of
from streams.archive.archive_log import ArchiveLog
from streams.archive.archive_reader import ArchiveReader
from streams.archive.archive_writer import ArchiveWriter
from streams.log import EventLog
from streams.snapshot_store import SnapshotStore

PROGRAM = "contrail"
CLOCKS_APART_MS = 86_400_000
"""A moment further ahead of our clock lies ahead of the broker's too, and perhaps of all that it can count to."""

OUTCOMES_MS = 600_000
"""A range up to a request goes on until the requests in it have ended, for so long at most behind that one."""
OUTCOMES_MESSAGES_MAX = 200_000
"""The same in messages of the routing stream."""
LAST_MS = 253_402_300_799_000
"""The last second that the calendar has a name for."""


async def copy_log(
    log: EventLog,
    namespace: str,
    key: DeploymentKey,
    path: Path,
    range_: RecordingRange,
    progress: Progress | None = None,
) -> ExportedRange:
    """The range of a deployment's log stands in the file, with the snapshot before it."""
    writer = ArchiveWriter(path, namespace, key.chain_key, program(), SystemClock().wall_ms())
    with _finished(writer):
        bounds = await _bounds(log, range_, SystemClock().wall_ms())
        store = SnapshotStore(log, namespace, key.chain_key)
        report = show_progress() if progress is None else progress
        found = await archive(log, store, writer, bounds.range, report, fold_versions=READ_FOLD_VERSIONS)
        writer.finish(writer.contents(bounds.from_ms, bounds.to_ms))
    return found


async def copy_archive(
    source: ArchiveReader, key: DeploymentKey | None, path: Path, range_: RecordingRange, progress: Progress
) -> ExportedRange:
    """The same of an archive. Proofs by the key hold for the copy too."""
    contents = source.contents
    if key is not None and not contents.redacted and not is_key_of(key.chain_key, contents.key_check):
        raise CallerError(f"the key is not that of the deployment {contents.namespace!r} from which this log comes")
    chain_key = bytes.fromhex(contents.chain_key) if contents.redacted else key.chain_key if key is not None else b""
    writer = ArchiveWriter(
        path, contents.namespace, chain_key, program(), SystemClock().wall_ms(), check=contents.key_check
    )
    with _finished(writer):
        bounds = await _bounds(ArchiveLog(source), range_, contents.end_ms)
        found = await cut(source, writer, bounds.range, show_progress() if progress is None else progress)
        from_ms = contents.from_ms if range_.start is None else bounds.from_ms
        writer.finish(writer.contents(from_ms, bounds.to_ms, redacted=contents.redacted))
    return found


@contextmanager
def _finished(writer: ArchiveWriter) -> Iterator[None]:
    """The writer's file is whole in the end, or gone."""
    try:
        yield
    except BaseException:  # half a file is of no use
        writer.abandon()
        raise


def program() -> str:
    """The name and version of this program, as archives record it."""
    return f"{PROGRAM} {version(PROGRAM)}"


# --- moments -------------------------------------------------------------------------------------------------------


class _Bounds(NamedTuple):
    """A range in sequences, and in time."""

    range: Range
    from_ms: int
    """0 if it is open."""
    to_ms: int


async def _bounds(log: EventLog, range_: RecordingRange, now_ms: int) -> _Bounds:
    """CallerError if nothing lies between."""
    streams = [stream for stream in await log.streams() if stream != SNAPSHOTS]
    start, end = [await _place(log, streams, moment, now_ms) for moment in range_]
    if isinstance(range_.end, AtRequest) and end is not None and ROUTING in streams:
        last = await _outcomes_end(log, start[ROUTING] if start is not None else StreamSeq(1), end[ROUTING])
        if last >= end[ROUTING]:
            end = await _place(log, streams, AtSequence(ROUTING, StreamSeq(last + 1)), now_ms)
    if start is not None or end is not None:
        starts, ends = start or dict.fromkeys(streams, StreamSeq(1)), end or await _beyond(log, streams)
        if not any(starts[stream] < ends[stream] for stream in streams):
            has = await _reach(log, streams)
            asked = f"what lies from {_words(range_.start, 'its start')} up to {_words(range_.end, 'its end')}"
            raise CallerError(f"the log has nothing between these moments: {has}, and asked for is {asked} (UTC)")
    from_ms = 0 if start is None else await _time_ms(log, range_.start, start, now_ms)
    return _Bounds(Range(start, end), from_ms, min(now_ms, await _time_ms(log, range_.end, end or {}, now_ms)))


async def _reach(log: EventLog, streams: list[StreamName]) -> str:
    """From when to when it reaches, in words."""
    states = [(stream, await log.state(stream)) for stream in streams]
    ends = [(stream, seq) for stream, state in states for seq in (state.first_seq, state.last_seq) if state.messages]
    times = [record.time_ms for stream, seq in ends if (record := await log.at(stream, seq)) is not None]
    return f"it reaches from {time_text(min(times))} to {time_text(max(times))}" if times else "it is empty"


def _words(moment: Moment | None, none: str) -> str:
    """The moment as people type it."""
    match moment:
        case None:
            return none
        case AtTime(time_ms):
            return time_text(min(max(0, time_ms), LAST_MS))
        case AtSequence(stream, seq):
            return f"{stream}:{seq}"
        case AtRequest(request):
            return request
        case AtCursor(seqs):
            return ",".join(f"{stream}:{seq}" for stream, seq in seqs)


async def _place(
    log: EventLog, streams: list[StreamName], moment: Moment | None, now_ms: int
) -> dict[StreamName, StreamSeq] | None:
    """Per stream the first sequence at or after the moment; None for none."""
    if moment is None:
        return None
    if isinstance(moment, AtTime):
        if moment.time_ms > now_ms + CLOCKS_APART_MS:
            return await _beyond(log, streams)
        moment = AtTime(max(0, moment.time_ms))
    if isinstance(moment, AtCursor):
        return {stream: StreamSeq(moment.seq(stream) + 1) for stream in streams}
    if isinstance(moment, AtRequest):  # looked for once
        moment = AtSequence(ROUTING, await position_in_log(log, ROUTING, moment))
    if isinstance(moment, AtSequence) and moment.stream not in streams:
        raise CallerError(f"there is no stream {moment.stream}; there are {', '.join(streams) or 'none yet'}")
    return {stream: await position_in_log(log, stream, moment) for stream in streams}


async def _outcomes_end(log: EventLog, start: StreamSeq, end: StreamSeq) -> StreamSeq:
    """The last message with an end of a request that was routed in the routing stream from `start` up to `end` (not
    included), also by a later attempt; 0 if none ends behind `end`. Some 10 us per message."""
    requests, under_way = set[str](), set[str]()
    last, until_ms = 0, None
    async with aclosing(log.read(ROUTING, start)) as records:  # type: ignore[type-var]
        async for record in records:
            if record.seq >= end:
                until_ms = record.time_ms + OUTCOMES_MS if until_ms is None else until_ms
                if not under_way or record.time_ms > until_ms or record.seq >= end + OUTCOMES_MESSAGES_MAX:
                    break
            for event in _course(record.payload):
                if isinstance(event, RequestRouted):
                    if record.seq < end:
                        requests.add(event.request)
                        under_way.add(event.request)
                elif event.request in requests:
                    last = record.seq if record.seq >= end else last
                    if not isinstance(event, RequestFinished) or event.outcome not in TRIED_AGAIN:
                        under_way.discard(event.request)
    return StreamSeq(last)


def _course(payload: bytes) -> Iterator[RequestRouted | RequestFinished | RequestRejected]:
    try:
        events = decode_message(payload).events
    except Corrupt:
        return
    yield from (event for event in events if isinstance(event, RequestRouted | RequestFinished | RequestRejected))


async def _beyond(log: EventLog, streams: list[StreamName]) -> dict[StreamName, StreamSeq]:
    return {stream: StreamSeq((await log.state(stream)).last_seq + 1) for stream in streams}


async def _time_ms(log: EventLog, moment: Moment | None, place: Mapping[StreamName, StreamSeq], now_ms: int) -> int:
    """When the moment was: of what is no time, when the earliest message behind it was stored; now if none is."""
    if isinstance(moment, AtTime):
        return moment.time_ms
    times = []
    for stream, seq in place.items():
        record = await log.at(stream, seq)
        if record is not None:
            times.append(record.time_ms)
    return min(times, default=now_ms)
