"""`contrail events`: the log as JSON lines, of a deployment or of a file."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import click
import orjson

from api.cli.replay.recording_source import RecordingSource, recording_options
from api.process.printable import printable_json
from core.codec import decode_message
from core.errors import CallerError, Corrupt, did_you_mean
from core.event_json import message_lines
from core.events import EVENT_TYPES, WorkerJoined
from core.ids import LOST_SUFFIX, StreamName, StreamSeq, given_id
from core.subjects import SNAPSHOTS, is_kv
from replay.recording.moment import FIRST, AtTime, Moment, find_request, parse_moment, position_in_log
from streams.log import EventLog, Record

_ID = re.compile(r"[0-9a-f]{16}")
_JOINED = WorkerJoined.__name__


class EventRange(NamedTuple):
    """From a moment to another; None is open."""

    start: Moment | None
    end: Moment | None


@dataclass(slots=True)
class EventFilter:
    """Which events are shown: those that fit all that is given."""

    types: frozenset[str] = frozenset()
    request: str = ""
    """Its id, as the log has it."""
    session: str = ""
    """The keyed hash that decisions hold. Events of its requests are known from their decisions on."""
    workers: frozenset[str] = frozenset()
    """Ids."""
    _of_session: set[tuple[str, str]] = field(default_factory=set)
    """Source and id of each of the session's requests."""

    def fits(self, line: dict[str, Any]) -> bool:
        """True if the event is to be shown; lines come in the order of the log."""
        source, request = line.get("source", ""), line.get("request", "")
        if self.session and self.session in {line.get("session"), line.get("session_parent")}:
            self._of_session.add((source, request))
        return (
            (not self.types or line["type"] in self.types)
            and (not self.request or self.request in {request, given_id(request)})
            and (not self.session or (source, request) in self._of_session)
            and (not self.workers or bool(self.workers & {source.removesuffix(LOST_SUFFIX), line.get("worker")}))
        )


@click.command()
@recording_options
@click.option("--stream", "chosen", help="kv, kv_0, load, jobs or routing; all if not given.")
@click.option("--request", metavar="REQUEST_ID", help="Events of this request.")
@click.option("--session", metavar="KEY", help="Events of requests of this session, by the key that `explain` shows.")
@click.option("--worker", metavar="NAME_OR_ID", help="Events of this worker, and those that name it.")
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Events of this type; may be given again.")
@click.option("--from", "start", help="MOMENT: 2026-11-20T14:03:05Z, 14:03, -15m, kv:1234, or a request id.")
@click.option("--to", "end", help="MOMENT up to which, not included.")
@click.option("--follow", is_flag=True, help="Go on with new events.")
def events(
    source: RecordingSource, chosen: str | None, start: str | None, end: str | None, follow: bool, **given: Any
) -> None:
    """Print the log, one event a line, as JSON with stable keys; all streams together by time.

    \b
    contrail events --from -15m
    contrail events --stream routing --follow
    contrail events --stream kv --from kv:100 --to kv:200
    contrail events --request req-0123456789abcdef --data data
    contrail events --worker decode-1 --type WorkerJoined --type WorkerLost --log incident.contrail
    """
    if follow and end is not None:
        raise CallerError("--follow has no end: leave out --to")
    if follow and source.connection is None:
        raise CallerError("--follow is for a running deployment: this log does not grow")
    now_ms = source.now_ms
    span = EventRange(*(parse_moment(text, now_ms) if text is not None else None for text in (start, end)))
    if isinstance(span.start, AtTime) and isinstance(span.end, AtTime) and span.start >= span.end:
        raise CallerError(f"--from {start} is not before --to {end}: nothing lies between")
    try:
        asyncio.run(_print(source, chosen, span, given, follow=follow))
    except BrokenPipeError:
        sys.stderr.close()  # the reader of the output is gone


async def _print(
    source: RecordingSource, chosen: str | None, span: EventRange, given: dict[str, Any], *, follow: bool
) -> None:
    async with source.log() as log:
        names, only = _chosen(await log.streams(), chosen), await _filter(log, given)
        if follow:
            await _follow(log, names, span, only)
        else:
            async for record in merge_by_time([_within(log, stream, span) for stream in names]):
                show(record, only)


