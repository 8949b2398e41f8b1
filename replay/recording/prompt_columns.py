"""PromptColumns: all block hashes of a decision's prompt, those of the decision that it continues included.

A column is put together from the decisions of its chain, which stand in the recording, or from a column that an export
carries for those before its range. The record's own digest proves it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from core.codec import decode_message
from core.errors import Corrupt
from core.events import Event, PromptBase, RequestRouted, UnknownEvent
from core.prompt import HASH_BYTES, column_digest, sampled
from core.subjects import ROUTING
from streams.archive.archive_reader import ArchiveReader

COLUMNS_BYTES = 64 * 1024 * 1024
"""Bound of the columns that are kept, those used last."""
Place = tuple[int, int]
"""The sequence of a message in the routing stream, and the place of an event in it."""


class BaseFault(NamedTuple):
    """The reason why a decision's prompt cannot be put together."""

    text: str
    """A phrase about the decision."""
    is_missing: bool
    """True if the recording lacks a decision of its chain; False if the record contradicts the recording."""


class PromptColumns:
    """The columns of one recording's decisions. Used by one thread at a time."""

    def __init__(self, archive: ArchiveReader) -> None:
        self._archive = archive
        self._columns: OrderedDict[Place, bytes] = OrderedDict()
        self._proved: set[Place] = set()
        """Those of them that fit the digest of their own record."""
        self._bytes = 0
        self._message: tuple[int, Sequence[Event | UnknownEvent]] | None = None
        """The last message that was read."""

    def __repr__(self) -> str:
        return f"<PromptColumns {len(self._columns)} columns, {self._bytes} bytes>"

    def of(self, seq: int, place: int, event: RequestRouted) -> bytes | BaseFault:  # noqa: PLR0911 - a fault each
        """All hashes of the prompt of the decision, which stands there. Corrupt if the archive is damaged.

        Some microseconds if the column of its base was asked for lately; else one read of the archive for each
        decision of its chain.
        """
        base = event.base
        if not isinstance(base, PromptBase):
            self._keep((seq, place), event.hashes)
            return event.hashes
        if (seq, place) in self._proved:
            return self._columns[seq, place]
        epoch, read = event.cursor.get(ROUTING, (0, 0))
        if base.seq > read or base.decision >= (seq, place):
            return BaseFault(f"it continues {base_text(base)}, and had read {ROUTING} up to {read}", is_missing=False)
        if ROUTING not in self._archive.streams or self._archive.span(ROUTING).epoch != epoch:
            return BaseFault(f"it continues {base_text(base)} of epoch {epoch}, which is not here", is_missing=True)
        before = self._before(base)
        if isinstance(before, BaseFault):
            return before
        column = base.extended(before, event.hashes)
        if len(before) < HASH_BYTES * base.blocks or column_digest(column) != base.column:
            if (fault := self._fault_before(base)) is not None:
                return fault
            text = f"its prompt with that of {base_text(base)}, which it continues, has another digest than it says"
            return BaseFault(text, is_missing=False)
        if sampled(column, base.blocks) != base.hashes:
            return BaseFault(
                f"it shows other hashes than those of {base_text(base)}, which it continues", is_missing=False
            )
        self._keep((seq, place), column)
        self._proved.add((seq, place))
        return column

    def whole(self, seq: int, place: int, event: Event | UnknownEvent) -> Event | UnknownEvent:
        """The event that stands there; a decision that continues another one has all hashes of its prompt, and no base.
        It is as recorded if they cannot be had."""
        if not isinstance(event, RequestRouted) or event.base is UNSET:
            return event
        found = self.of(seq, place, event)
        return event if isinstance(found, BaseFault) else replace(event, v=1, base=UNSET, hashes=found)

    def read_up_to(self, seq: int) -> None:
        """The columns of the latest decisions before that message are at hand; some 10 us for each before it."""
        for record in self._archive.read(ROUTING, 1, seq) if ROUTING in self._archive.streams else ():
            try:
                events = decode_message(record.payload).events
            except Corrupt:
                continue
            for place, event in enumerate(events):
                if isinstance(event, RequestRouted):
                    self._take(record.seq, place, event)

    def _take(self, seq: int, place: int, event: RequestRouted) -> None:
        """The column of the decision is kept if that of its base is at hand; nothing proves it."""
        if not isinstance(event.base, PromptBase):
            self._keep((seq, place), event.hashes)
            return
        before = event.base.decision
        column = self._columns.get(before) or self._archive.columns.get(before)
        if column is not None:
            self._keep((seq, place), event.base.extended(column, event.hashes))

    def _before(self, base: PromptBase) -> bytes | BaseFault:
        """The column of the decision that is continued; nothing proves it."""
        chain = list[tuple[PromptBase, bytes]]()
        at = base
        while True:
            place = at.decision
            column = self._columns.get(place)
            if column is not None:
                self._columns.move_to_end(place)
                break
            event = self._event(place)
            if event is None:
                column = self._archive.columns.get(place)
                if column is None:
                    return self._missing(base, at, len(chain))
                break
            if not isinstance(event, RequestRouted):
                return BaseFault(f"it continues {base_text(at)}, which is no decision", is_missing=False)
            if not isinstance(event.base, PromptBase):
                column = event.hashes
                break
            if event.base.decision >= place:
                return BaseFault(f"it continues {base_text(at)}, which continues a later one", is_missing=False)
            chain.append((event.base, event.hashes))
            at = event.base
        for link, hashes in reversed(chain):
            column = link.extended(column, hashes)
        self._keep(base.decision, column)
        return column

    def _fault_before(self, base: PromptBase) -> BaseFault | None:
        """The fault of a decision of the chain that ends with this base, if one contradicts its own record: it was made
        on another history, or is wrong, and its own verdict says so."""
        chain, at = list[tuple[Place, RequestRouted]](), base
        while isinstance(event := self._event(at.decision), RequestRouted):
            place = at.decision
            if not isinstance(event.base, PromptBase) or event.base.decision >= place:
                break
            chain.append((place, event))
            at = event.base
        for place, event in reversed(chain):
            if place not in self._proved and isinstance(self.of(*place, event), BaseFault):
                return BaseFault(f"it continues {base_text(base)}, whose own prompt is not known", is_missing=True)
        return None

    def _event(self, place: Place) -> Event | UnknownEvent | BaseFault | None:
        """The event there, None if the recording does not have its message; a BaseFault if the message has no such
        place."""
        seq, number = place
        if self._message is None or self._message[0] != seq:
            record = self._archive.at(ROUTING, seq)
            if record is None:
                return None
            try:
                self._message = seq, decode_message(record.payload).events
            except Corrupt:
                self._message = seq, ()
        events = self._message[1]
        return events[number] if 0 <= number < len(events) else BaseFault("no event", is_missing=False)

    def _missing(self, base: PromptBase, at: PromptBase, hops: int) -> BaseFault:
        through = f", by a chain of {hops + 1} decisions" if hops else ""
        return BaseFault(
            f"it continues {base_text(base)}{through}, and {base_text(at)} is not in the log", is_missing=True
        )

    def _keep(self, place: Place, column: bytes) -> None:
        before = self._columns.pop(place, b"")
        self._columns[place] = column
        self._bytes += len(column) - len(before)
        while self._bytes > COLUMNS_BYTES and len(self._columns) > 1:
            oldest, dropped = self._columns.popitem(last=False)
            self._bytes -= len(dropped)
            self._proved.discard(oldest)


def base_text(base: PromptBase) -> str:
    """The place of the decision that is continued, for people."""
    return f"{ROUTING}:{base.seq}+{base.place}"
