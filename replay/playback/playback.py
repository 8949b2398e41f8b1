"""Playback: every recorded decision in the order of the log, each with the view that it was made on.

A `ReplicaState` has what one replica alone knew; its fold is that of a `StateCursor` at the cursor of the decision.
Events between two decisions of a replica are applied when the later decision is due: then the fold is at its cursor.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from core.events import Event, ReplicaLeft, ReplicaReported, RequestRejected, RequestRouted, UnknownEvent
from core.events.compact_decision import COMPACT_TYPES
from core.ids import LOST_SUFFIX, ReplicaId, SourceId, StreamName, StreamSeq
from core.prompt import HashedPrompt
from core.settings import RoutingSettings
from core.subjects import JOBS, ROUTING
from projections.policy.view import RouteRequest, View
from replay.playback.fold_reports import DeferredDigestChecks, FoldCheck, fold_reports_of, late_fold
from replay.playback.late_folds import LateFolds
from replay.playback.replica_state import ReplicaState
from replay.playback.state_cursors import (
    CursorPerReplica,
    CursorPool,
    CursorSource,
    DecisionCursor,
    SharedCursors,
    StateCursor,
)
from replay.recording.gaps import GAP, Gaps
from replay.recording.prompt_columns import BaseFault
from replay.recording.recording import RecordedFrame, Recording
from replay.recording.unknown_sources import UnknownSources
from streams.archive.message_envelope import envelope

FORGET_EVERY = 256
"""Decisions between two removals of frames that no cursor needs."""
WINDOW = 1024
"""Messages per window; the decisions of a window are taken in the order of their cursors."""
UNAPPLIED_MAX = 4096
"""Events of a replica that decides nothing which are kept for it; they can be read again."""
DECISIONS, REFUSAL = (RequestRouted.__name__, *COMPACT_TYPES), RequestRejected.__name__

Delay = Callable[[RecordedFrame, Mapping[str, tuple[int, int]]], Mapping[str, tuple[int, int]]]
"""From a decision's message and recorded cursor to the cursor to decide at; never goes back, never ahead of it."""


class RecordedDecision(NamedTuple):
    """One decision and all that it rested on. `view` is valid until the next decision is asked for."""

    replica: ReplicaId
    seq: StreamSeq
    """Of the message in the routing stream that says it."""
    time_ms: int
    event: RequestRouted
    """The decision as it was recorded."""
    request: RouteRequest
    view: View
    settings: RoutingSettings
    replica_state: ReplicaState
    """Valid as long as the view; `replay.verify.evidence` reads it."""
    number: int = 0
    """Of the event in its message."""
    fault: BaseFault | None = None
    """Why its prompt is not known: then `request` has none of its hashes, and it cannot be made again."""


class RecordedRefusal(NamedTuple):
    """One request that no worker could take, in the same way; its prompt is not in the log."""

    replica: ReplicaId
    seq: StreamSeq
    time_ms: int
    event: RequestRejected
    view: View
    settings: RoutingSettings
    replica_state: ReplicaState
    number: int


class _ViewOfReplacedStreams(View):
    """A view of a replica that names epochs of streams that were made anew since. No decision rests on these places,
    but all name them: jobs, however far they were read, and other streams of which the replica had read nothing."""

    _places: Mapping[str, tuple[int, int]]

    @staticmethod
    def of(view: View, places: Mapping[str, tuple[int, int]]) -> _ViewOfReplacedStreams:
        """The view with these places in its cursor."""
        other = _ViewOfReplacedStreams(*view)
        other._places = places
        return other

    @property
    def cursor(self) -> dict[str, tuple[int, int]]:
        return dict(sorted({**super().cursor, **self._places}.items()))


class _ReplicaEvent(NamedTuple):
    """One event of a replica, or None for messages of it that are missing before this one."""

    frame: RecordedFrame
    number: int
    event: Event | UnknownEvent | None


