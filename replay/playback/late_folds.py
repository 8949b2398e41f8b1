"""Late folds: folds of single streams from a later message than the recording's first.

A replica that starts while retention has taken the first messages of a stream folds it without them. A copy of the
broker's store that is put back has them again. Such a replica states where its fold begins (`ReplicaReported.begins`),
and what it reports, or decides, is judged by the log's fold from there on.
"""

from __future__ import annotations

from core.ids import Epoch, StreamName, StreamSeq
from projections.folds.state import State
from replay.playback.state_cursors import CursorSource


class LateFolds:
    """The last state of each such fold is kept, and moved forward."""

    def __init__(self, source: CursorSource) -> None:
        self._source = source
        self._states: dict[tuple[StreamName, StreamSeq], State] = {}

    def __repr__(self) -> str:
        return f"<LateFolds from {len(self._states)} places>"

    def is_late(self, stream: StreamName, begin: tuple[int, int]) -> bool:
        """True if the recording has messages of the stream before that epoch's message."""
        epoch, seq = begin
        return self._source.epochs.get(stream) == epoch and seq > self._source.recording.start[stream] + 1

    def state(self, stream: StreamName, begin: StreamSeq, seq: StreamSeq) -> State:
        """The fold of that stream alone from `begin` up to `seq`; valid until the next call. O(messages since the last
        one asked for, or since `begin`)."""
        epoch = Epoch(self._source.epochs[stream])
        state = self._states.get((stream, begin))
        if state is None or state.cursor[stream].seq > seq:
            state = self._states[stream, begin] = State(self._source.recording.chain_key)
            state.open(stream, epoch)
            state.skip_to(stream, StreamSeq(min(begin - 1, seq)))
        for frame in self._source.frames(stream, state.cursor[stream].seq + 1, seq + 1):
            state.fold(stream, frame.seq, frame.owner, frame.message, frame.head)
        if state.cursor[stream].seq < seq:
            state.skip_to(stream, seq)
        return state
