"""The scale stream of a log, read from its start, and places in it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import NamedTuple

from core.codec import decode_message
from core.errors import CallerError, Corrupt
from core.events import Event, UnknownEvent
from core.events.scale import ScaleDecided
from core.ids import StreamSeq
from core.subjects import SCALE
from replay.recording.moment import AtCursor, AtRequest, AtSequence, AtTime, Moment, find_request
from streams.log import EventLog

NO_STREAM = "the log has no stream of a planner; `planner: {mode: advise}` in the deployment's file starts one"
NO_DECISION = "no decision yet: the speed of a worker is not known, or no planner leads"
PROGRESS_EVERY = 1_000
"""Messages between two reports of progress."""
Progress = Callable[[int, int], None]
"""Gets how many messages are read, and how many there are."""


class ScaleMessage(NamedTuple):
    """One message of the stream."""

    seq: int
    events: tuple[Event | UnknownEvent, ...]


class ScalePlace(NamedTuple):
    """A place among decisions: a time, or a message. One of them is given."""

    time_ms: int | None = None
    seq: int | None = None

    def is_before(self, seq: int, decided: ScaleDecided) -> bool:
        """The place lies before the decision of that message."""
        if self.seq is not None:
            return self.seq < seq
        return self.time_ms is not None and self.time_ms < decided.at_ms

    @property
    def previous(self) -> ScalePlace:
        """The place right before it."""
        return ScalePlace(*(None if each is None else each - 1 for each in self))


async def read_scale(log: EventLog, progress: Progress = lambda _done, _of: None) -> AsyncGenerator[ScaleMessage, None]:
    """The readable messages, oldest first; some 40 us each. CallerError without such a stream."""
    if SCALE not in await log.streams():
        raise CallerError(NO_STREAM)
    state = await log.state(SCALE)
    async with aclosing(log.read(SCALE, state.first_seq)) as records:  # type: ignore[type-var]
        async for record in records:
            if record.seq % PROGRESS_EVERY == 0:
                progress(record.seq - state.first_seq, state.messages)
            try:
                yield ScaleMessage(record.seq, decode_message(record.payload).events)
            except Corrupt:
                continue  # readers see the gap in the sequences
    progress(state.messages, state.messages)


async def scale_place(log: EventLog, moment: Moment) -> ScalePlace:
    """The place of the moment: a message of the scale stream by its sequence, all others by their time. CallerError if
    the log does not know it."""
    match moment:
        case AtTime(time_ms):
            return ScalePlace(time_ms)
        case AtRequest(request):
            return ScalePlace((await find_request(log, request)).record.time_ms)
        case AtSequence(stream, seq):
            seqs = {stream: seq}
        case AtCursor(pairs):
            seqs = dict(pairs)
    there = await log.streams()
    times = []
    for stream, seq in seqs.items():
        record = await log.at(stream, StreamSeq(seq)) if stream in there else None
        if record is None:
            has = await log.state(SCALE) if SCALE in there else None
            reach = "" if has is None else f"; of the planner's stream it has scale:{has.first_seq} to {has.last_seq}"
            raise CallerError(f"{stream}:{seq} is not in the log{reach}")
        times.append(record.time_ms)
    return ScalePlace(seq=seqs[SCALE]) if SCALE in seqs else ScalePlace(max(times))
