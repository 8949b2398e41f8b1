"""Recording: an exported stretch of a namespace's log, decoded; everything in `replay` reads one.

With the deployment's key every message's digest is computed, so that chains prove what the log said. Without it the
digests are those that the messages themselves name: folds come out the same, but nothing is proved.

An excerpt (`streams.archive.archive_format.Excerpt`) lacks messages in between, so nothing can be folded along it: it
has a state where a decision on its request was made, and nowhere else.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Self

from core.codec import (
    CHAIN_START,
    Message,
    decode_message,
    known_digest,
    known_keys,
    newest_generation,
)
from core.errors import CallerError, Corrupt
from core.events import Event, UnknownEvent
from core.ids import Epoch, ReplicaId, RequestId, StreamName, StreamSeq
from core.keys import DeploymentKey
from core.snapshot_manifest import Manifest
from core.subjects import ROUTING, SCALE, is_kv, owner
from projections.digest import READ_FOLD_VERSIONS
from projections.folds.frozen_state import FrozenState
from projections.folds.routing_fold import ReplicaPart
from projections.folds.snapshot import decode, positions
from projections.folds.state import State, is_folded
from replay.recording.messages import ChainHeads, PartialEvent
from replay.recording.moment import AtCursor, AtRequest, AtSequence, AtTime, Moment
from replay.recording.participants import Participants, ReplicaHistory
from replay.recording.prompt_columns import PromptColumns
from replay.recording.request_history import PLACES, OtherEvent, RequestHistory
from streams.archive.archive_format import Excerpt, is_key_of
from streams.archive.archive_reader import ArchiveReader
from streams.log import Record

PROGRESS_EVERY = 10_000
"""Messages between two reports of progress."""

Cursor = dict[StreamName, StreamSeq]
"""Per stream the last sequence that is folded; 0 for none."""
Progress = Callable[[int, int], None]
"""Gets the number of messages folded, and of those to fold."""


class RecordedFrame(NamedTuple):
    """One message, decoded, where it stands."""

    stream: StreamName
    seq: StreamSeq
    time_ms: int
    owner: str
    head: bytes
    """Its chain digest."""
    message: Message | None
    """None if the payload is no Contrail message."""


class Recording:
    """Frames, states, requests and names of one export. Used by one thread at a time."""

    def __init__(self, archive: ArchiveReader, key: DeploymentKey | None) -> None:
        """CallerError if the key is another deployment's."""
        self.archive = archive
        self.key = key
        self.chain_key = _chain_key(archive, key)
        """Empty without a key."""
        self._heads: dict[StreamName, ChainHeads] = {}
        self._keyframes: list[tuple[Cursor, FrozenState]] = []
        self._true: dict[int, bool] = {}
        """By the identity of a manifest: see `is_true`."""
        self._names: Participants | None = None

    def __repr__(self) -> str:
        return f"<Recording {self.archive!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def open(path: Path, key: DeploymentKey | None = None) -> Recording:
        """CallerError or Corrupt if the file cannot be used."""
        archive = ArchiveReader.open(path)
        try:
            return Recording(archive, key)
        except BaseException:  # nothing else would close the file
            archive.close()
            raise

    def close(self) -> None:
        """The file is closed."""
        self.archive.close()

    @property
    def proved(self) -> bool:
        """True if chains are checked with the deployment's key."""
        return bool(self.chain_key) and not self.archive.contents.redacted

    @property
    def excerpt(self) -> Excerpt | None:
        """The request to which it was cut; None for a recording of all messages."""
        return self.archive.contents.excerpt

    @property
    def streams(self) -> list[StreamName]:
        """The streams that are folded, sorted."""
        return [stream for stream in self.archive.streams if is_folded(stream)]

    @property
    def chained_streams(self) -> list[StreamName]:
        """The streams with chains that can be proved: those that are folded, and the planner's."""
        return [*self.streams, *([SCALE] if SCALE in self.archive.streams else [])]

    @property
    def end(self) -> Cursor:
        """The cursor behind its last messages."""
        return {stream: StreamSeq(self.archive.span(stream).last_seq) for stream in self.streams}

    @cached_property
    def start(self) -> Mapping[StreamName, StreamSeq]:
        """The cursor before its first messages."""
        return {stream: StreamSeq(self.archive.span(stream).begin - 1) for stream in self.streams}

    @property
    def start_ms(self) -> int:
        """The time of its oldest message or snapshot; 0 if it holds nothing."""
        saved = (manifest.made_ms for manifest in self.archive.snapshots())
        return min([*(block.first_ms for block in self.archive.contents.blocks), *saved], default=0)

    def frames(self, stream: StreamName, start: int = 1, end: int | None = None) -> Iterator[RecordedFrame]:
        """The stream's messages from `start` up to `end` (not included), in order; some 5 us each."""
        for rows in self.archive.row_lists(stream, start, end):
            for seq, time_ms, whose, payload in rows:
                message = _message(payload)
                head = self.digest(payload) or self._named_head(stream, seq, message)
                yield RecordedFrame(stream, seq, time_ms, owner(whose), head, message)

    def messages(self, stream: StreamName, start: int = 1, end: int | None = None) -> Iterator[tuple[Record, Message]]:
        """The readable messages from `start` up to `end` (not included), without digests; without a key these cost
        a pass of the whole stream."""
        for record in self.archive.read(stream, start, end):
            if (message := _message(record.payload)) is not None:
                yield record, message

    def messages_with(
        self, stream: StreamName, marks: Collection[bytes], start: int = 1
    ) -> Iterator[tuple[Record, Message]]:
        """The same from `start` on, of messages that have one of these texts in their bytes; others are not decoded."""
        for record in self.archive.read(stream, start):
            if any(mark in record.payload for mark in marks) and (message := _message(record.payload)) is not None:
                yield record, message

    def events(self, numbers: Iterable[int]) -> Iterator[tuple[int, Event | UnknownEvent]]:
        """The events of the routing stream that have these numbers (see `request_history`), in the order of the log;
        some 10 us each."""
        by_seq: dict[int, list[int]] = {}
        for number in sorted(numbers):
            by_seq.setdefault(number // PLACES, []).append(number)
        if not by_seq:
            return
        for record in self.archive.read(ROUTING, min(by_seq), max(by_seq) + 1):
            if record.seq in by_seq and (message := _message(record.payload)) is not None:
                yield from ((number, message.events[number % PLACES]) for number in by_seq[record.seq])

    @cached_property
    def columns(self) -> PromptColumns:
        """The prompts of its decisions."""
        return PromptColumns(self.archive)

    def whole_events(self, numbers: Iterable[int]) -> Iterator[tuple[int, Event | UnknownEvent]]:
        """As `events`, each decision with all hashes of its prompt; as it was recorded if these cannot be had."""
        for number, event in self.events(numbers):
            yield number, self.columns.whole(*divmod(number, PLACES), event)

    def frame(self, record: Record) -> RecordedFrame:
        """The record, decoded."""
        stream, seq, time_ms, where, payload = record
        message = _message(payload)
        head = self.digest(payload) or self._named_head(stream, seq, message)
        return RecordedFrame(stream, seq, time_ms, owner(where), head, message)

    # --- moments -----------------------------------------------------------------------------------------------

    def position(self, stream: StreamName, moment: Moment) -> StreamSeq:
        """The first sequence of the stream at or after the moment; CallerError if the recording does not know it."""
        match moment:
            case AtTime(time_ms):
                return self.archive.seek(stream, time_ms)
            case AtSequence(named, seq):
                return seq if named == stream else self.archive.seek(stream, self._time_of(named, seq))
            case AtRequest(request):
                seq = self.routed(request)
                return seq if stream == ROUTING else self.archive.seek(stream, self._time_of(ROUTING, seq))
            case AtCursor():
                return StreamSeq(moment.seq(stream) + 1)

    def cursor(self, moment: Moment) -> Cursor:
        """All that stood in the log before the moment."""
        return {stream: StreamSeq(max(0, self.position(stream, moment) - 1)) for stream in self.streams}

    def routed(self, request: RequestId) -> StreamSeq:
        """The sequence at which the request's first attempt was routed or refused; of the last request that
        `RequestHistory.named` finds. CallerError if the recording does not know it, or if several tenants have such
        requests."""
        uses = self.requests.uses_of(self.requests.named(request))
        if not uses:
            raise CallerError(
                f"{request!r} is no time (14:03, 14:03:05Z, -15m), no sequence (routing:1234), and no "
                "request that this recording knows; `contrail events --stream routing` lists them"
            )
        return StreamSeq(uses[-1][0].seq)

    # --- requests and names ------------------------------------------------------------------------------------

    @property
    def requests(self) -> RequestHistory:
        """Every attempt at every request; read at the first use, some 3 us per message of the routing stream."""
        return self._histories.requests

    @property
    def replicas(self) -> ReplicaHistory:
        """The lives and the settings of the replicas; made with `requests`."""
        return self._histories.replicas

    @cached_property
    def _histories(self) -> _Histories:
        rows = ((seq, time_ms, owner(whose), payload) for seq, time_ms, whose, payload in self.archive.rows(ROUTING))
        requests = RequestHistory()
        others, from_start = requests.read(rows), not self.start.get(ROUTING) and self.excerpt is None
        known = chain(others, self._first.settings)
        return _Histories(requests, ReplicaHistory(known, self._first.replicas, from_start=from_start))

    @property
    def names(self) -> Participants:
        """The names of workers and replicas; read at the first use, some 2 us per kv message."""
        if self._names is None:
            first = self._first.names
            self._names = names = Participants(
                dict(first.workers), first.replicas | self.replicas.names, dict(first.streams)
            )
            for stream in self.streams:
                if is_kv(stream):
                    names.note_workers(stream, self.archive.rows(stream))
            names.note_requests(self.requests)
        return self._names

    @cached_property
    def _first(self) -> _RecordingStart:
        """The state before its first messages: empty, unless there is a snapshot. Of an excerpt, all that its states
        know."""
        names = Participants()
        states = [self.state_before(self.start)] if self.excerpt is None else self._excerpt_states()
        for state in states:
            names.note_state(state)
        first, *later = states
        settings = [each for state in later for each in _settings(state)]
        return _RecordingStart(set(first.cursor), dict(first.routing.replicas), names, settings)

    # --- states ------------------------------------------------------------------------------------------------

    def state_before(self, cursor: Mapping[StreamName, int]) -> State:
        """The newest state at hand that lies before the cursor in every stream: a keyframe's, a snapshot's, or the
        one before the first event. CallerError if it is an excerpt without a state at this very cursor."""
        base = self._base(cursor)
        if base is None and self.excerpt is not None:
            raise CallerError(self.excerpt_text)
        return State(self.chain_key) if base is None else base.state()

    def cut(self, cursor: Mapping[StreamName, int]) -> dict[StreamName, str]:
        """Streams of which a fold up to the cursor lacks the head, since no snapshot has it, each with a sentence: what
        was silent since then is not known there."""
        base = self._base(cursor)
        known = self._first.streams if base is None or base.is_keyframe else base.cursor.keys()
        return {stream: self.cut_text(stream) for stream, seq in self.start.items() if seq and stream not in known}

    @property
    def excerpt_text(self) -> str:
        """A sentence: where an excerpt has a state."""
        assert self.excerpt is not None
        request, places = self.excerpt.request, [f"{ROUTING}:{each.seq}" for each in self.excerpt.decisions]
        return (
            f"this file was cut to request {request}: it has a state where that was decided ({', '.join(places)}), and "
            "the messages in between are not all here; `explain` and `replay verify` answer from it, and an export of "
            "the range answers the rest"
        )

    def cut_text(self, stream: StreamName) -> str:
        """A sentence: the first sequence of a stream without its head."""
        return f"{stream} begins at {self.start[stream] + 1}, without a snapshot"

    def to_fold(self, cursor: Mapping[StreamName, int]) -> int:
        """The number of messages between that state and the cursor, without those that the log no longer had."""
        base = self._base(cursor)
        done, start = base.cursor if base is not None else {}, self.start
        return sum(max(0, seq - max(done.get(stream, 0), start.get(stream, 0))) for stream, seq in cursor.items())

    def state_at(self, cursor: Mapping[StreamName, int], progress: Progress = lambda _done, _of: None) -> State:
        """The fold up to the cursor, every stream of it open; some 15 us per message behind the state before."""
        of, done = self.to_fold(cursor), 0
        state = self.state_before(cursor)
        for stream, seq in sorted(cursor.items()):
            at = state.open(stream, Epoch(self.archive.span(stream).epoch))
            for start in range(at, seq, PROGRESS_EVERY):
                self.advance(state, stream, min(seq, start + PROGRESS_EVERY))
                done += PROGRESS_EVERY
                progress(min(done, of), of)
        return state

    def advance(self, state: State, stream: StreamName, seq: int) -> None:
        """The state has the stream up to there. CallerError if it is an excerpt and the state lies before."""
        at = state.open(stream, Epoch(self.archive.span(stream).epoch))
        if self.excerpt is not None and at < seq:
            raise CallerError(self.excerpt_text)
        for frame in self.frames(stream, at + 1, seq + 1):
            state.fold(stream, frame.seq, frame.owner, frame.message, frame.head)
        if state.cursor[stream].seq < seq:
            state.skip_to(stream, StreamSeq(seq))

    def keep(self, cursor: Cursor, frozen: FrozenState) -> None:
        """A keyframe, of the state at the cursor; later ones come later."""
        self._keyframes.append((cursor, frozen))

    # -----------------------------------------------------------------------------------------------------------

    def _base(self, cursor: Mapping[StreamName, int]) -> _FoldBase | None:
        """The state from which a fold up to the cursor can go on; None for the start. Of an excerpt, the state at the
        cursor itself."""
        if self.excerpt is not None:
            return next((base for base in self._excerpt_bases() if base.cursor == cursor), None)
        keyframe = self._keyframe_before(cursor)
        for manifest in reversed(self.archive.snapshots()):
            seqs: Cursor = {StreamName(name): StreamSeq(at.seq) for name, at in manifest.cursor.items()}
            fits = manifest.fold_version in READ_FOLD_VERSIONS and not manifest.why_no_start and self._fits(manifest)
            if fits and _is_before(seqs, cursor) and self.is_true(manifest):
                if keyframe is None or sum(seqs.values()) > sum(keyframe.cursor.values()):
                    return _FoldBase(seqs, partial(self._decoded, manifest))
                break
        return keyframe

    def _decoded(self, manifest: Manifest) -> State:
        return decode(self.chain_key, self.archive.snapshot(manifest))

    def _excerpt_bases(self) -> Iterator[_FoldBase]:
        for manifest in self.archive.snapshots():
            if manifest.fold_version in READ_FOLD_VERSIONS and self.is_true(manifest):
                seqs: Cursor = {StreamName(name): StreamSeq(at.seq) for name, at in manifest.cursor.items()}
                yield _FoldBase(seqs, partial(self._decoded, manifest))

    def _excerpt_states(self) -> list[State]:
        """The states of an excerpt; an empty one if this program reads none of them."""
        found = [base.state() for base in self._excerpt_bases()]
        return found or [State(self.chain_key)]

    def _keyframe_before(self, cursor: Mapping[StreamName, int]) -> _FoldBase | None:
        at = bisect_right(self._keyframes, sum(cursor.values()), key=lambda kept: sum(kept[0].values()))
        for kept, frozen in reversed(self._keyframes[:at]):
            if _is_before(kept, cursor):
                return _FoldBase(kept, partial(frozen.thaw, self.chain_key), is_keyframe=True)
        return None

    def is_true(self, manifest: Manifest) -> bool:
        """True if the snapshot's content stands where its manifest says: no key seals a manifest. Read once."""
        if id(manifest) not in self._true:
            stated = {StreamName(name): (at.epoch, at.seq) for name, at in manifest.cursor.items()}
            content = self.archive.snapshot(manifest)
            try:
                self._true[id(manifest)] = positions(content) == stated
            except Corrupt:
                self._true[id(manifest)] = False
        return self._true[id(manifest)]

    def _fits(self, manifest: Manifest) -> bool:
        spans = self.archive.contents.streams
        return all(stream in spans and spans[stream].epoch == at.epoch for stream, at in manifest.cursor.items())

    def digest(self, payload: bytes) -> bytes:
        """The chain digest of the message; empty without the key of its generation."""
        return known_digest(payload, self.chain_key) or b"" if self.chain_key else b""

    @property
    def has_removed_keys(self) -> bool:
        """True if an earlier generation was removed from the key."""
        return len(known_keys(self.chain_key)) <= newest_generation(self.chain_key)

    def _named_head(self, stream: StreamName, seq: int, message: Message | None) -> bytes:
        """The digest of the message there, as the message behind it names it."""
        if message is None:
            return CHAIN_START
        if stream not in self._heads:
            self._heads[stream] = ChainHeads(self.archive, stream)
        return self._heads[stream].of(seq, message.source, message.n)

    def _time_of(self, stream: StreamName, seq: StreamSeq) -> int:
        for record in self.archive.read(stream, seq):
            return record.time_ms
        raise CallerError(f"{stream}:{seq} lies beyond the end of the recording")


class _FoldBase(NamedTuple):
    """A state that is at hand, not made yet."""

    cursor: Cursor
    state: Callable[[], State]
    is_keyframe: bool = False
    """True if it was folded from the recording's start, past any snapshots."""


class _Histories(NamedTuple):
    """The results of one pass through the routing stream."""

    requests: RequestHistory
    replicas: ReplicaHistory


class _RecordingStart(NamedTuple):
    """The state at the start of a recording."""

    streams: set[StreamName]
    """Those of which the head is in a snapshot."""
    replicas: dict[ReplicaId, ReplicaPart]
    names: Participants
    settings: list[OtherEvent]
    """Settings that later states of an excerpt know."""


def _settings(state: State) -> Iterator[OtherEvent]:
    """The settings of the replicas, as events at the state's place."""
    seq = state.cursor[ROUTING].seq if ROUTING in state.cursor else 0
    for replica, part in state.routing.replicas.items():
        event = PartialEvent("SettingsChanged", revision=part.settings_revision, settings=part.settings)
        yield OtherEvent(seq, 0, replica, event)


def _message(payload: bytes) -> Message | None:
    """None if it is no Contrail message."""
    try:
        return decode_message(payload)
    except Corrupt:
        return None


def _is_before(seqs: Mapping[StreamName, int], cursor: Mapping[StreamName, int]) -> bool:
    return all(seq <= cursor.get(stream, -1) for stream, seq in seqs.items())


def _chain_key(archive: ArchiveReader, key: DeploymentKey | None) -> bytes:
    contents = archive.contents
    if contents.redacted:
        return bytes.fromhex(contents.chain_key)
    if key is None:
        return b""
    if not is_key_of(key.chain_key, contents.key_check):
        raise CallerError(f"the key is not that of the deployment {contents.namespace!r} from which this log comes")
    return key.chain_key


SEARCH_FIRST = 512
"""Messages read at first; four times as many each time that an owner is not among them."""
SEARCH_MAX = 32_768
"""No further back than this: some 60 ms."""


class LastMessage(NamedTuple):
    """The sequence of a message, and the time at which the log stored it."""

    seq: StreamSeq
    time_ms: int


def last_messages(
    archive: ArchiveReader, stream: StreamName, upto: int, owners: Collection[str]
) -> dict[str, LastMessage]:
    """Per owner its newest message at or before `upto`; an owner without one among the last SEARCH_MAX is missing."""
    found: dict[str, LastMessage] = {}
    end, count = upto + 1, SEARCH_FIRST
    while end > max(1, upto - SEARCH_MAX) and not found.keys() >= set(owners):
        start = max(1, end - count)
        here = {
            who: LastMessage(record.seq, record.time_ms)
            for record in archive.read(stream, start, end)
            if (who := owner(record.subject)) in owners
        }
        found = here | found
        end, count = start, 4 * count
    return found
