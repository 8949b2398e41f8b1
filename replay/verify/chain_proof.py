"""Proof: whether a recording holds what was written: every source's chain, checked with the deployment's key.

1. A message is sealed with a keyed digest of the one before it, so a changed message does not fit the one behind it.
   The last message of a source has none behind it: the export names its digest, and so do the snapshots.
2. Replicas report in their own chains which message they had read at a place (`ReplicaReported`): a replaced piece of
   history contradicts these reports.
3. Without the key only the order is checked: numbers that follow on each other, owners, and repeated messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from core.codec import CHAIN_START, DIGEST_BYTES, decode_message, digest
from core.errors import Corrupt
from core.events import ReplicaLeft, ReplicaLost, ReplicaReported
from core.ids import LOST_SUFFIX, SourceId, StreamName, StreamSeq
from core.snapshot_manifest import Manifest
from core.subjects import JOBS, ROUTING, owner
from projections.folds.state import State
from replay.recording.gaps import CUT, DELETED, GAP, UNTOLD, Gaps, RecordingGap
from replay.recording.recording import Recording
from streams.archive.archive_format import Head, Span
from streams.archive.message_envelope import Envelope, envelope
from streams.log import Record

_LEFT, _LOST = ReplicaLeft.__name__, ReplicaLost.__name__


class ChainFault(NamedTuple):
    """One thing that is wrong; see `replay.verify.chain_proof.ChainBreak`."""

    kind: str
    seq: int
    source: str
    n: int
    what: str


class SequenceHole(NamedTuple):
    """Sequences at which the stream holds nothing, though it should."""

    first: StreamSeq
    last: StreamSeq

    @property
    def messages(self) -> int:
        """How many."""
        return self.last - self.first + 1


class _Source:
    """How far one source has been read."""

    __slots__ = ("head", "n_next", "seq")

    def __init__(self, n_next: int, head: bytes) -> None:
        self.n_next = n_next
        self.head = head
        self.seq = StreamSeq(0)
        """Of its last message."""


class ChainWalk:
    """Takes one stream's records in order."""

    def __init__(self, stream: StreamName, span: Span, name: Callable[[StreamName, str], str]) -> None:
        self.stream = stream
        self.messages = 0
        self.sources: dict[SourceId, _Source] = {}
        self._span = span
        self._cut = max(span.first_seq, span.log_first_seq) > 1
        """Whether sources may have spoken before, of whom nothing is known."""
        self._name = name
        self._next = StreamSeq(max(span.first_seq, span.log_first_seq))
        self._holes: list[SequenceHole] = []
        self._gaps: list[RecordingGap] = []
        self._lost: dict[SourceId, StreamSeq] = {}
        """Replicas that others found lost, and where that was said."""
        self._left: set[str] = set()

    def __repr__(self) -> str:
        return f"<ChainWalk of {self.stream}: {self.messages} messages of {len(self.sources)} sources>"

    def know(self, chains: Mapping[SourceId, tuple[int, bytes]]) -> None:
        """A snapshot has the next number and the head of every source, where the walk stands."""
        self._cut = False
        for source, at in chains.items():
            self.sources.setdefault(source, _Source(*at))

    def take(self, record: Record, head: bytes) -> Iterator[ChainFault]:
        """What is wrong with the next record; `head` is its digest, empty if there is no key."""
        if record.seq > self._next:
            self._holes.append(SequenceHole(self._next, StreamSeq(record.seq - 1)))
        self._next = StreamSeq(record.seq + 1)
        said, whose = envelope(record.payload), owner(record.subject)
        if said is None:
            self._holes.append(SequenceHole(record.seq, record.seq))
            what = f"{self.stream}:{record.seq} cannot be read: it is no message of ours"
            yield ChainFault("unreadable", record.seq, whose, -1, what)
            return
        self.messages += 1
        if not said.of(whose):
            what = f"{self._where(record)} is signed by {said.source}, on the subject of {self._who(whose)}"
            yield ChainFault("foreign", record.seq, whose, said.n, what)
            return
        if self.stream == ROUTING:
            self._note_end(record, said)
        yield from self._follow(record, SourceId(said.source), said.n, said.prev, head)

    def _note_end(self, record: Record, said: Envelope) -> None:
        kinds = {event.type for event in said.events} & {_LEFT, _LOST}
        if _LEFT in kinds:
            self._left.add(said.source)
        elif _LOST in kinds and said.source.endswith(LOST_SUFFIX):
            self._lost.setdefault(SourceId(said.source.removesuffix(LOST_SUFFIX)), record.seq)

    def end(self, heads: Mapping[str, Head]) -> Iterator[ChainFault]:
        """What is wrong with the ends of the chains, by what the export says that they are."""
        if self._next <= self._span.last_seq:
            self._holes.append(SequenceHole(self._next, StreamSeq(self._span.last_seq)))
        for name, at in self.sources.items():
            source, told = str(name), heads.get(name)
            if at.seq and told is None:
                yield self._last(source, at, "the export does not say with which message it ends")
            elif at.seq and told is not None and told.n != at.n_next - 1:
                yield self._last(source, at, f"by what the export says message {told.n} is")
            elif at.seq and told is not None and at.head and told.digest != at.head.hex():
                yield self._last(source, at, "and by what the export says it was another: it was changed")
        for source in sorted(heads.keys() - {source for source, at in self.sources.items() if at.seq}):
            what = f"the export names a last message of {self._who(source)}, and holds none of it"
            yield ChainFault("last", 0, source, heads[source].n, what)

    def gaps(self) -> list[RecordingGap]:
        """What is missing, in the order in which it was noticed; holes that nobody's chain accounts for come last."""
        found = list(self._gaps)
        for hole in self._holes:
            known = sum(gap.messages for gap in self._gaps if _overlap(gap, hole))
            if known < hole.messages:
                found.append(self._unclaimed(hole, hole.messages - known))
        return found

    def untold(self) -> list[RecordingGap]:
        """Replicas that were found lost and of whose last words nobody can know whether the log has them."""
        found = []
        for source, lost in self._lost.items():
            at = self.sources.get(source)
            if at is not None and source not in self._left:
                numbers = (at.n_next, at.n_next - 1)
                found.append(self._gap(UNTOLD, source, numbers, (at.seq, lost), at.seq))
        return found

    def _follow(self, record: Record, source: SourceId, n: int, prev: bytes, head: bytes) -> Iterator[ChainFault]:
        at = self.sources.get(source)
        if at is None:
            at = self.sources[source] = _Source(0, CHAIN_START if head else b"")
        if n < at.n_next:
            if n != at.n_next - 1 or (head and head != at.head):
                what = f"{self._where(record)} is message {n} of {self._who(source)}, which was said before"
                yield ChainFault("twice", record.seq, source, n, what)
            return
        if n > at.n_next:
            gap = self._missing(record, source, at, n)
            self._gaps.append(gap)
            if gap.kind != CUT:
                yield ChainFault("missing", record.seq, source, at.n_next, gap.text)
        elif head and prev != at.head:
            yield self._changed(record, source, at, n)
        at.n_next, at.head, at.seq = n + 1, head, record.seq

    def _changed(self, record: Record, source: SourceId, at: _Source, n: int) -> ChainFault:
        self._gaps.append(self._gap(GAP, source, (max(0, n - 1), max(0, n - 1)), (at.seq, record.seq), record.seq))
        if not n:
            what = f"message 0 of {self._who(source)} at {self._where(record)} does not begin a chain: it was changed"
            return ChainFault("changed", record.seq, source, n, what)
        before = f"message {n - 1} at {self.stream}:{at.seq}" if at.seq else f"message {n - 1}, before the export"
        what = (
            f"message {n} of {self._who(source)} at {self._where(record)} does not follow on {before}: "
            f"message {n - 1} was changed, or {n} was written by somebody without the key"
        )
        return ChainFault("changed", record.seq, source, n - 1, what)

    def _missing(self, record: Record, source: SourceId, at: _Source, n: int) -> RecordingGap:
        holes = [hole for hole in self._holes if hole.first > at.seq]
        numbers = (at.n_next, n - 1)
        if self._cut and not at.seq:
            return self._gap(CUT, source, numbers, (StreamSeq(1), record.seq), record.seq)
        if holes:
            return self._gap(DELETED, source, numbers, (holes[0].first, record.seq), holes[-1].last)
        return self._gap(GAP, source, numbers, (StreamSeq(at.seq + 1), record.seq), record.seq)

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

    def _where(self, record: Record) -> str:
        return f"{self.stream}:{record.seq}"

    def _who(self, source: str) -> str:
        name = self._name(self.stream, source)
        kind = "replica" if self.stream == ROUTING else "worker"
        return f"{kind} {source}" if name == source else f"{kind} {name} ({source})"


