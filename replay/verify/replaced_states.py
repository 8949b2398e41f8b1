"""States of one worker, or of all requests in flight, in a history that was replaced, as evidence for what a record
says of them.

A store that went back lost the newest messages of its streams. Sources sent some of these again, at other places, and
others never. So the fold up to a recorded cursor is not the state that the replica had. But in each stream that state
followed from a start of the worker's own chain: no shorter than the place up to which the replica is known to have had
the log's fold, and no longer than the places behind that one allow. A record that one of these starts gives is
explained; so is one that may rest on messages that the chain lacks. No other record is. Requests in flight are those of
all replicas: one start of each other replica's chain must give what the record counts on all of its candidates.

A store may also have first messages of a stream again that retention had taken when a replica folded it. Then the log's
fold from where the replica states that its own begins must give the record (`replay.playback.late_folds`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from core.events import RequestRouted, UnknownEvent
from core.events.routing import LEVEL_COLUMNS, REUSE, Columns
from core.ids import Epoch, ReplicaId, StreamName, StreamSeq, WorkerId, from_column
from core.subjects import LOAD, ROUTING, is_kv
from projections.folds.in_flight import NO_LOAD
from projections.folds.kv_fold import Member
from projections.folds.load_fold import LoadPart
from projections.folds.pending_events import PendingEvents
from projections.folds.snapshot import decode, encode
from projections.folds.state import NO_OVERLAP, State
from projections.policy.decide import Decision, decide, record
from projections.policy.rules import POOLS_VERSION
from projections.policy.view import NO_REPORT, View
from replay.playback.playback import Playback, RecordedDecision, RecordedRefusal
from replay.playback.state_cursors import StateCursor
from replay.recording.gaps import ReplacedHistory
from replay.recording.recording import RecordedFrame

PLACES_MAX = 1024
"""Places before and behind the cursor at which a worker's messages are looked for; more are not explained."""
_OF_CACHE = ("overlap", "overlap_all", "known")
_OF_IN_FLIGHT = ("pending", "active_blocks", "active_requests", "wait_us", "prefill")
_ALIKE = {
    "cache": (*_OF_CACHE, *LEVEL_COLUMNS),
    "report": ("waiting", "reuse"),
    "membership": ("candidates", "excluded"),
    "in flight": _OF_IN_FLIGHT,
}
"""Terms that a worker's state explains together."""
_OF_REPORT = ("draining", "overloaded")
"""Reasons to leave a worker out that rest on its report."""


class _Range(NamedTuple):
    """The part of a stream in which the replica may have had other history."""

    after: StreamSeq
    """The replica had the log's fold up to there."""
    messages: int
    """The number of places between that one and the decision's cursor."""
    by: ReplacedHistory
    is_whole: bool
    """True if the chains are taken to have all messages that stood there."""


class _OwnPart(NamedTuple):
    """The messages of the replica that decided, sent before the decision."""

    base: StateCursor
    """The log's fold at the start of a range, with the messages of the replica that its fold had …"""
    pending_events: PendingEvents
    """… and its further events."""
    messages: int
    """The number of its messages behind the start of the range."""


