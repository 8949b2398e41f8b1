"""Playback: every decision of a recording again, in the order of the log, each with the very view that it was made on.

Each replica that decided has a seat of its own: a state folded to the cursor of its decision, which never goes back.
Messages are decoded once for all seats (`Reel`); a seat costs a fold of everything, which is the price of exactness.
A new replica's state is a copy of a seat's that stands before it, or a snapshot's, and reads on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from core.decision import DECIDE_VERSION
from core.events import ReplicaLeft, RequestRouted
from core.ids import LOST_SUFFIX, ReplicaId, RequestId, SourceId, StreamName, StreamSeq
from core.settings import RoutingSettings
from core.subjects import ROUTING
from projections.snapshot import decode, encode
from projections.state import State
from projections.view import RouteRequest, View
from replay.recorded_prompt import RecordedPrompt
from replay.recording import Cursor, Frame, Recording
from replay.reel import Reel
from replay.seat import Seat

FORGET_EVERY = 256
"""Decisions between two looks at which frames nobody needs any more."""

Delay = Callable[[Frame, Mapping[str, tuple[int, int]]], Mapping[str, tuple[int, int]]]
"""From a decision's message and recorded cursor to the cursor to decide at; never goes back, never ahead of it."""


class Situation(NamedTuple):
    """One decision and all that it rested on. `view` is true until the next situation is asked for."""

    replica: ReplicaId
    seq: StreamSeq
    """Of the message in the routing stream that says it."""
    time_ms: int
    event: RequestRouted
    """What was recorded."""
    request: RouteRequest
    view: View
    settings: RoutingSettings
    doubts: dict[str, str]
    """Why the recording may not show what the replica saw, by kind: `cut`, `gap`, `unknown`, `deleted`, `replaced`,
    `settings`, `version`. Empty if nothing is known to be wrong."""


