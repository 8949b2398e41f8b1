"""RoutingPublisher: a replica's events under one id; each counts for the replica at once
(`projections.folds.pending_events`).

With a folder for it, events that the log has not acknowledged stand in a journal there: if the process is killed, a
successor appends them (`streams.outbox.journal_recovery`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from actors.membership.decision_bases import DecisionBases
from core.clock import Clock
from core.codec import Message, decode_message
from core.errors import Unavailable
from core.events import (
    DecisionCounts,
    Event,
    LocalChanged,
    ReplicaJoined,
    ReplicaLeft,
    ReplicaReported,
    ReplicaRestated,
    RequestFinished,
    RequestPrefilled,
    RequestRejected,
    RequestRouted,
    UnknownEvent,
)
from core.events.routing import CONTINUED_VERSION, SHORT_VERSION
from core.failure import log_failure
from core.ids import ReplicaId, SourceId, WorkerId, new_id
from core.keys import DeploymentKey
from core.subjects import ROUTING, subject
from projections.folds.pending_events import PendingEvents
from projections.folds.state import State
from projections.policy.view import Local, local_by_worker
from streams.log import EventLog, Record
from streams.outbox.backlog import BacklogSize, OutboxLimits
from streams.outbox.journal import CAPACITY_BYTES, Journal, identity
from streams.outbox.outbox import Outbox
from streams.outbox.source_chain import ChainCounts

LEAVE_TIMEOUT_S = 5.0
PENDING_EVENTS_MAX = 131_072
"""Bound of pending events while the outbox drops events, because the log never gives these back."""
LIMITS = OutboxLimits(pace_s=0.01)
"""Other replicas see this replica's load up to 10 ms later. At 1 000 requests a second, 10 ms cost a fifth less of the
log's CPU than 5 ms; 20 ms would save little more (`bench.append`). Pending events count here at once."""

_COUNTED = frozenset({ReplicaReported, ReplicaRestated, ReplicaLeft, RequestRejected})
"""Events that state the counts of decisions, or are counted by their type."""
_PROGRESS = frozenset({RequestPrefilled, RequestFinished})
_NONE = DecisionCounts(0)

_logger = logging.getLogger(__name__)