class ReplacedStates:
    """The states that one decision or refusal may have rested on."""

    def __init__(
        self,
        playback: Playback,
        at: RecordedDecision | RecordedRefusal,
        agreed: Mapping[StreamName, int],
        replaced: Iterable[ReplacedHistory],
        late: Iterable[ReplacedHistory],
        went_back: Container[StreamName],
        near: dict[StreamName, StateCursor],
    ) -> None:
        """`agreed`: as `replay.recording.gaps.Gaps` takes it. `replaced`: histories that were replaced, and that the
        replica is not known to have left by then. `late`: first messages of streams that its folds may lack.
        `went_back`: streams of which the replica has reported no fold of the log's since its cursors went back. `near`:
        by stream a state that is kept for the next decision."""
        self._playback, self._at, self._agreed, self._near = playback, at, agreed, near
        self._went_back = went_back
        self._found: dict[tuple[str, str], ReplacedHistory | None] = {}
        cursor = at.event.cursor
        self._replaced = [each for each in replaced if each.stream in cursor]
        epochs = playback.source.epochs
        self._late = [it for it in late if cursor.get(it.stream, (0, 0))[0] == epochs[it.stream]]
        self._columns = at.event.columns if isinstance(at.event, RequestRouted) else {}
        self._candidates = from_column(at.event.candidates) if isinstance(at.event, RequestRouted) else []

    def __repr__(self) -> str:
        return f"<ReplacedStates of {len(self._replaced)} histories>"

    def explains(self, term: str, worker: str) -> ReplacedHistory | None:
        """The replaced history in which the worker can have been as the record says. O(PLACES_MAX) messages, and a copy
        of a state: once for a worker's cache, report and membership each; for all requests in flight O(PLACES_MAX)
        decisions and copies."""
        if not (self._replaced or self._late) or not worker:
            return None
        of = next((name for name, terms in _ALIKE.items() if term in terms), "")
        if of == "in flight":
            worker = ""  # a replica's messages are about all workers
        if (of, worker) not in self._found:
            self._found[of, worker] = self._explained(of, worker)
        return self._found[of, worker]

    def explains_reuse_max(self, most: int, hidden: Collection[str]) -> ReplacedHistory | None:
        """The replaced history in which one of these candidates, which the record does not show, can have had such
        reuse that the greatest of all was the recorded one. O(PLACES_MAX) messages for each."""
        shown = self._columns.get(REUSE, ())[: len(self._candidates)]

        def fits(state: State, worker: str) -> bool:
            own = self._at.view.state.loads.reuse
            others = (own.get(WorkerId(each), 0) for each in hidden if each != worker)
            return bool(max([state.loads.reuse.get(WorkerId(worker), 0), *shown, *others]) == most)

        found = (self._in(LOAD, worker, fits) for worker in hidden)
        return next((each for each in found if each is not None), None)

    def explains_turnover(self) -> ReplacedHistory | None:
        """The replaced history in which a worker can have reported another turnover. One of any worker explains the
        terms of all, since turnovers count against each other. O(PLACES_MAX) messages for each worker."""
        reported = self._at.view.state.loads.turnover

        def differs(state: State, worker: str) -> bool:
            return state.loads.turnover.get(WorkerId(worker), 0) != reported.get(WorkerId(worker), 0)

        workers = (str(member.worker) for member in self._at.view.state.serving())
        found = (self._in(LOAD, worker, differs) for worker in workers)
        return next((each for each in found if each is not None), None)

    def explains_digest(self) -> ReplacedHistory | None:
        """The replaced history of requests in flight by which the whole decision comes out as it is recorded.
        O(PLACES_MAX) decisions and copies of a state."""
        if not self._replaced and not self._late:
            return None
        return self._in_flight(self._is_decided_as_recorded)

    def _explained(self, of: str, worker: str) -> ReplacedHistory | None:
        if of == "membership":
            return self._membership(worker)
        if of == "in flight":
            return self._in_flight(self._is_in_flight_as_recorded)
        if worker not in self._candidates:
            return None
        if of == "cache":
            return self._in_kv(worker, self._is_cached_as_recorded)
        return self._in(LOAD, worker, self._is_reported_as_recorded) if of == "report" else None

    # --- what the record says ----------------------------------------------------------------------------------

    def _recorded(self, term: str, worker: str) -> int | None:
        column, place = self._columns.get(term, ()), self._candidates.index(worker)
        return column[place] if place < len(column) else None

    def _is_cached_as_recorded(self, state: State, worker: str) -> bool:
        member = _member(state, worker)
        if member is None or not isinstance(self._at, RecordedDecision):
            return False
        counts_pools = self._at.event.decide_version >= POOLS_VERSION
        cached = state.reported(self._at.request.prompt, pools=counts_pools)
        overlap, loading = cached.get(WorkerId(worker), NO_OVERLAP), self._at.request.loading(self._at.settings)
        if loading is not None:
            overlap = loading.counted(overlap)
        found = (overlap[0], overlap[-1], int(member.cache_known))
        return found == tuple(self._recorded(term, worker) for term in _OF_CACHE)

    def _is_reported_as_recorded(self, state: State, worker: str) -> bool:
        report = state.loads.reports.get(WorkerId(worker), NO_REPORT)
        if report.draining or report.waiting != self._recorded("waiting", worker):
            return False
        if "wait_us" not in self._columns or self._at.event.decide_version == 1:
            return True  # neither other policies nor the first rules read it
        return state.loads.reuse.get(WorkerId(worker), 0) == (self._recorded("reuse", worker) or 0)

    def _membership(self, worker: str) -> ReplacedHistory | None:
        """The same of a worker that is there in the record or in the log, and not in both."""
        recorded = next((why for why, (_, ids) in self._at.event.excluded.items() if worker in from_column(ids)), "")
        is_there = any(str(member.worker) == worker for member in self._at.view.state.serving())
        if worker in self._candidates and not is_there:
            return self._in_kv(worker, self._is_cached_as_recorded)
        if not recorded and worker not in self._candidates and is_there:
            return self._in_kv(worker, lambda state, its: _member(state, its) is None)
        if recorded and recorded not in _OF_REPORT and not is_there:
            return self._in_kv(worker, lambda state, its: _member(state, its) is not None)
        return None

    def _is_in_flight_as_recorded(self, state: State, pending_events: PendingEvents) -> bool:
        """True if the decision made again on that state counts the same in flight on all candidates. What is to be
        prefilled follows where the cache is the recorded one, too."""
        at = self._at
        assert isinstance(at, RecordedDecision)
        decision = self._decided_again(state, pending_events)
        if decision is None:
            return False
        event = at.event
        again = record(decision, at.request, at.settings, event.settings_revision)
        places = {worker: place for place, worker in enumerate(from_column(again.candidates))}
        for worker in places.keys() & set(self._candidates):
            one = _row(self._columns, self._candidates.index(worker))
            other = _row(again.columns, places[worker])
            terms = _OF_IN_FLIGHT if all(one[term] == other[term] for term in _OF_CACHE) else _OF_IN_FLIGHT[:-1]
            if any(one[term] != other[term] for term in terms):
                return False
        return True

    def _is_decided_as_recorded(self, state: State, pending_events: PendingEvents) -> bool:
        """True if the decision made again on these requests in flight, at the recorded cursor, has its digest."""
        at = self._at
        assert isinstance(at, RecordedDecision)
        decision = self._decided_again(at.view.state.with_routing(state.routing), pending_events)
        return decision is not None and decision.digest == at.event.digest

    def _decided_again(self, state: State, pending_events: PendingEvents) -> Decision | None:
        """The decision made again on that state; None if it counts other requests in flight or leads to no worker."""
        at = self._at
        assert isinstance(at, RecordedDecision)
        if not self._is_loaded_as_recorded(state, pending_events):
            return None  # at a hundredth of the price of a decision
        view, event = View(state, at.replica, pending_events, at.view.local), at.event
        decision = decide(view, at.request, at.settings, event.now_ms, event.seed, version=event.decide_version)
        return decision if decision.worker is not None else None

    def _is_loaded_as_recorded(self, state: State, pending_events: PendingEvents) -> bool:
        """True if as many blocks and requests are in flight on each candidate that is there. O(workers)."""
        folded, own = state.routing.in_flight_load.busy.get, pending_events.in_flight_load.busy.get
        there = {member.worker for member in state.serving()}
        for place, worker in enumerate(map(WorkerId, self._candidates)):
            if worker not in there:
                continue
            row, known, busy = _row(self._columns, place), folded(worker, NO_LOAD), own(worker, NO_LOAD)
            if row["active_blocks"] != known.blocks + busy.blocks:
                return False
            if row["active_requests"] != known.requests + busy.requests:
                return False
        return True

    # --- what the worker was -----------------------------------------------------------------------------------

    def _in_kv(self, worker: str, fits: Callable[[State, str], bool]) -> ReplacedHistory | None:
        stream = self._playback.recording.names.streams.get(WorkerId(worker))
        return self._in(stream, worker, fits) if stream is not None else self._lost_as_a_whole(worker)

    def _lost_as_a_whole(self, worker: str) -> ReplacedHistory | None:
        """A worker that reported its load joined before, in a kv stream that has nothing of it any more."""
        if worker not in self._playback.recording.archive.contents.heads.get(LOAD, ()):
            return None
        return next((each for each in self._replaced if is_kv(each.stream)), None)

    def _in(self, stream: StreamName, worker: str, fits: Callable[[State, str], bool]) -> ReplacedHistory | None:
        if fits(self._at.view.state, worker):
            return None  # the log's own state gives the record, so the rules do not
        for history, late in self._late_states(stream):
            if fits(late, worker):
                return history
        where = self._range(stream)
        if where is None:
            return None
        for state in self._states(stream, worker, where):
            if state is None or fits(state, worker):
                return where.by
        return None

    def _in_flight(self, fits: Callable[[State, PendingEvents], bool]) -> ReplacedHistory | None:
        pending_events = self._at.replica_state.pending_events
        if not isinstance(self._at, RecordedDecision) or fits(self._at.view.state, pending_events):
            return None  # the log's own state gives the record, so the rules do not
        for history, late in self._late_states(ROUTING):
            if fits(self._at.view.state.with_routing(late.routing), pending_events):
                return history
        where = self._range(ROUTING)
        if where is None:
            return None
        own = self._own_part(where)
        for state in islice(self._joint_states(where, own), PLACES_MAX):
            if state is None or fits(state, own.pending_events):
                return where.by
        return None

    def _late_states(self, stream: StreamName) -> Iterator[tuple[ReplacedHistory, State]]:
        """The stream's fold alone, without the first messages that the replica's own may lack."""
        seq = StreamSeq(self._at.event.cursor.get(stream, (0, 0))[1])
        for history in self._late:
            if history.stream == stream:
                yield history, self._playback.late_folds.state(stream, StreamSeq(history.noticed), seq)

    def _range(self, stream: StreamName) -> _Range | None:
        by = [each for each in self._replaced if each.stream == stream or each.rolled_back]
        place, epochs = self._at.event.cursor.get(stream), self._playback.source.epochs
        if not by or place is None or place[0] != epochs.get(stream):
            return None
        start = self._playback.recording.start[stream]
        after = max(self._agreed.get(stream, 0), place[1] - PLACES_MAX, start)
        first = next((each for each in by if each.stream == stream), by[0])
        if place[1] <= after:
            return None
        return _Range(StreamSeq(after), place[1] - after, first, all(each.sent_again for each in by))

    def _states(self, stream: StreamName, worker: str, where: _Range) -> Iterator[State | None]:
        """The worker's states after each start of its chain that the replica may have had; None for states that only
        messages give that the log lacks."""
        recording, source = self._playback.recording, self._playback.source
        epoch = Epoch(source.epochs[stream])
        base = self._near[stream] = source.new_cursor({stream: (epoch, where.after)}, self._near.values())
        base.state.open(stream, epoch)
        state = source.copy(base).state
        yield state
        n_next = _n_next(state, stream, worker)
        if n_next is None and not recording.start[stream]:
            n_next = 0
        n_first = n_next or 0
        if stream in self._went_back and self._has_later_gap(stream, worker, n_first):
            yield None
        end = where.after + where.messages + PLACES_MAX
        for frame in recording.frames(stream, where.after + 1, end):
            message = frame.message
            if frame.owner != worker or message is None:
                continue
            if message.source == worker:
                begins_later = n_next is None and message.n > 0  # retention took what the state before rests on
                if n_next is None:
                    n_first = n_next = message.n
                if begins_later or (message.n > n_next and n_next - n_first < where.messages):
                    yield None
                if message.n - n_first >= where.messages:
                    return
                n_next = max(n_next, message.n + 1)
            elif self._has_gap_before_end(stream, worker, frame.seq) and (n_next or 0) - n_first < where.messages:
                yield None
            state.fold(stream, frame.seq, frame.owner, message, frame.head)
            yield state

    def _own_part(self, where: _Range) -> _OwnPart:
        """The fold at the start of the range, with what the replica itself had sent before the decision as that counts
        in its view."""
        at, source = self._at, self._playback.source
        epoch, cursor = Epoch(source.epochs[ROUTING]), at.event.cursor[ROUTING][1]
        place = {**at.event.cursor, ROUTING: (epoch, where.after)}
        base = self._near[ROUTING] = source.new_cursor(place, self._near.values())
        base.state.open(ROUTING, epoch)
        base = source.copy(base)
        routing = base.state.routing
        pending_events = at.replica_state.pending_events if cursor < at.seq else PendingEvents()
        part = routing.replicas.get(at.replica)
        n_first = n_next = part.chain.n_next if part is not None else 0
        for frame in source.frames(ROUTING, where.after + 1, at.seq + 1):
            message = frame.message
            if frame.owner != at.replica or message is None:
                continue
            if frame.seq < at.seq:
                n_next = max(n_next, message.n + 1)
                if frame.seq <= cursor:
                    routing.apply(frame.owner, message, frame.head)
            elif cursor >= at.seq:  # the log's fold at the cursor has the whole message, the decision included
                for event in message.events[: at.number]:
                    if not isinstance(event, UnknownEvent):
                        pending_events.emit(event, routing.replicas.get(at.replica))
        return _OwnPart(base, pending_events, n_next - n_first)

    def _joint_states(self, where: _Range, own: _OwnPart) -> Iterator[State | None]:
        """States after a start of each other replica's chain, all together no longer than the places allow; None for
        states that only messages give that the log lacks. Where the chains have all messages, the starts have those
        that the replica itself had not sent by then."""
        at, source = self._at, self._playback.source
        chains = dict[str, list[RecordedFrame]]()
        for frame in source.frames(ROUTING, where.after + 1, where.after + where.messages + PLACES_MAX):
            if frame.owner != at.replica:
                chains.setdefault(frame.owner, []).append(frame)
        starts = [list(self._start(own.base.state, frames, where.messages)) for frames in chains.values()]
        if not where.is_whole and any(None in start for start in starts):
            yield None
        whole = [[frame for frame in start if frame is not None] for start in starts]
        least = where.messages - own.messages if where.is_whole else 0
        yield from _folded(own.base.state, sorted(whole, key=len), where.messages, least)

    def _start(self, state: State, frames: list[RecordedFrame], messages: int) -> Iterator[RecordedFrame | None]:
        """The first frames of one source's chain that the replica may have had; None if it may have had others."""
        part = state.routing.replicas.get(ReplicaId(frames[0].owner))
        n_next = part.chain.n_next if part is not None else 0
        n_first = n_next
        for frame in frames:
            message = frame.message
            if message is None:
                continue
            if message.source == frame.owner:
                if message.n > n_next and n_next - n_first < messages:
                    yield None
                if message.n - n_first >= messages:
                    return
                n_next = max(n_next, message.n + 1)
            yield frame

    def _has_later_gap(self, stream: StreamName, worker: str, n_first: int) -> bool:
        """True if the chain lacks messages behind that number. A replica with cursors that went back had read a history
        in which they may have followed at once: what stands before them here had been lost there."""
        gaps = self._playback.gaps.all
        return any(gap.stream == stream and gap.source == worker and gap.n_from >= n_first for gap in gaps)

    def _has_gap_before_end(self, stream: StreamName, worker: str, end: StreamSeq) -> bool:
        """True if messages that the log had acknowledged to the worker are missing before its end at that place, and
        the replica had read as far as one of them may have stood."""
        gaps, cursor = self._playback.gaps.all, self._at.event.cursor[stream][1]
        return any(
            gap.stream == stream and gap.source == worker and gap.noticed == end and gap.after <= cursor for gap in gaps
        )


