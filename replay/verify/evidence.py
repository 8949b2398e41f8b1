"""Evidence: reasons why a recording may not show the view of a decision, and places where a replica's fold agreed.

A gap of the recording can matter to a decision only if it mattered to its replica's fold. So where a replica reported
the digest of its fold, and the log's fold has the same, no gap before that place made a difference to it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from msgspec import UnsetType

from core.codec import decode_message
from core.errors import Corrupt
from core.events import Event, ReplicaReported, ReplicaRestated, RequestRejected, RequestRouted, UnknownEvent
from core.events.routing import LOST_HISTORY, MADE_ANEW, PROGRAM_VERSION, ROLLED_BACK_TEXT
from core.ids import LOST_SUFFIX, Epoch, ReplicaId, SourceId, StreamName, StreamSeq, from_column
from core.snapshot_manifest import At
from core.subjects import JOBS, LOAD, ROUTING, owner
from projections.folds.state import DigestPoint, State
from projections.policy.rules import RULES
from replay.playback.fold_reports import FoldReport, fold_reports_of
from replay.playback.late_folds import LateFolds
from replay.playback.playback import Playback, RecordedDecision, RecordedRefusal
from replay.playback.replica_state import ReplicaState
from replay.playback.state_cursors import StateCursor
from replay.recording.gaps import CUT, Gaps, ReplacedHistory
from replay.recording.recording import Recording
from replay.verify.replaced_states import ReplacedStates

REASONS = ("version", "replaced", "end", "cut", "settings", "unknown", "deleted", "gap", "base")
"""Reasons why a decision that comes out otherwise is not judged; the first that holds is given."""
LIFTED = frozenset({"cut", "deleted", "gap", "replaced"})
"""Reasons that hold only until the replica is known to have had our folds, or to have read our messages."""


_GONE = re.compile(rf"{ROLLED_BACK_TEXT}, its end at \S+:(\d+) is gone")
"""The text of such a loss with its place, as `actors.consistency.log_heads` writes it."""


class Unverifiable(NamedTuple):
    """A reason why the recording may not show a part of the view of a decision, with its evidence."""

    reason: str
    """Of REASONS."""
    text: str
    """The evidence, as one sentence."""
    stream: StreamName | None = None
    """The stream of the missing messages; None for any stream, and for the rules or the settings of the replica."""
    source: str | None = None
    """The source of these messages; None for any source of the stream …"""
    known: Container[str] = ()
    """… but for these."""

    def concerns(self, source: str) -> bool:
        """True if messages of that source may be missing."""
        return self.source in (None, source) and source not in self.known


class Evidence:
    """Reasons for the decisions of one playback, found only where a decision differs."""

    def __init__(self, playback: Playback) -> None:
        self._playback = playback
        self._recording = playback.recording
        self._agreements: FoldAgreements | None = None
        self._named: NamedPlaces | None = None
        self._near: dict[StreamName, StateCursor] = {}

    def __repr__(self) -> str:
        return f"<Evidence for {self._playback!r}>"

    def all(self, at: RecordedDecision | RecordedRefusal) -> list[Unverifiable]:
        """All reasons for the decision or refusal that the playback gave last. A pass through the recording for the
        first one that lacks messages."""
        if at.event.decide_version not in RULES:  # no message of the log would change that
            return list(self._of_rules(at))
        found = list(self._all(at))
        if (excerpt := self._recording.excerpt) is not None:
            known = [each for each in excerpt.decisions if (each.seq, each.place) == (at.seq, at.number)]
            return found + [Unverifiable(each.reason, each.why) for each in known if each.reason]
        if any(each.reason in LIFTED for each in found):
            if self._agreements is None:
                self._agreements = FoldAgreements(self._recording)
            before = self._agreements
            found = list(self._all(at, before.folds(at.replica, at.seq), before.heads(at.replica, at.seq)))
        return [each for each in found if self._is_allowed(at, each)]

    def replaced_states(self, at: RecordedDecision | RecordedRefusal) -> ReplacedStates | None:
        """The states of a history that was replaced, on which the decision or refusal may rest; None if none was. The
        first ones cost a pass through the recording. None of an excerpt: its decisions were judged when it
        was made."""
        if self._recording.excerpt is not None:
            return None
        places = self._places()
        replaced = [*self._playback.gaps.replaced, *places.left_histories(at), *places.histories_sent_again(at)]
        late = places.late_histories(at, self._playback.late_folds)
        if not replaced and not late:
            return None
        if self._agreements is None:
            self._agreements = FoldAgreements(self._recording)
        agreed, read = (it(at.replica, at.seq) for it in (self._agreements.folds, self._agreements.heads))
        reversal, reported = places.reversal(at), self._agreements.places(at.replica, at.seq)
        went_back = {stream for stream in self._recording.streams if reported.get(stream, 0) < reversal}
        replaced = [each for each in replaced if read.get(each.stream, 0) < each.noticed]
        return ReplacedStates(self._playback, at, agreed, replaced, late, went_back, self._near)

    def known(self, at: RecordedDecision | RecordedRefusal) -> dict[str, str]:
        """Reasons by kind, as far as the playback knows them without another pass: some of them may be lifted by a
        later look. Some 3 us, and O(workers) where the recording lacks messages."""
        return {each.reason: each.text for each in self._all(at)}

    def _is_allowed(self, at: RecordedDecision | RecordedRefusal, each: Unverifiable) -> bool:
        """False if the fold alone lacks the source: by its chain it is known there."""
        if each.stream is None or each.source is None or each.source not in _unknown(at, each.stream):
            return True
        seq = at.replica_state.state.cursor[each.stream].seq
        return self._playback.unknown_sources.allow(each.stream, seq, each.source)

    def _all(
        self,
        at: RecordedDecision | RecordedRefusal,
        agreed: Mapping[StreamName, int] = MappingProxyType({}),
        read: Mapping[StreamName, int] = MappingProxyType({}),
    ) -> Iterator[Unverifiable]:
        """`agreed`: per stream the last place at which the replica reported the log's fold; `read`: at which
        it had read the message that stands there."""
        replica_state, event, gaps = at.replica_state, at.event, self._playback.gaps
        for reason, text in replica_state.unverifiable.items():
            of_settings = reason == "settings"
            yield Unverifiable(reason, text, *(() if of_settings else (ROUTING, at.replica)))
        if unread := replica_state.unread_restatement:
            yield from _unread(at.replica, unread, gaps, agreed)
        yield from self._of_rules(at)
        yield from _of_base(at)
        yield from self._of_epochs(at)
        yield from self._of_end(at)
        is_cut = ROUTING in replica_state.cut or gaps.kind(ROUTING, at.replica) == CUT
        if is_cut and not replica_state.settings_known:
            yield Unverifiable("settings", f"the settings of {at.replica} were said before the recording begins")
        is_half_known = replica_state.cut or replica_state.state.incomplete
        if not (is_half_known or gaps.all or gaps.replaced):
            return
        of_others, admitted = _workers_of_others(replica_state.state, event.model), _recorded_as_unknown(event)
        if is_half_known:
            yield from _half_known(replica_state, gaps, agreed, without=of_others | admitted)
        cursor = {name: at for name, at in event.cursor.items() if name != JOBS}  # no decision rests on jobs
        for gap in gaps.at(cursor, agreed):
            source = None if gap.source is None else gap.source.removesuffix(LOST_SUFFIX)
            if source not in of_others:
                yield Unverifiable(gap.kind, gap.text, gap.stream, source)
        for each in gaps.replaced_at(cursor, at.seq, read):
            if each.sources.isdisjoint(admitted):  # by its record the replica had read what stands there
                stream = None if each.rolled_back else each.stream
                yield Unverifiable("replaced", f"history was replaced: {each.text}", stream)

    def _of_rules(self, at: RecordedDecision | RecordedRefusal) -> Iterator[Unverifiable]:
        if why := newer_rules(self._recording, at):
            yield Unverifiable("version", why)

    def _of_epochs(self, at: RecordedDecision | RecordedRefusal) -> Iterator[Unverifiable]:
        for stream in self._playback.replaced_streams(at.event):
            epoch, here = at.event.cursor[stream][0], self._playback.source.epochs.get(stream, 0)
            if here > at.time_ms:  # by the broker's time both
                yield Unverifiable("replaced", f"{stream} was made anew behind this decision", stream)
            elif by := self._places().epoch_named(stream, epoch, at):
                text = f"the history of its epoch {epoch}, which {by} names, is not here"
                yield Unverifiable("replaced", f"{stream} was made anew: {text}", stream)

    def _of_end(self, at: RecordedDecision | RecordedRefusal) -> Iterator[Unverifiable]:
        source = self._playback.source
        for name, (epoch, seq) in at.event.cursor.items():
            stream = StreamName(name)
            if stream == JOBS or source.epochs.get(stream) != epoch or seq <= source.ends[stream]:
                continue
            read = f"{stream}:{seq} was read by then, and the recording ends at {source.ends[stream]}"
            if self._recording.archive.contents.to_ms:
                yield Unverifiable("end", f"{read}, since it was limited to a moment", stream)
            elif by := self._places().beyond(stream, source.ends[stream], at):
                yield Unverifiable("end", f"{read}, though {by} had read more", stream)

    def _places(self) -> NamedPlaces:
        if self._named is None:
            self._named = NamedPlaces(self._recording)
        return self._named


def _of_base(at: RecordedDecision | RecordedRefusal) -> Iterator[Unverifiable]:
    if isinstance(at, RecordedDecision) and at.fault is not None and at.fault.is_missing:
        yield Unverifiable("base", at.fault.text, ROUTING)


class _Place(NamedTuple):
    """A place of a stream in some message of the routing stream."""

    at: StreamSeq
    replica: ReplicaId
    seq: StreamSeq
    reported: bool
    """True for a replica's report on its folds; else it is the cursor of a decision."""


