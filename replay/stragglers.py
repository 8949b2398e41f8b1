"""Stragglers: what replicas said of their folds and no decision of theirs came behind.

A seat moves only for decisions. So what an idle replica told, or one that ended, is compared with whatever lane comes
past the place; what is left at the end, with a lane that goes there.
"""

from __future__ import annotations

from core.ids import StreamName
from replay.fold_check import FoldCheck
from replay.lacks import Lacks
from replay.lanes import Lane, Track
from replay.reported import Reported


class Stragglers:
    """See the module's text."""

    def __init__(self, track: Track, folds: FoldCheck, lacks: Lacks) -> None:
        self._track = track
        self._folds = folds
        self._lacks = lacks
        self._waiting: list[Reported] = []

    def __repr__(self) -> str:
        return f"<Stragglers: {len(self._waiting)} wait>"

    def note(self, told: Reported) -> None:
        """It waits to be compared, if the recording has the place."""
        if self._track.has(told.stream, told.epoch, told.seq):
            self._waiting.append(told)

    def meet(self, lanes: list[Lane]) -> None:
        """What one of these lanes has come past, not too long ago, is compared."""
        self._waiting = [told for told in self._waiting if not any(self._compare(told, lane) for lane in lanes)]

    def finish(self, lanes: list[Lane]) -> None:
        """Nothing waits any more; the lanes, which nobody else needs, go on to where something is to be compared."""
        self.meet(lanes)
        lanes = list(lanes)
        for told in sorted(self._waiting, key=lambda told: (told.stream, told.seq, told.at, told.replica)):
            lane = max(
                (lane for lane in lanes if _reach(lane, told.stream) <= told.seq),
                key=lambda lane: _reach(lane, told.stream),
                default=None,
            )
            if lane is None:
                lane = self._track.lane_towards(told.stream, told.seq)
                lanes.append(lane)
            self._track.move(lane, {told.stream: (told.epoch, told.seq)})
            self._compare(told, lane)
        self._waiting = []

    def _compare(self, told: Reported, lane: Lane) -> bool:
        return self._folds.compare(told, lane.state, lane.cut, self._lacks)


def _reach(lane: Lane, stream: StreamName) -> int:
    at = lane.state.cursor.get(stream)
    return at.seq if at is not None else 0
