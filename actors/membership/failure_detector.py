"""FailureDetector: decides which workers are suspected, and which sources of the log are over.

1. A worker of the log without a registration is absent. Within a lease time it is judged.
2. While the registry is away, or if more than half of the workers vanished within one lease time, the leases are
   doubted and not the workers: no worker is suspected.
3. Decisions leave out a suspected worker. If the worker is silent on TCP too, its end is written to the log: no
   connection can be made, or a ping has no answer. The append expects the last message of its subject, so the first
   append wins, and a message of the worker refutes its end.
4. The end of a worker is written on its load subject too, and on its jobs subject if it ever wrote there. A source that
   is not registered, has no end and cannot be asked is over after some lease times without a message: a replica; a
   worker without a WorkerJoined in the log; load reports and jobs of a worker that is over or in no kv stream.
5. A worker that is over keeps its connection for as long as it answers and tokens come over it: an open stream is
   trusted over any lease.
6. No end is written for a source with a chain that another key sealed, as long as it sends messages: another
   deployment shares the namespace, and its sources live by its registry, not by ours. A changed message looks the same
   until the next one of its source; so a source that is silent for FOREIGN_LEASES is judged like all others.
7. A connection without a message for SILENT_S, not even the answer to a ping, is closed, and its streams go on
   elsewhere. The worker is not over by that: the connection is made again as soon as the worker answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import NamedTuple, TypeAlias, assert_never

from core.ids import StreamName, WorkerId
from core.machine import Tick
from core.subjects import JOBS, LOAD

OBSERVE_EVERY_S = 0.5
"""From one observation to the next."""
MUTE_S = 2.0
"""A worker that has not answered a ping for so long gets nothing new while there are others …"""
SILENT_S = 6.0
"""… and after so long its connection is closed. Silence is counted in observations, not by the clock: a replica that
was stopped itself has received nothing. Shorter than a lease, and longer than a busy process keeps others waiting."""
REPLICA_LEASES = 2
"""A source that cannot be asked is over after so many lease times without a registration and without a message."""
LOAD_LEASES = 1
"""Load reports and jobs of a worker that is over, or in no kv stream, end after so many: it may write the end itself
first."""
FOREIGN_LEASES = 6
"""A source of another key is judged after so many lease times without a message in any stream. Workers and replicas
that live report every few seconds."""
WRITES_MAX = 64
"""Ends that are written at once; the others are judged again at the next observation."""
NO_ANSWER, NO_WORD = "no lease, no answer", "no lease, no word"
"""Reasons in WorkerLost and ReplicaLost."""
US_PER_S = 1_000_000


class AliveWorker(NamedTuple):
    """A worker that joined and has no end in the log."""

    address: str
    stream: StreamName
    """Of its cache events."""


class ConnectionState(NamedTuple):
    """The connection to a worker."""

    up: bool
    failures: int
    """Tries to connect that failed since it was last up."""
    silence: int
    """Observations since the worker's last message."""
    streams: int
    """Requests with an open stream over it."""


class SilentSource(NamedTuple):
    """A source in the log that is not registered and cannot be asked."""

    stream: StreamName
    source: str
    messages_seen: int
    """Messages so far: one more refutes that the source is over."""


class Observed(NamedTuple):
    """The log, the registry and the connections, as the replica sees them now."""

    alive: Mapping[WorkerId, AliveWorker]
    registered: AbstractSet[WorkerId]
    registry_healthy: bool
    connections: Mapping[WorkerId, ConnectionState]
    silent_sources: Sequence[SilentSource]
    foreign: Mapping[str, int] = MappingProxyType({})
    """Sources with a chain that another key sealed, or with a changed message; each with its messages so far."""


class PingResult(NamedTuple):
    """A PingWorker was answered in time, or was not."""

    worker: WorkerId
    answered: bool


class EndWritten(NamedTuple):
    """A WriteEnd was tried. If it failed, the source is judged again."""

    stream: StreamName
    source: str


class PingWorker(NamedTuple):
    """The worker is to answer."""

    worker: WorkerId


class Connect(NamedTuple):
    """A connection is to be made, and kept."""

    worker: WorkerId
    address: str


class CutConnection(NamedTuple):
    """Streams over the connection end; it is made again."""

    worker: WorkerId
    reason: str


class DropConnection(NamedTuple):
    """Streams over the connection end; it is not made again."""

    worker: WorkerId


class WriteEnd(NamedTuple):
    """The end of the source is to stand in each stream, in this order; after one that fails, no other is tried."""

    streams: tuple[StreamName, ...]
    source: str
    reason: str
    messages_seen: int | None = None
    """If the source wrote more than that in the stream, it is not over."""


Event: TypeAlias = Observed | PingResult | EndWritten
Command: TypeAlias = PingWorker | Connect | CutConnection | DropConnection | WriteEnd