def _overlap(gap: RecordingGap, hole: SequenceHole) -> bool:
    return gap.kind == DELETED and gap.after <= hole.last and hole.first < (gap.noticed or 0)


BREAKS_KEPT = 100
"""The first of them are told, all are counted."""
REPORTED = b"ReplicaReported"
"""Stands in every message that has such an event, and in few others."""


class ChainBreak(msgspec.Struct, frozen=True, kw_only=True):
    """One place at which the record is not what was said."""

    kind: str
    """`changed`, `missing`, `unreadable`, `twice`, `foreign`, `last`, `witness`, `snapshot`."""
    stream: str
    seq: int
    """Where it shows; 0 if in no message."""
    source: str
    name: str
    """The worker's or replica's, as people know it; empty if nothing tells."""
    n: int
    """The number, in its source's chain, of the message that is meant; -1 if it has none."""
    what: str
    """One sentence."""


class ChainProof(msgspec.Struct, kw_only=True):
    """What was found."""

    keyed: bool
    """Whether digests were checked; else only order was."""
    origin: bool
    """Whether the key is the deployment's; that of a redacted export is written in it."""
    messages: int = 0
    sources: int = 0
    witnessed: int = 0
    """Messages of which a replica or a snapshot told what they were."""
    broken: int = 0
    breaks: list[ChainBreak] = msgspec.field(default_factory=list)
    """The first BREAKS_KEPT of them, by stream."""
    gaps: Gaps = msgspec.field(default_factory=Gaps)
    untold: list[RecordingGap] = msgspec.field(default_factory=list)
    """Replicas of whose last words nobody can know whether the log has them."""

    @property
    def holds(self) -> bool:
        """Whether nothing was found broken."""
        return not self.broken

    @property
    def foreign(self) -> bool:
        """Whether hardly any message follows on the one before: all of it was sealed with another key."""
        return self.keyed and self.broken > self.messages // 2


