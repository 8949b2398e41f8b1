"""State cursors: states that are folded forward along a recording, from one decision's cursor to the next.

1. A fold cannot go back. One state cursor is enough for a sequence of cursors that never go back in any stream.
2. `CursorPerReplica` gives every replica its own: its cursors only grow. Decisions can be taken in the order of the
   log.
3. `SharedCursors` is for decisions that are taken window by window in the order of their cursors. Replicas that follow
   one log are rarely ahead of each other in one stream and behind in another, so one state cursor is enough for nearly
   all of them. Another one is copied from a state cursor that is kept behind. If that happens often, each replica gets
   its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Protocol

from core.errors import CallerError
from core.ids import Epoch, ReplicaId, StreamName, StreamSeq
from core.subjects import JOBS
from projections.folds.frozen_state import freeze
from projections.folds.state import State
from replay.recording.recording import Cursor, RecordedFrame, Recording

FRAMES_KEPT_MAX = 16_384
"""Frames kept for readers that lag behind; a reader that lags further reads the recording again."""
FRAMES_FORGOTTEN_MIN = 1024
"""Frames are given back so many at a time."""


class FrameCache:
    """A window on a stream, from the oldest frame kept to the newest read."""

    def __init__(self, recording: Recording, stream: StreamName, start: int) -> None:
        self.stream = stream
        self._recording = recording
        self._frames: list[RecordedFrame] = []
        self._seqs: list[int] = []
        self._kept_from = start
        """Every frame from this sequence on that was read is kept."""
        self._source = recording.frames(stream, start)

    def __repr__(self) -> str:
        return f"<FrameCache of {self.stream}: {len(self._frames)} frames from {self._kept_from} on>"

    def between(self, start: int, end: int) -> Iterable[RecordedFrame]:
        """The frames from `start` to `end` (included) that there are, in order."""
        if not self._seqs or self._seqs[-1] < end:
            self._read_to(end)
        kept = self._frames[bisect_left(self._seqs, start) : bisect_right(self._seqs, end)]
        if start >= self._kept_from:
            return kept
        return chain(self._recording.frames(self.stream, start, min(self._kept_from, end + 1)), kept)

    def forget(self, before: int) -> None:
        """Frames before that sequence are dropped: no reader needs them."""
        gone = max(bisect_left(self._seqs, before), len(self._seqs) - FRAMES_KEPT_MAX)
        if gone >= FRAMES_FORGOTTEN_MIN:
            self._kept_from = self._seqs[gone - 1] + 1
            del self._seqs[:gone], self._frames[:gone]

    def _read_to(self, end: int) -> None:
        for frame in self._source:
            self._frames.append(frame)
            self._seqs.append(frame.seq)
            if frame.seq >= end:
                return


MISFITS_MAX = 8
WINDOWS_PER_MISFIT = 4
"""With more copies of a state than these allow, or as many shared cursors as replicas, every replica gets its own state
cursor."""

PREFETCH = 256
"""Messages that are read at once ahead of the state cursors."""

DecisionCursor = Mapping[str, tuple[int, int]]
"""Per stream epoch and sequence, as a decision records its cursor."""


class StateCursor:
    """One state that moves forward along a recording, and the streams that it lacks the head of."""

    __slots__ = ("cut", "state")

    def __init__(self, state: State, cut: dict[StreamName, str]) -> None:
        self.state = state
        self.cut = cut
        """Streams folded from behind their start, each with a sentence: sources silent since then are unknown."""

    def __repr__(self) -> str:
        return f"<StateCursor {self.state!r}>"

    @property
    def reach(self) -> int:
        """The sum of its sequences over all streams."""
        return sum([at.seq for at in self.state.cursor.values()])

    def behind(self, cursor: Cursor) -> int:
        """The number of messages up to the cursor."""
        at = self.state.cursor
        return sum([seq - (at[stream].seq if stream in at else 0) for stream, seq in cursor.items()])

    def fits(self, cursor: DecisionCursor) -> bool:
        """True if it can move to the cursor: it is beyond it in no stream. A place 0 of another epoch is before every
        message; only what it has of jobs does not matter then."""
        at = self.state.cursor
        if len(at) > len(cursor):
            return False
        for stream, (epoch, seq) in at.items():
            if stream not in cursor:
                return False
            to_epoch, to_seq = cursor[stream]
            if seq > to_seq and (epoch == to_epoch or (not to_seq and stream != JOBS)):
                return False
        return True


class CursorSource:
    """Makes state cursors of one recording and moves them; messages are decoded once for all of them."""

    def __init__(self, recording: Recording, *, rebases: bool = False) -> None:
        """`rebases`: the recording lacks something, so a snapshot may know more than the state cursor that
        passes it."""
        self.recording = recording
        self.epochs = {stream: recording.archive.span(stream).epoch for stream in recording.streams}
        self.ends = recording.end
        rebases = rebases or recording.excerpt is not None or any(recording.start.values())
        self._rebases = rebases and bool(recording.archive.snapshots())
        self._caches: dict[StreamName, FrameCache] = {}

    def __repr__(self) -> str:
        return f"<CursorSource {self.recording!r}>"

    def here(self, cursor: DecisionCursor) -> Cursor:
        """The cursor without streams of other epochs than the recording's."""
        named = [(StreamName(name), epoch, StreamSeq(seq)) for name, (epoch, seq) in cursor.items()]
        return {stream: seq for stream, epoch, seq in named if self.epochs.get(stream) == epoch}

    def covers(self, cursor: DecisionCursor) -> bool:
        """True if the recording has the epochs of the cursor."""
        return all(self.epochs.get(StreamName(name)) == epoch for name, (epoch, _) in cursor.items())

    def has(self, stream: StreamName, epoch: int, seq: int) -> bool:
        """True if the message lies within the recording."""
        return self.epochs.get(stream) == epoch and self.recording.start[stream] < seq <= self.ends[stream]

    def cursor_towards(self, stream: StreamName, seq: int) -> StateCursor:
        """A new state cursor that is not beyond that message, and anywhere in other streams."""
        return StateCursor(self.recording.state_before({**self.ends, stream: StreamSeq(seq)}), {})

    def new_cursor(self, cursor: DecisionCursor, near: Iterable[StateCursor] = ()) -> StateCursor:
        """A new state cursor there, copied from the nearest of `near` or from a nearer state of the recording."""
        here = self.here(cursor)
        best, left = None, self.recording.to_fold(here)
        for state_cursor in near:
            if state_cursor.fits(cursor) and (behind := state_cursor.behind(here)) < left:
                best, left = state_cursor, behind
        found = StateCursor(self.recording.state_before(here), {}) if best is None else self.copy(best)
        self.move(found, cursor)
        return found

    def copy(self, state_cursor: StateCursor) -> StateCursor:
        """An independent copy; O(blocks)."""
        return StateCursor(freeze(state_cursor.state).thaw(self.recording.chain_key), dict(state_cursor.cut))

    def move(self, state_cursor: StateCursor, cursor: DecisionCursor) -> None:
        """The state cursor, which fits, is at the cursor, as far as the recording goes."""
        if self._rebases:
            self._rebase(state_cursor, self.here(cursor))
        at, epochs = state_cursor.state.cursor, self.epochs
        for name, (epoch, seq) in cursor.items():
            stream = StreamName(name)
            if epochs.get(stream) == epoch and (stream not in at or at[stream].seq < seq):
                self._fold(state_cursor, stream, seq)

    def frames(self, stream: StreamName, start: int, end: int | None) -> Iterator[RecordedFrame]:
        """The stream's messages from `start` up to `end` (not included), read shortly ahead of the state cursors."""
        last = self.ends[stream] if end is None else min(end - 1, self.ends[stream])
        for at in range(max(start, self.recording.start[stream] + 1), last + 1, PREFETCH):
            yield from self._cache(stream, start).between(at, min(at + PREFETCH - 1, last))

    def forget(self, state_cursors: Iterable[StateCursor]) -> None:
        """Messages that none of these state cursors needs any more are dropped."""
        states = [state_cursor.state.cursor for state_cursor in state_cursors]
        for stream, cache in self._caches.items():
            cache.forget(min((at[stream].seq for at in states if stream in at), default=0) + 1)

    def _rebase(self, state_cursor: StateCursor, here: Cursor) -> None:
        """If there is a snapshot between the state cursor and the cursor, the state cursor goes on from that."""
        if self.recording.to_fold(here) < state_cursor.behind(here):
            state_cursor.state, state_cursor.cut = self.recording.state_before(here), {}

    def _fold(self, state_cursor: StateCursor, stream: StreamName, seq: int) -> None:
        state = state_cursor.state
        folded = state.open(stream, Epoch(self.epochs[stream]))
        if self.recording.excerpt is not None and folded < seq:
            raise CallerError(self.recording.excerpt_text)
        if not folded and self.recording.start[stream]:
            state_cursor.cut[stream] = self.recording.cut_text(stream)
        fold = state.fold
        for _, at, _, owner, head, message in self._cache(stream, folded + 1).between(folded + 1, seq):
            fold(stream, at, owner, message, head)
        if state.cursor[stream].seq < seq:
            state.skip_to(stream, StreamSeq(seq))

    def _cache(self, stream: StreamName, start: int) -> FrameCache:
        if stream not in self._caches:
            self._caches[stream] = FrameCache(self.recording, stream, start)
        return self._caches[stream]


