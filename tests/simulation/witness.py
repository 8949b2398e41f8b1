"""What an outsider saw: every message offered and acknowledged, every fold at every cursor, and what the world took.

Laws that hold at every moment are checked here as things happen; `Broken` says which one did not hold.
"""

from __future__ import annotations

from typing import NamedTuple

import xxhash

from core.ids import LOST_SUFFIX, StreamName, StreamSeq, WorkerId
from core.subjects import SNAPSHOTS, is_kv, owner
from projections.folds.state import State
from streams.log import Record
from tests.simulation.loop import Process, VirtualLoop

FOLDS_KEPT = 100_000
"""Cursors at which folds are compared; a world is far smaller."""


class Broken(AssertionError):
    """A law did not hold."""


class Acknowledged(NamedTuple):
    """A message that its source may rely on."""

    seq: StreamSeq
    payload: bytes


class Witness:
    """Sees all of one world."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.offered_payloads: dict[tuple[StreamName, str], bytes] = {}
        """By stream and message id: what was sealed, as first offered."""
        self.acknowledged_messages: dict[tuple[StreamName, str, bytes], Acknowledged] = {}
        """By stream, subject and payload."""
        self.taken: set[tuple[StreamName, bytes]] = set()
        """Payloads that the world itself took out of the log at some time."""
        self.made: set[bytes] = set()
        """Payloads that the world itself put there."""
        self.sealed: set[bytes] = set()
        """All payloads that any process offered."""
        self.writers: set[WorkerId] = set()
        """Every worker that ever said anything."""
        self.history_kept = True
        """Whether nothing was ever taken."""
        self.tampered: set[Process] = set()
        self.paused: set[WorkerId] = set()
        """Workers that stood still for a while: their own times mean nothing."""
        self.wrong: list[str] = []
        """Answers that were not what the prompt makes."""
        self.late: list[str] = []
        """Answers that took longer to begin than anything may."""
        self.counts: dict[str, int] = {}
        """How often things happened, by name: a world in which nothing does proves nothing."""
        self._loop = loop
        self._trace = xxhash.xxh3_64()
        self._folds: dict[tuple[StreamName, int, int], tuple[int, str]] = {}

    def __repr__(self) -> str:
        return f"<Witness of {len(self.acknowledged_messages)} messages, trace {self.trace}>"

    @property
    def trace(self) -> str:
        """16 hex digits over all that happened and when."""
        return self._trace.hexdigest()

    def saw(self, what: str, *details: object) -> None:
        """It happened now."""
        self.counts[what] = self.counts.get(what, 0) + 1
        self._trace.update(repr((round(self._loop.now_s, 9), what, details)).encode())

    def offered(self, process: Process, stream: StreamName, subject: str, payload: bytes, message_id: str) -> None:
        """Law: a message keeps its bytes for ever once it was offered."""
        self.saw("offered", process.name, subject, message_id, xxhash.xxh3_64_intdigest(payload))
        self.sealed.add(payload)
        if is_kv(stream):
            self.writers.add(WorkerId(owner(subject)))
        if stream == SNAPSHOTS or f"{LOST_SUFFIX}:" in message_id:
            return  # several may write an end, each in its own words: the first one's stands
        known = self.offered_payloads.setdefault((stream, message_id), payload)
        if known != payload:
            raise Broken(f"{process.name} offers {message_id} in {stream} with other bytes than before")

    def acknowledged(self, process: Process, stream: StreamName, subject: str, payload: bytes, seq: StreamSeq) -> None:
        """The source was told that its message stands at that sequence."""
        self.saw("acknowledged", process.name, subject, seq)
        if stream != SNAPSHOTS:
            self.acknowledged_messages[stream, subject, payload] = Acknowledged(seq, payload)

    def took(self, stream: StreamName, before: list[Record], after: list[Record]) -> None:
        """The world changed a stream's history by itself."""
        gone = {record.payload for record in before} - {record.payload for record in after}
        self.made |= {record.payload for record in after} - self.sealed
        self.taken |= {(stream, payload) for payload in gone}
        self.history_kept = False
        self.saw("history", stream, len(before), len(after))

    def folded(self, process: Process, state: State, record: Record) -> None:
        """Law: at an equal cursor complete folds of one history are equal, whatever came in which order elsewhere."""
        stream = record.stream
        at = state.cursor[stream]
        found = state.digest_of(stream)
        self.saw("folded", process.name, stream, at, found)
        if not self.history_kept or self.tampered or state.projection(stream).incomplete:
            return
        known, by = self._folds.setdefault((stream, at.epoch, at.seq), (found, process.name))
        if known != found:
            raise Broken(f"at {stream}:{at.seq} {process.name} has {found:016x}, {by} has {known:016x}")