class Playback:
    """One pass through the decisions of a recording."""

    def __init__(
        self,
        recording: Recording,
        start: int = 1,
        end: int | None = None,
        *,
        replica: ReplicaId | Collection[ReplicaId] | None = None,
        delay: Delay | None = None,
        gaps: Gaps,
        numbers: Mapping[ReplicaId, int] = MappingProxyType({}),
    ) -> None:
        """Decisions in messages of the routing stream from `start` up to `end` (not included); of one or some replicas
        only, if they are given. `gaps` are those of the recording, as its proof found them. `numbers`: of each
        replica's next message at the start, so that repeated messages are known."""
        self.replica_states: dict[ReplicaId, ReplicaState] = {}
        self.skipped: Counter[str] = Counter()
        """Decisions in the range that are not given: `repeat` (the same message once more), `foreign` (another
        source than the subject's owner), `ended` (behind the replica's end), `version` (an event of a newer version),
        `unreadable` (in a message that this program cannot decode)."""
        self.skipped_refusals: Counter[str] = Counter()
        """The same of refusals."""
        self.folds = FoldCheck()
        """The fold reports of the replicas, compared with the log's folds: by `windows` all reports, else those before
        a decision of their replica."""
        self.recording = recording
        self._start, self._end = start, end
        self._only = {ReplicaId(replica)} if isinstance(replica, str) else replica
        self._delay = delay
        self.gaps = gaps
        self._behind_changed = {gap.noticed for gap in gaps.all if gap.stream == ROUTING and gap.kind == GAP}
        """Messages of replicas of which the one before is missing, or is another than was sent."""
        self.unknown_sources = UnknownSources(recording)
        self.source = CursorSource(recording, rebases=bool(gaps.all))
        self.late_folds = LateFolds(self.source)
        self._deferred: DeferredDigestChecks | None = None
        """None if reports are not compared later."""
        self._unapplied: dict[ReplicaId, deque[_ReplicaEvent]] = {}
        """Each replica's events since its last decision."""
        self._last_cursors: dict[ReplicaId, DecisionCursor] = {}
        """The cursor of its last decision."""
        self._numbers = dict(numbers)
        """Of each replica's next message."""
        self._ended: set[ReplicaId] = set()
        """Replicas that have just ended."""
        excerpt = recording.excerpt
        self._places = None if excerpt is None else {(each.seq, each.place) for each in excerpt.decisions}
        """Of an excerpt, the decisions that it has a state for; others are not given."""

    def __iter__(self) -> Iterator[RecordedDecision]:
        """The decisions, in the order of the log. CallerError or Corrupt if the recording cannot be read."""
        return (each for each in self.everything(refusals=False) if isinstance(each, RecordedDecision))

    def everything(self, *, refusals: bool = True) -> Iterator[RecordedDecision | RecordedRefusal]:
        """The same with the requests that were refused."""
        pool, made = CursorPerReplica(self.source), 0
        for frame in self._frames():
            for step in self._events_of(frame):
                if self._is_given(step) and (refusals or isinstance(step.event, RequestRouted)):
                    yield self._play(step, pool)
                    made += 1
                    if made % FORGET_EVERY == 0:
                        self.source.forget(pool.all())
            self._clean_up(pool, [ReplicaId(frame.owner)])

    def windows(self) -> Iterator[Iterator[RecordedDecision | RecordedRefusal]]:
        """The same in windows of the log, within each in the order of the cursors: where several replicas decide, that
        is a good deal cheaper. Each window is to be gone through to its end."""
        pool, frames = SharedCursors(self.source), self._frames()
        self._deferred = deferred = DeferredDigestChecks(
            self.source, self.folds, self.gaps, self.unknown_sources, self.late_folds
        )
        while window := list(islice(frames, WINDOW)):
            yield self._window(window, pool)
            self._clean_up(pool, list(self._unapplied))
            deferred.meet(pool.all())
            self.source.forget(pool.all())
        for replica in list(self._unapplied):
            self._drop_unapplied(replica)
        deferred.finish(pool.all())

    def _window(self, frames: list[RecordedFrame], pool: SharedCursors) -> Iterator[RecordedDecision | RecordedRefusal]:
        steps = [step for frame in frames for step in self._events_of(frame)]
        decisions = [step for step in steps if self._is_given(step)]
        cursors = [self._cursor(step) for step in decisions]
        pool.begin(cursors, len({step.frame.owner for step in decisions}))
        for at in _in_order(decisions, cursors):
            yield self._play(decisions[at], pool)

    def _is_given(self, step: _ReplicaEvent) -> bool:
        """True for decisions and refusals; of an excerpt, for those that it has a state for."""
        is_decision = isinstance(step.event, RequestRouted | RequestRejected)
        return is_decision and (self._places is None or (step.frame.seq, step.number) in self._places)

    # --- what replicas said ------------------------------------------------------------------------------------

    def replaced_streams(self, event: RequestRouted | RequestRejected) -> list[StreamName]:
        """The streams of the decision's cursor that were made anew since. Jobs do not count, nor streams of which the
        replica had read nothing: no decision depends on them."""
        epochs, without_effect = self.source.epochs, self._without_effect(event)
        return [
            StreamName(name)
            for name, (epoch, _) in event.cursor.items()
            if epochs.get(StreamName(name)) != epoch and name not in without_effect
        ]

    def _without_effect(self, event: RequestRouted | RequestRejected) -> dict[str, tuple[int, int]]:
        """The places of the decision's cursor in epochs that were replaced on which no decision rests."""
        epochs = self.source.epochs
        return {
            name: (epoch, seq)
            for name, (epoch, seq) in event.cursor.items()
            if epochs.get(StreamName(name)) != epoch and (name == JOBS or (not seq and name in epochs))
        }

    def _frames(self) -> Iterator[RecordedFrame]:
        if ROUTING in self.source.epochs:
            yield from self.source.frames(ROUTING, self._start, self._end)

    def _events_of(self, frame: RecordedFrame) -> list[_ReplicaEvent]:
        """The events of a message that is to be played; they wait to be applied."""
        replica, message = ReplicaId(frame.owner), frame.message
        if self._only is not None and replica not in self._only:
            return []
        if message is None:
            self._skip("unreadable", self._undecoded(frame))
        elif message.source == SourceId(replica + LOST_SUFFIX):
            self._ended.add(replica)
        elif message.source != SourceId(replica):
            self._skip("foreign", map(_name, message.events))
        elif message.n < self._numbers.get(replica, 0):
            self._skip("repeat", map(_name, message.events))
        else:
            steps = self._steps(replica, frame, message.events)
            if message.n > self._numbers.get(replica, message.n) or frame.seq in self._behind_changed:
                steps.insert(0, _ReplicaEvent(frame, -1, None))
            self._numbers[replica] = message.n + 1
            self._unapplied.setdefault(replica, deque()).extend(steps)
            return steps
        return []

    def _steps(
        self, replica: ReplicaId, frame: RecordedFrame, events: Sequence[Event | UnknownEvent]
    ) -> list[_ReplicaEvent]:
        steps, left = [], False
        for number, event in enumerate(events):
            if left:
                self._skip("ended", [_name(event)])
                continue
            if isinstance(event, UnknownEvent):
                self._skip("version", [event.name])
            elif isinstance(event, ReplicaReported):
                self.folds.note(event)
            steps.append(_ReplicaEvent(frame, number, event))
            if isinstance(event, ReplicaLeft):
                left = True
                self._ended.add(replica)
        return steps

    def _skip(self, reason: str, names: Iterable[str]) -> None:
        """Decisions and refusals among events of these names are not given."""
        counts = Counter(names)
        self.skipped[reason] += sum(counts[name] for name in DECISIONS)
        self.skipped_refusals[reason] += counts[REFUSAL]

    def _undecoded(self, frame: RecordedFrame) -> list[str]:
        """The names of the events of a message that cannot be decoded, as far as its form shows them."""
        record = self.recording.archive.at(frame.stream, frame.seq)
        message = envelope(record.payload) if record is not None else None
        return [event.type for event in message.events] if message is not None else []

    def _clean_up(self, pool: CursorPool, replicas: list[ReplicaId]) -> None:
        """Nothing is kept of replicas that ended. Without a `ReplicaState` no event waits: the next one is made with
        it."""
        for replica in replicas:
            if replica in self._ended or len(self._unapplied.get(replica, ())) > UNAPPLIED_MAX:
                self._ended.discard(replica)
                self.replica_states.pop(replica, None)
                pool.drop(replica)
            if replica not in self.replica_states:
                self._drop_unapplied(replica)
                self._last_cursors.pop(replica, None)

    def _drop_unapplied(self, replica: ReplicaId) -> None:
        """Its events since its last decision are not applied."""
        for step in self._unapplied.pop(replica, ()):
            if self._deferred is not None and isinstance(step.event, ReplicaReported):
                for report in fold_reports_of(replica, step.frame.seq, step.frame.time_ms, step.event):
                    self._deferred.note(report)

    # --- decisions ---------------------------------------------------------------------------------------------

    def _cursor(self, step: _ReplicaEvent) -> DecisionCursor:
        assert isinstance(step.event, RequestRouted | RequestRejected)
        recorded = step.event.cursor
        return recorded if self._delay is None else self._delay(step.frame, recorded)

    def _play(self, step: _ReplicaEvent, pool: CursorPool) -> RecordedDecision | RecordedRefusal:
        """The decision as it was, after the replica's events before it are applied."""
        replica, cursor = ReplicaId(step.frame.owner), self._cursor(step)
        state_cursor = pool.at(replica, cursor)
        unapplied, replica_state, last_cursor = (
            self._unapplied[replica],
            self.replica_states.get(replica),
            self._last_cursors.get(replica),
        )
        if self._places is not None:
            replica_state = None  # an excerpt lacks messages between its decisions
        if replica_state is None or last_cursor is None or _goes_back(last_cursor, cursor):
            replica_state = self.replica_states[replica] = self._new_replica_state(replica, step, state_cursor)
            while unapplied[0] is not step:
                self._compare(replica_state, unapplied.popleft())
        else:
            replica_state.move_to(state_cursor.state, state_cursor.cut)
            while (earlier := unapplied[0]) is not step:
                if earlier.event is None:
                    replica_state.note_missing(earlier.frame.seq)
                else:
                    self._compare(replica_state, earlier)
                    replica_state.apply_own(earlier.frame.seq, earlier.event)
                unapplied.popleft()
        if self.source.covers(cursor):
            self._last_cursors[replica] = cursor
        else:
            self._last_cursors.pop(replica, None)  # of another history: its state is made anew in this one
        event = step.event
        if isinstance(event, RequestRouted):
            return self._recorded_decision(replica_state, step, event)
        assert isinstance(event, RequestRejected)
        seq, time_ms, view = step.frame.seq, step.frame.time_ms, replica_state.view
        return RecordedRefusal(replica, seq, time_ms, event, view, replica_state.settings, replica_state, step.number)

    def _compare(self, replica_state: ReplicaState, step: _ReplicaEvent) -> None:
        """The replica's fold report, if the event is one, is compared with its state here."""
        if not isinstance(step.event, ReplicaReported) or self._delay is not None or self._places is not None:
            return
        for report in fold_reports_of(replica_state.replica, step.frame.seq, step.frame.time_ms, step.event):
            late = late_fold(self.late_folds, report)
            state, cut = (late, ()) if late is not None else (replica_state.state, replica_state.cut)
            compared = self.folds.compare(report, state, cut, self.gaps, self.unknown_sources)
            if not compared and self._deferred is not None:
                self._deferred.note(report)

    def _recorded_decision(
        self, replica_state: ReplicaState, step: _ReplicaEvent, event: RequestRouted
    ) -> RecordedDecision:
        frame = step.frame
        found = self.recording.columns.of(frame.seq, step.number, event)
        hashes, fault = (b"", found) if isinstance(found, BaseFault) else (found, None)
        request = RouteRequest.of(event, HashedPrompt(event.prompt_tokens, event.block_size, hashes))
        view = replica_state.view
        if places := self._without_effect(event):
            view = _ViewOfReplacedStreams.of(view, places)
        return RecordedDecision(
            replica_state.replica,
            frame.seq,
            frame.time_ms,
            event,
            request,
            view,
            replica_state.settings,
            replica_state,
            step.number,
            fault,
        )

    def _new_replica_state(self, replica: ReplicaId, step: _ReplicaEvent, state_cursor: StateCursor) -> ReplicaState:
        """A `ReplicaState` at the state cursor, with all events of the replica before this one."""
        replica_state = ReplicaState(replica, state_cursor.state)
        replica_state.move_to(state_cursor.state, state_cursor.cut)
        at, n_next = (
            state_cursor.state.cursor.get(ROUTING),
            replica_state.part.chain.n_next if replica_state.part is not None else 0,
        )
        for frame in self.recording.frames(ROUTING, at.seq + 1 if at is not None else 1, step.frame.seq + 1):
            message = frame.message
            if frame.owner != replica or message is None or message.source != SourceId(replica) or message.n < n_next:
                continue
            if message.n > n_next or frame.seq in self._behind_changed:
                replica_state.note_missing(frame.seq)
            n_next = message.n + 1
            for event in message.events if frame.seq < step.frame.seq else message.events[: step.number]:
                replica_state.apply_own(frame.seq, event)
        return replica_state


def _in_order(decisions: list[_ReplicaEvent], cursors: list[DecisionCursor]) -> list[int]:
    """Indexes by ascending cursors; each replica's decisions stay in their order."""
    reached: dict[str, int] = {}
    keys = []
    for step, cursor in zip(decisions, cursors, strict=True):
        owner = step.frame.owner
        reach = reached[owner] = max(reached.get(owner, 0), sum([seq for _, seq in cursor.values()]))
        keys.append(reach)
    return sorted(range(len(decisions)), key=keys.__getitem__)


def _goes_back(before: DecisionCursor, cursor: DecisionCursor) -> bool:
    """True if a fold at `before` would have to go back in some stream."""
    for stream, (epoch, seq) in before.items():
        at = cursor.get(stream)
        if at is None or (at[0] == epoch and at[1] < seq):
            return True
    return False


def _name(event: Event | UnknownEvent) -> str:
    return event.name if isinstance(event, UnknownEvent) else type(event).__name__
