"""Proof: whether a recording holds what was written: every source's chain, checked with the deployment's key.

1. A message is sealed with a keyed digest of the one before it, so a changed message does not fit the one behind it.
   The last message of a source has none behind it: the export names its digest, and so do the snapshots.
2. Replicas report in their own chains which message they had read at a place (`ReplicaReported`): a replaced piece of
   history contradicts these reports.
3. A source that begins under an older generation of the key than a source before it in its stream was written with a
   retired key. Messages of a generation that the key file lacks are not judged.
4. Workers state in the load stream how many messages of their kv stream the log has acknowledged: the end that another
   writes for a worker stands behind all of these.
5. Replicas state how many decisions they made, and the log must have as many (`replay.verify.decision_counts`).
6. The times of each source are compared with the broker's (`replay.verify.clock_offsets`); nothing is judged by them.
7. Of an excerpt, the chains prove the messages that follow on each other; the rest is sealed (`excerpt_proof`).
8. Without the key only the order is checked: numbers that follow on each other, owners, and repeated messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from core.codec import CHAIN_START, DIGEST_BYTES, decode_message, digest, generation_of, known_keys
from core.errors import Corrupt
from core.events import LoadReported, ReplicaLeft, ReplicaLost, ReplicaReported, ReplicaRestated
from core.events.routing import LOST_HISTORY
from core.ids import LOST_SUFFIX, SourceId, StreamName, StreamSeq
from core.snapshot_manifest import Manifest
from core.subjects import LOAD, ROUTING, is_kv, owner
from projections.folds.state import State
from replay.recording.gaps import CUT, DELETED, GAP, UNTOLD, Gaps, RecordingGap, ReplacedHistory
from replay.recording.recording import Recording
from replay.verify.clock_offsets import ClockOffset, ClockOffsetWalk, furthest
from replay.verify.decision_counts import DecisionCountResult, DecisionCountWalk
from replay.verify.excerpt_proof import ExcerptProof, ExcerptWalk, chain_positions
from streams.archive.archive_format import Excerpt, Head, Row, Span
from streams.archive.message_envelope import Envelope, envelope

_LEFT, _LOST = ReplicaLeft.__name__, ReplicaLost.__name__


class ChainFault(NamedTuple):
    """One thing that is wrong; see `replay.verify.chain_proof.ChainBreak`."""

    kind: str
    seq: int
    source: str
    n: int
    what: str


class SequenceHole(NamedTuple):
    """Consecutive sequences at which the stream should hold messages and holds none."""

    first: StreamSeq
    last: StreamSeq

    @property
    def messages(self) -> int:
        return self.last - self.first + 1


class _Source:
    """The progress of the walk in the chain of one source."""

    __slots__ = ("head", "n_next", "seq")

    def __init__(self, n_next: int, head: bytes) -> None:
        self.n_next = n_next
        self.head = head
        self.seq = StreamSeq(0)
        """Of its last message."""


class ChainWalk:
    """Takes one stream's rows in order."""

    def __init__(self, stream: StreamName, span: Span, name: Callable[[StreamName, str], str]) -> None:
        self.stream = stream
        self.messages = 0
        self.sources: dict[SourceId, _Source] = {}
        self._span = span
        self._cut = span.begin > 1
        """True if there may be sources before the recording of which nothing is known."""
        self._name = name
        self._next = StreamSeq(span.begin)
        self._holes: list[SequenceHole] = []
        self._gaps: list[RecordingGap] = []
        self._lost: dict[SourceId, StreamSeq] = {}
        """Replicas that others found lost, with the sequence of that message."""
        self._left: set[str] = set()
        self._generation = 0
        """The newest generation of the key under which a source began here."""
        self.ends: dict[SourceId, RecordingGap] = {}
        """Workers of a kv stream that others found lost, each with a gap before that end: the next message of its
        chain, if it sent one."""
        self.decision_counts = DecisionCountWalk()
        """Of the routing stream."""
        self.clock_offsets = ClockOffsetWalk(stream)

    def __repr__(self) -> str:
        return f"<ChainWalk of {self.stream}: {self.messages} messages of {len(self.sources)} sources>"

    def start_from(self, chains: Mapping[SourceId, tuple[int, bytes]]) -> None:
        """The chains of all sources at the walk's place are known from a snapshot: next number and head of each."""
        self._cut = False
        for source, at in chains.items():
            self.sources.setdefault(source, _Source(*at))

    def check(self, row: Row, head: bytes) -> Iterable[ChainFault]:
        """The faults of the next row; `head` is its digest, empty if there is no key."""
        seq = row.seq
        if seq > self._next:
            self._holes.append(SequenceHole(self._next, StreamSeq(seq - 1)))
        self._next = StreamSeq(seq + 1)
        message, subject_owner = envelope(row.payload), owner(row.owner)
        if message is None:
            self._holes.append(SequenceHole(seq, seq))
            what = f"{self.stream}:{seq} cannot be read: it is no message of ours"
            return [ChainFault("unreadable", seq, subject_owner, -1, what)]
        self.messages += 1
        source = SourceId(message.source)
        if source == subject_owner:
            self.clock_offsets.take(row, message)
            if self.stream == ROUTING:
                self._note_end(row, message)
                self.decision_counts.take(row, message)
        elif not message.of(subject_owner):
            what = f"{self.stream}:{seq} is signed by {source}, on the subject of {self._who(subject_owner)}"
            return [ChainFault("foreign", seq, subject_owner, message.n, what)]
        elif self.stream == ROUTING:
            self._note_end(row, message)
        elif is_kv(self.stream):
            self._note_worker_end(row, SourceId(subject_owner))
        at = self.sources.get(source)
        if at is not None and message.n == at.n_next and (not head or message.prev == at.head):
            at.n_next, at.head, at.seq = message.n + 1, head, seq  # nearly all messages
            return ()
        return list(self._follow(row, source, message.n, message.prev, head))

    def _note_end(self, row: Row, message: Envelope) -> None:
        kinds = [event.type for event in message.events]
        if _LEFT in kinds:
            self._left.add(message.source)
        elif _LOST in kinds and message.source.endswith(LOST_SUFFIX):
            self._lost.setdefault(SourceId(message.source.removesuffix(LOST_SUFFIX)), row.seq)

    def _note_worker_end(self, row: Row, worker: SourceId) -> None:
        at = self.sources.get(worker)
        if at is None and not self._cut:
            at = _Source(0, CHAIN_START)  # if it sent anything, all of that is missing
        elif at is not None and not at.seq:
            at = None
        if at is not None and worker not in self.ends:
            gap = self._missing(row, worker, at, at.n_next + 1)
            if gap.kind == GAP:  # a hole is named in any case
                self.ends[worker] = gap

    def check_ends(self, heads: Mapping[str, Head]) -> Iterator[ChainFault]:
        """The faults of the ends of the chains, compared with the ends that the export names."""
        if self._next <= self._span.last_seq:
            self._holes.append(SequenceHole(self._next, StreamSeq(self._span.last_seq)))
        for name, at in self.sources.items():
            source, last = str(name), heads.get(name)
            if at.seq and last is None:
                yield self._last(source, at, "the export does not say with which message it ends")
            elif at.seq and last is not None and last.n != at.n_next - 1:
                yield self._last(source, at, f"by what the export says message {last.n} is")
            elif at.seq and last is not None and at.head and last.digest != at.head.hex():
                yield self._last(source, at, "and by what the export says it was another: it was changed")
        for source in sorted(heads.keys() - {source for source, at in self.sources.items() if at.seq}):
            what = f"the export names a last message of {self._who(source)}, and holds none of it"
            yield ChainFault("last", 0, source, heads[source].n, what)

    def gaps(self) -> list[RecordingGap]:
        """Missing messages, in the order in which they were noticed; holes that no chain accounts for come last."""
        found = list(self._gaps)
        for hole in self._holes:
            known = sum(gap.messages for gap in self._gaps if _overlap(gap, hole))
            if known < hole.messages:
                found.append(self._unclaimed(hole, hole.messages - known))
        return found

    def room(self, first: int, last: int) -> int:
        """The number of places between these that hold no message."""
        return sum(hole.messages for hole in self._holes if first <= hole.first <= last)

    def untold(self) -> list[RecordingGap]:
        """Replicas that were found lost without a last message of their own."""
        found = []
        for source, lost in self._lost.items():
            at = self.sources.get(source)
            if at is not None and source not in self._left:
                numbers = (at.n_next, at.n_next - 1)
                found.append(self._gap(UNTOLD, source, numbers, (at.seq, lost), at.seq))
        return found

    def _follow(self, row: Row, source: SourceId, n: int, prev: bytes, head: bytes) -> Iterator[ChainFault]:
        at = self.sources.get(source)
        if at is None:
            at = self.sources[source] = _Source(0, CHAIN_START if head else b"")
            if n == 0:
                yield from self._check_generation(row, source)
        if n < at.n_next:
            if n != at.n_next - 1 or (head and head != at.head):
                what = f"{self.stream}:{row.seq} is message {n} of {self._who(source)}, which was said before"
                yield ChainFault("twice", row.seq, source, n, what)
            return
        if n > at.n_next:
            gap = self._missing(row, source, at, n)
            self._gaps.append(gap)
            if gap.kind != CUT:
                yield ChainFault("missing", row.seq, source, at.n_next, gap.text)
        elif head and prev != at.head:
            yield self._changed(row, source, at, n)
        at.n_next, at.head, at.seq = n + 1, head, row.seq

    def _check_generation(self, row: Row, source: SourceId) -> Iterator[ChainFault]:
        generation = generation_of(row.payload)
        if generation < self._generation:
            what = (
                f"{self._who(source)} begins at {self.stream}:{row.seq} under generation {generation} of the key, "
                f"after generation {self._generation} was in use: it was written with a retired key"
            )
            yield ChainFault("retired", row.seq, source, 0, what)
        self._generation = max(self._generation, generation)

    def _changed(self, row: Row, source: SourceId, at: _Source, n: int) -> ChainFault:
        self._gaps.append(self._gap(GAP, source, (max(0, n - 1), max(0, n - 1)), (at.seq, row.seq), row.seq))
        if not n:
            what = f"message 0 of {self._who(source)} at {self.stream}:{row.seq} does not begin a chain: it was changed"
            return ChainFault("changed", row.seq, source, n, what)
        before = f"message {n - 1} at {self.stream}:{at.seq}" if at.seq else f"message {n - 1}, before the export"
        what = (
            f"message {n} of {self._who(source)} at {self.stream}:{row.seq} does not follow on {before}: "
            f"message {n - 1} was changed, or {n} was written without the key"
        )
        return ChainFault("changed", row.seq, source, n - 1, what)

    def _missing(self, row: Row, source: SourceId, at: _Source, n: int) -> RecordingGap:
        holes = [hole for hole in self._holes if hole.first > at.seq]
        numbers = (at.n_next, n - 1)
        if self._cut and not at.seq:
            return self._gap(CUT, source, numbers, (StreamSeq(1), row.seq), row.seq)
        if holes:
            return self._gap(DELETED, source, numbers, (holes[0].first, row.seq), holes[-1].last)
        return self._gap(GAP, source, numbers, (StreamSeq(at.seq + 1), row.seq), row.seq)

    def _gap(
        self,
        kind: str,
        source: SourceId,
        numbers: tuple[int, int],
        between: tuple[StreamSeq, StreamSeq],
        sure: StreamSeq,
    ) -> RecordingGap:
        return RecordingGap(
            kind=kind,
            stream=self.stream,
            source=source,
            name="" if (name := self._name(self.stream, source)) == source else name,
            n_from=numbers[0],
            n_to=numbers[1],
            after=between[0],
            noticed=between[1],
            sure=sure,
        )

    def _unclaimed(self, hole: SequenceHole, messages: int) -> RecordingGap:
        return RecordingGap(
            kind=DELETED,
            stream=self.stream,
            source=None,
            name="",
            n_from=0,
            n_to=messages - 1,
            after=hole.first,
            noticed=None,
            sure=hole.last,
        )

    def _last(self, source: str, at: _Source, why: str) -> ChainFault:
        what = f"message {at.n_next - 1} at {self.stream}:{at.seq} is the last of {self._who(source)} here, {why}"
        return ChainFault("last", at.seq, source, at.n_next - 1, what)

    def _who(self, source: str) -> str:
        name = self._name(self.stream, source)
        kind = "replica" if self.stream == ROUTING else "worker"
        return f"{kind} {source}" if name == source else f"{kind} {name} ({source})"