class FailureDetector:
    """A machine (`core.machine`); decisions leave out `suspected` workers."""

    due_us = None
    """It judges when it is given an observation."""

    def __init__(self, lease_ms: int) -> None:
        self._lease_us = lease_ms * 1000
        self._absent_since: dict[WorkerId, int] = {}
        self._silent_since: dict[SilentSource, int] = {}
        self._absent: frozenset[WorkerId] = frozenset()
        self._mute: frozenset[WorkerId] = frozenset()
        self._foreign_since: dict[tuple[str, int], int] = {}
        self._foreign: AbstractSet[str] = frozenset()
        """Sources of another key that send messages."""
        self._pinging: set[WorkerId] = set()
        self._unanswered: set[WorkerId] = set()
        """Workers that did not answer a ping since the last observation."""
        self._writing: set[tuple[StreamName, str]] = set()
        self._commands: list[Command] = []

    def __repr__(self) -> str:
        return f"<FailureDetector, {len(self._absent_since)} absent, {len(self._writing)} ends being written>"

    @property
    def suspected(self) -> frozenset[WorkerId]:
        """Absent workers, and workers with a silent connection: left out of decisions while there are others."""
        return self._absent | self._mute if self._mute else self._absent

    def step(self, event: Event | Tick, now_us: int) -> Sequence[Command]:
        """All decisions rest on an observation; results of commands count at the next one."""
        self._commands = commands = list[Command]()
        match event:
            case Observed():
                self._judge(event, now_us)
            case PingResult(worker, answered):
                self._pinging.discard(worker)
                if not answered:
                    self._unanswered.add(worker)
            case EndWritten(stream, source):
                self._writing.discard((stream, source))
            case Tick():
                pass
            case _:
                assert_never(event)
        return commands

    def _judge(self, seen: Observed, now_us: int) -> None:
        self._note_foreign(seen.foreign, now_us)
        self._judge_connections(seen)
        before = self._absent_since
        self._absent_since = {w: before.get(w, now_us) for w in seen.alive if w not in seen.registered}
        if self._registry_is_doubted(seen, now_us):
            self._absent = frozenset()
        else:
            self._absent = frozenset(self._absent_since)
            for worker, since_us in self._absent_since.items():
                connection = seen.connections.get(worker)
                if now_us - since_us >= self._patience_us(connection):
                    self._judge_worker(worker, seen.alive[worker], connection)
            self._judge_silent_sources(seen.silent_sources, now_us)
        self._unanswered.clear()

    def _note_foreign(self, foreign: Mapping[str, int], now_us: int) -> None:
        before, patience_us = self._foreign_since, FOREIGN_LEASES * self._lease_us
        self._foreign_since = {each: before.get(each, now_us) for each in foreign.items()}
        self._foreign = {
            source for (source, _), since_us in self._foreign_since.items() if now_us - since_us < patience_us
        }

    def _judge_connections(self, seen: Observed) -> None:
        mute: list[WorkerId] = []
        for worker, connection in seen.connections.items():
            silent_s = connection.silence * OBSERVE_EVERY_S
            if silent_s >= MUTE_S:
                mute.append(worker)
            if silent_s >= SILENT_S:
                self._commands.append(CutConnection(worker, f"no word for {SILENT_S:g} s, its streams move"))
            is_over = worker not in seen.alive and worker not in seen.registered
            if is_over and (not connection.streams or self._has_not_answered(worker)):
                self._commands.append(DropConnection(worker))
        self._mute = frozenset(mute)

    def _registry_is_doubted(self, seen: Observed, now_us: int) -> bool:
        alive = len(seen.alive)
        fresh = sum(now_us - since_us < self._lease_us for since_us in self._absent_since.values())
        return not seen.registry_healthy or (alive > 2 and 2 * fresh > alive)

    def _patience_us(self, connection: ConnectionState | None) -> int:
        """A refused connection beside the vanished lease leaves no doubt; else one more lease time to come back."""
        is_refused = connection is not None and not connection.up and connection.failures
        return 0 if is_refused else self._lease_us

    def _judge_worker(self, worker: WorkerId, alive: AliveWorker, connection: ConnectionState | None) -> None:
        """A first try to connect that is under way says nothing yet."""
        if not self._can_write(alive.stream, worker):
            return
        if connection is None:
            self._commands.append(Connect(worker, alive.address))
        elif self._has_not_answered(worker) if connection.up else connection.failures:
            self._commands.append(CutConnection(worker, NO_ANSWER))  # streams over it would wait for ever
            self._write_end(WriteEnd((alive.stream, LOAD, JOBS), worker, NO_ANSWER))

    def _judge_silent_sources(self, silent: Sequence[SilentSource], now_us: int) -> None:
        before = self._silent_since
        self._silent_since = {source: before.get(source, now_us) for source in silent}
        for source, since_us in self._silent_since.items():
            leases = LOAD_LEASES if source.stream in {LOAD, JOBS} else REPLICA_LEASES
            if now_us - since_us >= leases * self._lease_us and self._can_write(source.stream, source.source):
                self._write_end(WriteEnd((source.stream,), source.source, NO_WORD, source.messages_seen))

    def _has_not_answered(self, worker: WorkerId) -> bool:
        """True if a ping had no answer since the last observation. A ping is sent if there is no result yet."""
        if worker in self._unanswered:
            return True
        if worker not in self._pinging:
            self._pinging.add(worker)
            self._commands.append(PingWorker(worker))
        return False

    def _can_write(self, stream: StreamName, source: str) -> bool:
        if source in self._foreign:
            return False
        return (stream, source) not in self._writing and len(self._writing) < WRITES_MAX

    def _write_end(self, end: WriteEnd) -> None:
        self._writing.add((end.streams[0], end.source))
        self._commands.append(end)
