"""A log in memory with workers and replicas that speak, for tests of what reads it."""

from __future__ import annotations

from core.clock import ManualClock
from core.events import Event, ReplicaJoined
from core.ids import StreamName, StreamSeq
from core.snapshot_manifest import Manifest
from core.subjects import LOAD, ROUTING, SNAPSHOTS, kv_stream
from projections.folds.state import State
from projections.runner.rebuild import take_snapshot
from streams.memory.memory_log import MemoryLog
from streams.snapshot_store import SnapshotStore
from tests.projections.facts import joined, load, restated, routed, stored, worker_id
from tests.projections.speaker import CHAIN_KEY, Said, Speaker

KV = kv_stream(0)
A, B, R = worker_id(1), worker_id(2), "ee" * 8


class MadeLog:
    """The log, its snapshots, and everybody who speaks in it."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000)
        self.log = MemoryLog("test", self.clock)
        self.store = SnapshotStore(self.log, "test", CHAIN_KEY)
        self._speakers: dict[tuple[str, str], Speaker] = {}
        self._read = self.log.read
        """Whatever tests make of the log's own."""

    async def say(self, stream: StreamName, source: str, *events: Event) -> StreamSeq:
        """The events are in the log; a second later by its clock."""
        self.clock.advance(1000)
        return await self.write(self.speaker(stream, source).say(*events))

    async def write(self, said: Said) -> StreamSeq:
        last = await self.log.last(said.stream, said.subject)
        expected = StreamSeq(0 if last is None else last.seq)
        return await self.log.append(said.stream, said.subject, said.payload, said.digest.hex(), expected)

    def speaker(self, stream: StreamName, source: str) -> Speaker:
        return self._speakers.setdefault((stream, source), Speaker(stream, source))

    async def grow(self, messages: int = 3) -> None:
        """Two workers and a replica say that much more."""
        for number in range(messages):
            await self.say(KV, A, stored(100 + number))
            await self.say(LOAD, A, load(number))
            await self.say(ROUTING, R, routed(f"r{number}", A))

    async def restate(self) -> None:
        """The workers say again what they hold."""
        for worker in (A, B):
            await self.say(KV, worker, joined(worker), restated(0, 1, 1, 2))

    async def snapshot(self, fence: int = 1) -> Manifest:
        """Taken a second later."""
        self.clock.advance(1000)
        return await take_snapshot(self.log, self.store, CHAIN_KEY, "test", fence, self.clock.wall_ms())

    async def folded(self) -> State:
        """All of the log, from its start, by nothing but `apply`."""
        state = State(CHAIN_KEY)
        for stream in await self.log.streams():
            if stream != SNAPSHOTS:
                state.open(stream, (await self.log.state(stream)).epoch)
                async for record in self._read(stream, StreamSeq(1)):
                    state.apply(stream, record.seq, record.subject, record.payload)
        return state


async def made() -> MadeLog:
    """Two workers with blocks, one replica with a request in flight."""
    it = MadeLog()
    await it.log.ensure([KV, LOAD, ROUTING, SNAPSHOTS])
    await it.say(KV, A, joined("a"), stored(1, 2, 3))
    await it.say(KV, B, joined("b"), stored(1, 2))
    await it.say(LOAD, A, load(1))
    await it.say(ROUTING, R, ReplicaJoined(name="router-0", version="1"), routed("first", A))
    return it
