"""The shell with everything real around it: runners that tail the log, snapshots, folds taken over under load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from actors.consistency.digest_checkpoints import CHECKPOINT_EVERY
from actors.consistency.digest_exchange import CheckpointPassed, FoldReplaced, ReportRead, VerdictRead
from actors.consistency.digest_exchange_shell import DigestExchangeShell
from core.clock import ManualClock
from core.events import DivergenceFound, Event, ReplicaReported
from core.ids import ReplicaId, StreamSeq, WorkerId
from core.machine import TICK
from core.subjects import LOAD, ROUTING, SNAPSHOTS, kv_stream
from projections.folds.state import Applied, State
from projections.runner.rebuild import rebuild, take_snapshot
from projections.runner.runner import Runner
from streams.memory.memory_log import MemoryLog
from streams.memory.memory_registry import MemoryRegistry, MemoryRegistryStore
from streams.snapshot_store import SnapshotStore
from tests.fixtures.eventually import eventually
from tests.projections.facts import joined, stored, worker_id
from tests.projections.speaker import CHAIN_KEY, Said, Speaker
from tests.projections.wrong_fold import corrupt

KV = kv_stream(0)
WORKERS = 4


class Running:
    """One replica whose runner follows the log."""

    def __init__(self, site: Site, name: str) -> None:
        self.id = ReplicaId(name * 16)
        self.state = State(CHAIN_KEY)
        self.verdicts: list[str] = []
        self._site = site
        self._speaker = Speaker(ROUTING, self.id)
        self._unsent: list[Event] = []
        self.runner = Runner(site.log, self.state, self._on_applied, store=site.store, on_became=self._on_became)
        self.digest_exchange = DigestExchangeShell(
            self.state,
            self._say,
            lambda: self.id,
            site.clock,
            MemoryRegistry(site.registry),
            rebuild=self._rebuild,
            replace=self.runner.rebuild,
        )
        self._running = asyncio.create_task(self.digest_exchange.run())

    def _say(self, event: Event) -> None:
        self._unsent.append(event)
        if isinstance(event, DivergenceFound):
            self.verdicts.append(event.verdict)

    def _on_became(self) -> None:
        self.digest_exchange.feed(FoldReplaced())

    async def _rebuild(self) -> State:
        return (await rebuild(self._site.log, CHAIN_KEY, self._site.store)).state

    def _on_applied(self, applied: Applied) -> None:
        if applied.seq % CHECKPOINT_EVERY == 0:
            self.digest_exchange.feed(CheckpointPassed(applied.stream, applied.seq))
        if applied.stream == ROUTING and applied.owner != self.id:
            for event in applied.message.events:
                if isinstance(event, ReplicaReported):
                    self.digest_exchange.feed(ReportRead(ReplicaId(applied.owner), event))
                elif isinstance(event, DivergenceFound):
                    self.digest_exchange.feed(VerdictRead(ReplicaId(applied.owner), event))

    async def step(self) -> None:
        self.digest_exchange.feed(TICK)
        unsent, self._unsent = self._unsent, []
        for event in unsent:
            await self._site.append(self._speaker.say(event))

    async def stop(self) -> None:
        self._running.cancel()
        await asyncio.wait([self._running])
        await self.digest_exchange.stop()
        await self.runner.stop()


class Site:
    """A log, a few workers that never rest, and replicas."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000)
        self.log = MemoryLog("test", self.clock)
        self.store = SnapshotStore(self.log, "test", CHAIN_KEY)
        self.registry = MemoryRegistryStore()
        self.workers = [Speaker(KV, worker_id(number)) for number in range(WORKERS)]
        self.stored = 0
        self.busy = True

    async def append(self, said: Said) -> None:
        last = await self.log.last(said.stream, said.subject)
        seq = StreamSeq(0 if last is None else last.seq)
        await self.log.append(said.stream, said.subject, said.payload, f"{said.subject}:{seq}", seq)

    async def work(self) -> None:
        """Blocks are stored until `busy` is false."""
        while self.busy:
            for worker in self.workers:
                self.stored += 1
                await self.append(worker.say(stored(self.stored)))
            await asyncio.sleep(0.001)

    async def turn(self, replicas: list[Running], seconds: int) -> None:
        """Time passes for what is due, while the log goes on in its own time."""
        for _ in range(seconds):
            self.clock.advance(1000)
            await asyncio.sleep(0.02)
            for replica in replicas:
                await replica.step()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    await site.log.ensure([KV, LOAD, ROUTING, SNAPSHOTS])
    for worker in site.workers:
        await site.append(worker.say(joined()))
    working = asyncio.create_task(site.work())
    yield site
    site.busy = False
    await working


@pytest.mark.parametrize("snapshot", [False, True])
async def test_corrupted_under_load(site: Site, snapshot: bool) -> None:
    """The replica that was changed behind its back is replaced while records come; nobody else is, and all agree."""
    replicas = [Running(site, name) for name in "abc"]
    for replica in replicas:
        replica.runner.start()
    await site.turn(replicas, 12)
    if snapshot:
        await take_snapshot(site.log, site.store, CHAIN_KEY, "test", 1, site.clock.wall_ms())
    await site.turn(replicas, 3)
    a, b, c = replicas
    for number in range(WORKERS):
        corrupt(c.state, WorkerId(worker_id(number)), 0xBAD)
    await site.turn(replicas, 8)
    await eventually(lambda: c.verdicts, "c has a new fold")
    await site.turn(replicas, 12)
    assert c.verdicts == ["replaced"]
    assert (a.verdicts, b.verdicts) == ([], [])
    assert [replica.digest_exchange.describe()["rebuilt"] for replica in replicas] == [0, 0, 1]
    assert [replica.runner.rebuilds for replica in replicas] == [0, 0, 1]
    assert [replica.digest_exchange.describe()["disputed"] for replica in replicas] == [{}, {}, {}]
    assert bool(c.runner.started_from) is snapshot
    assert set(a.digest_exchange.describe()["agreed"]) == {b.id, c.id}
    site.busy = False
    await eventually(lambda: len({repr(replica.state.cursor) for replica in replicas}) == 1, "one cursor")
    assert len({replica.state.digest for replica in replicas}) == 1
    for replica in replicas:
        await replica.stop()
