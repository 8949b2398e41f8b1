"""PromptBases: the decisions before a range of the routing stream that decisions in it continue, and their prompts."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from core.codec import decode_message
from core.errors import Corrupt
from core.events import Event, PromptBase, RequestRouted, UnknownEvent
from core.events.compact_decision import partial_values
from core.ids import StreamSeq
from core.subjects import ROUTING
from streams.archive.archive_format import PromptColumn
from streams.log import EventLog

Place = tuple[int, int]
"""The sequence of a message, and the place of an event in it."""


class PromptBases:
    """Gathers the decisions that messages of a range continue. Grows with the talks that reach into the range."""

    def __init__(self, start: int) -> None:
        """The range's first sequence."""
        self._start = start
        self._places: set[Place] = set()

    def __repr__(self) -> str:
        return f"<PromptBases: {len(self._places)} before {self._start}>"

    def note(self, payload: bytes) -> None:
        """A message of the range; a microsecond or two."""
        try:
            events = _message.decode(payload).events
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return  # JSON, or no message of ours: neither holds a decision
        for event in events:
            base = event.base if event.d is None else event.d.base
            if base is not None and base.seq < self._start:
                self._places.add(base.decision)

    async def columns(self, log: EventLog, known: Mapping[Place, bytes]) -> list[PromptColumn]:
        """Their prompts, as far as the log has the decisions of their chains or `known` has a column; in the order of
        the log. One read for each decision of a chain."""
        found = dict(known)
        for place in sorted(self._places):
            await _resolve(log, place, found)
        return [PromptColumn(*place, found[place]) for place in sorted(self._places) if place in found]


async def _resolve(log: EventLog, place: Place, found: dict[Place, bytes]) -> None:
    """`found` has the column of that decision, unless a decision of its chain is not there."""
    chain = list[tuple[Place, PromptBase, bytes]]()
    at = place
    while at not in found:
        event = await _event(log, at)
        if not isinstance(event, RequestRouted):
            return
        if not isinstance(event.base, PromptBase):
            found[at] = event.hashes
            break
        before = event.base.decision
        if before >= at:
            return
        chain.append((at, event.base, event.hashes))
        at = before
    column = found[at]
    for _, base, hashes in reversed(chain):
        column = base.extended(column, hashes)
    found[place] = column


async def _event(log: EventLog, place: Place) -> Event | UnknownEvent | None:
    record = await log.at(ROUTING, StreamSeq(place[0]))
    try:
        events = decode_message(record.payload).events if record is not None else ()
    except Corrupt:
        return None
    return events[place[1]] if 0 <= place[1] < len(events) else None


_Values = partial_values("base")


class _Event(msgspec.Struct):
    """Of an event, the decision that it continues."""

    base: PromptBase | None = None
    d: _Values | None = None  # type: ignore[valid-type]
    """Of a compact decision."""


class _Message(msgspec.Struct):
    events: list[_Event]


_message: msgspec.msgpack.Decoder[_Message] = msgspec.msgpack.Decoder(_Message)
