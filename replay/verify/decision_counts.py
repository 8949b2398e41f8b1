"""Decision counts: the decisions of each replica in the log, compared with the counts that it states in its own chain.

1. A replica states how many decisions it has made and dropped since it joined (`core.events.DecisionCounts`). Between
   two statements the log must have the decisions made less those dropped.
2. A difference is a finding, unless messages of the replica are missing between the two: then a gap of the recording
   names them.
3. The first statement of a replica whose start is not here has nothing to be compared with. Decisions behind the last
   statement, and those of replicas that state none, are not compared.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import msgspec
from msgspec import UnsetType

from core.codec import DECISION_TYPES, DECISIONS, decode_message
from core.errors import Corrupt
from core.events import DecisionCounts, ReplicaLeft, ReplicaReported, ReplicaRestated
from core.ids import ReplicaId, StreamSeq
from streams.archive.archive_format import Row
from streams.archive.message_envelope import Envelope

_STATING = frozenset(kind.__name__ for kind in (ReplicaReported, ReplicaRestated, ReplicaLeft))


class DecisionDeficit(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions that a replica made between two statements of its counts, and that the log does not have."""

    replica: ReplicaId
    dropped: int
    """Decisions that the replica states as dropped."""
    dropped_others: int
    """Other events that it dropped."""
    missing: int
    """Further decisions; negative if the log has more than were made."""
    in_gap: bool
    """True if messages of the replica are missing in between: they may hold the missing decisions."""
    after_seq: StreamSeq
    """The message of the statement before, in the routing stream; 0 if the chain begins here."""
    after_ms: int
    seq: StreamSeq
    """The message of the statement."""
    time_ms: int


class DecisionCountResult(msgspec.Struct, kw_only=True):
    """The comparison of decisions with counts."""

    compared: int = 0
    """Decisions of the whole recording that agree with the counts of their replicas."""
    not_compared: int = 0
    """Decisions of the whole recording behind the last statement of their replica, or without any."""
    deficits: list[DecisionDeficit] = msgspec.field(default_factory=list)
    """Those of the range, in the order of the log."""

    @property
    def dropped(self) -> int:
        """Decisions that are in no log, as their replicas state."""
        return sum(each.dropped for each in self.deficits)

    @property
    def dropped_others(self) -> int:
        """Other events likewise."""
        return sum(each.dropped_others for each in self.deficits)

    @property
    def unexplained(self) -> list[DecisionDeficit]:
        """Deficits that no statement and no gap of the recording explains."""
        return [each for each in self.deficits if each.missing and not each.in_gap]

    def within(self, start: int, end: int | None, replicas: Collection[ReplicaId] | None) -> DecisionCountResult:
        """The same with the deficits that may lie in this range of the routing stream, of these replicas if any are
        given."""
        deficits = [
            each
            for each in self.deficits
            if each.seq >= start
            and (end is None or each.after_seq < end)
            and (replicas is None or each.replica in replicas)
        ]
        return msgspec.structs.replace(self, deficits=deficits)


@dataclass(slots=True)
class _Life:
    """One replica's chain as far as it was walked."""

    n_next: int
    stated: DecisionCounts | None
    """The last statement; None if the start of the chain is not here."""
    time_ms: int
    seq: StreamSeq
    """Of the last statement."""
    logged: int = 0
    """Decisions since the last statement."""
    has_gap: bool = False
    """True if messages are missing since the last statement."""


class DecisionCountWalk:
    """Takes the routing stream's messages in order."""

    def __init__(self) -> None:
        self._result = DecisionCountResult()
        self._lives: dict[ReplicaId, _Life] = {}

    def __repr__(self) -> str:
        return f"<DecisionCountWalk of {len(self._lives)} replicas>"

    def result(self) -> DecisionCountResult:
        """The result for all messages so far."""
        behind = sum(life.logged for life in self._lives.values())
        return msgspec.structs.replace(self._result, not_compared=self._result.not_compared + behind)

    def take(self, row: Row, message: Envelope) -> None:
        """The decisions and the statements in the next message of a replica's own chain are counted."""
        replica = ReplicaId(message.source)
        life = self._lives.get(replica)
        if life is None:
            begin = None if message.n else DecisionCounts(0)
            life = self._lives[replica] = _Life(message.n, begin, row.time_ms, StreamSeq(0))
        if message.n < life.n_next:
            return  # the same message once more
        life.has_gap = life.has_gap or message.n > life.n_next
        life.n_next = message.n + 1
        kinds = [event.type for event in message.events]
        if _STATING.isdisjoint(kinds):
            life.logged += sum(kind in DECISION_TYPES for kind in kinds)
        else:
            self._take_events(replica, life, row)

    def _take_events(self, replica: ReplicaId, life: _Life, row: Row) -> None:
        try:
            events = decode_message(row.payload).events
        except Corrupt:
            life.has_gap = True
            return
        for event in events:
            if type(event) in DECISIONS:
                life.logged += 1
            elif isinstance(event, ReplicaReported | ReplicaRestated | ReplicaLeft):
                self._compare(replica, life, row, event.counts)

    def _compare(self, replica: ReplicaId, life: _Life, row: Row, counts: DecisionCounts | UnsetType) -> None:
        if isinstance(counts, UnsetType):
            return
        result, before = self._result, life.stated
        if before is None:
            result.not_compared += life.logged
        else:
            dropped = counts.dropped - before.dropped
            others = counts.dropped_others - before.dropped_others
            missing = counts.made - before.made - dropped - life.logged
            if missing or dropped or others:
                deficit = DecisionDeficit(
                    replica=replica,
                    dropped=dropped,
                    dropped_others=others,
                    missing=missing,
                    in_gap=life.has_gap,
                    after_seq=life.seq,
                    after_ms=life.time_ms,
                    seq=row.seq,
                    time_ms=row.time_ms,
                )
                result.deficits.append(deficit)
            if missing:
                result.not_compared += life.logged
            else:
                result.compared += life.logged
        life.stated, life.logged, life.has_gap = counts, 0, False
        life.seq, life.time_ms = row.seq, row.time_ms