class _Reversal(NamedTuple):
    """An event with an earlier place of some stream than the event before in the chain of its replica."""

    at: StreamSeq
    number: int
    cursor: Mapping[str, tuple[int, int]]
    streams: frozenset[str]
    """The streams of the earlier places."""

    def follows(self, other: RecordedDecision | RecordedRefusal) -> bool:
        """True if it comes after that decision of its replica."""
        return (self.at, self.number) > (other.seq, other.number)


class _RollBack(NamedTuple):
    """A restatement that names a stream which was rolled back."""

    at: StreamSeq
    gone: int | None
    """The place from which on the history before it is gone, at the latest; None if the text has none."""


class NamedPlaces:
    """Epochs and sequences of streams that replicas name: they witness what the log had then, and where the history
    that a replica read was replaced."""

    def __init__(self, recording: Recording) -> None:
        """Reads the routing stream once."""
        self._recording = recording
        self._epoch = recording.archive.span(ROUTING).epoch if ROUTING in recording.streams else None
        self._first: dict[tuple[str, int], dict[ReplicaId, _Place]] = {}
        """By stream and epoch, each replica's first place."""
        self._furthest: dict[tuple[str, int], dict[tuple[ReplicaId, bool], _Place]] = {}
        self._remade: dict[str, list[tuple[StreamSeq, ReplicaId]]] = {}
        """By stream, the places at which replicas state that it was made anew …"""
        self._rolled_back: dict[str, list[_RollBack]] = {}
        """… and the statements that it was rolled back."""
        self._begins: dict[ReplicaId, list[tuple[StreamSeq, Mapping[str, tuple[int, int]]]]] = {}
        """By replica its reports, each with the begins of its folds."""
        self._cursors: dict[ReplicaId, Mapping[str, tuple[int, int]]] = {}
        """The last one of each replica."""
        self._reversals: dict[ReplicaId, list[_Reversal]] = {}
        self._sent_again: list[ReplacedHistory] = []
        """Places of the routing stream at which replicas had read other messages before they sent those that stand
        there."""
        numbers: dict[ReplicaId, int] = {}
        for record, message in recording.messages(ROUTING) if ROUTING in recording.streams else ():
            if message.source != owner(record.subject):
                continue
            replica = ReplicaId(message.source)
            is_repeat = message.n < numbers.get(replica, 0)
            for number, event in enumerate(message.events):
                self._note_event(record.seq, replica, event)
                if isinstance(event, RequestRouted | RequestRejected) and not is_repeat:
                    self._note_cursor(record.seq, number, replica, event.cursor)
                    self._note_own_place(record.seq, replica, event.cursor)
            numbers[replica] = max(message.n + 1, numbers.get(replica, 0))

    def __repr__(self) -> str:
        return f"<NamedPlaces in {len(self._first)} epochs>"

    def epoch_named(self, stream: StreamName, epoch: int, at: RecordedDecision | RecordedRefusal) -> str:
        """An earlier message of a replica, one of another replica, a report on folds or a snapshot that names the
        epoch, or a later statement that the stream was made anew; empty if there is none."""
        named = [*self._first.get((stream, epoch), {}).values(), *self._furthest.get((stream, epoch), {}).values()]
        evident = (it for it in named if it.at < at.seq or it.replica != at.replica or it.reported)
        first = min(evident, default=None)
        if first is not None:
            return f"replica {self._recording.names.replica(first.replica)} at {ROUTING}:{first.at}"
        for seq, replica in self._remade.get(stream, ()):
            if seq > at.seq:
                return f"replica {self._recording.names.replica(replica)}, by its restatement at {ROUTING}:{seq},"
        return self._snapshot(lambda place: place.epoch == epoch, stream)

    def beyond(self, stream: StreamName, end: int, at: RecordedDecision | RecordedRefusal) -> str:
        """A report, another replica or a snapshot that names a message beyond that end; empty if none does."""
        epoch = at.event.cursor[stream][0]
        for (replica, reported), place in sorted(self._furthest.get((stream, epoch), {}).items()):
            if place.seq > end and (reported or replica != at.replica):
                return f"replica {self._recording.names.replica(replica)}, by {ROUTING}:{place.at},"
        return self._snapshot(lambda place: place.epoch == epoch and place.seq > end, stream)

    def reversal(self, at: RecordedDecision | RecordedRefusal) -> StreamSeq:
        """The last place, up to the decision, at which its replica names an earlier place of a stream than before: the
        history that it had read was replaced in between. 0 if there is none."""
        found = (each.at for each in self._reversals.get(at.replica, ()) if not each.follows(at))
        return max(found, default=StreamSeq(0))

    def left_histories(self, at: RecordedDecision | RecordedRefusal) -> Iterator[ReplacedHistory]:
        """Per stream the history in which the decision was made, if a restatement later on says that the stream was
        rolled back, and its replica names an earlier place later on: what it had read behind that one is gone. So is
        what stood from the place on that the restatement names, though others stand there by then."""
        later = [each for each in self._reversals.get(at.replica, ()) if each.follows(at)]
        who = self._recording.names.replica(at.replica)
        for name, (epoch, seq) in at.event.cursor.items():
            rolled_back = [each for each in self._rolled_back.get(name, ()) if each.at > at.seq]
            reversals = [each for each in later if each.cursor.get(name, (0, 0))[0] == epoch]
            if not rolled_back or not reversals:
                continue
            read = min(each.cursor[name][1] for each in reversals)
            gone = min((each.gone for each in rolled_back if each.gone is not None), default=seq + 1)
            if read < seq:
                text = f"replica {who} had read {name}:{seq}, and only {name}:{read} after the stream was rolled back"
                yield ReplacedHistory(StreamName(name), read + 1, seq, seq + 1, text)
            elif gone <= seq and any(name in each.streams for each in reversals):
                text = f"replica {who} had read {name}:{seq}, and what stood from {name}:{gone} on was rolled back"
                yield ReplacedHistory(StreamName(name), gone, seq, seq + 1, text)

    def late_histories(self, at: RecordedDecision | RecordedRefusal, late_folds: LateFolds) -> list[ReplacedHistory]:
        """The first messages of streams that the replica's folds lack by its last report before the decision, or by the
        first one behind it: they had been cut off, and are here again."""
        reports = self._begins.get(at.replica, [])
        place = bisect_left(reports, at.seq, key=lambda report: report[0])
        found = {}
        for seq, begins in reports[max(0, place - 1) : place + 1]:
            for name, begin in begins.items():
                stream, first = StreamName(name), StreamSeq(begin[1])
                if late_folds.is_late(stream, begin):
                    who = self._recording.names.replica(at.replica)
                    text = f"replica {who} states at {ROUTING}:{seq} that its fold of {stream} begins at {first}"
                    begin_here = self._recording.start[stream] + 1
                    found[stream, first] = ReplacedHistory(stream, begin_here, first - 1, first, text)
        return [found[each] for each in sorted(found)]

    def histories_sent_again(self, at: RecordedDecision | RecordedRefusal) -> Iterator[ReplacedHistory]:
        """The history of the routing stream that held the decision's place there, if some replica had read as far
        before it sent a message that stands at or before that place."""
        epoch, seq = at.event.cursor.get(ROUTING, (None, 0))
        if epoch == self._epoch:
            yield from (each for each in self._sent_again if each.first <= seq <= (each.last or seq))

    def _snapshot(self, holds: Callable[[At], bool], stream: StreamName) -> str:
        for manifest in self._recording.archive.snapshots():
            place = manifest.cursor.get(stream)
            if place is not None and holds(place):
                return f"snapshot {manifest.id}"
        return ""

    def _note_event(self, at: StreamSeq, replica: ReplicaId, event: Event | UnknownEvent) -> None:
        if isinstance(event, RequestRouted | RequestRejected):
            for name, (epoch, seq) in event.cursor.items():
                self._note(name, epoch, _Place(at, replica, StreamSeq(seq), reported=False))
        elif isinstance(event, ReplicaRestated):
            name, _, how = event.reason.partition(f" {LOST_HISTORY}: ")
            if how.startswith(MADE_ANEW):
                self._remade.setdefault(name, []).append((at, replica))
            elif how.startswith(ROLLED_BACK_TEXT):
                found = _GONE.search(how)
                self._rolled_back.setdefault(name, []).append(_RollBack(at, int(found[1]) if found else None))
        elif isinstance(event, ReplicaReported):
            begins = {} if isinstance(event.begins, UnsetType) else event.begins
            self._begins.setdefault(replica, []).append((at, begins))
            for name, points in event.points.items():
                for seq in points.seqs:
                    self._note(name, points.epoch, _Place(at, replica, StreamSeq(seq), reported=True))

    def _note_cursor(
        self, at: StreamSeq, number: int, replica: ReplicaId, cursor: Mapping[str, tuple[int, int]]
    ) -> None:
        before = self._cursors.get(replica, {})
        self._cursors[replica] = cursor
        earlier = frozenset(
            name
            for name, (epoch, seq) in cursor.items()
            if before.get(name, (0, 0))[0] == epoch and seq < before[name][1]
        )
        if earlier:
            self._reversals.setdefault(replica, []).append(_Reversal(at, number, cursor, earlier))

    def _note_own_place(self, at: StreamSeq, replica: ReplicaId, cursor: Mapping[str, tuple[int, int]]) -> None:
        """No replica can have read its own message, or a later one, before it sent it: others stood there."""
        epoch, seq = cursor.get(ROUTING, (None, 0))
        if epoch != self._epoch or seq < at:
            return
        if self._sent_again and self._sent_again[-1].first == at:
            seq = max(seq, self._sent_again.pop().last or 0)  # an event before in the same message
        who = self._recording.names.replica(replica)
        text = f"replica {who} had read {ROUTING}:{seq} before it sent the message that stands at {ROUTING}:{at}"
        self._sent_again.append(ReplacedHistory(ROUTING, at, seq, at, text, sent_again=True))

    def _note(self, name: str, epoch: int, place: _Place) -> None:
        self._first.setdefault((name, epoch), {}).setdefault(place.replica, place)
        furthest, key = self._furthest.setdefault((name, epoch), {}), (place.replica, place.reported)
        if key not in furthest or furthest[key].seq < place.seq:
            furthest[key] = place


