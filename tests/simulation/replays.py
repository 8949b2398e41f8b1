"""Decisions out of the log: the fold up to the recorded cursor and the replica's own words give the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from core.codec import decode_message
from core.events import LocalChanged, PromptBase, ReplicaRestated, RequestRouted, RoutingEvent, SettingsChanged
from core.ids import BlockHash, ReplicaId, SourceId, StreamName, StreamSeq, WorkerId
from core.prompt import HASH_BYTES, Prompt, hashes_from_bytes
from core.settings import RoutingSettings
from core.subjects import ROUTING, owner
from projections.folds.pending_events import PendingEvents
from projections.folds.state import State
from projections.policy.decide import decide
from projections.policy.view import RouteRequest, View
from tests.simulation.engine import KEY
from tests.simulation.parts import first_settings
from tests.simulation.witness import Broken

if TYPE_CHECKING:
    from tests.simulation.world import World


class RecordedPrompt(Prompt):
    """A prompt of which only length and block hashes are known."""

    __slots__ = ("_recorded",)

    def __init__(self, event: RequestRouted, hashes: bytes) -> None:
        super().__init__(bytes(4 * event.prompt_tokens), event.block_size, seed=0)
        self._recorded = hashes

    def key(self, depth: int) -> BlockHash:
        return BlockHash(hashes_from_bytes(self._recorded)[depth - 1])

    def hashes(self) -> bytes:
        return self._recorded


class Said(NamedTuple):
    """One event of a replica and where it stands."""

    seq: StreamSeq
    event: RoutingEvent


class Replay:
    """Goes through one replica's decisions in their order; its fold only ever moves on."""

    def __init__(self, world: World, replica: ReplicaId) -> None:
        self.replica = replica
        self._world = world
        self._state = State(KEY.chain_key)
        self._settings = first_settings(world.options)
        self._local: dict[WorkerId, tuple[str, ...]] = {}

    def __repr__(self) -> str:
        return f"<Replay of {self.replica}, {self._state!r}>"

    def check(self) -> int:
        """Broken if a decision does not come out as it was recorded; returns how many there were."""
        own, decisions = list(self._said()), 0
        for number, said in enumerate(own):
            match said.event:
                case SettingsChanged():
                    self._settings = RoutingSettings.parse(said.event.settings)
                case ReplicaRestated():
                    self._local.clear()
                case LocalChanged(worker=worker, reasons=reasons):
                    self._local[WorkerId(worker)] = reasons
                case RequestRouted() as event:
                    decisions += 1
                    found = self._again(event, own[:number])
                    if found != event.digest:
                        raise Broken(f"decision {event.request} of {self.replica} was {event.digest}, replays {found}")
                case _:
                    pass
        return decisions

    def _again(self, event: RequestRouted, before: list[Said]) -> str:
        self._fold_to(event.cursor)
        ahead, folded = PendingEvents(), self._state.routing.replicas.get(self.replica)
        read_to = self._state.cursor[ROUTING].seq if ROUTING in self._state.cursor else 0
        for said in before:
            if said.seq > read_to:
                ahead.emit(said.event, folded)
        local: dict[str, set[WorkerId]] = {}
        for worker, reasons in self._local.items():
            for reason in reasons:
                local.setdefault(reason, set()).add(worker)
        view = View(self._state, self.replica, ahead, {reason: frozenset(who) for reason, who in local.items()})
        asked = RouteRequest.of(event, RecordedPrompt(event, self._hashes(event)))
        return decide(view, asked, self._settings, event.now_ms, event.seed).digest

    def _hashes(self, event: RequestRouted) -> bytes:
        """All block hashes of its prompt, by the decisions that it continues."""
        base = event.base
        if not isinstance(base, PromptBase):
            return event.hashes
        record = next(iter(self._world.stream(ROUTING).from_seq(base.seq)))
        before = decode_message(record.payload).events[base.place]
        if record.seq != base.seq or not isinstance(before, RequestRouted):
            raise Broken(f"decision {event.request} of {self.replica} continues {base.seq}+{base.place}, no decision")
        return self._hashes(before)[: HASH_BYTES * base.blocks] + event.hashes

    def _fold_to(self, cursor: dict[str, tuple[int, int]]) -> None:
        for name, (_epoch, end) in cursor.items():
            stream = self._world.stream(StreamName(name))
            done = self._state.open(StreamName(name), stream.epoch)
            for record in stream.from_seq(done + 1):
                if record.seq > end:
                    break
                self._state.apply(record.stream, record.seq, record.subject, record.payload)

    def _said(self) -> Iterator[Said]:
        for record in self._world.stream(ROUTING).from_seq(1):
            message = decode_message(record.payload)
            if message.source == SourceId(self.replica):
                yield from (Said(record.seq, e) for e in message.events if isinstance(e, RoutingEvent))


def decisions_replay(world: World) -> None:
    """Every decision in the log of one replica, dead or alive, comes out again, bit for bit."""
    if not world.witness.history_kept or world.witness.tampered:
        return
    replicas = sorted({owner(record.subject) for record in world.stream(ROUTING).from_seq(1)})
    replica = ReplicaId(replicas[len(world.requests) % len(replicas)])
    world.witness.saw("replayed", replica, Replay(world, replica).check())