class CursorPool(Protocol):
    """The state cursors that a playback uses."""

    def at(self, replica: ReplicaId, cursor: DecisionCursor) -> StateCursor:
        """A state cursor at the cursor; it does not move before the next call."""

    def drop(self, replica: ReplicaId) -> None:
        """The replica makes no more decisions."""

    def all(self) -> list[StateCursor]:
        """The state cursors that `at` may return again."""


class CursorPerReplica:
    """One state cursor per replica."""

    def __init__(self, source: CursorSource, near: Iterable[StateCursor] = ()) -> None:
        """`near`: state cursors that a replica's first one may be copied from."""
        self._source = source
        self._near = list(near)
        self._cursors: dict[ReplicaId, StateCursor] = {}

    def __repr__(self) -> str:
        return f"<CursorPerReplica of {len(self._cursors)} replicas>"

    def at(self, replica: ReplicaId, cursor: DecisionCursor) -> StateCursor:
        state_cursor = self._cursors.get(replica)
        if state_cursor is None or not state_cursor.fits(cursor):
            state_cursor = self._cursors[replica] = self._source.new_cursor(cursor, self.all())
        else:
            self._source.move(state_cursor, cursor)
        return state_cursor

    def drop(self, replica: ReplicaId) -> None:
        self._cursors.pop(replica, None)

    def all(self) -> list[StateCursor]:
        return [*self._cursors.values(), *self._near]

    def forget_near(self) -> None:
        """Later state cursors are copied only from those of replicas."""
        self._near = []


