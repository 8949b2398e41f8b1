"""Replicas over one log that compare their folds, driven by hand: no task, no real time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from actors.consistency.digest_checkpoints import CHECKPOINT_EVERY
from actors.consistency.digest_exchange import DigestExchange
from core.clock import ManualClock
from core.events import DivergenceFound, Event, ReplicaReported
from core.ids import ReplicaId, StreamSeq, WorkerId
from core.subjects import LOAD, ROUTING, kv_stream
from projections.folds.state import State
from streams.log import Record
from streams.memory.memory_log import MemoryLog
from streams.memory.memory_registry import MemoryRegistry, MemoryRegistryStore
from tests.projections.facts import joined, restated, stored, worker_id
from tests.projections.speaker import CHAIN_KEY, Said, Speaker

KV = kv_stream(0)
STREAMS = [KV, LOAD, ROUTING]
WORKER = WorkerId(worker_id(7))


class ReplicaUnderTest:
    """One replica: a state, and an agreement that says into the log."""

    def __init__(self, replicas: Replicas, name: str) -> None:
        self.id = ReplicaId(name * 16)
        self.state = State(CHAIN_KEY)
        self.registry = MemoryRegistry(replicas.store)
        self.said: list[Event] = []
        """Everything that it said."""
        self.refolds = 0
        self.while_refolding: Callable[[], None] = lambda: None
        """Happens in the middle of a fold from the log."""
        self.may_rebuild = asyncio.Event()
        self.may_rebuild.set()
        self._replicas = replicas
        self._unsent: list[Event] = []
        self._speaker = Speaker(ROUTING, self.id)
        self.digest_exchange = DigestExchange(
            self.state,
            self._say,
            lambda: self.id,
            replicas.clock,
            self.registry,
            refold=self._refold,
            rebuild=self._rebuild,
        )

    def _say(self, event: Event) -> None:
        self.said.append(event)
        self._unsent.append(event)

    @property
    def verdicts(self) -> list[DivergenceFound]:
        return [event for event in self.said if isinstance(event, DivergenceFound)]

    @property
    def reports(self) -> list[ReplicaReported]:
        return [event for event in self.said if isinstance(event, ReplicaReported)]

    def facts(self, *names: str) -> list[object]:
        described = self.digest_exchange.describe()
        return [described[name] for name in names]

    async def pull(self, state: State | None = None) -> None:
        """The state is at the end of the log; the serving one's agreement hears."""
        into = state or self.state
        for stream in STREAMS:
            start = into.open(stream, (await self._replicas.log.state(stream)).epoch)
            async for record in self._replicas.log.read(stream, StreamSeq(start + 1)):
                self._apply(into, record)

    async def flush(self) -> None:
        """What it said is in the log."""
        for event in self._unsent:
            await self._replicas.append(self._speaker.say(event))
        self._unsent.clear()

    def _apply(self, into: State, record: Record) -> None:
        applied = into.apply(record.stream, record.seq, record.subject, record.payload)
        if into is not self.state or applied is None:
            return
        if record.seq % CHECKPOINT_EVERY == 0:
            self.digest_exchange.passed(record.stream, record.seq)
        if record.stream == ROUTING:
            for event in applied.message.events:
                if isinstance(event, ReplicaReported | DivergenceFound):
                    self.digest_exchange.on_report(ReplicaId(applied.owner), event)

    async def _refold(self) -> State:
        self.refolds += 1
        self.while_refolding()
        fresh = State(CHAIN_KEY)
        await self.pull(fresh)
        return fresh

    async def _rebuild(self, reason: str) -> None:
        await self.may_rebuild.wait()
        fresh = State(CHAIN_KEY)
        await self.pull(fresh)
        self.state.become(fresh)
        self.digest_exchange.became()


class Replicas:
    """A namespace with one worker and some replicas; time stands still until `turn`."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000)
        self.log = MemoryLog("test", self.clock)
        self.store = MemoryRegistryStore()
        self.all: list[ReplicaUnderTest] = []
        self.worker = Speaker(KV, WORKER)
        self.blocks = 0

    async def start(self, names: str) -> list[ReplicaUnderTest]:
        await self.log.ensure(STREAMS)
        await self.append(self.worker.say(joined()))
        self.all = [ReplicaUnderTest(self, name) for name in names]
        return self.all

    async def append(self, said: Said) -> None:
        last = await self.log.last(said.stream, said.subject)
        expected = StreamSeq(0 if last is None else last.seq)
        await self.log.append(said.stream, said.subject, said.payload, f"{said.subject}:{expected}", expected)

    async def work(self, messages: int) -> None:
        """The worker stores a block per message."""
        for _ in range(messages):
            self.blocks += 1
            await self.append(self.worker.say(stored(self.blocks)))

    async def restate(self) -> None:
        """The worker says again who it is and what it holds."""
        await self.append(self.worker.say(joined(), restated(0, 1, self.blocks)))

    async def turn(self, seconds: int = 1, messages: int = 3, among: list[ReplicaUnderTest] | None = None) -> None:
        """So many seconds pass; in each the worker works, and every replica reads, and does what is due."""
        for _ in range(seconds):
            self.clock.advance(1000)
            await self.work(messages)
            for replica in self.all if among is None else among:
                await replica.pull()
                await replica.digest_exchange.step()
                await replica.digest_exchange.settled()
                await replica.flush()
