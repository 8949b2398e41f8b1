"""Fold reports: the digests that replicas reported of their own folds (`ReplicaReported`) against the log's folds.

A replica's state moves only for its decisions. A report behind the last decision of its replica is therefore deferred:
it is compared with the next state cursor that passes the place, or at the end with a state cursor that is moved there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from typing import NamedTuple

import msgspec
from msgspec import UnsetType

from core.codec import DIGEST_BYTES
from core.events import ReplicaReported
from core.ids import COLUMN_WIDTH, ReplicaId, StreamName, StreamSeq
from core.subjects import LOAD, is_kv
from projections.digest import (
    ADAPTERS_VERSION,
    FETCHES_VERSION,
    FOLD_VERSION,
    POOLS_VERSION,
    RATES_VERSION,
    READ_FOLD_VERSIONS,
    TURNOVER_VERSION,
)
from projections.folds.state import DigestPoint, State
from replay.playback.late_folds import LateFolds
from replay.playback.state_cursors import CursorSource, StateCursor
from replay.recording.gaps import Gaps
from replay.recording.unknown_sources import UnknownSources


class FoldReport(NamedTuple):
    """The digest that a replica reported of its fold at one place in one stream."""

    replica: ReplicaId
    at: StreamSeq
    """The sequence of the report in the routing stream."""
    time_ms: int
    stream: StreamName
    epoch: int
    seq: StreamSeq
    digest: int
    head: bytes
    """Chain digest of the message at `seq`, as the replica had read it."""
    begin: tuple[int, int] | None = None
    """Epoch and first message of its fold, if it states that it lacks earlier ones."""
    fold_version: int = FOLD_VERSION


def fold_reports_of(replica: ReplicaId, at: StreamSeq, time_ms: int, event: ReplicaReported) -> Iterator[FoldReport]:
    """All of one report; none if it is of folds of a version that this program does not compare."""
    if event.fold_version not in READ_FOLD_VERSIONS:
        return
    begins = {} if isinstance(event.begins, UnsetType) else event.begins
    for stream, points in event.points.items():
        begin = begins.get(stream)
        for i, seq in enumerate(points.seqs):
            digest = int.from_bytes(points.digests[i * COLUMN_WIDTH : (i + 1) * COLUMN_WIDTH], "little")
            head = points.heads[i * DIGEST_BYTES : (i + 1) * DIGEST_BYTES]
            yield FoldReport(
                replica, at, time_ms, StreamName(stream), points.epoch, StreamSeq(seq), digest, head, begin,
                event.fold_version,
            )  # fmt: skip


def late_fold(late_folds: LateFolds, report: FoldReport) -> State | None:
    """The fold from the message on with which the report says that its own begins; None if the recording has none
    before that one."""
    begin = report.begin
    if begin is None or begin[1] > report.seq or not late_folds.is_late(report.stream, begin):
        return None
    return late_folds.state(report.stream, StreamSeq(begin[1]), report.seq)


KEPT = 100
"""The first differences are kept, all are counted."""


class FoldDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A replica had another fold of a stream than the log gives."""

    replica: ReplicaId
    stream: StreamName
    seq: StreamSeq
    reported_seq: StreamSeq
    """The sequence of the report in the routing stream."""
    time_ms: int
    digest: int
    """The digest that the replica reported."""
    refolded: int
    """The digest of the log's fold."""


def _folds_less(report: FoldReport, state: State) -> bool:
    """True if the report's fold is of a version that lacks a part of this state (`projections.digest`)."""
    if report.stream == LOAD:
        without_rates = report.fold_version < RATES_VERSION and state.loads.rates_reported
        return without_rates or (report.fold_version < TURNOVER_VERSION and state.loads.turnovers_reported)
    if not is_kv(report.stream):
        return False
    fold = state.kv[report.stream]
    without_pools = report.fold_version < POOLS_VERSION and fold.pools_read
    without_adapters = report.fold_version < ADAPTERS_VERSION and fold.adapters_read
    return without_pools or without_adapters or (report.fold_version < FETCHES_VERSION and fold.fetches_read)


