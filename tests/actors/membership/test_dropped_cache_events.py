"""Cache events beyond the bound of a worker's outbox are counted, and its restatement says how many."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from actors.membership.worker_publisher import WorkerPublisher
from core.clock import ManualClock
from core.codec import decode_message
from core.events import CacheRestated
from core.ids import StreamSeq, WorkerId
from core.subjects import JOBS, LOAD, kv_stream
from streams.memory.memory_log import MemoryLog
from streams.outbox.source_chain import DEFAULT_LIMITS
from tests.fixtures.eventually import eventually
from tests.projections.facts import joined, stored
from tests.streams.left import DEPLOYMENT, NAMESPACE

KV = kv_stream(0)
WORKER = WorkerId("a" * 16)


async def restatements(log: MemoryLog) -> list[int]:
    """The counts in all restatements of caches."""
    records = [record async for record in log.read(KV, StreamSeq(1))]
    events = [event for record in records for event in decode_message(record.payload).events]
    return [event.dropped for event in events if isinstance(event, CacheRestated)]


async def test_the_restatement_says_how_many() -> None:
    """All events of the worker that are in no log."""
    log = MemoryLog(NAMESPACE, ManualClock(1))
    await log.ensure([KV, LOAD, JOBS])
    cache: Any = SimpleNamespace(reported=0, restate=lambda _: [CacheRestated(part=0, parts=1, hashes=b"")])
    publisher = WorkerPublisher(
        NAMESPACE, log, ManualClock(5), DEPLOYMENT, WORKER, joined(), cache, jobs_open=lambda: 0,
        on_superseded=lambda: None,
    )  # fmt: skip
    publisher.start()
    publisher.restate()
    assert await publisher.kv.drain(5)
    log.away = True
    publisher.kv.put(stored(1))
    await eventually(lambda: publisher.kv.sealed, "a message in flight")
    for number in range(DEFAULT_LIMITS.pending_events_max + 10):
        publisher.kv.put(stored(number))
    count = publisher.dropped
    assert count == DEFAULT_LIMITS.pending_events_max + 10
    log.away = False
    assert await publisher.kv.drain(5)
    await publisher.leave("asked to")
    assert await restatements(log) == [0, count]
