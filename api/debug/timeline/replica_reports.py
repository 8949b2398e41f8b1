"""Replica reports: the reports of replicas on their folds, and the comparisons of equal positions."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from typing import NamedTuple

from core.event_json import hash_text
from core.events import Points
from core.prompt import hashes_from_bytes
from replay.recording.messages import PartialEvent

REPORTS_MAX = 20_000
"""Reports kept of one replica, the newest: more than a day at one in five seconds."""
POSITIONS_MAX = 65_536
"""Positions kept for comparison with later reports."""
COMPARISONS_MAX = 4096
"""Comparisons kept of two replicas in one stream, the newest."""

FoldPosition = tuple[int, str, int, int]
"""Fold version, stream, epoch, sequence."""


class StreamPoint(NamedTuple):
    """The newest point of one stream in a report."""

    epoch: int
    seq: int
    digest: str


class ReplicaReport(NamedTuple):
    """One report of one replica."""

    ms: int
    seq: int
    """Its sequence in the routing stream."""
    points: dict[str, StreamPoint]
    incomplete: tuple[str, ...]


class PointComparison(NamedTuple):
    """The comparison of two replicas that reported the same position."""

    ms: int
    """Time of the second report."""
    seq: int
    equal: bool


class LatestComparison(NamedTuple):
    """The newest comparison with another replica in one stream."""

    other: int
    stream: str
    comparison: PointComparison


class ReplicaReports:
    """Reports and comparisons by replica number. One thread appends, others may read."""

    def __init__(self) -> None:
        self._reports: dict[int, deque[ReplicaReport]] = {}
        self._positions: OrderedDict[FoldPosition, dict[int, int]] = OrderedDict()
        self._comparisons: dict[tuple[int, int, str], deque[PointComparison]] = {}

    def __repr__(self) -> str:
        return f"<ReplicaReports of {len(self._reports)} replicas, {len(self._positions)} positions>"

    def add(self, replica: int, seq: int, ms: int, event: PartialEvent) -> None:
        """The report is kept, and compared with those of other replicas."""
        newest = {}
        for stream, points in (event.points or {}).items():
            for at, digest in zip(points.seqs, hashes_from_bytes(points.digests), strict=True):
                self._compare(replica, (event.fold_version, stream, points.epoch, at), digest, ms)
            if points.seqs:
                newest[stream] = _newest(points)
        reports = self._reports.setdefault(replica, deque(maxlen=REPORTS_MAX))
        reports.append(ReplicaReport(ms, seq, newest, event.incomplete))

    def last(self, replica: int, ms: int) -> ReplicaReport | None:
        """The replica's newest report by then; None without one."""
        reports = list(self._reports.get(replica, ()))
        at = bisect_right(reports, ms, key=lambda report: report.ms)
        return reports[at - 1] if at else None

    def agreements(self, replica: int, ms: int) -> list[LatestComparison]:
        """The newest comparison by then with each other replica in each stream."""
        found = []
        for (one, two, stream), compared in sorted(self._comparisons.items()):
            if replica in {one, two}:
                known = list(compared)
                at = bisect_right(known, ms, key=lambda it: it.ms)
                if at:
                    found.append(LatestComparison(two if replica == one else one, stream, known[at - 1]))
        return found

    def _compare(self, replica: int, position: FoldPosition, digest: int, ms: int) -> None:
        digests = self._positions.setdefault(position, {})
        for other, theirs in digests.items():
            if other != replica:
                pair = (min(replica, other), max(replica, other), position[1])
                compared = self._comparisons.setdefault(pair, deque(maxlen=COMPARISONS_MAX))
                compared.append(PointComparison(ms, position[3], theirs == digest))
        digests[replica] = digest
        if len(self._positions) > POSITIONS_MAX:
            self._positions.popitem(last=False)


def _newest(points: Points) -> StreamPoint:
    at = max(range(len(points.seqs)), key=points.seqs.__getitem__)
    return StreamPoint(points.epoch, points.seqs[at], hash_text(hashes_from_bytes(points.digests)[at]))