async def _filter(log: EventLog, given: dict[str, Any]) -> EventFilter:
    """CallerError for a type, a request or a worker that there is not."""
    types, request, worker = given["types"], given["request"], given["worker"]
    for each in types:
        if each not in EVENT_TYPES:
            there = did_you_mean(each, EVENT_TYPES) or f"; there are {', '.join(sorted(EVENT_TYPES))}"
            raise CallerError(f"--type {each}: there is no such event{there}")
    return EventFilter(
        frozenset(types),
        "" if request is None else (await find_request(log, request)).request,
        given["session"] or "",
        frozenset() if worker is None else frozenset(await _lives(log, worker)),
    )


async def _lives(log: EventLog, worker: str) -> set[str]:
    """The ids of that name: all lives of it that the log has; an id is itself. Reads the kv streams for a name."""
    if _ID.fullmatch(worker):
        return {worker}
    found, mark, names = set[str](), _JOINED.encode(), set[str]()
    for stream in filter(is_kv, await log.streams()):
        async for record in log.read(stream, FIRST):
            if mark in record.payload:
                for line in _lines(record):
                    if line["type"] == _JOINED and not line.get("unknown"):
                        names.add(line["name"])
                        if line["name"] == worker:
                            found.add(line["source"])
    if not found:
        raise CallerError(f"the log has no worker {worker!r}; there are {', '.join(sorted(names)) or 'none yet'}")
    return found


def _chosen(there: list[StreamName], chosen: str | None) -> list[StreamName]:
    names = [name for name in there if chosen == name or name.startswith(f"{chosen}_")]
    if chosen is None:
        names = [name for name in there if name != SNAPSHOTS]  # chunks of folds are nothing to read
    if not names:
        raise CallerError(f"there is no stream {chosen!r}; there are {', '.join(there) or 'none yet'}")
    return names


async def _within(log: EventLog, stream: StreamName, span: EventRange) -> AsyncIterator[Record]:
    start = FIRST if span.start is None else await position_in_log(log, stream, span.start)
    end = None if span.end is None else await position_in_log(log, stream, span.end)
    async for record in log.read(stream, start):
        if end is not None and record.seq >= end:
            return
        yield record


async def merge_by_time(streams: list[AsyncIterator[Record]]) -> AsyncIterator[Record]:
    """All records in the order of their times; each stream keeps its own order. Holds one record of each."""
    heads: dict[int, Record] = {}
    for place, stream in enumerate(streams):
        if (record := await anext(stream, None)) is not None:
            heads[place] = record
    while heads:
        first = min(heads, key=lambda place: (heads[place].time_ms, place))
        yield heads.pop(first)
        if (record := await anext(streams[first], None)) is not None:
            heads[first] = record


async def _follow(log: EventLog, names: list[StreamName], span: EventRange, only: EventFilter) -> None:
    """New records are shown until the reader of the output is gone: then BrokenPipeError."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def shown(record: Record) -> None:
        try:
            show(record, only)
        except BrokenPipeError as error:  # an error raised here would be lost in the tail
            if not ended.done():
                ended.set_exception(error)

    for stream in names:
        state = await log.state(stream)
        start = StreamSeq(state.last_seq + 1) if span.start is None else await position_in_log(log, stream, span.start)
        await log.tail(stream, start, shown)
    await ended


def show(record: Record, only: EventFilter) -> None:
    """The record's events that are only are printed, a line each."""
    lines = [line for line in _lines(record) if only.fits(line)]
    if lines:
        text = b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines).decode()
        sys.stdout.buffer.write(printable_json(text).encode())
        sys.stdout.buffer.flush()


def _lines(record: Record) -> list[dict[str, Any]]:
    """A record that is no message becomes a line `Corrupt`."""
    try:
        message = decode_message(record.payload)
    except Corrupt as error:
        return [{"type": "Corrupt", "stream": record.stream, "seq": record.seq, "error": str(error)}]
    return message_lines(record.stream, record.seq, record.time_ms, message)
