"""JournalRecovery: events in the journals of dead processes go to the log, in the chains of those processes.

A journal without a lock is a dead process's. The lock then belongs to the successor that found it, so that of several
successors one drains it. The journal moves with each acknowledgement: if the successor is killed, the next one goes on
there. First comes the message in flight, as it is; then events that were not sealed, as further messages of the same
source; then its end. Behind an end that another wrote all this stands too: folds ignore it, the history has it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from pathlib import Path

from core.clock import Clock
from core.codec import (
    CHAIN_START,
    Message,
    decode_message,
    digest,
    is_encoding,
    key_of,
    newest_generation,
    through,
)
from core.errors import Corrupt, Refused, Unavailable, WrongSequence
from core.events import ReplicaLeft, UnknownEvent
from core.ids import StreamSeq
from core.keys import DeploymentKey
from core.machine import TICK
from core.subjects import ROUTING, subject
from streams.log import EventLog, Record
from streams.outbox.backlog import OutboxLimits, SealedMessage
from streams.outbox.journal import Journal, identity
from streams.outbox.journal_file import DRAFT_SUFFIX, SUFFIX
from streams.outbox.source_chain import Acknowledged, Append, Finish, SourceChain, Start

SETTLE_MAX = 8
"""Bound of searches for the position in the log while another process writes there, too."""
REASON = "its process ended; told by its journal"

_logger = logging.getLogger(__name__)


class JournalDrain:
    """Drains one journal into the log, in its chain, up to its end."""

    def __init__(self, journal: Journal, namespace: str, log: EventLog, clock: Clock, chain_key: bytes) -> None:
        self._journal = journal
        self._log = log
        self._clock = clock
        self._chain_key = chain_key
        self._subject = subject(namespace, ROUTING, journal.source)
        self._last_seq = StreamSeq(0)
        """The end of the subject."""
        self._ended = False
        """True once the log has the end of the source."""
        self._sealed: SealedMessage | None = None
        """The message in flight; it is in the journal too, unless the disk was full."""

    async def drain(self) -> int:
        """The log has all that the journal held, and the end; returns how many events that were."""
        self._find_sealed()
        for _ in range(SETTLE_MAX):
            await self._settle()
            if self._sealed is None and self._journal.standing.sealed_at:
                self._lose_sealed()
            try:
                return await self._drain_rest()
            except WrongSequence as error:
                _logger.info("another writes to %s too: %s", self._subject, error)
        raise Unavailable(f"{self._subject} is written to by others all the time")

    async def _drain_rest(self) -> int:
        """The chain goes on where the journal is. It only appends: restating is for the living."""
        at, events, clock = self._journal.standing, 0, self._clock
        chain = SourceChain(self._subject, self._journal.source, self._chain_key, LIMITS, self._journal)
        chain.n_acked, chain.head, chain.last_seq, chain.sealed = at.n_acked, at.head, self._last_seq, self._sealed
        chain.wall_offset_ms = clock.wall_ms() - clock.monotonic_ms()
        chain.step(Start(), clock.monotonic_us())
        while not (chain.idle and self._ended):
            if chain.idle:
                self._finish(chain)
            (append,) = chain.step(TICK, clock.monotonic_us())
            assert isinstance(append, Append)
            self._sealed = chain.sealed
            seq = await self._log.append(ROUTING, self._subject, *append)
            chain.step(Acknowledged(seq), clock.monotonic_us())
            self._sealed = None
            message = decode_message(append.payload)
            self._note_end(message)
            events += len(message.events)
        return events

    def _finish(self, chain: SourceChain) -> None:
        left = ReplicaLeft(reason=REASON, counts=self._journal.decision_counts)
        chain.step(Finish(left), self._clock.monotonic_us())
        if chain.drops:
            raise Unavailable(f"no room for the end of {self._journal!r}")

    def _acknowledge(self, n: int, head: bytes, seq: StreamSeq) -> None:
        self._journal.acknowledge(n + 1, head, seq)
        self._sealed = None

    def _note_end(self, message: Message) -> None:
        self._ended = self._ended or any(isinstance(event, ReplicaLeft) for event in message.events)

    async def _settle(self) -> None:
        """The journal lacks the messages that the log has already, and the end of the subject is known."""
        end = await self._log.last(ROUTING, self._subject)
        self._last_seq = StreamSeq(0) if end is None else end.seq
        if end is not None and end.seq == self._journal.standing.last_seq:
            self._take_in(end)
        elif end is not None:
            await self._catch_up(end)
        elif not self._journal.standing.n_acked and not self._journal.events and self._sealed is None:
            self._ended = True  # killed before its first word

    async def _catch_up(self, end: Record) -> None:
        """Takes in what stands behind the last acknowledgement: the message in flight, and another's end."""
        start = StreamSeq(self._journal.standing.last_seq + 1)
        if start > end.seq:
            _logger.warning("the log lost messages of %s: it ends at %d, not at %d", self._subject, end.seq, start - 1)
            self._take_in(end)
            return
        async for record in self._log.read(ROUTING, start):
            if record.seq > end.seq:
                break
            if record.subject == self._subject:
                self._take_in(record)

    def _take_in(self, record: Record) -> None:
        try:
            message = decode_message(record.payload)
        except Corrupt as error:
            _logger.warning("%s:%d cannot be read, going on behind it: %s", record.stream, record.seq, error)
            return
        if message.source != self._journal.source:
            # another's end stands for ours, unless there is more to tell
            counts = self._journal.decision_counts
            self._ended = not self._journal.events and self._sealed is None and not (counts and counts.dropped)
            return
        self._note_end(message)
        if message.n < self._journal.standing.n_acked:
            return
        if self._sealed is None or record.payload != self._sealed.payload:
            self._skip(message)
        self._acknowledge(message.n, digest(record.payload, self._chain_key), record.seq)

    def _skip(self, message: Message) -> None:
        """The journal does not know of this message of its own, but holds events that are in it."""
        for event in message.events:
            if isinstance(event, UnknownEvent) or not is_encoding(self._journal.peek(), event):
                break
            self._journal.skip()

    def _find_sealed(self) -> None:
        """The message in flight is known, if there is one that can be read."""
        try:
            self._sealed = self._journal.in_flight()
        except Corrupt as error:
            _logger.warning("perhaps the log has it: %s", error)

    def _lose_sealed(self) -> None:
        """The log does not have it either: a gap in the chain says so."""
        at = self._journal.standing
        _logger.error("message %d of %s cannot be read: it is missing in the chain", at.n_acked, self._subject)
        self._journal.acknowledge(at.n_acked + 1, CHAIN_START, at.last_seq)