def newer_rules(recording: Recording, at: RecordedDecision | RecordedRefusal) -> str:
    """One sentence if this program lacks the rules of the decision because a newer program made it, by the version
    with which its replica joined. Empty if nothing shows that."""
    version = at.event.decide_version
    if version <= max(RULES):
        return ""
    program = recording.replicas.versions.get(at.replica, "")
    if not is_newer_program(program):
        return ""
    name = recording.names.replica(at.replica)
    return (
        f"decided by version {version} of the rules; {name} is of version {program} of the program, and this one, "
        f"{PROGRAM_VERSION}, has no rules beyond version {max(RULES)}"
    )


def is_newer_program(version: str) -> bool:
    """True if a program of that version is newer than this one."""
    return _release(version) > _release(PROGRAM_VERSION)


def _release(version: str) -> list[int]:
    """The numbers of a program's version, without any suffix; none if it has no numbers."""
    found = re.match(r"\d+(\.\d+)*", version, re.ASCII)
    return [int(number) for number in found[0].split(".")] if found else []


def _half_known(
    replica_state: ReplicaState, gaps: Gaps, agreed: Mapping[StreamName, int], *, without: Collection[str]
) -> Iterator[Unverifiable]:
    """Gaps that the fold itself knows, but for those of the workers `without`: ones that the decision does not rest on,
    and ones that the replica did not know either, by its record."""
    state = replica_state.state
    for cut, how in replica_state.cut.items():
        if cut not in agreed and cut != JOBS:
            yield Unverifiable(CUT, how, cut, known=_known(state, cut))
    for stream, kv in state.kv.items():
        for worker in sorted(kv.unknown.difference(without)):
            text = f"the cache of worker {worker} is not known until it restates it"
            yield Unverifiable(gaps.kind(stream, worker), text, stream, worker)
    for replica in sorted(state.routing.unknown):
        if replica == replica_state.replica:
            text = f"a message of {replica} is missing, and it has not restated itself since"
            yield Unverifiable("unknown", text, ROUTING, replica)
        else:
            kind = CUT if ROUTING in replica_state.cut else gaps.kind(ROUTING, replica)
            text = f"what replica {replica} has in flight is not known until it restates it"
            yield Unverifiable(kind, text, ROUTING, replica)


