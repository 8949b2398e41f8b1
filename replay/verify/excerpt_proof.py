"""Excerpt proof: what the chains of an excerpt prove, and what rests on the seal of its writer.

An excerpt lacks messages of every source, so no gap is a fault there. A message is proved by its chain if the next one
of its source is here and names it. A state's place in a chain is proved if the next message behind it is here and names
the last one that the state has. The seal covers all bytes of the file: a message without its next one, the choice of
the messages, and how the states were cut.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from core.codec import generation_of
from core.ids import SourceId, StreamName
from core.subjects import JOBS, ROUTING, owner
from projections.folds.snapshot import decode
from projections.folds.state import State
from replay.recording.recording import Recording
from streams.archive.archive_format import Excerpt
from streams.archive.message_envelope import envelope
from streams.log import Record


class ExcerptProof(msgspec.Struct, frozen=True, kw_only=True):
    """Of an excerpt, what its chains prove, and what rests on the seal of its writer."""

    request: str
    seal: str
    """`holds`, `broken`, `missing` (its writer had no key), or `unproved` (no key is given here)."""
    chained: int
    """Messages that the next message of their source names by their digest: that source proves them."""
    sealed: int
    """The other messages: their next one is not here."""
    states: int
    """States at the decisions of the request. No chain proves how they were cut …"""
    positions: int
    """… but the next message of a source names the last one that a state has of it: for so many sources of these
    states that message is here, and fits …"""
    positions_sealed: int
    """… and for so many it is not."""


class ExcerptFault(NamedTuple):
    """One thing that is wrong; see `replay.verify.chain_proof.ChainBreak`."""

    kind: str
    stream: str
    seq: int
    source: str
    n: int
    what: str


class _Message(NamedTuple):
    """A message in the chain of its source."""

    seq: int
    prev: bytes
    head: bytes
    """Its own digest; empty without its key."""


class ExcerptWalk:
    """One pass through an excerpt, some 5 us per message."""

    def __init__(self, recording: Recording, excerpt: Excerpt) -> None:
        self.messages = self.unproved = self._chained = self._positions = self._positions_sealed = 0
        self.missing_generations: set[int] = set()
        self.faults: list[ExcerptFault] = []
        self._recording = recording
        self._excerpt = excerpt
        self._messages_of: dict[tuple[StreamName, SourceId], dict[int, _Message]] = {}
        """By source the messages that are here, by their numbers."""

    def __repr__(self) -> str:
        return f"<ExcerptWalk of {self._recording!r}>"

    @property
    def sources(self) -> int:
        """Sources with messages here."""
        return len(self._messages_of)

    def run(self) -> None:
        """All faults are found. Corrupt if a piece is damaged."""
        self._check_seal()
        for stream in self._recording.streams:
            for record in self._recording.archive.read(stream):
                self._take(record)
        for (stream, source), sequence in self._messages_of.items():
            for n, link in sequence.items():
                self._check_message(stream, source, n, link, sequence.get(n + 1))
        for manifest in self._recording.archive.snapshots():
            if self._recording.is_true(manifest):
                state = decode(self._recording.chain_key, self._recording.archive.snapshot(manifest))
                self._check_positions(manifest.id, state)
            else:
                self._fault("snapshot", "snapshots", what=f"state {manifest.id} holds another place than it says")

    def proof(self) -> ExcerptProof:
        """The counts of what chains prove, and of what the seal does."""
        return ExcerptProof(
            request=self._excerpt.request,
            seal=self._seal(),
            chained=self._chained,
            sealed=self.messages - self._chained,
            states=len(self._recording.archive.snapshots()),
            positions=self._positions,
            positions_sealed=self._positions_sealed,
        )

    def _seal(self) -> str:
        key = self._recording.chain_key
        if not key:
            return "unproved"
        if not self._excerpt.seal:
            return "missing"
        return "holds" if self._recording.archive.has_seal_of(key) else "broken"

    def _check_seal(self) -> None:
        seal = self._seal()
        if seal == "missing":
            what = "it has no seal, since it was made without the deployment's key: its states are proved by nothing"
            self._fault("seal", what=what)
        elif seal == "broken" and self._recording.has_removed_keys:
            self.unproved += 1
        elif seal == "broken":
            what = (
                "its seal is not that of its content: messages or states were changed, left out or put in after it was "
                "made, or it was made without the key"
            )
            self._fault("seal", what=what)

    def _take(self, record: Record) -> None:
        message, subject_owner = envelope(record.payload), owner(record.subject)
        if message is None:
            what = f"{record.stream}:{record.seq} cannot be read: it is no message of ours"
            self._fault("unreadable", record.stream, record.seq, subject_owner, what=what)
            return
        self.messages += 1
        if not message.of(subject_owner):
            what = f"{record.stream}:{record.seq} is signed by {message.source}, on the subject of {subject_owner}"
            self._fault("foreign", record.stream, record.seq, subject_owner, message.n, what)
            return
        head = self._recording.digest(record.payload)
        if not head and self._recording.chain_key:
            self.unproved += 1
            self.missing_generations.add(generation_of(record.payload))
        sequence = self._messages_of.setdefault((record.stream, SourceId(message.source)), {})
        before = sequence.setdefault(message.n, _Message(record.seq, message.prev, head))
        if before.head != head:
            what = f"{record.stream}:{record.seq} is another message {message.n} of {message.source} than {before.seq}"
            self._fault("twice", record.stream, record.seq, message.source, message.n, what)

    def _check_message(
        self, stream: StreamName, source: SourceId, n: int, link: _Message, after: _Message | None
    ) -> None:
        if after is None or not link.head:
            return
        if after.prev == link.head:
            self._chained += 1
            return
        what = (
            f"message {n + 1} of {source} at {stream}:{after.seq} does not follow on message {n} at "
            f"{stream}:{link.seq}: message {n} was changed, or {n + 1} was written without the key"
        )
        self._fault("changed", stream, link.seq, source, n, what)

    def _check_positions(self, id: str, state: State) -> None:
        for stream in state.cursor:
            for source, (n_next, head) in chain_positions(state, stream).items():
                sequence = self._messages_of.get((stream, source), {})
                last, after = sequence.get(n_next - 1), sequence.get(n_next)
                if last is not None and last.head and last.head != head:
                    what = f"state {id} has read another message {n_next - 1} of {source} than stands at {last.seq}"
                    self._fault("snapshot", stream, last.seq, source, n_next - 1, what)
                elif after is None or not self._recording.chain_key:
                    self._positions_sealed += 1
                elif after.prev != head:
                    what = f"message {n_next} of {source} at {stream}:{after.seq} does not follow on state {id}"
                    self._fault("snapshot", stream, after.seq, source, n_next, what)
                else:
                    self._positions += 1

    def _fault(
        self, kind: str, stream: str = ROUTING, seq: int = 0, source: str = "", n: int = -1, what: str = ""
    ) -> None:
        self.faults.append(ExcerptFault(kind, stream, seq, source, n, what))


def chain_positions(base: State | None, stream: StreamName) -> dict[SourceId, tuple[int, bytes]]:
    """The next number and the head of every source of the stream, by the state; none without one."""
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
