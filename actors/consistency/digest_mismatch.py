"""DigestMismatch: two folds of one stream were not the same at one cursor, and what has come of it.

1. A mismatch is open until the accusers replaced their folds or agree again, or until this replica folded the log anew
   and was wrong.
2. A replica with as many live replicas against it as with it, or more, folds anew at once. A replica in the majority
   waits RESOLVE_WAIT_MS for the others to find out that they were wrong. A mismatch of the message itself, not only of
   the fold, waits too: a replica that missed that the log's history was replaced finds out within seconds.
3. If this replica was right, the accusers must be wrong. If they find that they were right too, or find nothing, log or
   code is at fault: `unexplained`, once. The mismatch is forgotten when it may be resolved again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from core.ids import ReplicaId, StreamName, StreamSeq
from projections.folds.state import DigestPoint

RESOLVE_WAIT_MS = 30_000
"""How long the majority waits for the minority, and how long a dispute over history may need to vanish."""
EXPLAIN_WAIT_MS = 60_000
"""How long one who was right waits for the others to say that they were wrong."""


class ReportedPoint(NamedTuple):
    """One point as another replica had it."""

    epoch: int
    seq: StreamSeq
    digest: int
    head: bytes


class DigestDifference(NamedTuple):
    """Ours and another's fold were not the same after one message."""

    replica: ReplicaId
    stream: StreamName
    reported: ReportedPoint
    ours: DigestPoint

    @property
    def of_history(self) -> bool:
        """Not even the message was: one of us has not noticed yet that the log's history was replaced."""
        return self.reported.head != self.ours.head


@dataclass(slots=True)
class DigestMismatch:
    """One stream's mismatch; there is one at a time."""

    stream: StreamName
    seq: StreamSeq
    opened_ms: int
    of_history: bool
    first: ReplicaId
    """The one that is named."""
    own: bool = False
    """With ourselves: the fold changed though no message came."""
    accusers: set[ReplicaId] = field(default_factory=set)
    """Who said otherwise and has not taken it back."""
    confirmed_ms: int | None = None
    """When we found that we were right."""
    confirmed_by: set[ReplicaId] = field(default_factory=set)
    """Accusers that found that they were right."""
    unexplained: bool = False

    def ready(self, camps: tuple[int, int], now_ms: int) -> bool:
        """Whether it is ours to fold anew now; `camps`: how many have the fold as we do, and how many not."""
        if self.confirmed_ms is not None:
            return False
        same, other = camps
        waited = now_ms - self.opened_ms >= RESOLVE_WAIT_MS
        return self.own or waited or (other >= same and not self.of_history)

    def inexplicable(self, now_ms: int) -> bool:
        """Whether everybody was right, or nobody said to have been wrong for too long."""
        if self.confirmed_ms is None or self.unexplained:
            return False
        return self.accusers <= self.confirmed_by or now_ms - self.confirmed_ms >= EXPLAIN_WAIT_MS


class DigestMismatches:
    """The open mismatches, one per stream at most."""

    def __init__(self) -> None:
        self.found = 0
        """How often another's fold, or our own, was not what it should be."""
        self.of_history = 0
        """How often only because one of us had not noticed yet that the log's history was replaced."""
        self.unexplained = 0
        self._open: dict[StreamName, DigestMismatch] = {}

    def __repr__(self) -> str:
        return f"<DigestMismatches {', '.join(f'{at.stream}:{at.seq}' for at in self.all()) or 'none'}>"

    def all(self) -> list[DigestMismatch]:
        """By stream."""
        return [self._open[stream] for stream in sorted(self._open)]

    def differ(self, difference: DigestDifference, now_ms: int) -> bool:
        """The replica is an accuser; True if that is a new dispute."""
        mismatch, new = self._open.get(difference.stream), False
        if mismatch is None:
            reported, of_history = difference.reported, difference.of_history
            self._count(of_history)
            mismatch = DigestMismatch(difference.stream, reported.seq, now_ms, of_history, difference.replica)
            self._open[difference.stream] = mismatch
            new = True
        mismatch.accusers.add(difference.replica)
        return new

    def differ_from_ourselves(self, stream: StreamName, seq: StreamSeq, me: ReplicaId, now_ms: int) -> bool:
        """The fold is not what was folded; True if nobody knew."""
        mismatch = self._open.get(stream)
        if mismatch is not None and (mismatch.own or mismatch.unexplained):
            return False
        self._count(of_history=False)
        self._open[stream] = DigestMismatch(stream, seq, now_ms, of_history=False, first=me, own=True)
        return True

    def agree(self, stream: StreamName, replica: ReplicaId) -> None:
        """The replica has the same fold as we again: it takes back what it said."""
        mismatch = self._open.get(stream)
        if mismatch is not None and not mismatch.own:
            self._acquit(mismatch, replica)

    def replaced(self, replica: ReplicaId) -> None:
        """The replica was wrong and goes on with a new fold of everything."""
        for mismatch in self.all():
            if not mismatch.own:
                self._acquit(mismatch, replica)

    def confirmed(self, stream: StreamName, replica: ReplicaId) -> None:
        """The replica folded anew and was right."""
        mismatch = self._open.get(stream)
        if mismatch is not None and replica in mismatch.accusers:
            mismatch.confirmed_by.add(replica)

    def is_open(self, mismatch: DigestMismatch) -> bool:
        """Whether it is not over yet."""
        return self._open.get(mismatch.stream) is mismatch

    def over(self, mismatch: DigestMismatch) -> None:
        """Nothing is left of it."""
        self._open.pop(mismatch.stream, None)

    def all_over(self) -> None:
        """Our fold is another now: whatever was said of the one before counts no more."""
        self._open.clear()

    def _acquit(self, mismatch: DigestMismatch, replica: ReplicaId) -> None:
        mismatch.accusers.discard(replica)
        if not mismatch.accusers:
            self.over(mismatch)

    def _count(self, of_history: bool) -> None:
        self.of_history += of_history
        self.found += not of_history
