"""SourceChain: the machine of one source's chain in one stream, from events to messages that stand in the log.

1. One append in flight. Events that happen meanwhile go into the next message, so batches grow by themselves.
2. A message is sealed when it is first offered: source, n, the digest of the message before it and its events are
   fixed then. It is offered with the same bytes until the log has it; never dropped, merged or renumbered.
3. Every append states the subject's last sequence as far as the chain knows it. If the log disagrees, its last message
   tells why. It is the one in flight (an earlier try was stored), or another's (the chain is superseded and stops), or
   it is not the last one known (the log was cut or rolled back, or retention took it: send on, then restate).
4. Events that wait are bounded. An overflow drops all that is not sealed, and discards until the message in flight is
   acknowledged; then the owner restates its whole state.
5. They wait in a backlog: in memory, or in a journal from which a successor goes on.

Three drivers: `streams.outbox.outbox` in an event loop, `streams.outbox.journal_recovery` for the chains of dead
processes, and `replay.simulate.simulated_log` in virtual time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from core.codec import (
    CHAIN_START,
    DECISIONS,
    decode_message,
    digest,
    encode_message,
    encode_readable,
    newest_generation,
)
from core.errors import Corrupt, Refused, Unavailable, WrongSequence
from core.events import Event, UnknownEvent
from core.ids import LOST_SUFFIX, SourceId, StreamSeq
from core.machine import Tick
from streams.log import Record
from streams.outbox.backlog import (
    Backlog,
    BacklogSize,
    EventCounts,
    EventTooLarge,
    MemoryBacklog,
    OutboxLimits,
    SealedMessage,
    message_id,
)

DEFAULT_LIMITS = OutboxLimits()

_logger = logging.getLogger(__name__)


class Start(msgspec.Struct, frozen=True):
    """The driver begins, or begins again after it was interrupted: an append without an answer is offered again."""


class Put(msgspec.Struct, frozen=True):
    """The event waits to be appended, or is counted as dropped."""

    event: Event


class Finish(msgspec.Struct, frozen=True):
    """The last event is put: where others are dropped, it comes instead of the restatement after them."""

    event: Event


class Close(msgspec.Struct, frozen=True):
    """Events that are put from now on are counted as dropped; the backlog is not touched any more."""


class Acknowledged(msgspec.Struct, frozen=True):
    """The log has the message in flight, at this sequence."""

    seq: StreamSeq


class LastRead(msgspec.Struct, frozen=True):
    """The last message of the subject; None if there is none."""

    record: Record | None


class LogFailed(msgspec.Struct, frozen=True):
    """The append or the read failed. Unavailable and WrongSequence pass; any other error stops the chain."""

    error: Exception


class Restated(msgspec.Struct, frozen=True):
    """The owner's whole state."""

    events: Sequence[Event]


ChainEvent = Start | Put | Finish | Close | Acknowledged | LastRead | LogFailed | Restated


class Append(NamedTuple):
    """Append the message; answered by Acknowledged or LogFailed."""

    payload: bytes
    message_id: str
    expected_seq: StreamSeq


class ReadLast(NamedTuple):
    """Read the last message of the subject; answered by LastRead or LogFailed."""


class AskRestatement(NamedTuple):
    """Ask the owner for its whole state; answered by Restated. Events that it puts from now on follow that state."""


class Superseded(NamedTuple):
    """Another ended the chain by this message. Nothing is appended any more."""

    record: Record


class Stopped(NamedTuple):
    """The log refuses for good, or the chain cannot go on. Nothing is appended any more."""

    error: Exception


ChainCommand = Append | ReadLast | AskRestatement | Superseded | Stopped


@dataclass(slots=True)
class ChainCounts:
    """Counts of messages and events since the chain was made."""

    stored: int = 0
    """Messages acknowledged."""
    settled: int = 0
    """Messages of which an unanswered try had been stored after all."""
    retried: int = 0
    """Appends that have to be made again."""
    refused: int = 0
    """Messages that the log refused for good: 0, or 1 and the end."""
    cut: int = 0
    """Times that the log did not end at the last message acknowledged."""
    overflows: int = 0
    restated: int = 0
    """Times that the owner restated its whole state."""
    dropped_events: int = 0
    dropped_decisions: int = 0
    """Decisions among the dropped events."""