def _overlap(gap: RecordingGap, hole: SequenceHole) -> bool:
    return gap.kind == DELETED and gap.after <= hole.last and hole.first < (gap.noticed or 0)


BREAKS_KEPT = 100
"""The first of them are told, all are counted."""
LOSSES_KEPT = 100
"""The first of them are told."""
LOSS = LOST_HISTORY.encode()
"""Stands in every message that has such a reason, and in few others."""
REPORTED = b"ReplicaReported"
"""Stands in every message that has such an event, and in few others …"""
LOADS = b"LoadReported"
"""… and so does this."""


class ChainBreak(msgspec.Struct, frozen=True, kw_only=True):
    """One place at which the recording is not what its sources wrote."""

    kind: str
    """`changed`, `missing`, `unreadable`, `twice`, `foreign`, `retired`, `last`, `witness`, `snapshot`, `seal`."""
    stream: str
    seq: int
    """The sequence at which it shows; 0 if in no message."""
    source: str
    name: str
    """The name of the worker or replica; empty if no message has it."""
    n: int
    """The number, in its source's chain, of the message that is meant; -1 if it has none."""
    what: str
    """One sentence."""


class ChainProof(msgspec.Struct, kw_only=True):
    """The findings about all chains of a recording."""

    keyed: bool
    """True if digests were checked; else only order was."""
    origin: bool
    """True if the key is the deployment's; the key of a redacted export is written in it."""
    messages: int = 0
    sources: int = 0
    witnessed: int = 0
    """Messages of which a replica or a snapshot states the digest."""
    unproved: int = 0
    """Messages and snapshots that are not judged: the key file lacks the generation that sealed them."""
    missing_generations: list[int] = msgspec.field(default_factory=list)
    """The generations of those messages."""
    broken: int = 0
    breaks: list[ChainBreak] = msgspec.field(default_factory=list)
    """The first BREAKS_KEPT of them, by stream."""
    gaps: Gaps = msgspec.field(default_factory=Gaps)
    losses: list[str] = msgspec.field(default_factory=list)
    """Losses of the log that replicas found, by the reasons of their restatements, in the order of the log."""
    untold: list[RecordingGap] = msgspec.field(default_factory=list)
    """Replicas that were found lost: the log may not have their last messages."""
    decision_counts: DecisionCountResult = msgspec.field(default_factory=DecisionCountResult)
    """The decisions in the log, compared with the counts that their replicas state."""
    clock_offsets: list[ClockOffset] = msgspec.field(default_factory=list)
    """Of the sources whose times are furthest off the broker's; nothing is judged by them."""
    excerpt: ExcerptProof | None = None
    """None for a recording of all messages."""

    @property
    def holds(self) -> bool:
        """True if nothing is broken, and nothing was left unproved for want of a generation of the key."""
        return not self.broken and not self.unproved

    @property
    def foreign(self) -> bool:
        """True if hardly any message follows on the one before: the log was sealed with another key."""
        return self.keyed and self.excerpt is None and self.broken > self.messages // 2


