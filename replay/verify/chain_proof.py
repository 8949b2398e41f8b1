"""Proof: whether a recording holds what was written: every source's chain, checked with the deployment's key.

1. A message is sealed with a keyed digest of the one before it, so a changed message does not fit the one behind it.
   The last message of a source has none behind it: the export names its digest, and so do the snapshots.
2. Replicas report in their own chains which message they had read at a place (`ReplicaReported`): a replaced piece of
   history contradicts these reports.
3. Without the key only the order is checked: numbers that follow on each other, owners, and repeated messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from core.codec import CHAIN_START, DIGEST_BYTES, decode_message, digest
from core.errors import Corrupt
from core.events import ReplicaReported
from core.ids import SourceId, StreamName, StreamSeq
from core.snapshot_manifest import Manifest
from core.subjects import JOBS, ROUTING, owner
from projections.folds.state import State
from replay.recording.gaps import Gaps, RecordingGap
from replay.recording.recording import Recording
from replay.verify.chain_walk import ChainFault, ChainWalk

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
