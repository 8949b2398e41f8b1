"""An outbox with an owner, for tests: what it was told, and what the log holds of its chain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from core.clock import Clock, ManualClock
from core.codec import CHAIN_START, Message, decode_message, digest
from core.events import CacheCleared, Event
from core.ids import SourceId, StreamSeq
from core.subjects import kv_stream, subject
from streams.log import EventLog, Record
from streams.outbox.backlog import Backlog, OutboxLimits
from streams.outbox.outbox import Outbox

KV = kv_stream(0)
KEY = b"key"
SOURCE = SourceId("a" * 16)
SUBJECT = subject("test", KV, SOURCE)
RESTATED = CacheCleared(reason="restated")
QUICK = OutboxLimits(retry_min_s=0.001, retry_max_s=0.004, idle_check_s=0.02, pace_s=0.0)


def said(text: object) -> Event:
    """An event that can be told from others."""
    return CacheCleared(reason=str(text))


class Owner:
    """Who an outbox calls."""

    def __init__(self) -> None:
        self.restatement: Sequence[Event] = [RESTATED]
        self.restated = 0
        self.superseded: list[Record] = []

    def restate(self) -> Sequence[Event]:
        self.restated += 1
        return self.restatement


def outbox_on(
    log: EventLog,
    owner: Owner,
    limits: OutboxLimits = QUICK,
    written: str = SUBJECT,
    backlog: Backlog | None = None,
    clock: Clock | None = None,
) -> Outbox:
    return Outbox(
        log,
        KV,
        written,
        SOURCE,
        KEY,
        clock or ManualClock(5),
        on_overflow=owner.restate,
        on_superseded=owner.superseded.append,
        limits=limits,
        backlog=backlog,
    )


@asynccontextmanager
async def running(outbox: Outbox) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(outbox.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def messages(log: EventLog) -> list[Message]:
    """What the stream holds; asserts that each message continues the chain, except behind a gap."""
    out: list[Message] = []
    head = CHAIN_START
    async for record in log.read(KV, StreamSeq(1)):
        message = decode_message(record.payload)
        assert message.source == SOURCE
        assert message.n >= len(out)
        if message.n == (out[-1].n + 1 if out else 0):
            assert message.prev == head
        head = digest(record.payload, KEY)
        out.append(message)
    return out


def reasons(found: list[Message]) -> list[str]:
    return [event.reason for message in found for event in message.events if isinstance(event, CacheCleared)]
