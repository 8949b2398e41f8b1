"""DigestComparison: the points that other replicas reported beside our own, and the replicas that agree there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from actors.consistency.digest_checkpoints import DigestCheckpoints
from core.codec import DIGEST_BYTES
from core.events import Points, ReplicaReported
from core.ids import COLUMN_WIDTH, Epoch, ReplicaId, StreamName, StreamSeq
from projections.digest import FOLD_VERSION
from projections.folds.state import DigestPoint, State

PENDING_MAX = 1024
"""Points that we have not reached yet; the oldest goes first."""
LIVE_MS = 15_000
"""Three reports' time: a replica that is silent for so long has no vote."""
REMEMBERED_MS = 600_000
"""Time for which the agreement with a silent replica is still shown …"""
REPLICAS_MAX = 256
"""… and of how many per stream at most."""


class ReportedPoint(NamedTuple):
    """One point of another replica's fold."""

    epoch: int
    seq: StreamSeq
    digest: int
    head: bytes


class DigestDifference(NamedTuple):
    """Two folds were not the same after one message."""

    replica: ReplicaId
    stream: StreamName
    reported: ReportedPoint
    ours: DigestPoint

    @property
    def of_history(self) -> bool:
        """The message itself differs: one replica has not noticed yet that the log's history was replaced."""
        return self.reported.head != self.ours.head


class PeerVote(NamedTuple):
    """The newest comparison with a replica."""

    seq: StreamSeq
    agrees: bool
    at_ms: int
    """By our own clock."""


class DigestComparison:
    """Compares reported points with our own, now or when our fold reaches them."""

    def __init__(self, state: State, checkpoints: DigestCheckpoints) -> None:
        self.reports = 0
        """Reports of others."""
        self.compared = 0
        self.not_comparable = 0
        """Points too long ago, of another epoch, or at which a source was unknown here."""
        self.other_versions = 0
        """Reports of folds that are not to be compared with ours."""
        self.votes: dict[StreamName, dict[ReplicaId, PeerVote]] = {}
        self._state = state
        self._checkpoints = checkpoints
        self._pending: OrderedDict[tuple[ReplicaId, StreamName, StreamSeq], ReportedPoint] = OrderedDict()

    def __repr__(self) -> str:
        return f"<DigestComparison of {self.compared} points, {len(self._pending)} not reached yet>"

    def on_report(self, replica: ReplicaId, report: ReplicaReported, now_ms: int) -> list[DigestDifference]:
        """Every point that we have reached was compared; the others wait, at most PENDING_MAX of all replicas."""
        self.reports += 1
        if report.fold_version != FOLD_VERSION:
            self.other_versions += 1
            return []
        reported = ((StreamName(stream), point) for stream, points in report.points.items() for point in _rows(points))
        found = (self._compare(replica, stream, point, now_ms) for stream, point in reported)
        return [difference for difference in found if difference is not None]

    def catch_up(self, now_ms: int) -> list[DigestDifference]:
        """The pending points that our fold has reached were compared."""
        found = []
        for (replica, stream, seq), reported in list(self._pending.items()):
            position = self._state.cursor.get(stream)
            if position is None or seq <= position.seq:
                del self._pending[replica, stream, seq]
                found.append(self._compare(replica, stream, reported, now_ms))
        return [difference for difference in found if difference is not None]

    def forget(self, replica: ReplicaId) -> None:
        """The replica's earlier reports count no more: its fold is another now."""
        for votes in self.votes.values():
            votes.pop(replica, None)
        for key in [key for key in self._pending if key[0] == replica]:
            del self._pending[key]

    def forget_votes(self) -> None:
        """Earlier comparisons count no more: our fold is another now."""
        self.votes.clear()

    def camps(self, stream: StreamName, now_ms: int) -> tuple[int, int]:
        """Numbers of live replicas with the same fold of this stream as this one, this one included, and with
        another."""
        live = [vote for vote in self.votes.get(stream, {}).values() if now_ms - vote.at_ms <= LIVE_MS]
        agreeing = sum(vote.agrees for vote in live)
        return 1 + agreeing, len(live) - agreeing

    def agreed(self, now_ms: int) -> dict[str, dict[str, dict[str, int]]]:
        """By replica and stream: the last point at which it agreed, and how long ago that was found."""
        found: dict[str, dict[str, dict[str, int]]] = {}
        for stream, votes in sorted(self.votes.items()):
            for replica, vote in sorted(votes.items()):
                if vote.agrees:
                    found.setdefault(replica, {})[stream] = {"seq": vote.seq, "ms_ago": now_ms - vote.at_ms}
        return found

    def _compare(
        self, replica: ReplicaId, stream: StreamName, reported: ReportedPoint, now_ms: int
    ) -> DigestDifference | None:
        position = self._state.cursor.get(stream)
        if position is None or position.epoch != reported.epoch:
            self.not_comparable += 1
            return None
        if reported.seq > position.seq:
            self._wait_for(replica, stream, reported)
            return None
        ours = self._checkpoints.at(stream, reported.seq)
        if ours is None or not ours.complete:
            self.not_comparable += 1
            return None
        self.compared += 1
        agrees = (reported.digest, reported.head) == (ours.digest, ours.head)
        self._vote(replica, stream, PeerVote(reported.seq, agrees, now_ms))
        return None if agrees else DigestDifference(replica, stream, reported, ours)

    def _wait_for(self, replica: ReplicaId, stream: StreamName, reported: ReportedPoint) -> None:
        self._pending[replica, stream, reported.seq] = reported
        if len(self._pending) > PENDING_MAX:
            self._pending.popitem(last=False)
            self.not_comparable += 1

    def _vote(self, replica: ReplicaId, stream: StreamName, vote: PeerVote) -> None:
        votes = self.votes.setdefault(stream, {})
        votes.pop(replica, None)  # put in again at the end: the order is of age
        votes[replica] = vote
        oldest = next(iter(votes))
        if len(votes) > REPLICAS_MAX or vote.at_ms - votes[oldest].at_ms > REMEMBERED_MS:
            del votes[oldest]


