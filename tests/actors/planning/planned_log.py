"""A log in memory with requests and planners, on a clock that is moved by hand."""

from __future__ import annotations

from core.clock import ManualClock
from core.codec import CHAIN_START, digest, encode_event, encode_message
from core.events import Event, RequestQueued
from core.ids import SourceId, StreamSeq
from core.keys import DeploymentKey
from core.subjects import ROUTING, SCALE, subject
from streams.memory.memory_log import MemoryLog
from tests.projections.facts import routed, worker_id
from tests.projections.scaling.demands import PROMPT_TOKENS, START_MS

NAMESPACE = "test"
REPLICA = SourceId("00000000000000aa")


class PlannedLog(MemoryLog):
    """Routing and scale streams; `write` appends as one replica."""

    def __init__(self) -> None:
        self.clock = ManualClock(START_MS)
        super().__init__(NAMESPACE, self.clock)
        self.key = DeploymentKey.generate()
        self.begin_anew()

    def begin_anew(self) -> None:
        """The replica's next message is the first one of its chain."""
        self.written = 0
        self._head = CHAIN_START
        self._last_seq = StreamSeq(0)

    async def made(self) -> PlannedLog:
        await self.ensure([ROUTING, SCALE])
        return self

    async def write(self, *events: Event) -> None:
        """One message of the replica."""
        encodings = [encode_event(event) for event in events]
        payload = encode_message(REPLICA, self.written, self._head, self.clock.wall_ms(), encodings)
        token = subject(NAMESPACE, ROUTING, REPLICA)
        self._last_seq = await self.append(ROUTING, token, payload, f"{REPLICA}:{self.written}", self._last_seq)
        self._head, self.written = digest(payload, self.key.chain_key), self.written + 1


def arrival(name: str) -> list[Event]:
    """A request that waited, and has a worker."""
    waits = RequestQueued(
        request=name, model="m", priority=0, tenant="", prompt_tokens=PROMPT_TOKENS, why="full", depth=0, now_ms=0
    )
    return [waits, routed(name, worker_id(1))]
