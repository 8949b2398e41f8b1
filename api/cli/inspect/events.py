"""`contrail events`: the log as JSON lines."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import NamedTuple

import click
import orjson

from api.config.deployment_ref import DeploymentRef, deployment_options
from api.process.planes import open_log
from api.process.printable import printable_json
from core.clock import SystemClock
from core.codec import decode_message
from core.errors import CallerError, Corrupt
from core.event_json import message_lines
from core.ids import StreamName, StreamSeq
from core.subjects import SNAPSHOTS
from replay.recording.moment import FIRST, Moment, parse_moment, position_in_log
from streams.log import EventLog, Record


class EventRange(NamedTuple):
    """From a moment to another; None is open."""

    start: Moment | None
    end: Moment | None


@click.command()
@deployment_options
@click.option("--stream", "chosen", help="kv, kv_0, load, jobs or routing; all if not given.")
@click.option("--from", "start", help="MOMENT: 2026-11-20T14:03:05Z, 14:03, -15m, kv:1234, or a request id.")
@click.option("--to", "end", help="MOMENT up to which, not included.")
@click.option("--follow", is_flag=True, help="Go on with new events.")
def events(connection: DeploymentRef, chosen: str | None, start: str | None, end: str | None, follow: bool) -> None:
    """Print the log, one event a line, as JSON with stable keys; all streams together by time.

    \b
    contrail events --from -15m
    contrail events --stream routing --follow
    contrail events --stream kv --from kv:100 --to kv:200
    contrail events --from req-0123456789abcdef --data data
    """
    if follow and end is not None:
        raise CallerError("--follow has no end: leave out --to")
    now_ms = SystemClock().wall_ms()
    span = EventRange(*(parse_moment(text, now_ms) if text is not None else None for text in (start, end)))
    try:
        asyncio.run(_print(connection, chosen, span, follow))
    except BrokenPipeError:
        sys.stderr.close()  # the reader of the output is gone


async def _print(connection: DeploymentRef, chosen: str | None, span: EventRange, follow: bool) -> None:
    async with open_log(connection) as log:
        names = _chosen(await log.streams(), chosen)
        if follow:
            await _follow(log, names, span)
        else:
            async for record in merge_by_time([_within(log, stream, span) for stream in names]):
                show(record)


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


async def _follow(log: EventLog, names: list[StreamName], span: EventRange) -> None:
    """New records are shown until the reader of the output is gone: then BrokenPipeError."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def shown(record: Record) -> None:
        try:
            show(record)
        except BrokenPipeError as error:  # an error raised here would be lost in the tail
            if not ended.done():
                ended.set_exception(error)

    for stream in names:
        state = await log.state(stream)
        start = StreamSeq(state.last_seq + 1) if span.start is None else await position_in_log(log, stream, span.start)
        await log.tail(stream, start, shown)
    await ended


def show(record: Record) -> None:
    """The record's events are printed, a line each; a record that is no message becomes a line `Corrupt`."""
    try:
        message = decode_message(record.payload)
    except Corrupt as error:
        lines = [{"type": "Corrupt", "stream": record.stream, "seq": record.seq, "error": str(error)}]
    else:
        lines = message_lines(record.stream, record.seq, record.time_ms, message)
    text = b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines).decode()
    sys.stdout.buffer.write(printable_json(text).encode())
    sys.stdout.buffer.flush()