class RoutingPublisher:
    """Publishes under one id until another writes its end (`on_superseded`)."""

    def __init__(
        self,
        namespace: str,
        log: EventLog,
        clock: Clock,
        key: DeploymentKey,
        state: State,
        bases: DecisionBases,
        *,
        restate: Callable[[], Sequence[Event]],
        on_superseded: Callable[[], None],
        journal: Path | None = None,
        journal_bytes: int = CAPACITY_BYTES,
    ) -> None:
        """`bases` are the decisions that those of this replica may continue. `journal` is the folder of journals; None
        keeps waiting events in memory."""
        self.id = ReplicaId(new_id())
        self.pending_events = PendingEvents()
        self.decisions_sent = 0
        """Requests sent to a worker under this id, each attempt; the owner counts them, beside their decisions."""
        self._decisions_rejected = 0
        self._stated = _NONE
        """The counts that were stated last."""
        self._n_read = 0
        """The number of the next message to be read back."""
        self.version_written = 1
        """The highest version of decisions that a reader must know for what went to the log since the last
        restatement."""
        self._state = state
        self._bases = bases
        self._restate = restate
        self._on_superseded = on_superseded
        self._journal = None if journal is None else self._new_journal(journal, journal_bytes, namespace, key)
        self.outbox = Outbox(
            log,
            ROUTING,
            subject(namespace, ROUTING, self.id),
            SourceId(self.id),
            key.chain_key,
            clock,
            on_overflow=self._on_overflow,
            on_superseded=self._on_outbox_superseded,
            limits=LIMITS,
            backlog=self._journal,
        )
        self._local: dict[WorkerId, tuple[str, ...]] = {}
        self._last_local: Local | None = None
        self._counts_restated = ChainCounts()
        """The outbox's counts at its last restatement."""
        self._is_over = False
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<RoutingPublisher {self.id}, {self.outbox.depth} events waiting, {self.pending_events!r}>"

    @property
    def journal(self) -> BacklogSize:
        """Events and bytes in the journal; all 0 without one."""
        return BacklogSize(0, 0, 0) if self._journal is None else self.outbox.held

    def start(self, joined: ReplicaJoined) -> None:
        """ReplicaJoined is on its way to the log."""
        self.publish(joined)
        self._task = asyncio.create_task(self.outbox.run(), name=f"voice {self.id}")
        self._task.add_done_callback(log_failure(_logger, "the replica's outbox stopped for good"))

    def publish(self, event: Event) -> None:
        """The event counts now and goes to the log, in order."""
        if type(event) is RequestRouted:
            event = self._continued(event, self._state.routing.version_read(self.id))
        elif type(event) in _PROGRESS:
            event = self._progress(event, self._state.routing.version_read(self.id))
        elif type(event) in _COUNTED:
            self._decisions_rejected += type(event) is RequestRejected
            event = self._with_counts(event)
        if self.outbox.drops and len(self.pending_events) >= PENDING_EVENTS_MAX:
            self._forget_dropped()
        self.pending_events.emit(event, self._state.routing.replicas.get(self.id))
        self.outbox.put(event)

    def _continued(self, event: RequestRouted, version: int) -> RequestRouted:
        """The decision in that version, as one that continues another, if there is one; else the event itself."""
        found = self._bases.shortened(event, version) if version >= CONTINUED_VERSION else event
        self.version_written = max(self.version_written, found.v)
        return found

    def _progress(self, event: Event, version: int) -> Event:
        """The first token or end, in the version that those read who read that version of decisions."""
        if version < SHORT_VERSION:
            return replace(event, v=1, stages=()) if type(event) is RequestFinished else replace(event, v=1)
        self.version_written = SHORT_VERSION
        return event

    def _forget_dropped(self) -> None:
        """One restatement of all requests in flight replaces the pending events, of which some were dropped."""
        self.pending_events = PendingEvents()
        for event in self._restate():
            self.pending_events.emit(event, self._state.routing.replicas.get(self.id))

    def publish_local(self, local: Local) -> None:
        """The log has the local reasons of each worker before a decision rests on them."""
        if local is self._last_local:
            return
        self._last_local, now = local, local_by_worker(local)
        for worker in sorted(now.keys() | self._local.keys()):
            reasons = now.get(worker, ())
            if reasons != self._local.get(worker, ()):
                self.publish(LocalChanged(worker=worker, reasons=reasons))
        self._local = now

    def restate(self, events: Sequence[Event]) -> None:
        """The events and the local reasons of all workers go to the log."""
        self.version_written = 1
        for event in [*events, *self._local_events()]:
            self.publish(event)

    def _local_events(self) -> list[Event]:
        return [LocalChanged(worker=worker, reasons=reasons) for worker, reasons in sorted(self._local.items())]

    def read_back(self, message: Message) -> None:
        """Events of this replica were read from the log and folded: they are not pending any more."""
        if message.n >= self._n_read:
            self._n_read = message.n + 1
        for event in message.events:
            self.pending_events.read_back(event)  # type: ignore[arg-type]  # our own events are of types that we know

    def refold(self) -> None:
        """The state has become another. A message that was read back, is not in it and will be appended again is
        pending again: a store that went back had stored it, and its acknowledgement had not come."""
        part, sealed, lacking = self._state.routing.replicas.get(self.id), self.outbox.sealed, list[Event]()
        n_folded = 0 if part is None else part.chain.n_next
        if sealed is not None and n_folded <= sealed.n < self._n_read:
            events = decode_message(sealed.payload).events
            lacking = [event for event in events if not isinstance(event, UnknownEvent)]
        self._n_read = n_folded
        self.pending_events.refold(lacking, part)

    async def leave(self, reason: str) -> None:
        """ReplicaLeft is in the log if that was possible in time."""
        self._is_over = True  # by ourselves: it supersedes nothing
        left = ReplicaLeft(reason=reason)
        self.outbox.finish(self._with_counts(left))
        if self.outbox.drops:  # what was dropped to no purpose counts, too
            self.outbox.finish(self._with_counts(left))
        if not await self.outbox.drain(LEAVE_TIMEOUT_S):
            fate = "are lost" if self._journal is None else "wait in its journal"
            _logger.warning("the log was away when the replica left: %d events %s", self.outbox.depth, fate)
        await self.end(left=True)

    async def retire(self) -> None:
        """Another process wrote the end of this id, in its only stream: nothing is published under it any more."""
        await self.end()

    async def end(self, *, left: bool = False) -> None:
        """Nothing more is published under this id. The journal is gone if the log has all of it, the end included."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self.outbox.close()
        if self._journal is not None:
            ended = left or self._is_over
            is_stated = left or self.counts.dropped == self._stated.dropped
            self._journal.close(delete=ended and is_stated and not self.outbox.depth)

    def _new_journal(self, folder: Path, size: int, namespace: str, key: DeploymentKey) -> Journal | None:
        try:
            return Journal.create(folder, identity(namespace, ROUTING, self.id, key.chain_key), LIMITS, size)
        except Unavailable as error:
            _logger.error(  # noqa: TRY400 - the text says it
                "decisions are lost if this process is killed while the log is away: %s", error
            )
            return None

    def _on_overflow(self) -> list[Event]:
        self._log_loss()
        events = [self._with_counts(event) for event in (*self._restate(), *self._local_events())]
        for event in events:
            self.pending_events.emit(event, self._state.routing.replicas.get(self.id))
        return events

    def _log_loss(self) -> None:
        """The reason of a restatement: the log lost messages that it had acknowledged, or events were dropped here."""
        counts, before = self.outbox.counts, self._counts_restated
        self._counts_restated = dataclasses.replace(counts)
        if counts.cut > before.cut:
            _logger.error(
                "the log does not end with the message that it acknowledged last: it lost that one, or retention took "
                "it; requests in flight are restated"
            )
        if dropped := counts.dropped_events - before.dropped_events:
            _logger.error(
                "%d events were dropped here, %d of them decisions: more waited for the log than fits; requests in "
                "flight are restated",
                dropped,
                counts.dropped_decisions - before.dropped_decisions,
            )

    @property
    def counts(self) -> DecisionCounts:
        """Counts of the decisions under this id until now."""
        dropped = self.outbox.counts
        made = self.decisions_sent + self._decisions_rejected
        return DecisionCounts(made, dropped.dropped_decisions, dropped.dropped_events - dropped.dropped_decisions)

    def _with_counts(self, event: Event) -> Event:
        """The event with the counts until now, if it states any and they are not all 0."""
        if not isinstance(event, ReplicaReported | ReplicaRestated | ReplicaLeft) or self.counts == _NONE:
            return event
        self._stated = self.counts
        return replace(event, counts=self._stated)

    def mark_superseded(self, where: str) -> None:
        """Another process wrote the end of this id at that position of the log. The outbox and the fold both find it;
        the second call changes nothing."""
        if not self._is_over:
            self._is_over = True
            _logger.warning("another wrote the end of replica %s at %s", self.id, where)
            self._on_superseded()

    def _on_outbox_superseded(self, record: Record) -> None:
        self.mark_superseded(f"{record.stream}:{record.seq}")
