"""DigestMismatch: two folds of one stream were not the same at one cursor, and the outcome of that.

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

from actors.consistency.digest_comparison import DigestDifference
from core.ids import ReplicaId, StreamName, StreamSeq

RESOLVE_WAIT_MS = 30_000
"""Time that the majority waits for the minority, and that a mismatch of history has to vanish."""
EXPLAIN_WAIT_MS = 60_000
"""Time that a replica with the right fold waits for the others to publish that theirs were wrong."""


@dataclass(slots=True)
class DigestMismatch:
    """One stream's mismatch; there is one at a time."""

    stream: StreamName
    seq: StreamSeq
    opened_ms: int
    of_history: bool
    first: ReplicaId
    """The accuser that a verdict names."""
    accusers: set[ReplicaId] = field(default_factory=set)
    """Replicas with another fold and no agreement since."""
    confirmed_ms: int | None = None
    """When we found that we were right."""
    confirmed_by: set[ReplicaId] = field(default_factory=set)
    """Accusers that found that they were right."""
    unexplained: bool = False

    def ready(self, camps: tuple[int, int], now_ms: int) -> bool:
        """True if this replica is to fold anew now. `camps`: numbers of replicas with the same fold and with
        another."""
        if self.confirmed_ms is not None:
            return False
        same, other = camps
        return (other >= same and not self.of_history) or now_ms - self.opened_ms >= RESOLVE_WAIT_MS

    def inexplicable(self, now_ms: int) -> bool:
        """True if every replica was right, or none published for too long that it was wrong."""
        if self.confirmed_ms is None or self.unexplained:
            return False
        return self.accusers <= self.confirmed_by or now_ms - self.confirmed_ms >= EXPLAIN_WAIT_MS


class DigestMismatches:
    """The open mismatches, one per stream at most."""

    def __init__(self) -> None:
        self.found = 0
        """Counts mismatches with other replicas."""
        self.of_history = 0
        """Mismatches for the single reason that one replica had not noticed yet that the log's history was replaced."""
        self.unexplained = 0
        self._open: dict[StreamName, DigestMismatch] = {}

    def __repr__(self) -> str:
        return f"<DigestMismatches {', '.join(f'{at.stream}:{at.seq}' for at in self.all()) or 'none'}>"

    def all(self) -> list[DigestMismatch]:
        """By stream."""
        return [self._open[stream] for stream in sorted(self._open)]

    def differ(self, difference: DigestDifference, now_ms: int) -> bool:
        """The replica is an accuser; True if that opened a mismatch."""
        mismatch = self._open.get(difference.stream)
        is_new = mismatch is None
        if mismatch is None:
            seq, of_history = difference.reported.seq, difference.of_history
            self.of_history += of_history
            self.found += not of_history
            mismatch = DigestMismatch(difference.stream, seq, now_ms, of_history, difference.replica)
            self._open[difference.stream] = mismatch
        mismatch.accusers.add(difference.replica)
        return is_new

    def agree(self, stream: StreamName, replica: ReplicaId) -> None:
        """The replica has the same fold as we again: it is no accuser any more."""
        mismatch = self._open.get(stream)
        if mismatch is not None:
            self._acquit(mismatch, replica)

    def replaced(self, replica: ReplicaId) -> None:
        """The replica was wrong and goes on with a new fold of everything."""
        for mismatch in self.all():
            self._acquit(mismatch, replica)

    def confirmed(self, stream: StreamName, replica: ReplicaId) -> None:
        """The replica folded anew and was right."""
        mismatch = self._open.get(stream)
        if mismatch is not None and replica in mismatch.accusers:
            mismatch.confirmed_by.add(replica)

    def is_open(self, mismatch: DigestMismatch) -> bool:
        """True if the mismatch is not resolved yet."""
        return self._open.get(mismatch.stream) is mismatch

    def over(self, mismatch: DigestMismatch) -> None:
        """Nothing is left of it."""
        self._open.pop(mismatch.stream, None)

    def all_over(self) -> None:
        """Our fold is another now: no mismatch of the one before counts any more."""
        self._open.clear()

    def _acquit(self, mismatch: DigestMismatch, replica: ReplicaId) -> None:
        mismatch.accusers.discard(replica)
        if not mismatch.accusers:
            self.over(mismatch)
