"""RoutingIndex: where in the routing stream each attempt of each request stands, and which settings each replica had.

It is made in one pass with a decoder that takes only a few fields: some 2 us per event, reading the archive included.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from core.errors import CallerError
from core.ids import LOST_SUFFIX, ReplicaId
from core.settings import RoutingSettings
from core.subjects import owner
from projections.folds.routing_fold import ReplicaPart
from replay.recording.messages import RoutingEvent, partial_reader
from streams.log import Record

_read_message = partial_reader(RoutingEvent)


class RequestAttempt(msgspec.Struct, gc=False):
    """One attempt at a request, as the log knows it by its end."""

    request: str
    attempt: int
    replica: str
    model: str
    seq: int
    """Of the message that routed it, or refused it."""
    time_ms: int
    """When the log stored that."""
    at: int
    """Which event of the stream said it: messages hold several."""
    worker: str = ""
    """Empty for one that was refused."""
    tenant: str = ""
    """Empty if it had none, or was refused."""
    prompt_tokens: int = 0
    predicted_tokens: int = 0
    blocks: int = 0
    """That it took there."""
    prefill_tokens: int = 0
    """That the worker was expected to compute."""
    status: int = 0
    """The HTTP status of one that was refused."""
    queued_seq: int = 0
    """Of the first message that says that it had to wait before; 0 if it had not …"""
    held_seq: int = 0
    """… and of the last: it may have waited for a place, and then have been held for its worker."""
    migrated_seq: int = 0
    """Of the message that says from where it goes on; 0 if it does not."""
    prefilled_at: int = 0
    prefilled_seq: int = 0
    prefilled_ms: int = 0
    """When the log stored that its first token came."""
    cached_tokens: int = -1
    ttft_ms: int = -1
    ended_at: int = 0
    """By its end, or by a restatement of the replica that does not name it."""
    ended_seq: int = 0
    """Of its end alone; 0 if nothing tells it."""
    duration_ms: int = -1
    output_tokens: int = 0
    outcome: str = ""
    """Empty while it has no end."""


class RoutingIndex:
    """See the module's text; made once of a whole recording."""

    def __init__(
        self,
        records: Iterable[Record],
        before: Mapping[ReplicaId, ReplicaPart] = MappingProxyType({}),
        *,
        from_start: bool = True,
    ) -> None:
        """`before` are the replicas' parts before the first record, as far as they are known; `from_start`: nothing of
        the stream lies before it."""
        self.tries: list[RequestAttempt] = []
        """In the order of the log."""
        self.names: dict[ReplicaId, str] = {}
        """Of those that said it."""
        self.replicas: set[ReplicaId] = set()
        """All that said anything."""
        self.joined: dict[str, int] = {}
        """Where a replica first said who it is."""
        self.ended: dict[str, int] = {}
        """Where a replica's end was said."""
        self._of: dict[str, list[RequestAttempt]] = {}
        self._settings: dict[tuple[str, int], list[tuple[int, dict[str, Any]]]] = {}
        self._local: dict[str, list[tuple[int, RoutingEvent]]] = {}
        self._moved: dict[tuple[str, int, str], int] = {}
        self._waits: dict[tuple[str, str], tuple[int, int]] = {}
        """Request and replica: the first and the last message that says that it waits."""
        self._at = 0
        self._handlers: dict[str, Callable[[Record, str, RoutingEvent], None]] = {
            "RequestRouted": self._routed,
            "RequestRejected": self._routed,
            "RequestTurnedAway": self._turned_away,
            "RequestQueued": self._queued,
            "RequestMigrated": self._migrated,
            "RequestPrefilled": self._prefilled,
            "RequestFinished": self._finished,
            "SettingsChanged": self._set,
            "LocalChanged": self._said_local,
            "ReplicaRestated": self._restated,
            "ReplicaJoined": self._joined,
            "ReplicaLeft": self._gone,
            "ReplicaLost": self._gone,
        }
        self._from_start = from_start
        for replica, part in before.items():
            self._begin(replica, part)
        for record in records:
            self._note(record)

    def __repr__(self) -> str:
        return f"<RoutingIndex of {len(self._of)} requests, {len(self.tries)} attempts>"

    def tried(self, request: str) -> list[RequestAttempt]:
        """All attempts under this id, in the order of the log; none if the log does not know it."""
        return self._of.get(request, [])

    def uses(self, request: str) -> list[list[RequestAttempt]]:
        """The requests that had this id, each with its attempts, in the order of the log: clients may use one again."""
        found: list[list[RequestAttempt]] = []
        newest: dict[str, list[RequestAttempt]] = {}
        for tried in self.tried(request):
            if tried.attempt == 0 or tried.replica not in newest:
                newest[tried.replica] = []
                found.append(newest[tried.replica])
            newest[tried.replica].append(tried)
        return found

    def before(self, tried: RequestAttempt) -> list[RequestAttempt]:
        """What the worker of this attempt was busy with when it was routed there, by the log as it stood then; in the
        order of the log. O(all attempts)."""
        found, worker, at = [], tried.worker, tried.at
        for each in self.tries:
            if each is tried:
                break
            if each.worker == worker and not 0 < each.ended_at < at:
                found.append(each)
        return [each for each in found if self.ended.get(each.replica, tried.seq) >= tried.seq]

    def decision_before(self, replica: str, seq: int) -> RequestAttempt | None:
        """The replica's newest decision in a message up to that one (included)."""
        return next((tried for tried in self.until(seq, replica) if tried.worker), None)

    def until(self, seq: int, replica: str | None = None) -> Iterator[RequestAttempt]:
        """The attempts in messages up to that one (included), the newest first; of one replica, if it is given."""
        for at in reversed(range(bisect_right(self.tries, seq, key=lambda each: each.seq))):
            if replica is None or self.tries[at].replica == replica:
                yield self.tries[at]

    def own_under_way(self, replica: str, at: int) -> list[RequestAttempt]:
        """What the replica had on the way before that event, by its own word."""
        tries = self.tries[: bisect_left(self.tries, at, key=lambda each: each.at)]
        return [each for each in tries if each.replica == replica and each.worker and not 0 < each.ended_at < at]

    def settings(self, replica: str, revision: int, seq: int) -> RoutingSettings | None:
        """What the revision meant to the replica at that message; None if it did not say, or said what this program
        cannot read."""
        told = [settings for at, settings in self._settings.get((replica, revision), []) if at <= seq]
        if not told:  # who says nothing goes by the defaults: that is known of those who could have been heard
            heard = self._from_start or self.joined.get(replica, seq + 1) <= seq
            return RoutingSettings() if revision == 0 and heard else None
        try:
            return RoutingSettings.parse(told[-1])
        except CallerError:
            return None

    def revision(self, revision: int) -> dict[str, Any] | None:
        """What the revision meant to whoever said it last; None if nobody did. Of revision 0 a whole log that says
        nothing says that it is the defaults."""
        said = [told for (_, number), tellings in self._settings.items() if number == revision for told in tellings]
        if not said:
            return {} if revision == 0 and self._from_start else None
        return max(said, key=lambda told: told[0])[1]

    @property
    def revisions(self) -> set[int]:
        """Those of which it is known what they meant."""
        return {number for _, number in self._settings} | ({0} if self._from_start else set())

    def local(self, replica: str, seq: int) -> dict[str, tuple[str, ...]]:
        """What the replica alone knew of workers before that message, by worker."""
        found: dict[str, tuple[str, ...]] = {}
        for at, event in self._local.get(replica, []):
            if at > seq:
                break
            if event.type == "ReplicaRestated":
                found.clear()
            elif event.reasons:
                found[event.worker] = event.reasons
            else:
                found.pop(event.worker, None)
        return found

    # -----------------------------------------------------------------------------------------------------------

    def _begin(self, replica: ReplicaId, part: ReplicaPart) -> None:
        """What the replica had said before the first record counts."""
        if part.settings or part.joined is not None:  # who joined and said none goes by the defaults
            self._settings[replica, part.settings_revision] = [(0, part.settings)]
        said = [RoutingEvent("LocalChanged", worker=worker, reasons=reasons) for worker, reasons in part.local.items()]
        self._local[replica] = [(0, event) for event in said]

    def _note(self, record: Record) -> None:
        message, replica = _read_message(record.payload), owner(record.subject)
        if message is None or message.source not in {replica, replica + LOST_SUFFIX}:
            return
        self.replicas.add(ReplicaId(replica))
        for event in message.events:
            self._at += 1
            handle = self._handlers.get(event.type)
            if handle is not None:
                handle(record, replica, event)

    def _routed(self, record: Record, replica: str, event: RoutingEvent) -> None:
        tried = RequestAttempt(event.request, event.attempt, replica, event.model, record.seq, record.time_ms, self._at)
        tried.worker, tried.tenant, tried.status = event.worker, event.tenant, event.status
        tried.prompt_tokens, tried.predicted_tokens = event.prompt_tokens, event.predicted_cached_tokens
        if isinstance(event.blocks, int) and isinstance(event.prefill_tokens, int):
            tried.blocks, tried.prefill_tokens = event.blocks, event.prefill_tokens
        if event.attempt:
            tried.migrated_seq = self._moved.pop((event.request, event.attempt, replica), 0)
        elif self._waits:
            tried.queued_seq, tried.held_seq = self._waits.pop((event.request, replica), (0, 0))
        self.tries.append(tried)
        known = self._of.get(event.request)
        if known is None:
            self._of[event.request] = [tried]
        else:
            known.append(tried)

    def _turned_away(self, record: Record, replica: str, event: RoutingEvent) -> None:
        """Of a request that a worker declined, its next attempt: the id is not used anew."""
        last = next((each for each in reversed(self.tried(event.request)) if each.replica == replica), None)
        attempt = last.attempt + 1 if last is not None and last.outcome == "declined" else 0
        self._routed(record, replica, msgspec.structs.replace(event, attempt=attempt))

    def _queued(self, record: Record, replica: str, event: RoutingEvent) -> None:
        first, _ = self._waits.get((event.request, replica), (record.seq, 0))
        self._waits[event.request, replica] = first, record.seq

    def _migrated(self, record: Record, replica: str, event: RoutingEvent) -> None:
        self._moved[event.request, event.attempt, replica] = record.seq

    def _prefilled(self, record: Record, replica: str, event: RoutingEvent) -> None:
        tried = self._open(replica, event)
        if tried is not None:
            tried.prefilled_at, tried.prefilled_seq, tried.prefilled_ms = self._at, record.seq, record.time_ms
            tried.cached_tokens, tried.ttft_ms = event.cached_tokens, event.ttft_ms

    def _finished(self, record: Record, replica: str, event: RoutingEvent) -> None:
        tried = self._open(replica, event)
        if tried is not None:
            tried.ended_at, tried.ended_seq, tried.outcome = self._at, record.seq, event.outcome
            tried.duration_ms, tried.output_tokens = event.duration_ms, event.output_tokens

    def _open(self, replica: str, event: RoutingEvent) -> RequestAttempt | None:
        """The newest attempt that the event can be about."""
        for tried in reversed(self._of.get(event.request, ())):
            if tried.attempt == event.attempt and tried.replica == replica and not tried.ended_seq:
                return tried
        return None

    def _set(self, record: Record, replica: str, event: RoutingEvent) -> None:
        self._settings.setdefault((replica, event.revision), []).append((record.seq, event.settings or {}))

    def _said_local(self, record: Record, replica: str, event: RoutingEvent) -> None:
        self._local.setdefault(replica, []).append((record.seq, event))

    def _restated(self, record: Record, replica: str, event: RoutingEvent) -> None:
        """What it does not name is under way no more, whatever was lost of it."""
        self._said_local(record, replica, event)
        named = set(zip(event.requests, event.attempts, strict=False))
        for tried in self.tries:
            if tried.replica == replica and not tried.ended_at and (tried.request, tried.attempt) not in named:
                tried.ended_at = self._at

    def _joined(self, record: Record, replica: str, event: RoutingEvent) -> None:
        self.joined.setdefault(replica, record.seq)
        self.names[ReplicaId(replica)] = event.name or replica

    def _gone(self, record: Record, replica: str, _event: RoutingEvent) -> None:
        self.ended.setdefault(replica, record.seq)