class Playback:
    """See the module's text; goes through the recording once."""

    def __init__(
        self,
        recording: Recording,
        start: int = 1,
        end: int | None = None,
        *,
        replica: ReplicaId | None = None,
        delay: Delay | None = None,
    ) -> None:
        """Decisions whose message stands in the routing stream from `start` up to `end` (not included); of one
        replica only, if it is given."""
        self.seats: dict[ReplicaId, Seat] = {}
        self._recording = recording
        self._start, self._end = start, end
        self._only = replica
        self._delay = delay
        self._reels: dict[StreamName, Reel] = {}
        self._epochs = {stream: recording.archive.span(stream).epoch for stream in recording.streams}

    def __iter__(self) -> Iterator[Situation]:
        """The situations, in the order of the log. CallerError or Corrupt if the recording cannot be read."""
        if ROUTING not in self._epochs:
            return
        made = 0
        for frame in self._recording.frames(ROUTING, self._start, self._end):
            if frame.message is None:
                continue
            replica = ReplicaId(frame.owner)
            if frame.message.source == SourceId(replica + LOST_SUFFIX):
                self.seats.pop(replica, None)
            elif self._only in {None, replica}:
                for situation in self._told(replica, frame):
                    yield situation
                    made += 1
                    if made % FORGET_EVERY == 0:
                        self._forget()

    def _told(self, replica: ReplicaId, frame: Frame) -> Iterator[Situation]:
        """One message of a replica, event by event."""
        assert frame.message is not None
        events = frame.message.events
        for number, event in enumerate(events):
            seat = self.seats.get(replica)
            if isinstance(event, RequestRouted):
                cursor = event.cursor if self._delay is None else self._delay(frame, event.cursor)
                if seat is None:
                    seat = self.seats[replica] = self._seated(replica, frame, cursor)
                    for before in events[:number]:
                        seat.say(frame.seq, before)
                self._move(seat, cursor)
                yield _situation(seat, frame, event)
            elif isinstance(event, ReplicaLeft):
                self.seats.pop(replica, None)
                return
            if seat is not None:
                seat.say(frame.seq, event)

    def _seated(self, replica: ReplicaId, frame: Frame, cursor: Mapping[str, tuple[int, int]]) -> Seat:
        """A seat at the cursor, which knows what the replica said in the messages before this one."""
        state = self._state_before({StreamName(stream): StreamSeq(seq) for stream, (_, seq) in cursor.items()})
        draft = Seat(replica, state)
        self._move(draft, cursor)
        seat = Seat(replica, draft.state)  # with what the fold at the cursor has of it
        seat.doubts.update(draft.doubts)
        if ROUTING in cursor:
            for before in self._recording.frames(ROUTING, cursor[ROUTING][1] + 1, frame.seq):
                if (
                    before.owner == replica
                    and before.message is not None
                    and before.message.source == SourceId(replica)
                ):
                    for event in before.message.events:
                        seat.say(before.seq, event)
        return seat

    def _state_before(self, cursor: Cursor) -> State:
        """A copy of the seat's state that is nearest, or the nearest state that the recording has."""
        nearest = self._recording.state_before(cursor)
        best, seated = _reach(nearest), None
        for seat in self.seats.values():
            at = seat.state.cursor
            if _reach(seat.state) > best and all(at[stream].seq <= cursor.get(stream, -1) for stream in at):
                best, seated = _reach(seat.state), seat
        return nearest if seated is None else decode(self._recording.chain_key, b"".join(encode(seated.state)))

    def _move(self, seat: Seat, cursor: Mapping[str, tuple[int, int]]) -> None:
        """The seat's state is folded to the cursor, as far as the recording has what it takes."""
        for name, (epoch, seq) in cursor.items():
            stream = StreamName(name)
            if self._epochs.get(stream) != epoch:
                seat.doubts["replaced"] = f"{stream} was made anew: the history of its epoch {epoch} is not here"
                continue
            at = seat.open(stream, epoch)
            if at >= seq:
                if at > seq:
                    seat.doubts["replaced"] = f"the cursor went back from {stream}:{at} to {seq}"
                continue
            if at == 0:
                self._look_for_cut(seat, stream)
            gaps = seat.state.gaps_found
            for frame in self._reel(stream, at + 1).between(at + 1, seq):
                seat.take(frame)
            if seat.state.gaps_found > gaps:
                seat.doubts["gap"] = str(seat.state.gaps[-1])
            if seat.state.cursor[stream].seq < seq:
                seat.doubts["deleted"] = f"{stream}:{seq} was read by the replica and is not here"
                seat.state.skip_to(stream, StreamSeq(seq))
        self._look_at_part(seat)

    def _look_for_cut(self, seat: Seat, stream: StreamName) -> None:
        span = self._recording.archive.span(stream)
        if span.first_seq > 1 or span.log_first_seq > 1:
            seat.doubts["cut"] = f"{stream} begins at {max(span.first_seq, span.log_first_seq)}, without a snapshot"

    @staticmethod
    def _look_at_part(seat: Seat) -> None:
        part = seat.part
        if part is not None and not part.known:
            seat.doubts["unknown"] = f"a message of {seat.replica} is missing, and it has not restated itself since"

    def _reel(self, stream: StreamName, start: int) -> Reel:
        if stream not in self._reels:
            self._reels[stream] = Reel(self._recording, stream, start)
        return self._reels[stream]

    def _forget(self) -> None:
        for stream, reel in self._reels.items():
            cursors = (seat.state.cursor.get(stream) for seat in self.seats.values())
            reel.forget(min((at.seq for at in cursors if at is not None), default=0) + 1)


def _reach(state: State) -> int:
    return sum(at.seq for at in state.cursor.values())


def _situation(seat: Seat, frame: Frame, event: RequestRouted) -> Situation:
    doubts = dict(seat.doubts)
    if event.decide_version != DECIDE_VERSION:
        doubts["version"] = (
            f"decided by version {event.decide_version} of the program's rules; this is {DECIDE_VERSION}"
        )
    if seat.revision != event.settings_revision:
        doubts["settings"] = f"revision {event.settings_revision} of the settings is not here"
    prompt = RecordedPrompt(event.prompt_tokens, event.block_size, event.hashes)
    request = RouteRequest(RequestId(event.request), event.attempt, event.model, prompt, event.tenant, event.priority)
    return Situation(seat.replica, frame.seq, frame.time_ms, event, request, seat.view, seat.settings, doubts)
