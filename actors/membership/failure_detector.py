"""FailureDetector: from a vanished lease to WorkerLost, and never from a vanished registry.

1. A worker of the log without a registration is absent; a lease time later at most it is judged.
2. While the registry is away, or if more than half of the workers vanished within one lease time, the leases are
   doubted, not the workers: no worker is suspected.
3. A suspected worker is left out of decisions. If it is silent on TCP too (no connection can be made, or no answer
   comes over the one that stands), its end is written to the log, expecting the last message of its subject: the first
   append wins, and a message of the worker refutes its end.
4. The end of a worker is written on its load subject too, and on its jobs subject if it ever wrote there. A source that
   is not registered, has no end and cannot be asked is over when nothing was read of it for some lease times: a
   replica; a worker without a WorkerJoined in the log; the load reports and jobs of a worker that is over or in no kv
   stream.
5. A worker that is over keeps its connection for as long as it answers and tokens come over it: an open stream is
   trusted over any lease.
6. A connection over which nothing comes for SILENT_S, not even the answer to a ping, is given up, whatever its lease:
   its streams go on elsewhere. That says nothing of the worker: it is connected to again as soon as it answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from actors.router.fleet import Fleet
from actors.transport.reconnecting_client import ReconnectingClient
from core.clock import Clock
from core.codec import CHAIN_START, decode_message, encode_event, encode_message
from core.errors import ContrailError, Corrupt, WrongSequence
from core.events import ReplicaLost, WorkerLost
from core.ids import LOST_SUFFIX, ReplicaId, SourceId, StreamName, StreamSeq, WorkerId
from core.subjects import JOBS, LOAD, ROUTING, answered_token, asked_token, kv_stream, subject
from projections.folds.kv_fold import Member
from projections.folds.state import State
from streams.log import EventLog, Record

CHECK_EVERY_S = 0.5
PING_TIMEOUT_S = 2.0
"""A worker that does not answer within this is silent."""
LISTEN_EVERY_S = 0.5
MUTE_S = 2.0
"""A worker that has not answered a ping for so long gets nothing new while there are others …"""
SILENT_S = 6.0
"""… and after so long its connection is given up. It is counted in looks, not by the clock: a replica that was
stopped itself has heard nobody. Shorter than a lease, and longer than a busy process keeps others waiting."""
REPLICA_LEASES = 2
"""Who cannot be asked is over after so many lease times without a registration and without a word in the log."""
LOAD_LEASES = 1
"""Load reports and jobs of a worker that is over, or in no kv stream, end after so many: it may be about to say so
itself."""

_logger = logging.getLogger(__name__)


class SilentSource(NamedTuple):
    """A source in the log that is not registered and cannot be asked."""

    stream: StreamName
    who: str
    messages_seen: int
    """Messages so far: one more refutes that the source is over."""
    leases: int
    """Lease times of silence after which it is."""


class FailureDetector:
    """Judges which sources are absent or silent; decisions leave out `suspected` workers."""

    def __init__(self, namespace: str, log: EventLog, fleet: Fleet, state: State, clock: Clock, lease_ms: int) -> None:
        self._namespace = namespace
        self._log = log
        self._fleet = fleet
        self._state = state
        self._clock = clock
        self._lease_ms = lease_ms
        self._silent_since: dict[SilentSource, int] = {}
        self._absent_workers: frozenset[WorkerId] = frozenset()
        self._mute_workers: frozenset[WorkerId] = frozenset()

    @property
    def suspected(self) -> frozenset[WorkerId]:
        """Who is absent, and whose connection is silent: left out of decisions as long as there are others."""
        return self._absent_workers | self._mute_workers if self._mute_workers else self._absent_workers

    async def run(self, me: RegisteredReplicas) -> None:
        """Looks and listens again and again, for ever."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._check_loop(me))
            both.create_task(self._watch_links_loop())

    async def _watch_links_loop(self) -> None:
        while True:
            silent_s = {link: link.silence() * LISTEN_EVERY_S for link in self._fleet.links.values()}
            self._mute_workers = frozenset(link.worker for link, since_s in silent_s.items() if since_s >= MUTE_S)
            for link, since_s in silent_s.items():
                if since_s >= SILENT_S:
                    _logger.warning("no word for %g s, its streams move", SILENT_S, extra={"worker": link.worker})
                    link.cut()
            await asyncio.sleep(LISTEN_EVERY_S)

    async def _check_loop(self, me: RegisteredReplicas) -> None:
        while True:
            try:
                await self._check(me)
            except Exception:  # whatever it was, who is lost must go on being found out
                _logger.exception("a look at who is absent failed by a defect, trying again")
            await asyncio.sleep(CHECK_EVERY_S)

    async def _check(self, me: RegisteredReplicas) -> None:
        alive = self._state.alive()
        await self._release({member.worker for member in alive})
        absent = self._fleet.absent(member.worker for member in alive)
        if self._doubted(len(alive), absent):
            self._absent_workers = frozenset()
            return
        self._absent_workers = frozenset(absent)
        now = self._clock.monotonic_ms()
        late = [m for m in alive if m.worker in absent and now - absent[m.worker] >= self._patience_ms(m.worker)]
        verdicts = await asyncio.gather(*map(self._is_silent, late))
        for member, is_silent in zip(late, verdicts, strict=True):
            if is_silent and member.worker not in self._fleet.registered:
                await self._end_worker(member, me())
        await self._judge_silent_sources(me)

    async def _release(self, alive: AbstractSet[WorkerId]) -> None:
        over = self._fleet.unneeded(alive)
        for link, needed in zip(over, await asyncio.gather(*map(_still_speaks, over)), strict=True):
            if not needed and link.worker not in self._fleet.registered:  # it may have come back meanwhile
                self._fleet.drop(link)

    def _doubted(self, alive: int, absent: dict[WorkerId, int]) -> bool:
        now = self._clock.monotonic_ms()
        fresh = sum(now - since < self._lease_ms for since in absent.values())
        return not self._fleet.registry_healthy or (alive > 2 and 2 * fresh > alive)

    def _patience_ms(self, worker: WorkerId) -> int:
        """A refused connection beside the vanished lease leaves no doubt; else one more lease time to come back."""
        link = self._fleet.links.get(worker)
        return 0 if link is not None and not link.up and link.failures else self._lease_ms

    async def _is_silent(self, member: Member) -> bool:
        """Whether it cannot be reached; a first try that is under way says nothing yet."""
        assert member.joined is not None
        link = self._fleet.connect(member.worker, member.joined.address)
        if link.up:
            return not await link.ping(PING_TIMEOUT_S)
        return link.failures > 0

    async def _end_worker(self, member: Member, me: ReplicaId) -> None:
        assert member.joined is not None
        self._fleet.links[member.worker].cut()  # what streams over it would wait for ever
        event = encode_event(WorkerLost(by=me, reason="no lease, no answer"))
        if await self._write_end(kv_stream(member.joined.partition), member.worker, event):
            await self._write_end(LOAD, member.worker, event)
            if member.worker in self._state.jobs.parts:
                await self._write_end(JOBS, member.worker, event)

    async def _judge_silent_sources(self, me: RegisteredReplicas) -> None:
        now, before = self._clock.monotonic_ms(), self._silent_since
        self._silent_since = since = {silent: before.get(silent, now) for silent in self._silent_sources(me)}
        for silent, since_ms in list(since.items()):
            if now - since_ms >= silent.leases * self._lease_ms:
                event = ReplicaLost if silent.stream == ROUTING else WorkerLost
                end = encode_event(event(by=me(), reason="no lease, no word"))
                await self._write_end(silent.stream, silent.who, end, silent.messages_seen)

    def _silent_sources(self, me: RegisteredReplicas) -> Iterator[SilentSource]:
        """Everybody who is not registered and has no port that we know of."""
        registered = self._fleet.registered
        for replica, part in self._state.routing.replicas.items():
            if replica != me() and replica not in me.registered:
                yield SilentSource(ROUTING, replica, part.chain.n_next, REPLICA_LEASES)
        for stream, kv in self._state.kv.items():
            for worker, member in kv.members.items():
                if member.joined is None and worker not in registered:
                    yield SilentSource(stream, worker, member.chain.n_next, REPLICA_LEASES)
        chains = [(LOAD, worker, chain) for worker, chain in self._state.loads.chains.items()]
        chains += [(JOBS, worker, part.chain) for worker, part in self._state.jobs.parts.items()]
        for stream, worker, chain in chains:
            if worker not in registered and all(worker not in kv.members for kv in self._state.kv.values()):
                yield SilentSource(stream, worker, chain.n_next, LOAD_LEASES)

    async def _write_end(self, stream: StreamName, who: str, event: bytes, messages_seen: int | None = None) -> bool:
        """True if the end is in the log, once, whoever wrote it; False if the one concerned spoke up meanwhile (said
        more than it had `messages_seen` when it was judged: our fold may stand still), or the log is away: then it is
        judged again."""
        token = self._token(stream, who)
        if token is None:
            return True
        where = subject(self._namespace, stream, token)
        source = SourceId(who + LOST_SUFFIX)
        try:
            last = await self._log.last(stream, where)
            unsaid = last is None and stream == LOAD and who not in self._state.loads.chains
            if unsaid or (last is not None and _written_by(source, last)):
                return True  # nothing to end, or told already
            if messages_seen is not None and last is not None and _wrote_more(who, messages_seen, last):
                return False
            payload = encode_message(source, 0, CHAIN_START, self._clock.wall_ms(), [event])
            expected = StreamSeq(0 if last is None else last.seq)
            await self._log.append(stream, where, payload, f"{source}:{self._clock.wall_ms()}", expected)
        except WrongSequence:
            return False  # another replica was first, or it lives
        except ContrailError as error:
            _logger.warning("could not write the end of %s now, trying again: %s", who, error)
            return False
        if stream not in {LOAD, JOBS}:
            kind = "replica" if stream == ROUTING else "worker"
            _logger.warning("%s is lost: no lease, no answer", who, extra={kind: who})
        return True

    def _token(self, stream: StreamName, who: str) -> str | None:
        """Under which the one concerned writes there, so that a word of it and its end exclude each other; None if its
        end was read since it was judged: then nothing tells any more where it wrote."""
        if stream != JOBS:
            return who
        part = self._state.jobs.parts.get(WorkerId(who))
        if part is None:
            return None
        return answered_token(who) if part.answers else asked_token(who, part.kind)


class RegisteredReplicas:
    """This replica's present id, and the replicas that the registry knows."""

    def __init__(self, replica: ReplicaId) -> None:
        self.replica = replica
        self.registered: set[ReplicaId] = set()

    def __call__(self) -> ReplicaId:
        return self.replica


async def _still_speaks(link: ReconnectingClient) -> bool:
    return link.streams > 0 and await link.ping(PING_TIMEOUT_S)


def _wrote_more(who: str, messages_seen: int, record: Record) -> bool:
    try:
        message = decode_message(record.payload)
    except Corrupt:
        return False  # it may be anybody's
    return message.source == who and message.n >= messages_seen


def _written_by(source: SourceId, record: Record) -> bool:
    try:
        return decode_message(record.payload).source == source
    except Corrupt:
        return False  # damaged: the end can follow it all the same