def _unread(replica: ReplicaId, seq: int, gaps: Gaps, agreed: Mapping[StreamName, int]) -> Iterator[Unverifiable]:
    """Missing messages of the replica before a restatement that it has not read back: its fold may have had them when
    it said that. What it alone knew is known by the restatement."""
    for gap in gaps.all:
        if (
            gap.stream == ROUTING
            and gap.source == SourceId(replica)
            and agreed.get(ROUTING, 0) < (gap.noticed or 0) <= seq
        ):
            text = f"{gap.text}, and its restatement at {ROUTING}:{seq} was not read back yet"
            yield Unverifiable(gap.kind, text, ROUTING, known=(replica,))


def _known(state: State, stream: StreamName) -> Collection[str]:
    """Sources of a stream without its head of which the fold has all that counts."""
    if stream == ROUTING:
        return state.routing.replicas.keys() - state.routing.unknown
    return state.loads.reports.keys() if stream == LOAD else state.kv[stream].alive.keys() - state.kv[stream].unknown


def _unknown(at: RecordedDecision | RecordedRefusal, stream: StreamName) -> Collection[str]:
    """Sources of the stream that the fold lacks."""
    state = at.replica_state.state
    return state.projection(stream).unknown if stream in state.cursor else ()


def _workers_of_others(state: State, model: str) -> set[str]:
    """Workers that serve another model: no decision for this one rests on them."""
    return {
        worker
        for kv in state.kv.values()
        for worker, member in kv.members.items()
        if member.joined is not None and member.joined.model != model
    }