class Witness(NamedTuple):
    """A replica or snapshot that states the digest of the message at some sequence."""

    kind: str
    """`replica` or `snapshot`."""
    id: str
    head: bytes


Witnesses = Mapping[StreamName, Mapping[int, list[Witness]]]


def prove(recording: Recording) -> ChainProof:
    """The proof of all chains, in one pass of some 5 us per message. Corrupt if a piece is damaged."""
    return _Prover(recording).run() if recording.excerpt is None else _prove_excerpt(recording, recording.excerpt)


def _prove_excerpt(recording: Recording, excerpt: Excerpt) -> ChainProof:
    walk = ExcerptWalk(recording, excerpt)
    walk.run()
    proof = ChainProof(keyed=bool(recording.chain_key), origin=recording.proved, excerpt=walk.proof())
    proof.messages, proof.sources, proof.broken = walk.messages, walk.sources, len(walk.faults)
    proof.unproved, proof.missing_generations = walk.unproved, sorted(walk.missing_generations)
    for fault in walk.faults[:BREAKS_KEPT]:
        names = recording.names
        name = names.replica(fault.source) if fault.stream == ROUTING else names.worker(fault.source)
        proof.breaks.append(ChainBreak(**fault._asdict(), name="" if name == fault.source else name))
    return proof


