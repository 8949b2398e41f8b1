"""Comparison: what other replicas say of their folds against what ours were at the same cursors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from actors.milestones import Milestones
from core.codec import DIGEST_BYTES
from core.events import Points, ReplicaReported
from core.ids import COLUMN_WIDTH, ReplicaId, StreamName, StreamSeq
from projections.folds.digest import FOLD_VERSION
from projections.folds.state import DigestPoint, State

PENDING_MAX = 1024
"""Points that we have not reached yet; the oldest goes first."""
LIVE_MS = 15_000
"""Three reports' time: a replica that said nothing for so long has no vote."""
REMEMBERED_MS = 600_000
"""How long the agreement with a replica that is silent is still shown …"""
REPLICAS_MAX = 256
"""… and of how many per stream at most."""


class Said(NamedTuple):
    """One point as another replica had it."""

    epoch: int
    seq: StreamSeq
    digest: int
    head: bytes


class Vote(NamedTuple):
    """What the newest comparison with a replica gave."""

    seq: StreamSeq
    agrees: bool
    at_ms: int
    """By our own clock."""


class Difference(NamedTuple):
    """Ours and another's fold were not the same after one message."""

    replica: ReplicaId
    stream: StreamName
    said: Said
    ours: DigestPoint

    @property
    def of_history(self) -> bool:
        """Not even the message was: one of us has not noticed yet that the log's history was replaced."""
        return self.said.head != self.ours.head


class Comparison:
    """Compares whatever can be compared, now or when we get there, and knows who agrees with us."""

    def __init__(self, state: State, milestones: Milestones) -> None:
        self.heard = 0
        """Reports of others."""
        self.compared = 0
        self.not_comparable = 0
        """Points too long ago, of another epoch, or at which a source was unknown here."""
        self.other_versions = 0
        """Reports of folds that are not to be compared with ours."""
        self.votes: dict[StreamName, dict[ReplicaId, Vote]] = {}
        self._state = state
        self._milestones = milestones
        self._pending: OrderedDict[tuple[ReplicaId, StreamName, StreamSeq], Said] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Comparison of {self.compared} points, {len(self._pending)} not reached yet>"

    def hear(self, replica: ReplicaId, event: ReplicaReported, now_ms: int) -> list[Difference]:
        """Every point that we have reached was compared; the others wait, at most PENDING_MAX of all replicas."""
        self.heard += 1
        if event.fold_version != FOLD_VERSION:
            self.other_versions += 1
            return []
        said = ((StreamName(stream), point) for stream, points in event.points.items() for point in _rows(points))
        found = (self._take(replica, stream, point, now_ms) for stream, point in said)
        return [difference for difference in found if difference is not None]

    def catch_up(self, now_ms: int) -> list[Difference]:
        """The points that waited for us and that we have reached were compared."""
        found = []
        for (replica, stream, seq), said in list(self._pending.items()):
            position = self._state.cursor.get(stream)
            if position is None or seq <= position.seq:
                del self._pending[replica, stream, seq]
                found.append(self._take(replica, stream, said, now_ms))
        return [difference for difference in found if difference is not None]

    def forget(self, replica: ReplicaId) -> None:
        """What it said before counts no more: its fold is another now."""
        for votes in self.votes.values():
            votes.pop(replica, None)
        for key in [key for key in self._pending if key[0] == replica]:
            del self._pending[key]

    def forget_votes(self) -> None:
        """What others said of our fold counts no more: it is another now."""
        self.votes.clear()

    def camps(self, stream: StreamName, now_ms: int) -> tuple[int, int]:
        """How many live replicas have this stream's fold as we do, ourselves included, and how many otherwise."""
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

    def _take(self, replica: ReplicaId, stream: StreamName, said: Said, now_ms: int) -> Difference | None:
        position = self._state.cursor.get(stream)
        if position is None or position.epoch != said.epoch:
            self.not_comparable += 1
            return None
        if said.seq > position.seq:
            self._wait_for(replica, stream, said)
            return None
        ours = self._milestones.at(stream, said.seq)
        if ours is None or not ours.complete:
            self.not_comparable += 1
            return None
        self.compared += 1
        agrees = (said.digest, said.head) == (ours.digest, ours.head)
        self._vote(replica, stream, Vote(said.seq, agrees, now_ms))
        return None if agrees else Difference(replica, stream, said, ours)

    def _wait_for(self, replica: ReplicaId, stream: StreamName, said: Said) -> None:
        self._pending[replica, stream, said.seq] = said
        if len(self._pending) > PENDING_MAX:
            self._pending.popitem(last=False)
            self.not_comparable += 1

    def _vote(self, replica: ReplicaId, stream: StreamName, vote: Vote) -> None:
        votes = self.votes.setdefault(stream, {})
        votes.pop(replica, None)  # put in again at the end: the order is of age
        votes[replica] = vote
        oldest = next(iter(votes))
        if len(votes) > REPLICAS_MAX or vote.at_ms - votes[oldest].at_ms > REMEMBERED_MS:
            del votes[oldest]


def _rows(points: Points) -> Iterator[Said]:
    for i, seq in enumerate(points.seqs):
        digest = int.from_bytes(points.digests[i * COLUMN_WIDTH : (i + 1) * COLUMN_WIDTH], "little")
        yield Said(points.epoch, StreamSeq(seq), digest, points.heads[i * DIGEST_BYTES : (i + 1) * DIGEST_BYTES])
