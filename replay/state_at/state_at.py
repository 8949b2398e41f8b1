"""StateAt: the whole state at a moment: the log's fold up to then, or what one replica believed.

What a replica had folded is known at its decisions, which name their cursor. So its belief at a moment is that of its
newest decision by then; one that had made none is shown with the log's own state, which is all that it could know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from core.errors import CallerError
from core.event_json import time_text
from core.ids import ReplicaId, StreamName, StreamSeq, WorkerId
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING
from projections.folds.pending_events import PendingEvents
from projections.folds.state import State
from projections.policy.view import View
from replay.recording.moment import AtCursor, AtRequest, AtSequence, AtTime, Moment
from replay.recording.recording import Cursor, LastMessage, Progress, Recording, last_messages
from replay.recording.request_history import RequestAttempt, RequestHistory
from replay.state_at.state_summary import BeliefSummary, RequestSummary, StateSummary, requests_of, summarize
from replay.verify.judge import judge_decision


class ReplicaBelief(NamedTuple):
    """View and settings of one replica."""

    view: View
    settings: RoutingSettings
    revision: int
    decision: RequestAttempt | None
    """At which it is known; None: it is the log's own moment."""
    doubts: list[str]


class StateAt(NamedTuple):
    """The state at a moment, of the log or as one replica believed it."""

    recording: Recording
    state: State
    time_ms: int
    belief: ReplicaBelief | None
    """None for the state of the log itself."""

    def held(self) -> StateSummary:
        """The contents of the state."""
        last_reports = dict[str, LastMessage]()
        if LOAD in self.state.cursor and LOAD in self.recording.streams:
            alive = {member.worker for member in self.state.alive()}
            last_reports = last_messages(self.recording.archive, LOAD, self.state.cursor[LOAD].seq, alive)
        belief = self.belief
        return summarize(
            self.state,
            self.time_ms,
            cut=list(self.recording.cut({stream: at.seq for stream, at in self.state.cursor.items()}).values()),
            view=None if belief is None else belief.view,
            known_as=None if belief is None else _known_as(self.recording, belief),
            own=None if belief is None else _own(self.recording, belief),
            reported_ms={worker: report.time_ms for worker, report in last_reports.items()},
        )


def summary_at(
    recording: Recording, moment: Moment | Mapping[StreamName, int], replica: str | None = None
) -> StateSummary:
    """The state at the moment, or behind the messages of a cursor; with a replica's name or id, what that one believed.
    CallerError if the recording does not know the moment or the replica."""
    return state_at(recording, moment, replica).held()


def state_at(
    recording: Recording,
    moment: Moment | Mapping[StreamName, int],
    replica: str | None = None,
    progress: Progress = lambda _done, _of: None,
) -> StateAt:
    """The same, to be asked further. Some 15 us per message behind the nearest snapshot or keyframe."""
    if isinstance(moment, Mapping):
        moment = AtCursor(tuple((stream, StreamSeq(seq)) for stream, seq in moment.items()))
    cursor = within(recording, moment)
    time_ms = moment.time_ms if isinstance(moment, AtTime) else _time_ms(recording, cursor)
    if replica is None:
        return StateAt(recording, recording.state_at(cursor, progress), time_ms, None)
    upto = _upto(recording, moment)
    who = life(recording, replica, upto)
    decision = _own_routing(recording, moment, who) or recording.requests.newest(who, upto)
    if decision is None:
        state = recording.state_at(cursor, progress)
        return StateAt(recording, state, time_ms, _silent(state, who))
    return _at_decision(recording, who, decision)


def within(recording: Recording, moment: Moment) -> Cursor:
    """Cursor of the log at the moment, no further than the recording reaches. CallerError if that is less than the
    start of the recording, or nothing of a log without its head."""
    start, end = recording.start, recording.end
    found = {stream: StreamSeq(min(seq, end[stream])) for stream, seq in recording.cursor(moment).items()}
    before = [stream for stream, seq in found.items() if seq < start[stream]]
    if found == start:
        early = isinstance(moment, AtTime) and moment.time_ms < recording.start_ms
        before = [stream for stream in start if start[stream]] if early else list(recording.cut(start))
    if before:
        stream = ROUTING if ROUTING in before else before[0]
        raise CallerError(f"this log begins at {stream}:{start[stream] + 1}, after that moment")
    return found


