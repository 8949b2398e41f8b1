"""Playback: every decision of a recording again, in the order of the log, each with the very view that it was made on.

Each replica that decided has a seat of its own, with what it alone knew; the state is a lane's (`replay.lanes`), folded
to the cursor of the decision. What a replica said between two decisions is said again when the later one is due: then
the state is where the replica stood.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from core.events import Event, ReplicaLeft, ReplicaReported, RequestRejected, RequestRouted, UnknownEvent
from core.ids import LOST_SUFFIX, ReplicaId, SourceId, StreamName, StreamSeq
from core.settings import RoutingSettings
from core.subjects import JOBS, ROUTING
from projections.policy.view import RouteRequest, View
from replay.doubts import doubts_of
from replay.fold_check import FoldCheck
from replay.lacks import Lacks
from replay.lanes import At, Lane, Lanes, OwnLanes, SharedLanes, Track
from replay.proof import lacks_of
from replay.recorded_prompt import RecordedPrompt
from replay.recording import Frame, Recording
from replay.reported import places
from replay.seat import Seat
from replay.stragglers import Stragglers

FORGET_EVERY = 256
"""Decisions between two looks at which frames nobody needs any more."""
WINDOW = 1024
"""Messages whose decisions are taken in the order of their cursors."""
UNSAID_MAX = 4096
"""Events of a replica that decides nothing which are kept for it; they can be read again."""
DECISION = RequestRouted.__name__

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
    `end`, `settings`, `version`. Empty if nothing is known to be wrong."""
    number: int = 0
    """Of the event in its message."""


class Refusal(NamedTuple):
    """One request that no worker could take, in the same way; its prompt is not in the log."""

    replica: ReplicaId
    seq: StreamSeq
    time_ms: int
    event: RequestRejected
    view: View
    settings: RoutingSettings
    doubts: dict[str, str]
    number: int


class _OtherJobs(View):
    """A view of a replica that had read a queue of jobs that was made anew since: no decision rests on jobs, but all
    name how far they were read."""

    _jobs: tuple[int, int]

    @staticmethod
    def of(view: View, jobs: tuple[int, int]) -> _OtherJobs:
        """The view with that place in its cursor."""
        other = _OtherJobs(*view)
        other._jobs = jobs
        return other

    @property
    def cursor(self) -> dict[str, tuple[int, int]]:
        return dict(sorted({**super().cursor, JOBS: self._jobs}.items()))


class _Step(NamedTuple):
    """One event of a replica, or None for messages of it that are missing before this one."""

    frame: Frame
    number: int
    event: Event | UnknownEvent | None


