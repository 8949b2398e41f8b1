"""State: all projections of a namespace with the cursor that they stand at, as one value."""

from __future__ import annotations

from typing import NamedTuple

from core.codec import Message, decode_message, digest
from core.errors import Corrupt
from core.ids import Epoch, StreamName, StreamSeq, WorkerId
from core.subjects import LOAD, ROUTING, is_kv, owner
from projections.kv import KvProjection, Member
from projections.loads import LoadProjection
from projections.prefixes import PrefixIndex
from projections.projection import MASK64, Projection, mix
from projections.requests import RoutingProjection


class Position(NamedTuple):
    """How far one stream has been folded."""

    epoch: Epoch
    seq: StreamSeq


class Applied(NamedTuple):
    """What one record was: for whoever must react to it."""

    stream: StreamName
    seq: StreamSeq
    owner: str
    message: Message
    changed: bool


class State:
    """The fold of the log up to `cursor`. Records go in by `apply`, in the order of each stream."""

    def __init__(self, chain_key: bytes) -> None:
        self.index = PrefixIndex()
        self.loads = LoadProjection()
        self.routing = RoutingProjection()
        self.kv: dict[StreamName, KvProjection] = {}
        self.cursor: dict[StreamName, Position] = {}
        self.corrupt = 0
        """Records that are no messages of ours: skipped and counted."""
        self._chain_key = chain_key

    def __repr__(self) -> str:
        at = " ".join(f"{stream}:{position.seq}" for stream, position in sorted(self.cursor.items()))
        return f"<State at {at or 'the start'}, digest {self.digest:016x}>"

    def open(self, stream: StreamName, epoch: Epoch) -> StreamSeq:
        """The stream is folded from here on; returns the last sequence applied (0 for none)."""
        if stream not in self.cursor:
            self.cursor[stream] = Position(epoch, StreamSeq(0))
            if is_kv(stream):
                self.kv[stream] = KvProjection(self.index)
        return self.cursor[stream].seq

    def reset(self, stream: StreamName, epoch: Epoch) -> None:
        """The stream's history was replaced: what was folded of it is void, it starts again."""
        if is_kv(stream):
            for worker in self.kv[stream].members:
                self.index.drop(worker)
            self.kv[stream] = KvProjection(self.index)
        elif stream == LOAD:
            self.loads = LoadProjection()
        else:
            self.routing = RoutingProjection()
        self.cursor[stream] = Position(epoch, StreamSeq(0))

    def apply(self, stream: StreamName, seq: StreamSeq, subject: str, payload: bytes) -> Applied | None:
        """Folds one record and moves the cursor; None if it was applied before or is no message of ours."""
        position = self.cursor[stream]
        if seq <= position.seq:
            return None
        self.cursor[stream] = Position(position.epoch, seq)
        try:
            message = decode_message(payload)
        except Corrupt:
            self.corrupt += 1
            return None
        who = owner(subject)
        changed = self.projection(stream).apply(who, message, digest(payload, self._chain_key))
        return Applied(stream, seq, who, message, changed)

    def projection(self, stream: StreamName) -> Projection:
        """The stream's own fold."""
        if stream == LOAD:
            return self.loads
        if stream == ROUTING:
            return self.routing
        return self.kv[stream]

    @property
    def digest(self) -> int:
        """64 bits over all streams with their positions; equal for equal states at equal cursors."""
        parts = (mix(stream, at.seq, self.projection(stream).digest) for stream, at in self.cursor.items())
        return sum(parts) & MASK64

    @property
    def incomplete(self) -> int:
        """Sources that are unknown until they restate themselves."""
        return sum(self.projection(stream).incomplete for stream in self.cursor)

    @property
    def unknown_events(self) -> int:
        """Events of types that this program does not know."""
        return sum(self.projection(stream).unknown_events for stream in self.cursor)

    def member(self, worker: WorkerId) -> Member | None:
        """The worker's part, whichever kv stream it writes to."""
        for projection in self.kv.values():
            if worker in projection.members:
                return projection.members[worker]
        return None

    def alive(self) -> list[Member]:
        """Workers that joined and have not ended, by id."""
        members = [member for projection in self.kv.values() for member in projection.alive.values()]
        return sorted(members, key=lambda member: member.worker)