class FoldCheck:
    """Counts and differences, of all replicas that are played."""

    def __init__(self) -> None:
        self.compared = 0
        self.different = 0
        self.not_judged: Counter[str] = Counter()
        """Reported digests by the reason why they are not judged: `version` (a fold of another version), `absent` (the
        recording does not hold the place), `incomplete` (a source is unknown there, and its chain shows why), and, of
        those that were compared and differ, `history` (the replica had read another message) and `gap`."""
        self.unreported = 0
        """Streams of which replicas reported nothing, since a source was unknown to them."""
        self.differences: list[FoldDifference] = []
        """The first KEPT of them, in the order of the log."""

    def __repr__(self) -> str:
        return f"<FoldCheck: {self.different} of {self.compared} differ>"

    def note(self, event: ReplicaReported) -> None:
        """The event is in the range that is played."""
        self.unreported += len(event.incomplete)
        if event.fold_version not in READ_FOLD_VERSIONS:
            self.not_judged["version"] += sum(len(points.seqs) for points in event.points.values())

    def compare(
        self, report: FoldReport, state: State, cut: Container[StreamName], gaps: Gaps, unknown: UnknownSources
    ) -> bool:
        """True if the state still has that place: then the report is compared with it. `cut` are streams that are
        folded from behind their start. A fold that lacks a source longer than `unknown` allows is a difference."""
        at = state.cursor.get(report.stream)
        point = state.point(report.stream, report.seq) if at is not None and at.epoch == report.epoch else None
        if point is None:
            return False
        read_alike = point.head == report.head
        if not point.complete and (report.stream in cut or not read_alike or unknown.allow(report.stream, report.seq)):
            self.not_judged["incomplete"] += 1
            return True
        if _folds_less(report, state):
            self.not_judged["version"] += 1
            return True
        self.compared += 1
        if point.complete and point.digest == report.digest:
            return True
        if not read_alike:
            self.not_judged["history"] += 1
        elif report.stream in cut or any(gaps.at({report.stream: (point.epoch, report.seq)})):
            self.not_judged["gap"] += 1
        else:
            self.different += 1
            self._keep([_difference(report, point)])
        return True

    def add(self, other: FoldCheck) -> None:
        """The counts and differences of another check are added."""
        self.compared += other.compared
        self.different += other.different
        self.not_judged.update(other.not_judged)
        self.unreported += other.unreported
        self._keep(other.differences)

    def _keep(self, differences: list[FoldDifference]) -> None:
        self.differences = sorted([*self.differences, *differences], key=_place)[:KEPT]


def _difference(report: FoldReport, point: DigestPoint) -> FoldDifference:
    return FoldDifference(
        replica=report.replica,
        stream=report.stream,
        seq=report.seq,
        reported_seq=report.at,
        time_ms=report.time_ms,
        digest=report.digest,
        refolded=point.digest,
    )


def _place(it: FoldDifference) -> tuple[int, str, int]:
    return it.reported_seq, it.stream, it.seq


class DeferredDigestChecks:
    """Reports that wait for a state cursor to pass their place."""

    def __init__(
        self, source: CursorSource, folds: FoldCheck, gaps: Gaps, unknown: UnknownSources, late_folds: LateFolds
    ) -> None:
        self._source = source
        self._folds = folds
        self._gaps = gaps
        self._unknown = unknown
        self._late_folds = late_folds
        self._waiting: list[FoldReport] = []

    def __repr__(self) -> str:
        return f"<DeferredDigestChecks: {len(self._waiting)} wait>"

    def note(self, report: FoldReport) -> None:
        """The report is deferred, if the recording has the place."""
        if self._source.has(report.stream, report.epoch, report.seq):
            self._waiting.append(report)
        else:
            self._folds.not_judged["absent"] += 1

    def meet(self, state_cursors: list[StateCursor]) -> None:
        """Reports at places that one of these state cursors has just passed are compared."""
        self._waiting = [
            report
            for report in self._waiting
            if not any(self._compare(report, state_cursor) for state_cursor in state_cursors)
        ]

    def finish(self, state_cursors: list[StateCursor]) -> None:
        """All deferred reports are compared; the state cursors, which nothing else uses any more, are moved there."""
        self.meet(state_cursors)
        state_cursors = list(state_cursors)
        for report in sorted(self._waiting, key=lambda report: (report.stream, report.seq, report.at, report.replica)):
            state_cursor = max(
                (state_cursor for state_cursor in state_cursors if _reach(state_cursor, report.stream) <= report.seq),
                key=lambda state_cursor: _reach(state_cursor, report.stream),
                default=None,
            )
            if state_cursor is None:
                state_cursor = self._source.cursor_towards(report.stream, report.seq)
                state_cursors.append(state_cursor)
            self._source.move(state_cursor, {report.stream: (report.epoch, report.seq)})
            self._compare(report, state_cursor)
        self._waiting = []

    def _compare(self, report: FoldReport, state_cursor: StateCursor) -> bool:
        late = late_fold(self._late_folds, report)
        state, cut = (late, ()) if late is not None else (state_cursor.state, state_cursor.cut)
        return self._folds.compare(report, state, cut, self._gaps, self._unknown)


def _reach(state_cursor: StateCursor, stream: StreamName) -> int:
    at = state_cursor.state.cursor.get(stream)
    return at.seq if at is not None else 0