def _row(columns: Columns | Mapping[str, tuple[int, ...]], place: int) -> dict[str, int | None]:
    """The terms of one candidate; None for those without a column."""
    return {
        term: column[place] if place < len(column := columns.get(term, ())) else None
        for term in (*_OF_CACHE, *_OF_IN_FLIGHT)
    }


def _folded(base: State, chains: list[list[RecordedFrame]], messages: int, least: int) -> Iterator[State]:
    """The state after each start of each of these chains, with so many messages at most and at least; a copy of the
    routing fold for each start of all chains but the last."""
    if least > min(messages, sum(map(len, chains))):
        return
    if not chains:
        yield base
        return
    first, *others = chains
    here = _with_own_routing(base)
    yield from _folded(here, others, messages, least)
    for number, frame in enumerate(first[:messages], 1):
        assert frame.message is not None
        here.routing.apply(frame.owner, frame.message, frame.head)
        yield from _folded(here, others, messages - number, least - number)


def _with_own_routing(state: State) -> State:
    """A state that shares all folds but that of the routing stream, which is a copy."""
    alone = State(state.chain_key)
    alone.routing, alone.cursor[ROUTING] = state.routing, state.cursor[ROUTING]
    return state.with_routing(decode(state.chain_key, b"".join(encode(alone))).routing)


def _member(state: State, worker: str) -> Member | None:
    """The worker, if it answers requests."""
    return next((member for member in state.serving() if member.worker == worker), None)


def _n_next(state: State, stream: StreamName, worker: str) -> int | None:
    """The number of the worker's next message; None without a message of it."""
    parts: Mapping[WorkerId, Member | LoadPart] = state.loads.parts if stream == LOAD else state.kv[stream].members
    part = parts.get(WorkerId(worker))
    return part.chain.n_next if part is not None else None