def gaps_of(recording: Recording) -> Gaps:
    """The gaps in the middle of the recording's streams; O(1) if no stream has a hole. An excerpt has none: nothing is
    folded along it."""
    return prove(recording).gaps if recording.excerpt is None and has_holes(recording) else Gaps()


def has_holes(recording: Recording) -> bool:
    """True if places in the middle of some stream hold no message, by the contents of the export. O(blocks)."""
    messages = Counter[str]()
    for block in recording.archive.contents.blocks:
        messages[block.stream] += block.messages
    spans = {stream: recording.archive.span(stream) for stream in recording.streams}
    return any(messages[stream] != max(0, span.last_seq + 1 - span.begin) for stream, span in spans.items())


class _Prover:
    """One pass."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._proof = ChainProof(keyed=bool(recording.chain_key), origin=recording.proved)
        self._gaps: list[RecordingGap] = []
        self._contradicted: dict[tuple[StreamName, int], ReplacedHistory] = {}
        self._ends: dict[SourceId, RecordingGap] = {}
        """As `ChainWalk.ends`, of all kv streams …"""
        self._last_loads: dict[SourceId, bytes] = {}
        """… and the last message of each of these workers in the load stream."""
        self._clock_offsets: list[ClockOffset] = []

    def run(self) -> ChainProof:
        recording, proof = self._recording, self._proof
        base = _first_snapshot(recording)
        for manifest in recording.archive.snapshots() if recording.proved else ():
            self._check_snapshot(manifest)
        witnesses = _witnesses(recording) if recording.proved else {}
        for stream in recording.chained_streams:
            self._walk(stream, base, witnesses.get(stream, {}))
        self._check_acknowledged()
        proof.gaps = Gaps(self._gaps, self._contradicted.values())
        proof.clock_offsets = furthest(self._clock_offsets)
        return proof

    def _walk(self, stream: StreamName, base: State | None, witnesses: Mapping[int, list[Witness]]) -> None:
        recording = self._recording
        walk = ChainWalk(stream, recording.archive.span(stream), self._name)
        known = base.cursor.get(stream) if base is not None else None
        witnessed = 0
        """The last message that a witness had read as it stands here."""
        for row in recording.archive.rows(stream):
            if known is not None and row.seq > known.seq:
                walk.start_from(chain_positions(base, stream))
                known = None
            head = recording.digest(row.payload)
            if not head and recording.chain_key:
                self._note_unproved(row.payload)
            for found in walk.check(row, head):
                self._break(stream, found)
            self._note_statements(stream, row)
            for witness in witnesses.get(row.seq, ()) if head else ():
                self._proof.witnessed += 1
                if witness.head == head:
                    witnessed = row.seq
                else:
                    what = f"{self._text_of(witness)} read another message at {stream}:{row.seq} than stands there"
                    self._contradicted[stream, witnessed + 1] = ReplacedHistory(
                        stream, witnessed + 1, None, row.seq, what
                    )
                    self._break(stream, ChainFault("witness", row.seq, owner(row.owner), -1, what))
        for found in walk.check_ends(recording.archive.contents.heads.get(stream, {})):
            self._break(stream, found)
        self._proof.messages += walk.messages
        self._proof.sources += len(walk.sources)
        gaps = walk.gaps()
        self._note_rollbacks(walk, gaps)
        self._gaps += gaps
        self._ends |= walk.ends
        self._proof.untold += walk.untold()
        self._clock_offsets += walk.clock_offsets.offsets()
        if stream == ROUTING:
            self._proof.decision_counts = walk.decision_counts.result()

    def _note_statements(self, stream: StreamName, row: Row) -> None:
        """Losses that the message states are noted, and the newest load report of a worker that ended."""
        if stream == ROUTING and LOSS in row.payload:
            self._note_losses(row.payload)
        elif stream == LOAD and LOADS in row.payload:
            worker = SourceId(owner(row.owner))
            if worker in self._ends:
                self._last_loads[worker] = row.payload

    def _check_acknowledged(self) -> None:
        """A worker that ended states how many messages of its kv stream the log had acknowledged: it had no less before
        the end."""
        for worker, payload in self._last_loads.items():
            gap, n = self._ends[worker], _acknowledged(worker, payload)
            if n > gap.n_from:
                gap = msgspec.structs.replace(gap, n_to=n - 1)
                self._gaps.append(gap)
                self._break(gap.stream, ChainFault("missing", gap.noticed or 0, worker, gap.n_from, gap.text))
        order = {stream: place for place, stream in enumerate(self._recording.chained_streams)}
        self._gaps.sort(key=lambda gap: (order[gap.stream], gap.noticed is None, gap.noticed or 0))

    def _note_rollbacks(self, walk: ChainWalk, gaps: list[RecordingGap]) -> None:
        """More messages are missing than there are places for: some stood where others stand now."""
        lost = [gap for gap in gaps if gap.kind in (CUT, DELETED) and gap.noticed is not None]
        for kind, after in sorted({(gap.kind, gap.after) for gap in lost}):
            alike = [gap for gap in lost if (gap.kind, gap.after) == (kind, after)]
            begin, missing = self._recording.archive.span(walk.stream).begin, sum(gap.messages for gap in alike)
            room = begin - 1 if kind == CUT else walk.room(after, max(gap.sure for gap in alike))
            if missing > room:
                first = begin if kind == CUT else after
                text = f"{missing} messages are missing before {walk.stream}:{alike[-1].noticed}, more than stood there"
                noticed, sources = max(gap.noticed or 0 for gap in alike), frozenset(str(gap.source) for gap in alike)
                self._contradicted[walk.stream, first] = ReplacedHistory(
                    walk.stream, first, after + missing - 1, noticed, text, sources, rolled_back=True
                )

    def _check_snapshot(self, manifest: Manifest) -> None:
        if not self._recording.is_true(manifest):
            what = f"snapshot {manifest.id} holds another place than its manifest says"
            self._break(StreamName("snapshots"), ChainFault("snapshot", 0, "", -1, what))
            return
        content = self._recording.archive.snapshot(manifest)
        checksums = {digest(content, key).hex() for key in known_keys(self._recording.chain_key)}
        if manifest.checksum in checksums:
            return
        if self._recording.has_removed_keys:
            self._proof.unproved += 1
        else:
            what = f"snapshot {manifest.id} holds something else than was taken"
            self._break(StreamName("snapshots"), ChainFault("snapshot", 0, "", -1, what))

    def _note_losses(self, payload: bytes) -> None:
        try:
            events = decode_message(payload).events
        except Corrupt:
            return
        for event in events:
            if isinstance(event, ReplicaRestated) and LOST_HISTORY in event.reason:
                losses = self._proof.losses
                if event.reason not in losses and len(losses) < LOSSES_KEPT:
                    losses.append(event.reason)

    def _note_unproved(self, payload: bytes) -> None:
        self._proof.unproved += 1
        if (generation := generation_of(payload)) not in self._proof.missing_generations:
            self._proof.missing_generations.append(generation)

    def _break(self, stream: StreamName, found: ChainFault) -> None:
        self._proof.broken += 1
        if len(self._proof.breaks) < BREAKS_KEPT:
            name = self._name(stream, found.source) if found.source else ""
            name = "" if name == found.source else name
            self._proof.breaks.append(
                ChainBreak(
                    kind=found.kind,
                    stream=stream,
                    seq=found.seq,
                    source=found.source,
                    name=name,
                    n=found.n,
                    what=found.what,
                )
            )

    def _text_of(self, witness: Witness) -> str:
        name = self._name(ROUTING, witness.id) if witness.kind == "replica" else witness.id
        return f"{witness.kind} {name}"

    def _name(self, stream: StreamName, source: str) -> str:
        names = self._recording.names
        return names.replica(source) if stream == ROUTING else names.worker(source)


def _first_snapshot(recording: Recording) -> State | None:
    """The state of the first snapshot, if the recording begins behind the start of the log."""
    if not any(recording.start.values()):
        return None
    for manifest in recording.archive.snapshots():
        try:
            state = recording.state_before({StreamName(name): at.seq for name, at in manifest.cursor.items()})
        except Corrupt:
            continue  # of an older fold, say
        if state.cursor:
            return state
    return None


def _witnesses(recording: Recording) -> Witnesses:
    """Digests of messages that replicas and snapshots state, by stream and sequence."""
    found: dict[StreamName, dict[int, list[Witness]]] = {stream: {} for stream in recording.streams}
    for manifest in recording.archive.snapshots():
        for name, at in manifest.cursor.items():
            stream = StreamName(name)
            if stream in found and recording.archive.span(stream).epoch == at.epoch and at.head:
                witness = Witness("snapshot", manifest.id, bytes.fromhex(at.head))
                found[stream].setdefault(at.seq, []).append(witness)
    for replica, event in _reports(recording):
        for name, points in event.points.items():
            stream = StreamName(name)
            if stream in found and recording.archive.span(stream).epoch == points.epoch:
                for i, seq in enumerate(points.seqs):
                    head = points.heads[i * DIGEST_BYTES : (i + 1) * DIGEST_BYTES]
                    if head != CHAIN_START:
                        found[stream].setdefault(seq, []).append(Witness("replica", replica, head))
    return found


def _acknowledged(worker: str, payload: bytes) -> int:
    """The number that the worker's report of load states; 0 if the message cannot be read or is another's."""
    try:
        message = decode_message(payload)
    except Corrupt:
        return 0
    reports = [event.kv_n for event in message.events if isinstance(event, LoadReported)]
    return max(reports, default=0) if message.source == worker else 0


def _reports(recording: Recording) -> Iterator[tuple[SourceId, ReplicaReported]]:
    for row in recording.archive.rows(ROUTING):
        if REPORTED in row.payload:
            try:
                message = decode_message(row.payload)
            except Corrupt:
                continue
            for event in message.events:
                if isinstance(event, ReplicaReported):
                    yield message.source, event
