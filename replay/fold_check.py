"""FoldCheck: what replicas said of their own folds (`ReplicaReported`) against what the log gives there."""

from __future__ import annotations

from collections.abc import Container

import msgspec

from core.ids import ReplicaId, StreamName, StreamSeq
from projections.folds.state import DigestPoint, State
from replay.lacks import Lacks
from replay.reported import Reported

KEPT = 100
"""The first differences are told, all are counted."""


class FoldDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A replica had another fold of a stream than the log gives."""

    replica: ReplicaId
    stream: StreamName
    seq: StreamSeq
    reported_seq: StreamSeq
    """Where in the routing stream it said so."""
    time_ms: int
    digest: int
    """What the replica said."""
    refolded: int
    """What the log gives."""


class FoldCheck:
    """Counts and differences, of all replicas that are played."""

    def __init__(self) -> None:
        self.compared = 0
        self.different = 0
        self.not_judged = 0
        """Those that differ where the recording lacks something, or has another history than the replica read."""
        self.differences: list[FoldDifference] = []
        """The first KEPT of them, in the order of the log."""

    def __repr__(self) -> str:
        return f"<FoldCheck: {self.different} of {self.compared} differ>"

    def compare(self, told: Reported, state: State, cut: Container[StreamName], lacks: Lacks) -> bool:
        """Whether the state still has that place: then what was told is compared with it. `cut` are streams that are
        folded from behind their start."""
        at = state.cursor.get(told.stream)
        point = state.point(told.stream, told.seq) if at is not None and at.epoch == told.epoch else None
        if point is None:
            return False
        if not point.complete:
            return True
        self.compared += 1
        if point.digest == told.digest:
            return True
        if point.head != told.head or told.stream in cut or lacks.at({told.stream: (point.epoch, told.seq)}):
            self.not_judged += 1
        else:
            self.different += 1
            self._keep([_difference(told, point)])
        return True

    def add(self, other: FoldCheck) -> None:
        """What another found counts here too."""
        self.compared += other.compared
        self.different += other.different
        self.not_judged += other.not_judged
        self._keep(other.differences)

    def _keep(self, differences: list[FoldDifference]) -> None:
        self.differences = sorted([*self.differences, *differences], key=_place)[:KEPT]


def _difference(told: Reported, point: DigestPoint) -> FoldDifference:
    return FoldDifference(
        replica=told.replica,
        stream=told.stream,
        seq=told.seq,
        reported_seq=told.at,
        time_ms=told.time_ms,
        digest=told.digest,
        refolded=point.digest,
    )


def _place(it: FoldDifference) -> tuple[int, str, int]:
    return it.reported_seq, it.stream, it.seq
