"""Outbox: one source's chain in one stream, from events that happen to messages that stand in the log.

1. One append in flight. What happens meanwhile goes into the next message, so batches grow by themselves.
2. A message is sealed when it is first offered: source, n, the digest of the message before it and its events are
   fixed then. It is offered with the same bytes until the log has it; never dropped, merged or renumbered.
3. Every append states the subject's last sequence as far as we know it. If the log disagrees, its last message tells
   why: it is the one in flight (an earlier try was stored), it is another's (we are superseded and stop), or it
   is not where we left it (the log was cut or rolled back, or retention took our end: send on, then restate).
4. What waits is bounded. An overflow drops all that is not sealed, and discards until the message in flight is
   acknowledged; then the owner restates its whole state.
5. Where it waits is the backlog's matter: in memory, or in a journal from which a successor goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from core.clock import Clock
from core.codec import CHAIN_START, decode_message, digest
from core.errors import Corrupt, Refused, Unavailable, WrongSequence
from core.events import Event
from core.ids import LOST_SUFFIX, SourceId, StreamName, StreamSeq
from streams.log import EventLog, Record
from streams.outbox.backlog import Backlog, BacklogSize, EventTooLarge, MemoryBacklog, OutboxLimits
from streams.outbox.source_chain import SealedMessage, chain_digest, seal

logger = logging.getLogger(__name__)

DEFAULT_LIMITS = OutboxLimits()


@dataclass(slots=True)
class OutboxCounts:
    """What became of messages and events since the outbox was made."""

    stored: int = 0
    """Messages acknowledged."""
    settled: int = 0
    """Messages of which an unanswered try had been stored after all."""
    retried: int = 0
    """Appends that have to be made again."""
    refused: int = 0
    """Messages that the log refused for good: 0, or 1 and the end."""
    cut: int = 0
    """Times that the log did not end where we had left it."""
    overflows: int = 0
    restated: int = 0
    """Times that the owner said its whole state again."""
    dropped_events: int = 0


class Outbox:
    """Appends one source's events in order, for as long as it takes."""

    def __init__(
        self,
        log: EventLog,
        stream: StreamName,
        subject: str,
        source: SourceId,
        chain_key: bytes,
        clock: Clock,
        *,
        on_overflow: Callable[[], Sequence[Event]],
        on_superseded: Callable[[Record], None],
        limits: OutboxLimits = DEFAULT_LIMITS,
        backlog: Backlog | None = None,
    ) -> None:
        self.source = source
        self.subject = subject
        self.counts = OutboxCounts()
        self.n_acked = 0
        """Messages acknowledged; the n of the next one to be."""
        self.head = CHAIN_START
        """Digest of the last message acknowledged."""
        self.last_seq = StreamSeq(0)
        """Where our subject ends, as far as we know."""
        self.error: Exception | None = None
        """Why nothing is appended any more; None while all is well."""
        self.superseded: Record | None = None
        """The message by which another ended our chain."""
        self._log = log
        self._stream = stream
        self._chain_key = chain_key
        self._clock = clock
        self._limits = limits
        self._on_overflow = on_overflow
        self._on_superseded = on_superseded
        self._backlog = MemoryBacklog(limits) if backlog is None else backlog
        self._sealed: SealedMessage | None = None
        self._closed = False
        self._discarding = False
        self._restatement_due = False
        self._last_word: Event | None = None
        """What is said instead of a restatement."""
        self._retry_s = limits.retry_min_s
        self._away_since_ms: int | None = None
        self._next_start_s = 0.0
        """On the loop's clock: no message is sealed before it."""
        self._wake = asyncio.Event()
        self._idling = False
        """Whether the next event has to wake us."""
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Outbox {self.subject} n {self.n_acked}, {self.depth} events wait>"

    @property
    def depth(self) -> int:
        """Events that the log has not acknowledged."""
        return len(self._backlog) + (self._sealed.events if self._sealed else 0)

    @property
    def bytes(self) -> int:
        """Bytes that the log has not acknowledged."""
        return self._backlog.encoded_bytes + (len(self._sealed.payload) if self._sealed else 0)

    @property
    def n_next(self) -> int:
        """The n of the next message to be sealed."""
        return self.n_acked + (1 if self._sealed else 0)

    @property
    def idle(self) -> bool:
        """Whether the log holds all that was put, or a restatement of it."""
        return not self.depth and not self._restatement_due

    @property
    def drops(self) -> bool:
        """Whether what is put now is dropped: nothing will be appended any more, or it overflowed and the log is still
        away; then a restatement will follow."""
        return self._discarding or self._closed or self.error is not None or self.superseded is not None

    @property
    def ended(self) -> bool:
        """Whether nothing will be appended any more."""
        return self.error is not None or self.superseded is not None or self._closed

    @property
    def held(self) -> BacklogSize:
        """How full its backlog is; the message in flight is not counted."""
        return self._backlog.held

    @property
    def away_s(self) -> float:
        """For how long the log has acknowledged nothing though something waits, or would, had it not refused for good;
        0 while all is well."""
        if self._away_since_ms is None or (self.idle and self.error is None):
            return 0.0
        return (self._clock.monotonic_ms() - self._away_since_ms) / 1000

    def close(self) -> None:
        """What is put from now on is counted as dropped; the backlog is not touched any more."""
        self._closed = True

    def put(self, event: Event) -> None:
        """The event waits to be appended, or is counted as dropped."""
        if self.drops:
            self.counts.dropped_events += 1
            return
        try:
            waits = self._backlog.offer(event)
        except EventTooLarge as error:
            self._not_said(error)
            return
        if not waits:
            self._overflow()
        if self._idling:
            self._wake.set()

    def finish(self, event: Event) -> None:
        """The last event is put: where others are dropped, it comes instead of what would be said anew after them."""
        if self._discarding and not self.ended:
            self._last_word = event
        else:
            self.put(event)

    async def drain(self, timeout_s: float) -> bool:
        """True once the log has acknowledged all; False if it has not in time, or never will."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self.idle and not self.ended:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            logger.warning("outbox not drained within %s s: %r", timeout_s, self)
        return self.idle

    async def run(self) -> None:
        """Appends until cancelled, or until superseded; ends with the error if the log refuses for good.

        After a cancellation it may be run again: the message in flight goes on with the same bytes.
        """
        try:
            while not self.ended:
                await self._step()
        except Exception as error:
            self.error = error
            self.counts.refused += isinstance(error, Refused)
            if self._away_since_ms is None:
                self._away_since_ms = self._clock.monotonic_ms()
            logger.exception("outbox stopped for good: %r", self)
            raise
        finally:
            self._changed.set()

    async def _step(self) -> None:
        if self._sealed is not None:
            await self._offer(self._sealed)
        elif self._restatement_due:
            self._restate()
        elif self._backlog:
            await self._pace()
            self._seal()
        else:
            await self._idle()

    async def _pace(self) -> None:
        """Events gather until the next message may start; what comes after a pause goes at once."""
        now = asyncio.get_running_loop().time()
        if now < self._next_start_s:
            await asyncio.sleep(self._next_start_s - now)
        self._next_start_s = max(now, self._next_start_s) + self._limits.pace_s

    def _overflow(self) -> None:
        self.counts.overflows += 1
        self.counts.dropped_events += 1 + self._backlog.clear()
        self._discarding = self._restatement_due = True
        logger.warning("outbox overflowed, will restate: %r", self)

    def _restate(self) -> None:
        """What the owner says now follows behind all that waits and before all that is put from now on."""
        self._discarding = self._restatement_due = False
        self.counts.restated += 1
        alone = not self._backlog
        for event in self._on_overflow() if self._last_word is None else [self._last_word]:
            try:
                if self._backlog.restate(event):
                    continue
            except EventTooLarge as error:
                self._not_said(error)
                continue
            if not alone:  # with the backlog empty there will be room
                self._overflow()
                break
            self.counts.dropped_events += 1
            logger.error("a restatement finds no room in an empty backlog: %r", self)
        self._changed.set()

    def _not_said(self, error: EventTooLarge) -> None:
        """An event that no message can hold is dropped: it would end the chain."""
        self.counts.dropped_events += 1
        logger.error("an event is not said: %s: %r", error, self)

    def _seal(self) -> None:
        assert self._sealed is None
        if not self._backlog:
            return  # an overflow dropped all while it was waited for the next start
        batch = self._backlog.take()
        now_ms = self._clock.wall_ms()
        self._sealed = seal(self.source, self.n_acked, self.head, now_ms, batch.encodings, readable=batch.readable)
        self._backlog.seal(self._sealed)

    async def _offer(self, sealed: SealedMessage) -> None:
        message_id = sealed.message_id(self.source)
        try:
            seq = await self._log.append(self._stream, self.subject, sealed.payload, message_id, self.last_seq)
        except Unavailable as error:
            await self._pause(error)
        except WrongSequence as error:
            await self._settle(error)
        else:
            self._acknowledge(sealed, seq)

    def _acknowledge(self, sealed: SealedMessage, seq: StreamSeq) -> None:
        assert sealed.n == self.n_acked
        self.last_seq = seq
        self.head = chain_digest(sealed, self._chain_key)
        self.n_acked += 1
        self.counts.stored += 1
        self._sealed = None
        self._backlog.acknowledge(self.n_acked, self.head, seq)
        self._heard()
        self._changed.set()

    def _heard(self) -> None:
        """The log answered as it should."""
        self._retry_s = self._limits.retry_min_s
        self._away_since_ms = None

    async def _idle(self) -> None:
        self._wake.clear()
        self._idling = True
        try:
            async with asyncio.timeout(self._limits.idle_check_s):
                await self._wake.wait()
        except TimeoutError:
            await self._settle(None)
        finally:
            self._idling = False

    async def _settle(self, wrong: WrongSequence | None) -> None:
        """What we know of our subject's end agrees with the log again, or we are superseded."""
        try:
            record = await self._log.last(self._stream, self.subject)
        except Unavailable as error:
            await self._pause(error)
            return
        if wrong is None:
            self._heard()
        if record is not None and self._sealed is not None and record.payload == self._sealed.payload:
            self.counts.settled += 1
            self._acknowledge(self._sealed, record.seq)
        elif record is not None and not self._is_ours(record):
            self._supersede(record)
        elif not self._is_as_known(record):
            self._take_cut(record)
        elif wrong is not None:
            await self._pause(wrong)

    def _is_ours(self, record: Record) -> bool:
        try:
            return decode_message(record.payload).source != self.source + LOST_SUFFIX
        except Corrupt:
            return True  # damaged since: an end by another can be read, and says so

    def _is_as_known(self, record: Record | None) -> bool:
        if record is None:
            return self.last_seq == 0
        return record.seq == self.last_seq and digest(record.payload, self._chain_key) == self.head

    def _supersede(self, record: Record) -> None:
        self.superseded = record
        self.counts.dropped_events += self._backlog.abandon()
        logger.warning("another ended our chain at %s: %r", record.seq, self)
        self._on_superseded(record)

    def _take_cut(self, record: Record | None) -> None:
        found = StreamSeq(0) if record is None else record.seq
        logger.warning("the log ends at %s for us, not at %s: will restate: %r", found, self.last_seq, self)
        self.counts.cut += 1
        self.counts.retried += self._sealed is not None
        self.last_seq = found
        self._restatement_due = True

    async def _pause(self, reason: Exception) -> None:
        self.counts.retried += self._sealed is not None
        if self._away_since_ms is None:
            self._away_since_ms = self._clock.monotonic_ms()
        logger.debug("will try again in %s s: %s", self._retry_s, reason)
        await asyncio.sleep(self._retry_s)
        self._retry_s = min(self._retry_s * 2, self._limits.retry_max_s)