def _recorded_as_unknown(event: RequestRouted | RequestRejected) -> set[str]:
    if not isinstance(event, RequestRouted):
        return set()
    known = event.columns.get("known", ())
    return {worker for worker, at in zip(from_column(event.candidates), known, strict=False) if not at}


REPORTED = ReplicaReported.__name__.encode()
"""Stands in every message that has such an event, and in few others."""


def fold_reports(recording: Recording) -> Iterator[FoldReport]:
    """All reports of replicas on folds of this version, in the order of the log."""
    for record in recording.archive.read(ROUTING) if ROUTING in recording.streams else ():
        if REPORTED not in record.payload:
            continue
        try:
            message = decode_message(record.payload)
        except Corrupt:
            continue
        if message.source == owner(record.subject):
            for event in message.events:
                if isinstance(event, ReplicaReported):
                    yield from fold_reports_of(ReplicaId(message.source), record.seq, record.time_ms, event)


class LogFolds:
    """The log's folds at chosen places; each stream is folded once, alone."""

    def __init__(self, recording: Recording, places: Mapping[StreamName, set[StreamSeq]]) -> None:
        """O(all messages up to the last of these places)."""
        self._points: dict[tuple[StreamName, StreamSeq], DigestPoint] = {}
        for stream, seqs in sorted(places.items()):
            if stream in recording.streams:
                self._fold(recording, stream, sorted(seqs))

    def __repr__(self) -> str:
        return f"<LogFolds at {len(self._points)} places>"

    def at(self, stream: StreamName, seq: StreamSeq) -> DigestPoint | None:
        """The fold after that message; None if the recording does not hold it."""
        return self._points.get((stream, seq))

    def _fold(self, recording: Recording, stream: StreamName, seqs: list[StreamSeq]) -> None:
        """A fold that lacks something goes on from the next snapshot."""
        epoch, last = Epoch(recording.archive.span(stream).epoch), recording.end[stream]
        saved = [at.seq for each in recording.archive.snapshots() if (at := each.cursor.get(stream)) is not None]
        state, is_whole = recording.state_before(recording.start), False
        for seq in seqs:
            folded = state.open(stream, epoch)
            if not max(folded, recording.start[stream]) < seq <= last:
                continue
            if not is_whole and any(folded < each <= seq for each in saved):
                later = recording.state_before({**recording.end, stream: seq})
                state = later if later.open(stream, epoch) > folded else state
            recording.advance(state, stream, seq)
            point = state.point(stream, seq)
            is_whole = point is not None and point.complete
            if point is not None:
                self._points[stream, seq] = point