def life(recording: Recording, replica: str, upto: int) -> ReplicaId:
    """The life of the replica of that name or id that went on at that message of the routing stream. CallerError if
    there was none."""
    lives = recording.names.replicas_called(replica)
    joined, ended = recording.replicas.joined, recording.replicas.ended
    there = [each for each in lives if joined.get(each, 0) <= upto < ended.get(each, upto + 1)]
    if not there:
        spans = [f"routing:{joined.get(each, 1)} to {ended.get(each, 'the end')}" for each in sorted(lives)]
        raise CallerError(f"replica {replica!r} was not there at that moment; it was from {', '.join(spans)}")
    return max(there, key=lambda each: joined.get(each, 0))


def _upto(recording: Recording, moment: Moment) -> int:
    """The last message of the routing stream up to the moment, a message that the moment names included."""
    position = recording.position(ROUTING, moment)
    named = isinstance(moment, AtRequest) or (isinstance(moment, AtSequence) and moment.stream == ROUTING)
    return min(position if named else position - 1, recording.end[ROUTING])


def _own_routing(recording: Recording, moment: Moment, replica: ReplicaId) -> RequestAttempt | None:
    """The decision that the moment names, if this replica made it: others may stand in the same message."""
    if not isinstance(moment, AtRequest):
        return None
    first = recording.requests.uses_of(recording.requests.named(moment.request))[-1][0]
    return first if first.replica == replica and first.worker else None


def _at_decision(recording: Recording, replica: ReplicaId, decision: RequestAttempt) -> StateAt:
    judged = judge_decision(recording, decision.seq, replica, decision.request, decision.attempt)
    if judged is None:
        raise CallerError(
            f"the decision at routing:{decision.seq} cannot be played: `contrail replay verify` says what is wrong "
            "there"
        )
    at, reasons = judged.at, [judged.excuse.text] if judged.excuse else []
    belief = ReplicaBelief(at.view, at.settings, at.event.settings_revision, decision, reasons)
    return StateAt(recording, at.view.state, decision.time_ms, belief)


def _silent(state: State, replica: ReplicaId) -> ReplicaBelief:
    """Belief of a replica that has decided nothing yet: the log's state, and its own exclusions."""
    part = state.routing.replicas.get(replica)
    local: dict[str, set[WorkerId]] = {}
    for worker, reasons in part.local.items() if part is not None else ():
        for reason in reasons:
            local.setdefault(reason, set()).add(worker)
    view = View(state, replica, PendingEvents(), {reason: frozenset(workers) for reason, workers in local.items()})
    settings = RoutingSettings.parse(part.settings if part is not None else {})
    return ReplicaBelief(view, settings, part.settings_revision if part is not None else 0, None, [])


def _known_as(recording: Recording, belief: ReplicaBelief) -> BeliefSummary:
    decision = belief.decision
    return BeliefSummary(
        replica=belief.view.replica,
        name=recording.names.replica(belief.view.replica),
        request=None if decision is None else decision.request,
        attempt=None if decision is None else decision.attempt,
        seq=None if decision is None else decision.seq,
        time=None if decision is None else time_text(decision.time_ms),
        ahead_events=len(belief.view.pending_events),
        revision=belief.revision,
        settings=belief.settings.to_mapping(),
        doubts=belief.doubts,
    )


def _own(recording: Recording, belief: ReplicaBelief) -> list[RequestSummary] | None:
    """Requests of the replica under way before the decision; None for those of the fold."""
    decision, requests = belief.decision, recording.requests
    if decision is None:
        return None
    view = belief.view
    own = [
        RequestSummary(
            request=each.request,
            attempt=each.attempt,
            replica=each.replica,
            worker=each.worker,
            blocks=each.blocks,
            prefill_tokens=0 if 0 < each.prefilled_at < decision.at else each.prefill_tokens,
        )
        for each in requests.own_under_way(view.replica, decision.at)
    ]
    part = view.state.routing.replicas.get(view.replica)
    return [*(each for each in requests_of(part) if not _has(requests, each)), *own] if part is not None else own


def _has(requests: RequestHistory, request: RequestSummary) -> bool:
    """The recording has the routing of this request: earlier ones stand in a snapshot alone."""
    tries = requests.attempts(request.request)
    return any((each.replica, each.attempt) == (request.replica, request.attempt) for each in tries)


def _time_ms(recording: Recording, cursor: Cursor) -> int:
    """Time of the newest message at the cursor."""
    found = [recording.archive.at(stream, seq) for stream, seq in cursor.items() if seq]
    return max((record.time_ms for record in found if record is not None), default=0)
