"""Replica reports: what replicas reported of their folds, and whether comparable reports are equal."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from typing import NamedTuple

from core.event_json import hash_text
from core.events import Points
from core.prompt import hashes_from_bytes
from replay.recording.messages import PartialEvent

REPORTS_MAX = 20_000
"""Of one replica, the newest: at one in five seconds, more than a day."""
PLACES_MAX = 65_536
"""Points that are remembered for whoever reports the same one later."""
MEETINGS_MAX = 4096
"""Of two replicas in one stream, the newest."""

FoldPosition = tuple[int, str, int, int]
"""Fold version, stream, epoch, sequence."""


class StreamPoint(NamedTuple):
    """The newest that a report says of one stream."""

    epoch: int
    seq: int
    digest: str


class ReplicaReport(NamedTuple):
    """What one replica said at one time."""

    ms: int
    seq: int
    """Where it stands in the routing stream."""
    points: dict[str, StreamPoint]
    incomplete: tuple[str, ...]


class PointComparison(NamedTuple):
    """Two replicas reported the same place."""

    ms: int
    """When the second one did."""
    seq: int
    equal: bool


class LatestComparison(NamedTuple):
    """The newest meeting with another replica in one stream."""

    other: int
    stream: str
    meeting: PointComparison


class ReplicaReports:
    """By replica number. One thread appends, others may read."""

    def __init__(self) -> None:
        self._said: dict[int, deque[ReplicaReport]] = {}
        self._places: OrderedDict[FoldPosition, dict[int, int]] = OrderedDict()
        self._meetings: dict[tuple[int, int, str], deque[PointComparison]] = {}

    def __repr__(self) -> str:
        return f"<ReplicaReports of {len(self._said)} replicas, {len(self._places)} places>"

    def reported(self, replica: int, seq: int, ms: int, event: PartialEvent) -> None:
        """The replica said so."""
        newest = {}
        for stream, points in (event.points or {}).items():
            for at, digest in zip(points.seqs, hashes_from_bytes(points.digests), strict=True):
                self._compare(replica, (event.fold_version, stream, points.epoch, at), digest, ms)
            if points.seqs:
                newest[stream] = _newest(points)
        said = self._said.setdefault(replica, deque(maxlen=REPORTS_MAX))
        said.append(ReplicaReport(ms, seq, newest, event.incomplete))

    def last(self, replica: int, ms: int) -> ReplicaReport | None:
        """What it had said last by then."""
        said = list(self._said.get(replica, ()))
        at = bisect_right(said, ms, key=lambda report: report.ms)
        return said[at - 1] if at else None

    def agreements(self, replica: int, ms: int) -> list[LatestComparison]:
        """The newest meeting by then with each other replica in each stream."""
        found = []
        for (one, two, stream), meetings in sorted(self._meetings.items()):
            if replica in {one, two}:
                known = list(meetings)
                at = bisect_right(known, ms, key=lambda meeting: meeting.ms)
                if at:
                    found.append(LatestComparison(two if replica == one else one, stream, known[at - 1]))
        return found

    def _compare(self, replica: int, place: FoldPosition, digest: int, ms: int) -> None:
        digests = self._places.setdefault(place, {})
        for other, theirs in digests.items():
            if other != replica:
                pair = (min(replica, other), max(replica, other), place[1])
                meetings = self._meetings.setdefault(pair, deque(maxlen=MEETINGS_MAX))
                meetings.append(PointComparison(ms, place[3], theirs == digest))
        digests[replica] = digest
        if len(self._places) > PLACES_MAX:
            self._places.popitem(last=False)


def _newest(points: Points) -> StreamPoint:
    at = max(range(len(points.seqs)), key=points.seqs.__getitem__)
    return StreamPoint(points.epoch, points.seqs[at], hash_text(hashes_from_bytes(points.digests)[at]))