class Witness(NamedTuple):
    """Who told what stood at a place, and what it was."""

    who: str
    head: bytes


Witnesses = Mapping[StreamName, Mapping[int, list[Witness]]]


def prove(recording: Recording) -> ChainProof:
    """Goes through all of the recording once, some 5 us per message. Corrupt if a piece is damaged."""
    return _Prover(recording).run()


def gaps_of(recording: Recording) -> Gaps:
    """What the recording lacks in the middle of its streams; O(1) if every stream is without a hole."""
    return prove(recording).gaps if any(_has_holes(recording, stream) for stream in recording.streams) else Gaps()


def _has_holes(recording: Recording, stream: StreamName) -> bool:
    span = recording.archive.span(stream)
    messages = sum(block.messages for block in recording.archive.contents.blocks if block.stream == stream)
    return messages != max(0, span.last_seq + 1 - max(span.first_seq, span.log_first_seq))


class _Prover:
    """One pass."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._proof = ChainProof(keyed=bool(recording.chain_key), origin=recording.proved)
        self._gaps: list[RecordingGap] = []

    def run(self) -> ChainProof:
        recording, proof = self._recording, self._proof
        base = _first_snapshot(recording)
        for manifest in recording.archive.snapshots() if recording.proved else ():
            self._check_snapshot(manifest)
        witnesses = _witnesses(recording) if recording.proved else {}
        for stream in recording.streams:
            self._walk(stream, base, witnesses.get(stream, {}))
        proof.gaps = Gaps(self._gaps)
        return proof

    def _walk(self, stream: StreamName, base: State | None, witnesses: Mapping[int, list[Witness]]) -> None:
        recording = self._recording
        walk = ChainWalk(stream, recording.archive.span(stream), self._name)
        known = base.cursor.get(stream) if base is not None else None
        for record in recording.archive.read(stream):
            if known is not None and record.seq > known.seq:
                walk.know(_chains(base, stream))
                known = None
            head = digest(record.payload, recording.chain_key) if recording.chain_key else b""
            for found in walk.take(record, head):
                self._break(stream, found)
            for witness in witnesses.get(record.seq, ()):
                self._proof.witnessed += 1
                if witness.head != head:
                    self._break(stream, _contradicted(stream, record.seq, owner(record.subject), witness))
        for found in walk.end(recording.archive.contents.heads.get(stream, {})):
            self._break(stream, found)
        self._proof.messages += walk.messages
        self._proof.sources += len(walk.sources)
        self._gaps += walk.gaps()
        self._proof.untold += walk.untold()

    def _check_snapshot(self, manifest: Manifest) -> None:
        content = self._recording.archive.snapshot(manifest)
        if digest(content, self._recording.chain_key).hex() != manifest.checksum:
            what = f"snapshot {manifest.id} holds something else than was taken"
            self._break(StreamName("snapshots"), ChainFault("snapshot", 0, "", -1, what))

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

    def _name(self, stream: StreamName, source: str) -> str:
        names = self._recording.names
        return names.replica(source) if stream == ROUTING else names.worker(source)


def _contradicted(stream: StreamName, seq: StreamSeq, source: str, witness: Witness) -> ChainFault:
    what = f"{witness.who} read another message at {stream}:{seq} than stands there"
    return ChainFault("witness", seq, source, -1, what)


def _first_snapshot(recording: Recording) -> State | None:
    """What the first snapshot in it knows, if the recording does not begin where the log did."""
    spans = [recording.archive.span(stream) for stream in recording.streams]
    if all(max(span.first_seq, span.log_first_seq) <= 1 for span in spans):
        return None
    for manifest in recording.archive.snapshots():
        try:
            state = recording.state_before({StreamName(name): at.seq for name, at in manifest.cursor.items()})
        except Corrupt:
            continue  # of an older fold, say
        if state.cursor:
            return state
    return None


def _chains(base: State | None, stream: StreamName) -> dict[SourceId, tuple[int, bytes]]:
    """The next number and the head of every source there."""
    if base is None:
        return {}
    if stream in base.kv:
        chains = {worker: member.chain for worker, member in base.kv[stream].members.items()}
        return {SourceId(worker): (chain.n_next, chain.head) for worker, chain in chains.items()}
    if stream == ROUTING:
        parts = base.routing.replicas.items()
        return {SourceId(replica): (part.chain.n_next, part.chain.head) for replica, part in parts}
    if stream == JOBS:
        jobs = base.jobs.parts.items()
        return {SourceId(worker): (part.chain.n_next, part.chain.head) for worker, part in jobs}
    return {SourceId(worker): (chain.n_next, chain.head) for worker, chain in base.loads.chains.items()}


def _witnesses(recording: Recording) -> Witnesses:
    """What replicas and snapshots told of messages, by stream and place."""
    found: dict[StreamName, dict[int, list[Witness]]] = {stream: {} for stream in recording.streams}
    for manifest in recording.archive.snapshots():
        for name, at in manifest.cursor.items():
            stream = StreamName(name)
            if stream in found and recording.archive.span(stream).epoch == at.epoch and at.head:
                witness = Witness(f"snapshot {manifest.id}", bytes.fromhex(at.head))
                found[stream].setdefault(at.seq, []).append(witness)
    for replica, event in _reports(recording):
        for name, points in event.points.items():
            stream = StreamName(name)
            if stream in found and recording.archive.span(stream).epoch == points.epoch:
                who = f"replica {recording.names.replica(replica)}"
                for i, seq in enumerate(points.seqs):
                    head = points.heads[i * DIGEST_BYTES : (i + 1) * DIGEST_BYTES]
                    if head != CHAIN_START:
                        found[stream].setdefault(seq, []).append(Witness(who, head))
    return found


def _reports(recording: Recording) -> Iterator[tuple[SourceId, ReplicaReported]]:
    for record in recording.archive.read(ROUTING) if ROUTING in recording.streams else ():
        if REPORTED in record.payload:
            try:
                message = decode_message(record.payload)
            except Corrupt:
                continue
            for event in message.events:
                if isinstance(event, ReplicaReported):
                    yield message.source, event