class Playback:
    """See the module's text; goes through the recording once."""

    def __init__(
        self,
        recording: Recording,
        start: int = 1,
        end: int | None = None,
        *,
        replica: ReplicaId | Collection[ReplicaId] | None = None,
        delay: Delay | None = None,
        lacks: Lacks | None = None,
        numbers: Mapping[ReplicaId, int] = MappingProxyType({}),
    ) -> None:
        """Decisions whose message stands in the routing stream from `start` up to `end` (not included); of one or
        some replicas only, if they are given. `lacks` is what a proof found; without it, holes are looked for.
        `numbers`: of each replica's next message at the start, so that what comes again is known."""
        self.seats: dict[ReplicaId, Seat] = {}
        self.skipped: Counter[str] = Counter()
        """Decisions in the range that are given to nobody: `repeat` (the same message once more), `foreign` (signed
        by somebody else), `ended` (behind the replica's end), `version` (of a form that this program cannot read)."""
        self.unreadable = 0
        """Messages of the routing stream that are none of ours, or of a form that this program cannot read."""
        self.folds = FoldCheck()
        """What the replicas themselves said of their folds against ours: by `windows` all that they said, else what
        they said before a decision of theirs."""
        self.recording = recording
        self._start, self._end = start, end
        self._only = {ReplicaId(replica)} if isinstance(replica, str) else replica
        self._delay = delay
        self._lacks = lacks_of(recording) if lacks is None else lacks
        self._track = Track(recording, rebases=bool(self._lacks.all))
        self._stragglers: Stragglers | None = None
        """Of what is said to be compared later; None if nobody compares it."""
        self._unsaid: dict[ReplicaId, deque[_Step]] = {}
        """What each said since its last decision."""
        self._stood: dict[ReplicaId, At] = {}
        """The cursor of its last decision."""
        self._numbers = dict(numbers)
        """Of each replica's next message."""
        self._ended: set[ReplicaId] = set()
        """Whose end was just heard."""

    def __iter__(self) -> Iterator[Situation]:
        """The situations, in the order of the log. CallerError or Corrupt if the recording cannot be read."""
        return (each for each in self.everything(refusals=False) if isinstance(each, Situation))

    def everything(self, *, refusals: bool = True) -> Iterator[Situation | Refusal]:
        """The same with the requests that were refused."""
        lanes, made = OwnLanes(self._track), 0
        for frame in self._frames():
            for step in self._heard(frame):
                if isinstance(step.event, RequestRouted) or (refusals and isinstance(step.event, RequestRejected)):
                    yield self._played(step, lanes)
                    made += 1
                    if made % FORGET_EVERY == 0:
                        self._track.forget(lanes.all())
            self._tidy(lanes, [ReplicaId(frame.owner)])

    def windows(self) -> Iterator[Iterator[Situation | Refusal]]:
        """The same in windows of the log, within each in the order of the cursors: where several replicas decide, that
        is a good deal cheaper. Each window is to be gone through to its end."""
        lanes, frames = SharedLanes(self._track), self._frames()
        self._stragglers = stragglers = Stragglers(self._track, self.folds, self._lacks)
        while window := list(islice(frames, WINDOW)):
            yield self._window(window, lanes)
            self._tidy(lanes, list(self._unsaid))
            stragglers.meet(lanes.all())
            self._track.forget(lanes.all())
        for replica in list(self._unsaid):
            self._unsay(replica)
        stragglers.finish(lanes.all())

    def _window(self, frames: list[Frame], lanes: SharedLanes) -> Iterator[Situation | Refusal]:
        steps = [step for frame in frames for step in self._heard(frame)]
        decisions = [step for step in steps if isinstance(step.event, RequestRouted | RequestRejected)]
        cursors = [self._cursor(step) for step in decisions]
        lanes.begin(cursors, len({step.frame.owner for step in decisions}))
        for at in _in_order(decisions, cursors):
            yield self._played(decisions[at], lanes)

    def doubts(self, at: Situation | Refusal, agreed: Mapping[StreamName, int]) -> dict[str, str]:
        """Those that remain of the situation given last, where the replica's folds are known to have been ours up to
        there."""
        return doubts_of(self.seats[at.replica], at.event, self._track, self._lacks, agreed)

    # --- what replicas said ------------------------------------------------------------------------------------

    def _frames(self) -> Iterator[Frame]:
        if ROUTING in self._track.epochs:
            yield from self._track.frames(ROUTING, self._start, self._end)

    def _heard(self, frame: Frame) -> list[_Step]:
        """The events of a message that is to be played; they wait to be said."""
        replica, message = ReplicaId(frame.owner), frame.message
        if self._only is not None and replica not in self._only:
            return []
        if message is None:
            self.unreadable += 1
        elif message.source == SourceId(replica + LOST_SUFFIX):
            self._ended.add(replica)
        elif message.source != SourceId(replica):
            self.skipped["foreign"] += _decisions(frame)
        elif message.n < self._numbers.get(replica, 0):
            self.skipped["repeat"] += _decisions(frame)
        else:
            steps = self._steps(replica, frame, message.events)
            if message.n > self._numbers.get(replica, message.n):
                steps.insert(0, _Step(frame, -1, None))
            self._numbers[replica] = message.n + 1
            self._unsaid.setdefault(replica, deque()).extend(steps)
            return steps
        return []

    def _steps(self, replica: ReplicaId, frame: Frame, events: Sequence[Event | UnknownEvent]) -> list[_Step]:
        steps, left = [], False
        for number, event in enumerate(events):
            if left:
                self.skipped["ended"] += isinstance(event, RequestRouted)
                continue
            if isinstance(event, UnknownEvent) and event.name == DECISION:
                self.skipped["version"] += 1
            steps.append(_Step(frame, number, event))
            if isinstance(event, ReplicaLeft):
                left = True
                self._ended.add(replica)
        return steps

    def _tidy(self, lanes: Lanes, replicas: list[ReplicaId]) -> None:
        """Nothing is kept of those who ended; nothing waits for those without a seat, who are seated with it."""
        for replica in replicas:
            if replica in self._ended or len(self._unsaid.get(replica, ())) > UNSAID_MAX:
                self._ended.discard(replica)
                self.seats.pop(replica, None)
                lanes.drop(replica)
            if replica not in self.seats:
                self._unsay(replica)
                self._stood.pop(replica, None)

    def _unsay(self, replica: ReplicaId) -> None:
        """What it said since its last decision is said to nobody."""
        for step in self._unsaid.pop(replica, ()):
            if self._stragglers is not None and isinstance(step.event, ReplicaReported):
                for told in places(replica, step.frame.seq, step.frame.time_ms, step.event):
                    self._stragglers.note(told)

    # --- decisions ---------------------------------------------------------------------------------------------

    def _cursor(self, step: _Step) -> At:
        assert isinstance(step.event, RequestRouted | RequestRejected)
        recorded = step.event.cursor
        return recorded if self._delay is None else self._delay(step.frame, recorded)

    def _played(self, step: _Step, lanes: Lanes) -> Situation | Refusal:
        """The decision as it was; what was said before it is said."""
        replica, cursor = ReplicaId(step.frame.owner), self._cursor(step)
        lane = lanes.at(replica, cursor)
        unsaid, seat, stood = self._unsaid[replica], self.seats.get(replica), self._stood.get(replica)
        if seat is None or stood is None or _goes_back(stood, cursor):
            seat = self.seats[replica] = self._seated(replica, step, lane)
            while unsaid[0] is not step:
                self._compare(seat, unsaid.popleft())
        else:
            seat.stand(lane.state, lane.cut)
            while (said := unsaid[0]) is not step:
                self._say(seat, said)
                unsaid.popleft()
        if self._track.covers(cursor):
            self._stood[replica] = cursor
        else:
            self._stood.pop(replica, None)  # it stood in another history: it is seated anew in this one
        event = step.event
        if isinstance(event, RequestRouted):
            return self._situation(seat, step, event)
        assert isinstance(event, RequestRejected)
        doubts = doubts_of(seat, event, self._track, self._lacks)
        frame = step.frame
        return Refusal(replica, frame.seq, frame.time_ms, event, seat.view, seat.settings, doubts, step.number)

    def _say(self, seat: Seat, step: _Step) -> None:
        if step.event is None:
            seat.miss(step.frame.seq)
            return
        self._compare(seat, step)
        seat.say(step.frame.seq, step.event)

    def _compare(self, seat: Seat, step: _Step) -> None:
        """What the replica said of its folds, if it did, is compared with the seat's."""
        if not isinstance(step.event, ReplicaReported) or self._delay is not None:
            return
        for told in places(seat.replica, step.frame.seq, step.frame.time_ms, step.event):
            if not self.folds.compare(told, seat.state, seat.cut, self._lacks) and self._stragglers is not None:
                self._stragglers.note(told)

    def _situation(self, seat: Seat, step: _Step, event: RequestRouted) -> Situation:
        frame = step.frame
        request = RouteRequest.of(event, RecordedPrompt(event.prompt_tokens, event.block_size, event.hashes))
        doubts, view = doubts_of(seat, event, self._track, self._lacks), seat.view
        jobs = event.cursor.get(JOBS)
        if jobs is not None and self._track.epochs.get(JOBS) != jobs[0]:
            view = _OtherJobs.of(view, jobs)
        return Situation(
            seat.replica, frame.seq, frame.time_ms, event, request, view, seat.settings, doubts, step.number
        )

    def _seated(self, replica: ReplicaId, step: _Step, lane: Lane) -> Seat:
        """A seat at the lane, which knows what the replica said before this."""
        seat = Seat(replica, lane.state)
        seat.stand(lane.state, lane.cut)
        at, n_next = lane.state.cursor.get(ROUTING), seat.part.chain.n_next if seat.part is not None else 0
        for frame in self.recording.frames(ROUTING, at.seq + 1 if at is not None else 1, step.frame.seq + 1):
            message = frame.message
            if frame.owner != replica or message is None or message.source != SourceId(replica) or message.n < n_next:
                continue
            if message.n > n_next:
                seat.miss(frame.seq)
            n_next = message.n + 1
            for event in message.events if frame.seq < step.frame.seq else message.events[: step.number]:
                seat.say(frame.seq, event)
        return seat


def _in_order(decisions: list[_Step], cursors: list[At]) -> list[int]:
    """Which one comes when: by their cursors, each replica's own as it made them."""
    reached: dict[str, int] = {}
    keys = []
    for step, cursor in zip(decisions, cursors, strict=True):
        owner = step.frame.owner
        reach = reached[owner] = max(reached.get(owner, 0), sum([seq for _, seq in cursor.values()]))
        keys.append(reach)
    return sorted(range(len(decisions)), key=keys.__getitem__)


def _goes_back(before: At, cursor: At) -> bool:
    """Whether somebody who stood there first would have to unread something."""
    for stream, (epoch, seq) in before.items():
        at = cursor.get(stream)
        if at is None or (at[0] == epoch and at[1] < seq):
            return True
    return False


def _decisions(frame: Frame) -> int:
    events = frame.message.events if frame.message is not None else ()
    return sum(isinstance(event, RequestRouted) for event in events)
