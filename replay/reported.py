"""Reported: what a replica said of one stream's fold, one place of a `ReplicaReported`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from core.codec import DIGEST_BYTES
from core.events import ReplicaReported
from core.ids import COLUMN_WIDTH, ReplicaId, StreamName, StreamSeq
from projections.folds.digest import FOLD_VERSION


class Reported(NamedTuple):
    """One place in one stream."""

    replica: ReplicaId
    at: StreamSeq
    """Where in the routing stream it said so."""
    time_ms: int
    stream: StreamName
    epoch: int
    seq: StreamSeq
    digest: int
    head: bytes
    """Chain digest of the message at `seq`, as the replica had read it."""


def places(replica: ReplicaId, at: StreamSeq, time_ms: int, event: ReplicaReported) -> Iterator[Reported]:
    """All of one report; none if it is of folds of another version."""
    if event.fold_version != FOLD_VERSION:
        return
    for stream, points in event.points.items():
        for i, seq in enumerate(points.seqs):
            digest = int.from_bytes(points.digests[i * COLUMN_WIDTH : (i + 1) * COLUMN_WIDTH], "little")
            head = points.heads[i * DIGEST_BYTES : (i + 1) * DIGEST_BYTES]
            yield Reported(replica, at, time_ms, StreamName(stream), points.epoch, StreamSeq(seq), digest, head)