class SourceChain:
    """See the module's text. One driver owns it; to resume a chain, it sets `n_acked`, `head`, `last_seq` and `sealed`
    before Start."""

    def __init__(
        self,
        subject: str,
        source: SourceId,
        chain_key: bytes,
        limits: OutboxLimits = DEFAULT_LIMITS,
        backlog: Backlog | None = None,
    ) -> None:
        self.subject = subject
        self.source = source
        self.due_us: int | None = None
        self.wall_offset_ms = 0
        """The wall clock less `now_us`; the driver keeps it right."""
        self.counts = ChainCounts()
        self.dropped_ms: tuple[int, int] | None = None
        """Wall-clock times between which decisions were dropped: the first since the log was away, and the last."""
        self.n_acked = 0
        """Messages acknowledged; the n of the next one to be."""
        self.head = CHAIN_START
        """Digest of the last message acknowledged."""
        self.last_seq = StreamSeq(0)
        """The end of the subject, as far as the chain knows."""
        self.sealed: SealedMessage | None = None
        """The message in flight."""
        self.error: Exception | None = None
        """Why nothing is appended any more; None while all is well."""
        self.superseded: Record | None = None
        """The message by which another ended the chain."""
        self.ended = False
        """True if nothing will be appended any more."""
        self.drops = False
        """True if an event that is put now is dropped: the chain has ended, or it overflowed and the log is still away;
        then a restatement will follow."""
        self._chain_key = chain_key
        self._generation = newest_generation(chain_key)
        self._pace_us, self._idle_check_us, self._retry_min_us, self._retry_max_us = (
            round(seconds * 1_000_000)
            for seconds in (limits.pace_s, limits.idle_check_s, limits.retry_min_s, limits.retry_max_s)
        )
        self._backlog = MemoryBacklog(limits) if backlog is None else backlog
        self._is_idle = False
        """True if `due_us` is the time of a check of the subject's end, since there is nothing to append."""
        self._is_closed = False
        self._restatement_due = False
        self._last_event: Event | None = None
        """It comes instead of a restatement."""
        self._next_start_us = 0
        """No message is sealed before it."""
        self._retry_us = self._retry_min_us
        self._away_since_us: int | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.subject} n {self.n_acked}, {self.depth} events wait>"

    @property
    def depth(self) -> int:
        """Events that the log has not acknowledged."""
        return self._backlog.events + (self.sealed.events if self.sealed else 0)

    @property
    def bytes(self) -> int:
        """Bytes that the log has not acknowledged."""
        return self._backlog.encoded_bytes + (len(self.sealed.payload) if self.sealed else 0)

    @property
    def held(self) -> BacklogSize:
        """Size of the backlog, without the message in flight."""
        return self._backlog.held

    @property
    def idle(self) -> bool:
        """True if the log holds all events that were put, or a restatement of them."""
        return not self.depth and not self._restatement_due

    def away_us(self, now_us: int) -> int:
        """For how long the log has acknowledged nothing though something waits, or would, had it not refused for good;
        0 while all is well."""
        if self._away_since_us is None or (self.idle and self.error is None):
            return 0
        return now_us - self._away_since_us

    def step(self, event: ChainEvent | Tick, now_us: int) -> Sequence[ChainCommand]:
        """See `core.machine.Machine`."""
        if isinstance(event, Put):  # by far the most frequent event: it is not matched like the others
            self._put(event.event, now_us)
            return ()
        match event:
            case Tick():
                return self._tick(now_us)
            case Acknowledged(seq):
                self._acknowledge(seq, now_us)
            case Finish(last):
                self._finish(last, now_us)
            case LogFailed(error):
                return self._fail(error, now_us)
            case LastRead(record):
                return self._settle(record, now_us)
            case Restated(events):
                self._restate(events, now_us)
            case Start():
                self._schedule(now_us)
            case Close():
                self._is_closed = True
                self._end()
        return ()

    def _put(self, event: Event, now_us: int) -> None:
        if self.drops:
            self._drop(event, now_us)
            return
        try:
            waits = self._backlog.offer(event)
        except EventTooLarge as error:
            self._refuse(event, error, now_us)
            return
        if not waits:
            self._drop(event, now_us)
            self._overflow(now_us)
        if self._is_idle:
            self._schedule(now_us)

    def _finish(self, event: Event, now_us: int) -> None:
        if self.ended or not self.drops:
            self._put(event, now_us)
        if self.drops and not self.ended:  # perhaps since just now: the last event may be the one too many
            self._last_event = event

    def _overflow(self, now_us: int) -> None:
        self.counts.overflows += 1
        self._count_dropped(self._backlog.clear(), now_us)
        self.drops = self._restatement_due = True
        _logger.warning("a chain overflowed, will restate: %r", self)

    def _drop(self, event: Event, now_us: int) -> None:
        """The event never waits, and is counted."""
        if not self._is_closed:
            self._backlog.note_dropped(event)
        self._count_dropped(EventCounts(1, type(event) in DECISIONS), now_us)

    def _count_dropped(self, dropped: EventCounts, now_us: int) -> None:
        self.counts.dropped_events += dropped.events
        self.counts.dropped_decisions += dropped.decisions
        if dropped.decisions:
            since_us = now_us if self._away_since_us is None else self._away_since_us
            first_ms = self.dropped_ms[0] if self.dropped_ms else since_us // 1000 + self.wall_offset_ms
            self.dropped_ms = first_ms, now_us // 1000 + self.wall_offset_ms

    def _refuse(self, event: Event, error: EventTooLarge, now_us: int) -> None:
        """An event that no message can hold is dropped: it would end the chain."""
        self._drop(event, now_us)
        _logger.error("an event is dropped: %s: %r", error, self)

    def _schedule(self, now_us: int) -> None:
        """The next Tick is set; nothing is asked of the log now."""
        self._is_idle = False
        if self.sealed is not None or self._restatement_due:
            self.due_us = now_us
        elif self._backlog.events:  # events gather until the next message may start; after a pause it starts at once
            self.due_us = max(now_us, self._next_start_us)
        else:
            self._is_idle = True
            self.due_us = now_us + self._idle_check_us

    def _tick(self, now_us: int) -> Sequence[ChainCommand]:
        if self.due_us is None or now_us < self.due_us:
            return ()
        due_us, self.due_us, self._is_idle = self.due_us, None, False
        if self.sealed is None:
            if self._restatement_due:
                return self._begin_restatement(now_us)
            if not self._backlog.events:
                return (ReadLast(),)
            self._next_start_us = due_us + self._pace_us
            self._seal(now_us)
        assert self.sealed is not None
        return (Append(self.sealed.payload, self.sealed.message_id, self.last_seq),)

    def _begin_restatement(self, now_us: int) -> Sequence[ChainCommand]:
        self.drops = self._restatement_due = False
        if self._last_event is None:
            return (AskRestatement(),)
        self._restate([self._last_event], now_us)
        return ()

    def _seal(self, now_us: int) -> None:
        """The events that wait are in the message in flight, as many as fit."""
        batch, now_ms = self._backlog.take(), now_us // 1000 + self.wall_offset_ms
        self.sealed = seal(
            self.source,
            self.n_acked,
            self.head,
            now_ms,
            batch.encodings,
            readable=batch.readable,
            generation=self._generation,
        )
        self._backlog.seal(self.sealed)

    def _acknowledge(self, seq: StreamSeq, now_us: int) -> None:
        sealed, self.sealed = self.sealed, None
        assert sealed is not None
        assert sealed.n == self.n_acked
        self.last_seq = seq
        self.head = digest(sealed.payload, self._chain_key)
        self.n_acked += 1
        self.counts.stored += 1
        self._backlog.acknowledge(self.n_acked, self.head, seq)
        self._note_answer()
        self._schedule(now_us)

    def _note_answer(self) -> None:
        """The log answered as it should."""
        self._retry_us = self._retry_min_us
        self._away_since_us = None

    def _fail(self, error: Exception, now_us: int) -> Sequence[ChainCommand]:
        if isinstance(error, WrongSequence):
            return (ReadLast(),)
        if isinstance(error, Unavailable):
            self._pause(now_us)
            return ()
        self.error = error
        self.counts.refused += isinstance(error, Refused)
        self._note_away(now_us)
        self._end()
        return (Stopped(error),)

    def _end(self) -> None:
        """Nothing is due any more."""
        self.ended = self.drops = True
        self._is_idle, self.due_us = False, None

    def _pause(self, now_us: int) -> None:
        """The log is asked again later."""
        self.counts.retried += self.sealed is not None
        self._note_away(now_us)
        self._schedule(now_us + self._retry_us)
        self._retry_us = min(self._retry_us * 2, self._retry_max_us)

    def _note_away(self, now_us: int) -> None:
        if self._away_since_us is None:
            self._away_since_us = now_us

    def _settle(self, record: Record | None, now_us: int) -> Sequence[ChainCommand]:
        """The chain's end agrees with the log's again, or the chain is superseded."""
        sealed = self.sealed
        if sealed is None:
            self._note_answer()
        if record is not None and sealed is not None and record.payload == sealed.payload:
            self.counts.settled += 1
            self._acknowledge(record.seq, now_us)
        elif record is not None and not self._is_ours(record):
            self.superseded = record
            self._end()
            self._count_dropped(self._backlog.abandon(), now_us)
            _logger.warning("another ended a chain at %s: %r", record.seq, self)
            return (Superseded(record),)
        elif not self._is_as_known(record):
            self._take_cut(record)
            self._schedule(now_us)
        elif sealed is not None:  # the log said that the sequence is wrong, and now that it is right
            self._pause(now_us)
        else:
            self._schedule(now_us)
        return ()

    def _is_ours(self, record: Record) -> bool:
        try:
            return decode_message(record.payload).source != self.source + LOST_SUFFIX
        except Corrupt:
            return True  # damaged since: an end by another can be read, and says so

    def _is_as_known(self, record: Record | None) -> bool:
        if record is None:
            return self.last_seq == 0
        return record.seq == self.last_seq and digest(record.payload, self._chain_key) == self.head

    def _take_cut(self, record: Record | None) -> None:
        found = StreamSeq(0) if record is None else record.seq
        _logger.warning("the log ends at %s, not at %s: will restate: %r", found, self.last_seq, self)
        self.counts.cut += 1
        self.counts.retried += self.sealed is not None
        self.last_seq = found
        self._restatement_due = True

    def _restate(self, events: Sequence[Event], now_us: int) -> None:
        """The owner's state follows all that waits, and comes before all that is put from now on."""
        self.counts.restated += 1
        alone = not self._backlog.events
        for event in events:
            try:
                if self._backlog.restate(event):
                    continue
            except EventTooLarge as error:
                self._refuse(event, error, now_us)
                continue
            if not alone:  # with the backlog empty there will be room
                self._drop(event, now_us)
                self._overflow(now_us)
                break
            self._drop(event, now_us)
            _logger.error("a restatement finds no room in an empty backlog: %r", self)
        self._schedule(now_us)


def seal(
    source: SourceId,
    n: int,
    head: bytes,
    now_ms: int,
    encodings: list[bytes],
    *,
    readable: bool,
    generation: int = 0,
) -> SealedMessage:
    """The source's message n behind the one with the digest `head`; as JSON if its events are all readable."""
    payload = encode_message(source, n, head, now_ms, encodings, generation)
    if readable:
        known = [event for event in decode_message(payload).events if not isinstance(event, UnknownEvent)]
        payload = encode_readable(source, n, head, now_ms, known, generation)
    return SealedMessage(n, payload, len(encodings), message_id(source, n))