SEARCH_EVERY_S = 3.0
"""Period of the search for journals without a lock."""
DRAFT_AGE_S = 60.0
"""A draft that is older than this was left by a process that was killed while it made it."""
BROKEN_SUFFIX = ".broken"
"""Suffix of a journal that cannot be read: it is kept for a person to look at."""
LIMITS = OutboxLimits(pace_s=0.0)


@dataclass(slots=True)
class RecoveryCounts:
    """Counts of journals since this process started."""

    recovered: int = 0
    """Journals told to their end."""
    events: int = 0
    """Events told."""
    refused: int = 0
    """Journals that cannot be told: broken, or another deployment's."""


class JournalRecovery:
    """Recovers the journals in one folder."""

    def __init__(self, folder: Path, namespace: str, log: EventLog, clock: Clock, key: DeploymentKey) -> None:
        self.counts = RecoveryCounts()
        self._folder = folder
        self._namespace = namespace
        self._log = log
        self._clock = clock
        self._key = key
        self._left_alone: set[Path] = set()
        """Journals that are not ours to tell, or that the log refuses: said once."""
        self._waiting: set[Path] = set()
        """Journals that wait for the log: said once."""

    def __repr__(self) -> str:
        return f"<JournalRecovery in {self._folder}, {self.counts.recovered} told>"

    async def run(self) -> None:
        """Looks again and again, for ever."""
        while True:
            try:
                await self.recover()
            except Exception:  # by any defect: journals of others must go on being found
                _logger.exception("a look at the journals failed by a defect, trying again")
            await asyncio.sleep(SEARCH_EVERY_S)

    async def recover(self) -> None:
        """Every journal without a lock is drained into the log and removed, or left for the next search."""
        self._delete_drafts()
        for path in sorted(self._folder.glob("*" + SUFFIX)):
            if path not in self._left_alone:
                await self._recover_journal(path)

    async def _recover_journal(self, path: Path) -> None:
        try:
            await self._take_over(path)
        except Unavailable as error:
            if path not in self._waiting:
                self._waiting.add(path)
                _logger.warning("%s waits until it can be told: %s", path.name, error)
        except Refused as error:
            self._leave_alone(path, str(error))
        except Corrupt as error:
            self._set_aside(path, str(error))

    async def _take_over(self, path: Path) -> None:
        found = self._opened(path)
        if found is None:
            return
        journal, chain_key = found
        is_drained = False
        try:
            for _ in journal.scan():
                await asyncio.sleep(0)
            events = await JournalDrain(journal, self._namespace, self._log, self._clock, chain_key).drain()
            is_drained = True
        finally:
            journal.close(delete=is_drained)
        self._waiting.discard(path)
        self.counts.recovered += 1
        self.counts.events += events
        _logger.warning("appended %d events of a dead process's journal", events, extra={"replica": journal.source})

    def _opened(self, path: Path) -> tuple[Journal, bytes] | None:
        """The journal, and the chain key as its process had it: a chain goes on under the generation of its start."""
        newest = self._key.chain_key
        generations = range(newest_generation(newest), -1, -1)
        keys = [through(newest, generation) for generation in generations if key_of(newest, generation) is not None]
        for chain_key in keys:
            try:
                ours = identity(self._namespace, ROUTING, "", chain_key)
                journal = Journal.open_left(path, ours, LIMITS)
            except Refused:
                if chain_key is keys[-1]:
                    raise
            else:
                return None if journal is None else (journal, chain_key)
        raise AssertionError("unreachable")

    def _set_aside(self, path: Path, why: str) -> None:
        aside = path.with_name(path.name + BROKEN_SUFFIX)
        path.rename(aside)
        self.counts.refused += 1
        _logger.error("%s; what it holds is not told, it is kept as %s", why, aside)

    def _leave_alone(self, path: Path, why: str) -> None:
        self._left_alone.add(path)
        self.counts.refused += 1
        _logger.warning("journal left alone: %s", why)

    def _delete_drafts(self) -> None:
        """Files that never became journals are gone."""
        for draft in self._folder.glob("*" + DRAFT_SUFFIX):
            try:
                if time.time() - draft.stat().st_mtime > DRAFT_AGE_S:
                    draft.unlink()
            except FileNotFoundError:
                continue  # its process was only slow, or another was quicker
