"""DigestCheckpoints: the digests of a replica's folds at cursors that the others pass too, and the reports of them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from msgspec import UNSET

from core.events import Points, ReplicaReported
from core.ids import COLUMN_WIDTH, StreamName, StreamSeq
from projections.digest import FOLD_VERSION
from projections.folds.source_fold import SourceFold
from projections.folds.state import DigestPoint, Position, State

CHECKPOINT_EVERY = 1024
"""Replicas look at different moments, but all of them pass the multiples of this; a power of two."""
CHECKPOINTS_KEPT = 64
"""Per stream: what another says of them may come late."""
POINTS_MAX = 16
"""Points of one stream in one report."""


class _StreamCheckpoints:
    """The checkpoints of one stream, under the fold that passed them."""

    def __init__(self, projection: SourceFold[Any, Any]) -> None:
        self.fold = weakref.ref(projection)  # no more than that: an old fold is large
        self.points: dict[int, DigestPoint] = {}
        """Oldest first."""
        self.reported_seq = 0
        """The last sequence that was reported."""


class DigestCheckpoints:
    """Remembers points for longer than the state does; knows by itself when the state became another."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._kept: dict[StreamName, _StreamCheckpoints] = {}
        self._reported: dict[StreamName, Position] = {}
        """The cursor at the last report."""

    def __repr__(self) -> str:
        return f"<DigestCheckpoints {sum(len(kept.points) for kept in self._kept.values())} points>"

    def passed(self, stream: StreamName, seq: StreamSeq) -> None:
        """The state stands at this multiple of CHECKPOINT_EVERY, or did a few messages ago."""
        point = self._state.point(stream, seq)
        if point is None:
            return
        points = self._of(stream).points
        points[seq] = point
        if len(points) > CHECKPOINTS_KEPT:
            del points[next(iter(points))]

    def at(self, stream: StreamName, seq: StreamSeq) -> DigestPoint | None:
        """The fold's digest after that message; None if it is too old to be kept."""
        return self._state.point(stream, seq) or self._of(stream).points.get(seq)

    def report(self) -> ReplicaReported | None:
        """The digests since the last report; None if no cursor has moved."""
        if self._reported == self._state.cursor:
            return None
        self._reported = dict(self._state.cursor)
        chosen = {stream: self._choice(stream) for stream in sorted(self._reported)}
        return ReplicaReported(
            fold_version=FOLD_VERSION,
            points={stream: _columns(points) for stream, points in chosen.items() if points},
            incomplete=tuple(stream for stream in chosen if self._state.projection(stream).incomplete),
            begins=self._begins() or UNSET,
        )

    def _begins(self) -> dict[str, tuple[int, int]]:
        """The epoch and first message of each stream that is folded from behind its first."""
        begins = sorted(self._state.begins.items())
        return {stream: (self._state.cursor[stream].epoch, seq) for stream, seq in begins if seq > 1}

    def _choice(self, stream: StreamName) -> list[DigestPoint]:
        """The newest digest, and those of passed milestones that other replicas are likeliest to report, too."""
        kept, end = self._of(stream), self._state.cursor[stream].seq
        new = [point for seq, point in kept.points.items() if seq > kept.reported_seq and seq != end and point.complete]
        new.sort(key=lambda point: (-(point.seq & -point.seq), -point.seq))
        kept.reported_seq = end
        now = self._state.point(stream, end)
        chosen = new[: POINTS_MAX - 1] + ([now] if now is not None and now.complete else [])
        return sorted(chosen, key=lambda point: point.seq)

    def _of(self, stream: StreamName) -> _StreamCheckpoints:
        projection = self._state.projection(stream)
        kept = self._kept.get(stream)
        if kept is None or kept.fold() is not projection:
            kept = self._kept[stream] = _StreamCheckpoints(projection)
        return kept


def _columns(points: Iterable[DigestPoint]) -> Points:
    points = list(points)
    return Points(
        epoch=points[0].epoch,
        seqs=tuple(point.seq for point in points),
        digests=b"".join(point.digest.to_bytes(COLUMN_WIDTH, "little") for point in points),
        heads=b"".join(point.head for point in points),
    )
