"""FoldCheck: what replicas said of their own folds (`ReplicaReported`) against what the log gives there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from core.codec import DIGEST_BYTES
from core.events import Points, ReplicaReported
from core.ids import COLUMN_WIDTH, ReplicaId, StreamName, StreamSeq
from projections.projection import FOLD_VERSION
from replay.lacks import Lacks
from replay.recording import Frame
from replay.seat import Seat

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


class Said(NamedTuple):
    """One point of a report."""

    stream: StreamName
    seq: StreamSeq
    digest: int
    head: bytes


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

    def compare(self, seat: Seat, frame: Frame, event: ReplicaReported, lacks: Lacks) -> None:
        """Every point of the report that the seat's state still has was compared."""
        if event.fold_version != FOLD_VERSION:
            return
        for name, points in event.points.items():
            stream = StreamName(name)
            at = seat.state.cursor.get(stream)
            if at is not None and at.epoch == points.epoch:
                for said in _said(stream, points):
                    self._compare(seat, frame, said, lacks)

    def add(self, other: FoldCheck) -> None:
        """What another found counts here too."""
        self.compared += other.compared
        self.different += other.different
        self.not_judged += other.not_judged
        self.differences = [*self.differences, *other.differences][:KEPT]

    def _compare(self, seat: Seat, frame: Frame, said: Said, lacks: Lacks) -> None:
        stream, seq, digest, head = said
        point = seat.state.point(stream, seq)
        if point is None or not point.complete:
            return
        self.compared += 1
        if point.digest == digest:
            return
        if point.head != head or stream in seat.cut or lacks.at({stream: (point.epoch, seq)}):
            self.not_judged += 1
        else:
            self.different += 1
            if len(self.differences) < KEPT:
                self.differences.append(
                    FoldDifference(
                        replica=seat.replica,
                        stream=stream,
                        seq=seq,
                        reported_seq=frame.seq,
                        time_ms=frame.time_ms,
                        digest=digest,
                        refolded=point.digest,
                    )
                )


def _said(stream: StreamName, points: Points) -> Iterator[Said]:
    for i, seq in enumerate(points.seqs):
        digest = int.from_bytes(points.digests[i * COLUMN_WIDTH : (i + 1) * COLUMN_WIDTH], "little")
        yield Said(stream, StreamSeq(seq), digest, points.heads[i * DIGEST_BYTES : (i + 1) * DIGEST_BYTES])
