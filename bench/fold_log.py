"""A log to fold: messages of workers with filling caches, sealed and chained as by their outboxes."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from core.block_spans import stretch
from core.codec import CHAIN_START, digest, encode_event, encode_message
from core.events import BlocksStored, WorkerJoined
from core.ids import SourceId, StreamSeq
from core.prompt import HASH_BYTES, hashes_to_bytes
from core.subjects import SNAPSHOTS, kv_stream, subject
from streams.embedded.embedded_nats import EmbeddedNats
from streams.jetstream.jetstream_log import JetStreamLog
from streams.log import EventLog
from streams.topology import Topology

NAMESPACE = "bench"
CHAIN_KEY = bytes(range(32))
KV = kv_stream(0)
BLOCKS_PER_EVENT = 64
SHARED = 0.5
"""Of the prompts begin with the same eight blocks."""
COMMON = hashes_to_bytes(range(8))
TOPOLOGY = Topology(max_bytes=4 * 10**9)


class Writer:
    """Messages of one worker with a filling cache, in order."""

    def __init__(self, number: int) -> None:
        self.source = SourceId(f"{number:016x}")
        self.subject = subject(NAMESPACE, KV, self.source)
        self._random = random.Random(number)
        self._n = 0
        self._head = CHAIN_START

    def joined(self) -> bytes:
        """The sealed first message."""
        event = WorkerJoined(
            name=f"w{self.source}", model="m", role="decode", engine="bench", block_size=64, capacity_blocks=1 << 20,
            context_max=1 << 17, address="127.0.0.1:1",
        )  # fmt: skip
        return self._seal([encode_event(event), encode_event(BlocksStored(**stretch(COMMON, 0, 8)._asdict()))])

    def stored(self, events: int) -> bytes:
        """A sealed message of so many events of BLOCKS_PER_EVENT blocks each."""
        return self._seal([encode_event(self._stored()) for _ in range(events)])

    def _stored(self) -> BlocksStored:
        """A prompt's first blocks; or those behind eight that all share, so that they begin inside a span."""
        shared = COMMON if self._random.random() < SHARED else b""
        own = hashes_to_bytes(self._random.getrandbits(64) for _ in range(BLOCKS_PER_EVENT))
        first = len(shared) // HASH_BYTES
        return BlocksStored(**stretch(shared + own, first, first + BLOCKS_PER_EVENT)._asdict())

    def _seal(self, events: list[bytes]) -> bytes:
        payload = encode_message(self.source, self._n, self._head, 0, events)
        self._n += 1
        self._head = digest(payload, CHAIN_KEY)
        return payload


async def written(log: EventLog, blocks: int, workers: int, events: int, first: int = 0) -> int:
    """The same is in the log, each worker's messages one after the other; returns how many it has then.

    Workers are numbered from `first` on: others than before say more.
    """
    await log.ensure([KV, SNAPSHOTS])
    per_worker = blocks // (BLOCKS_PER_EVENT * events * workers)
    writers = [Writer(first + number) for number in range(workers)]
    await asyncio.gather(*(_write(log, writer, per_worker, events) for writer in writers))
    return (await log.state(KV)).messages


async def _write(log: EventLog, writer: Writer, count: int, events: int) -> None:
    end = StreamSeq(0)
    for number in range(count + 1):
        payload = writer.stored(events) if number else writer.joined()
        end = await log.append(KV, writer.subject, payload, f"{writer.source}:{number}", end)


@asynccontextmanager
async def broker() -> AsyncIterator[JetStreamLog]:
    """A log over a real nats-server of its own, which ends with it."""
    with tempfile.TemporaryDirectory() as data:
        server = EmbeddedNats(Path(data))
        await server.start()
        try:
            log = await JetStreamLog.connect([server.url], NAMESPACE, TOPOLOGY, server.credentials)
            try:
                yield log
            finally:
                await log.close()
        finally:
            await server.stop()


def messages(blocks: int, workers: int, events: int) -> Iterator[tuple[str, bytes]]:
    """Subjects and payloads, by turns of the workers, until there are so many blocks in all."""
    writers = [Writer(number) for number in range(workers)]
    for writer in writers:
        yield writer.subject, writer.joined()
    for number in range(blocks // (BLOCKS_PER_EVENT * events)):
        writer = writers[number % workers]
        yield writer.subject, writer.stored(events)
