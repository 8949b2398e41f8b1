"""Lanes: states that are folded along a recording, for whoever wants to see it at one cursor after another.

1. A fold cannot go back. So whoever wants cursors that each lie behind the one before, in every stream, needs one lane.
2. `OwnLanes` gives every replica its own: its cursors only grow. Decisions can be taken in the order of the log.
3. `SharedLanes` is for who takes the decisions of a window in the order of their cursors: replicas that follow one log
   are rarely ahead of each other in one stream and behind in another, so one lane does for nearly all of them. Where it
   does not, a second one is copied from a lane that is kept behind. If that happens often, each replica gets its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from core.ids import Epoch, ReplicaId, StreamName, StreamSeq
from projections.folds.snapshot import decode, encode
from projections.folds.state import State
from replay.recording import Cursor, Frame, Recording
from replay.reel import Reel
from streams.archive.archive_format import Span

MISFITS_MAX = 8
WINDOWS_PER_MISFIT = 4
"""If more copies of a state have to be made for shared lanes than this, or if it takes as many as there are replicas,
every replica gets a lane of its own."""

READ_AHEAD = 256
"""Messages that are read at once for who looks ahead."""

At = Mapping[str, tuple[int, int]]
"""Per stream epoch and sequence, as a decision records its cursor."""


class Lane:
    """One state and what is known of it."""

    __slots__ = ("cut", "state")

    def __init__(self, state: State, cut: dict[StreamName, str]) -> None:
        self.state = state
        self.cut = cut
        """Streams that are folded from behind their start: sources that were silent since are not known at all."""

    def __repr__(self) -> str:
        return f"<Lane {self.state!r}>"

    @property
    def reach(self) -> int:
        """How far it is, all streams together."""
        return sum([at.seq for at in self.state.cursor.values()])

    def behind(self, cursor: Cursor) -> int:
        """Messages to the cursor."""
        at = self.state.cursor
        return sum([seq - (at[stream].seq if stream in at else 0) for stream, seq in cursor.items()])

    def fits(self, cursor: At) -> bool:
        """Whether it is nowhere behind the cursor."""
        at = self.state.cursor
        if len(at) > len(cursor):
            return False
        for stream, (epoch, seq) in at.items():
            if stream not in cursor:
                return False
            wanted_epoch, wanted = cursor[stream]
            if seq > wanted and epoch == wanted_epoch:
                return False
        return True


class Track:
    """The recording that lanes are folded along; messages are decoded once for all of them."""

    def __init__(self, recording: Recording, *, rebases: bool = False) -> None:
        """`rebases`: the recording lacks something, so a snapshot that a lane comes past may know more than it does."""
        self.recording = recording
        self.epochs = {stream: recording.archive.span(stream).epoch for stream in recording.streams}
        self.ends = recording.end
        self._rebases = bool(recording.archive.snapshots()) and (rebases or any(recording.start.values()))
        self._reels: dict[StreamName, Reel] = {}

    def __repr__(self) -> str:
        return f"<Track {self.recording!r}>"

    def here(self, cursor: At) -> Cursor:
        """The cursor without streams of whose epoch the recording has nothing."""
        named = [(StreamName(name), epoch, StreamSeq(seq)) for name, (epoch, seq) in cursor.items()]
        return {stream: seq for stream, epoch, seq in named if self.epochs.get(stream) == epoch}

    def covers(self, cursor: At) -> bool:
        """Whether the recording is of the history that the cursor is of."""
        return all(self.epochs.get(StreamName(name)) == epoch for name, (epoch, _) in cursor.items())

    def has(self, stream: StreamName, epoch: int, seq: int) -> bool:
        """Whether the recording reaches over that message."""
        return self.epochs.get(stream) == epoch and self._span(stream).first_seq <= seq <= self.ends[stream]

    def lane_towards(self, stream: StreamName, seq: int) -> Lane:
        """A new lane that is not yet behind that message, and anywhere else in other streams."""
        return Lane(self.recording.state_before({**self.ends, stream: StreamSeq(seq)}), {})

    def lane(self, cursor: At, near: Iterable[Lane] = ()) -> Lane:
        """A new lane at the cursor, copied from the nearest of those or from what the recording has nearer."""
        here = self.here(cursor)
        best, left = None, self.recording.to_fold(here)
        for lane in near:
            if lane.fits(cursor) and (behind := lane.behind(here)) < left:
                best, left = lane, behind
        found = Lane(self.recording.state_before(here), {}) if best is None else self.copy(best)
        self.move(found, cursor)
        return found

    def copy(self, lane: Lane) -> Lane:
        """The same once more, growing apart; O(blocks * log blocks)."""
        return Lane(decode(self.recording.chain_key, b"".join(encode(lane.state))), dict(lane.cut))

    def move(self, lane: Lane, cursor: At) -> None:
        """The lane, which fits, is at the cursor, as far as the recording goes."""
        if self._rebases:
            self._rebase(lane, self.here(cursor))
        at, epochs = lane.state.cursor, self.epochs
        for name, (epoch, seq) in cursor.items():
            stream = StreamName(name)
            if epochs.get(stream) == epoch and (stream not in at or at[stream].seq < seq):
                self._fold(lane, stream, seq)

    def frames(self, stream: StreamName, start: int, end: int | None) -> Iterator[Frame]:
        """The stream's messages from `start` up to `end` (not included), read shortly ahead of the lanes."""
        last = self.ends[stream] if end is None else min(end - 1, self.ends[stream])
        for at in range(max(start, self._span(stream).first_seq), last + 1, READ_AHEAD):
            yield from self._reel(stream, start).between(at, min(at + READ_AHEAD - 1, last))

    def forget(self, lanes: Iterable[Lane]) -> None:
        """Messages that none of these lanes needs any more are given back."""
        states = [lane.state.cursor for lane in lanes]
        for stream, reel in self._reels.items():
            reel.forget(min((at[stream].seq for at in states if stream in at), default=0) + 1)

    def _rebase(self, lane: Lane, here: Cursor) -> None:
        """If there is a snapshot between the lane and the cursor, the lane goes on from that."""
        if self.recording.to_fold(here) < lane.behind(here):
            lane.state, lane.cut = self.recording.state_before(here), {}

    def _fold(self, lane: Lane, stream: StreamName, seq: int) -> None:
        state = lane.state
        folded = state.open(stream, Epoch(self.epochs[stream]))
        if not folded:
            self._look_for_cut(lane, stream)
        fold = state.fold
        for _, at, _, owner, head, message in self._reel(stream, folded + 1).between(folded + 1, seq):
            fold(stream, at, owner, message, head)
        if state.cursor[stream].seq < seq:
            state.skip_to(stream, StreamSeq(seq))

    def _look_for_cut(self, lane: Lane, stream: StreamName) -> None:
        if self.recording.start[stream]:
            lane.cut[stream] = self.recording.cut_text(stream)

    def _span(self, stream: StreamName) -> Span:
        return self.recording.archive.span(stream)

    def _reel(self, stream: StreamName, start: int) -> Reel:
        if stream not in self._reels:
            self._reels[stream] = Reel(self.recording, stream, start)
        return self._reels[stream]