def _rows(points: Points) -> Iterator[ReportedPoint]:
    for i, seq in enumerate(points.seqs):
        digest = int.from_bytes(points.digests[i * COLUMN_WIDTH : (i + 1) * COLUMN_WIDTH], "little")
        yield ReportedPoint(
            points.epoch, StreamSeq(seq), digest, points.heads[i * DIGEST_BYTES : (i + 1) * DIGEST_BYTES]
        )


class FoldComparison(NamedTuple):
    """Two folds of one stream at a cursor that both have passed."""

    stream: StreamName
    epoch: Epoch
    seq: StreamSeq
    served: int
    """The digest of the fold that serves."""
    rebuilt: int
    """The digest of the fold that the log gives now."""

    @property
    def wrong(self) -> bool:
        return self.served != self.rebuilt


def compare_folds(state: State, rebuilt: State) -> dict[StreamName, FoldComparison]:
    """Every stream that can be compared: known to both in one epoch, complete, and not further apart than the points
    that a state keeps.
    """
    found = (_compare_stream(state, rebuilt, stream) for stream in sorted(state.cursor))
    return {comparison.stream: comparison for comparison in found if comparison is not None}


def _compare_stream(state: State, rebuilt: State, stream: StreamName) -> FoldComparison | None:
    if stream not in rebuilt.cursor:
        return None
    seq = min(state.cursor[stream].seq, rebuilt.cursor[stream].seq)
    ours, log = state.point(stream, seq), rebuilt.point(stream, seq)
    if ours is None or log is None or not (ours.complete and log.complete) or ours.epoch != log.epoch:
        return None
    return FoldComparison(stream, ours.epoch, seq, ours.digest, log.digest)