class SharedCursors:
    """As few state cursors as the decisions' cursors allow."""

    def __init__(self, source: CursorSource) -> None:
        self._source = source
        self._cursors: list[StateCursor] = []
        self._behind: StateCursor | None = None
        """At or before every cursor of the window."""
        self._lowest: DecisionCursor = {}
        self._windows = self._misfits = self._replicas = 0
        self._own: CursorPerReplica | None = None

    def __repr__(self) -> str:
        return repr(self._own) if self._own is not None else f"<SharedCursors: {len(self._cursors)}>"

    def begin(self, cursors: Iterable[DecisionCursor], replicas: int) -> None:
        """A window of decisions with these cursors begins, by so many replicas."""
        self._replicas = replicas
        self._windows += 1
        if self._own is not None:
            self._own.forget_near()
            return
        listed = list(cursors)
        streams = set[str].intersection(*map(set, listed)) if listed else set[str]()
        self._lowest = {stream: min(cursor[stream] for cursor in listed) for stream in streams}

    def at(self, replica: ReplicaId, cursor: DecisionCursor) -> StateCursor:
        if self._own is not None:
            return self._own.at(replica, cursor)
        fitting = [state_cursor for state_cursor in self._cursors if state_cursor.fits(cursor)]
        if fitting:
            state_cursor = max(fitting, key=lambda state_cursor: state_cursor.reach)
            self._source.move(state_cursor, cursor)
            return state_cursor
        state_cursor = self._split(cursor)
        too_often = self._misfits > MISFITS_MAX + self._windows // WINDOWS_PER_MISFIT
        if self._cursors and (too_often or len(self._cursors) >= self._replicas):
            self._own = CursorPerReplica(self._source, [self._kept_behind(cursor)])
            self._cursors, self._behind = [], None
            return self._own.at(replica, cursor)
        self._cursors.append(state_cursor)
        return state_cursor

    def drop(self, replica: ReplicaId) -> None:
        if self._own is not None:
            self._own.drop(replica)

    def all(self) -> list[StateCursor]:
        if self._own is not None:
            return self._own.all()
        return self._cursors if self._behind is None else [*self._cursors, self._behind]

    def _split(self, cursor: DecisionCursor) -> StateCursor:
        """One more state cursor at the cursor."""
        self._misfits += bool(self._cursors)
        return self._source.new_cursor(cursor, [self._kept_behind(cursor)])

    def _kept_behind(self, cursor: DecisionCursor) -> StateCursor:
        """The state cursor that is kept behind, moved forward as far as every decision of the window allows."""
        lowest = self._lowest if set(self._lowest) <= set(cursor) else cursor
        here, behind = self._source.here(lowest), self._behind
        if behind is None or not behind.fits(lowest) or self._source.recording.to_fold(here) < behind.behind(here):
            behind = self._behind = self._source.new_cursor(lowest)  # from a snapshot on, if there is one
        else:
            self._source.move(behind, lowest)
        return behind
