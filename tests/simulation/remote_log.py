"""The log as one process reaches it: over a network that delays, loses and repeats."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from core.errors import Unavailable
from core.ids import StreamName, StreamSeq
from streams.log import NO_FINGERPRINTS, QUEUE_LIMITS, Fingerprints, QueueLimits, Record, StreamState, Tail
from streams.memory.memory_log import MemoryLog
from tests.simulation.loop import Process, VirtualLoop
from tests.simulation.network import Network
from tests.simulation.options import Options
from tests.simulation.remote_queue import RemoteQueue
from tests.simulation.witness import Witness

ANSWER_TIMEOUT_S = 1.0
"""How long a process waits for an answer of the log."""
TWICE_S = 15.0
"""How much later an append may reach the log once more, at most."""


T = TypeVar("T")


class Broker:
    """The one log, and the world's context in which it works: whoever asked may be dead by the time it answers."""

    def __init__(self, log: MemoryLog, host: Process, network: Network, witness: Witness, options: Options) -> None:
        self.log = log
        self.host = host
        self.network = network
        self.witness = witness
        self.options = options
        self.healed = False
        """Whether nothing is lost on the way any more."""

    def __repr__(self) -> str:
        return f"<Broker of {self.log!r}>"


class RemoteLog:
    """One process's `EventLog`."""

    def __init__(self, broker: Broker, process: Process, loop: VirtualLoop, random_: random.Random) -> None:
        self.parted = False
        """Whether nothing passes between this process and the log."""
        self._broker = broker
        self._log = broker.log
        self._process = process
        self._loop = loop
        self._random = random_
        self._tails: list[RemoteTail] = []

    def __repr__(self) -> str:
        return f"<RemoteLog of {self._process.name}{', parted' if self.parted else ''}>"

    def part(self, parted: bool) -> None:
        """Nothing passes from now on, or again."""
        self.parted = parted
        if not parted:
            for tail in self._tails:
                tail.flush()

    async def ensure(self, streams: list[StreamName], fingerprints: Fingerprints = NO_FINGERPRINTS) -> None:
        await self._ask()
        await self._log.ensure(streams, fingerprints)

    async def fingerprints(self, stream: StreamName) -> Fingerprints:
        await self._ask()
        return await self._log.fingerprints(stream)

    async def append(
        self, stream: StreamName, subject: str, payload: bytes, message_id: str, expected_seq: StreamSeq
    ) -> StreamSeq:
        witness, options, draw = self._broker.witness, self._broker.options, self._random.random
        witness.offered(self._process, stream, subject, payload, message_id)
        if self.parted or self._lost(options.ask_lost):
            await self._silence()
        arguments = (stream, subject, payload, message_id, expected_seq)
        answer = self._deliver(arguments, self._broker.network.delay_s())
        if not self._broker.healed and draw() < options.asked_twice:
            self._deliver(arguments, draw() * TWICE_S)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                seq = await asyncio.shield(answer)
                await self._on_the_way()
        except TimeoutError:
            raise Unavailable("no answer from the log in time") from None
        if self.parted or self._lost(options.answer_lost):
            await self._silence()
        witness.acknowledged(self._process, stream, subject, payload, seq)
        return seq

    async def last(self, stream: StreamName, subject: str) -> Record | None:
        await self._ask()
        return await self._log.last(stream, subject)

    async def at(self, stream: StreamName, seq: StreamSeq) -> Record | None:
        await self._ask()
        return await self._log.at(stream, seq)

    async def state(self, stream: StreamName) -> StreamState:
        await self._ask()
        return await self._log.state(stream)

    async def seek(self, stream: StreamName, time_ms: int) -> StreamSeq:
        await self._ask()
        return await self._log.seek(stream, time_ms)

    async def read(self, stream: StreamName, start: StreamSeq) -> AsyncIterator[Record]:
        await self._ask()
        async for record in self._log.read(stream, start):
            if self.parted:
                await self._silence()
            yield record

    async def tail(
        self,
        stream: StreamName,
        start: StreamSeq,
        on_record: Callable[[Record], None],
        *,
        on_reset: Callable[[StreamState], None] | None = None,
        after: Record | None = None,
    ) -> Tail:
        await self._ask()
        tail = RemoteTail(self, self._broker.network, self._process, on_record, on_reset)
        await self.at_the_log(self._begin(tail, stream, start, after))
        self._tails.append(tail)
        return tail

    async def queue(
        self, stream: StreamName, name: str, subjects: str, limits: QueueLimits = QUEUE_LIMITS
    ) -> RemoteQueue:
        return RemoteQueue(self, await self.there_and_back(lambda: self._log.queue(stream, name, subjects, limits)))

    async def streams(self) -> list[StreamName]:
        await self._ask()
        return await self._log.streams()

    async def close(self) -> None:
        for tail in self._tails:
            await tail.stop()

    async def there_and_back(
        self, what: Callable[[], Coroutine[Any, Any, T]], asked: Callable[[asyncio.Task[T]], None] | None = None
    ) -> T:
        """What the log did, if we were heard and heard of it; Unavailable if not. `asked` is told when it begins."""
        await self._ask()
        task = self.at_the_log(what())
        task.add_done_callback(_heard, context=self._broker.host.context)
        if asked is not None:
            asked(task)
        answer = await asyncio.shield(task)
        await self._on_the_way()
        if self.parted or self._lost(self._broker.options.answer_lost):
            await self._silence()
        return answer

    def at_the_log(self, what: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Done by the log, whatever becomes of who asked."""
        return self._loop.create_task(what, context=self._broker.host.context)

    async def _begin(self, tail: RemoteTail, stream: StreamName, start: StreamSeq, after: Record | None) -> None:
        tail.source = await self._log.tail(stream, start, tail.take, on_reset=tail.take_reset, after=after)

    async def _ask(self) -> None:
        """The way there and back of a question that changes nothing; Unavailable if it fails."""
        if self.parted or self._lost(self._broker.options.ask_lost):
            await self._silence()
        await self._on_the_way()

    async def _on_the_way(self) -> None:
        delay_s = self._broker.network.delay_s()
        if delay_s:
            await asyncio.sleep(delay_s)

    async def _silence(self) -> None:
        await asyncio.sleep(ANSWER_TIMEOUT_S)
        raise Unavailable("no answer from the log")

    def _lost(self, share: float) -> bool:
        return share > 0 and not self._broker.healed and self._random.random() < share

    def _deliver(
        self, arguments: tuple[StreamName, str, bytes, str, StreamSeq], delay_s: float
    ) -> asyncio.Future[StreamSeq]:
        async def arrives() -> StreamSeq:
            if delay_s:
                await asyncio.sleep(delay_s)
            return await self._log.append(*arguments)

        answer = self.at_the_log(arrives())
        answer.add_done_callback(_heard, context=self._broker.host.context)
        return answer


class RemoteTail:
    """What a tail delivers, some time later; in order."""

    def __init__(
        self,
        log: RemoteLog,
        network: Network,
        process: Process,
        on_record: Callable[[Record], None],
        on_reset: Callable[[StreamState], None] | None,
    ) -> None:
        self.source: Tail | None = None
        self._log = log
        self._network = network
        self._process = process
        self._on_record = on_record
        self._on_reset = on_reset
        self._waiting: deque[Record | StreamState] = deque()
        self._arrives_s = 0.0
        self._due = False
        self._stopped = False

    def __repr__(self) -> str:
        return f"<RemoteTail of {self._process.name}, {len(self._waiting)} on the way>"

    async def stop(self) -> None:
        self._stopped = True
        if self.source is not None:
            await self.source.stop()

    def take(self, record: Record) -> None:
        """The log sent it."""
        self._take(record)

    def take_reset(self, state: StreamState) -> None:
        """The log's history is another one."""
        self._take(state)

    def _take(self, item: Record | StreamState) -> None:
        self._waiting.append(item)
        if not self._due:
            self._due = True
            self._arrives_s = max(self._arrives_s, self._network.now_s + self._network.delay_s())
            self._network.later(self._arrives_s, self._process, self._arrive)

    def flush(self) -> None:
        """What was held up arrives."""
        if self._waiting and not self._due:
            self._due = True
            self._network.later(self._network.now_s, self._process, self._arrive)

    def _arrive(self) -> None:
        self._due = False
        while self._waiting and not self._stopped and not self._log.parted:
            item = self._waiting.popleft()
            if isinstance(item, Record):
                self._on_record(item)
            elif self._on_reset is not None:
                self._on_reset(item)


def _heard(answer: asyncio.Future[Any]) -> None:
    """Whoever asked may be dead, or may have given up: an error is nobody's then."""
    if not answer.cancelled():
        answer.exception()