class Lanes(Protocol):
    """Whose lane a decision is seen from."""

    def at(self, replica: ReplicaId, cursor: At) -> Lane:
        """A lane at the cursor; nobody moves it before this is called again."""

    def drop(self, replica: ReplicaId) -> None:
        """The replica decides nothing any more."""

    def all(self) -> list[Lane]:
        """Those that may be asked for again."""


class OwnLanes:
    """One per replica."""

    def __init__(self, track: Track, near: Iterable[Lane] = ()) -> None:
        """`near`: what first lanes may be copied from."""
        self._track = track
        self._near = list(near)
        self._lanes: dict[ReplicaId, Lane] = {}

    def __repr__(self) -> str:
        return f"<OwnLanes of {len(self._lanes)} replicas>"

    def at(self, replica: ReplicaId, cursor: At) -> Lane:
        lane = self._lanes.get(replica)
        if lane is None or not lane.fits(cursor):
            lane = self._lanes[replica] = self._track.lane(cursor, self.all())
        else:
            self._track.move(lane, cursor)
        return lane

    def drop(self, replica: ReplicaId) -> None:
        self._lanes.pop(replica, None)

    def all(self) -> list[Lane]:
        return [*self._lanes.values(), *self._near]

    def forget_near(self) -> None:
        """Lanes that are still to come are copied from those that are there."""
        self._near = []


class SharedLanes:
    """As few as the cursors allow; see the module's text."""

    def __init__(self, track: Track) -> None:
        self._track = track
        self._lanes: list[Lane] = []
        self._behind: Lane | None = None
        """At or before every cursor of the window."""
        self._lowest: At = {}
        self._windows = self._misfits = self._replicas = 0
        self._own: OwnLanes | None = None

    def __repr__(self) -> str:
        return repr(self._own) if self._own is not None else f"<SharedLanes: {len(self._lanes)}>"

    def begin(self, cursors: Iterable[At], replicas: int) -> None:
        """A window of decisions with these cursors begins, by so many replicas."""
        self._replicas = replicas
        self._windows += 1
        if self._own is not None:
            self._own.forget_near()
            return
        wanted = list(cursors)
        streams = set[str].intersection(*map(set, wanted)) if wanted else set[str]()
        self._lowest = {stream: min(cursor[stream] for cursor in wanted) for stream in streams}

    def at(self, replica: ReplicaId, cursor: At) -> Lane:
        if self._own is not None:
            return self._own.at(replica, cursor)
        fitting = [lane for lane in self._lanes if lane.fits(cursor)]
        if fitting:
            lane = max(fitting, key=lambda lane: lane.reach)
            self._track.move(lane, cursor)
            return lane
        lane = self._split(cursor)
        too_often = self._misfits > MISFITS_MAX + self._windows // WINDOWS_PER_MISFIT
        if self._lanes and (too_often or len(self._lanes) >= self._replicas):
            self._own = OwnLanes(self._track, [self._kept_behind(cursor)])
            self._lanes, self._behind = [], None
            return self._own.at(replica, cursor)
        self._lanes.append(lane)
        return lane

    def drop(self, replica: ReplicaId) -> None:
        if self._own is not None:
            self._own.drop(replica)

    def all(self) -> list[Lane]:
        if self._own is not None:
            return self._own.all()
        return self._lanes if self._behind is None else [*self._lanes, self._behind]

    def _split(self, cursor: At) -> Lane:
        """A further lane at the cursor."""
        self._misfits += bool(self._lanes)
        return self._track.lane(cursor, [self._kept_behind(cursor)])

    def _kept_behind(self, cursor: At) -> Lane:
        """The lane that is kept behind, moved on as far as no decision of the window needs it further back."""
        lowest = self._lowest if set(self._lowest) <= set(cursor) else cursor
        here, behind = self._track.here(lowest), self._behind
        if behind is None or not behind.fits(lowest) or self._track.recording.to_fold(here) < behind.behind(here):
            behind = self._behind = self._track.lane(lowest)  # from a snapshot on, if there is one
        else:
            self._track.move(behind, lowest)
        return behind