class FoldAgreements:
    """The places at which each replica is known to have had the log's folds."""

    def __init__(self, recording: Recording) -> None:
        """Folds the recording once."""
        reports = [each for each in fold_reports(recording) if _here(recording, each)]
        places: dict[StreamName, set[StreamSeq]] = {}
        for each in reports:
            places.setdefault(each.stream, set()).add(each.seq)
        folds = LogFolds(recording, places)
        self._agreed: dict[ReplicaId, list[FoldReport]] = {}
        self._read: dict[ReplicaId, list[FoldReport]] = {}
        for each in reports:
            point = folds.at(each.stream, each.seq)
            if point is not None and point.head == each.head:
                self._read.setdefault(each.replica, []).append(each)
                if point.complete and point.digest == each.digest:
                    self._agreed.setdefault(each.replica, []).append(each)

    def __repr__(self) -> str:
        return f"<FoldAgreements of {len(self._agreed)} replicas>"

    def folds(self, replica: ReplicaId, seq: int) -> dict[StreamName, StreamSeq]:
        """Per stream the last place at which the replica's fold agreed, by its reports before that message."""
        return _furthest(self._agreed.get(replica, ()), seq)

    def heads(self, replica: ReplicaId, seq: int) -> dict[StreamName, StreamSeq]:
        """The same of places at which it had read the message that stands there."""
        return _furthest(self._read.get(replica, ()), seq)

    def places(self, replica: ReplicaId, seq: int) -> dict[StreamName, StreamSeq]:
        """Per stream the place of the last of those reports at which the replica's fold agreed."""
        return {each.stream: each.at for each in self._agreed.get(replica, ()) if each.at < seq}


def _furthest(reports: Iterable[FoldReport], seq: int) -> dict[StreamName, StreamSeq]:
    found: dict[StreamName, StreamSeq] = {}
    for each in reports:
        if each.at < seq:
            found[each.stream] = max(each.seq, found.get(each.stream, StreamSeq(0)))
    return found


def _here(recording: Recording, each: FoldReport) -> bool:
    return each.stream in recording.streams and recording.archive.span(each.stream).epoch == each.epoch
