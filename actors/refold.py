"""Refold: the log's own answer to what a replica's fold should be, and how the fold that serves compares with it."""

from __future__ import annotations

from typing import NamedTuple

from core.ids import Epoch, StreamName, StreamSeq
from projections.folds.digest import MASK64
from projections.folds.state import State


class Finding(NamedTuple):
    """One stream's fold at a cursor that both folds have passed."""

    stream: StreamName
    epoch: Epoch
    seq: StreamSeq
    served: int
    """What the fold that serves had there."""
    refolded: int
    """What the log gives there."""

    @property
    def wrong(self) -> bool:
        return self.served != self.refolded


def drift(state: State, stream: StreamName) -> int:
    """What the fold differs by from what it says of itself; 0 unless the index was changed behind its back. O(parts).

    A message accounts for its own source only: what is wrong with another would be seen with that one's next message.
    """
    if stream not in state.kv:
        return 0
    kv = state.kv[stream]
    return (kv.recount() - kv.digest) & MASK64


def compare(state: State, refolded: State) -> dict[StreamName, Finding]:
    """Every stream that can be compared: known to both in one epoch, complete, and not further apart than the points
    that a state keeps. O(parts).
    """
    found = (_compare(state, refolded, stream) for stream in sorted(state.cursor))
    return {finding.stream: finding for finding in found if finding is not None}


def _compare(state: State, refolded: State, stream: StreamName) -> Finding | None:
    if stream not in refolded.cursor:
        return None
    seq = min(state.cursor[stream].seq, refolded.cursor[stream].seq)
    ours, log = state.point(stream, seq), refolded.point(stream, seq)
    if ours is None or log is None or not (ours.complete and log.complete) or ours.epoch != log.epoch:
        return None
    # digests are sums: what the parts have beside what was accounted for them counts at every cursor
    served = (ours.digest + drift(state, stream)) & MASK64
    return Finding(stream, ours.epoch, seq, served, log.digest)
