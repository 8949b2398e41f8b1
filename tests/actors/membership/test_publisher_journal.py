"""A replica's words outlive its process: they stand in its journal until the log has them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from actors.membership import routing_publisher as publisher_module
from actors.membership.decision_bases import DecisionBases
from actors.membership.routing_publisher import RoutingPublisher
from core.clock import ManualClock
from core.codec import CHAIN_START, decode_message, encode_event, encode_message
from core.events import Event, LocalChanged, ReplicaJoined, ReplicaLeft, ReplicaLost
from core.ids import SourceId, StreamSeq
from core.subjects import ROUTING, subject
from projections.folds.state import State
from streams.memory.memory_log import MemoryLog
from streams.outbox.journal_recovery import REASON, JournalRecovery
from tests.fixtures.eventually import eventually
from tests.streams.left import DEPLOYMENT, NAMESPACE

JOINED = ReplicaJoined(name="frontend-0", version="0")


@pytest.fixture
async def log() -> MemoryLog:
    log = MemoryLog(NAMESPACE, ManualClock(1))
    await log.ensure([ROUTING])
    return log


def local(number: int) -> Event:
    return LocalChanged(worker=f"{number:016x}", reasons=())


def new_publisher(log: MemoryLog, folder: Path, ended: list[str] | None = None) -> RoutingPublisher:
    return RoutingPublisher(
        NAMESPACE,
        log,
        ManualClock(5),
        DEPLOYMENT,
        State(DEPLOYMENT.chain_key),
        DecisionBases(),
        restate=list,
        on_superseded=lambda: ended.append("superseded") if ended is not None else None,
        journal=folder,
    )


async def events_in(log: MemoryLog) -> list[object]:
    """Every event in the stream, in order."""
    records = [record async for record in log.read(ROUTING, StreamSeq(1))]
    return [event for record in records for event in decode_message(record.payload).events]


async def recover(log: MemoryLog, folder: Path) -> None:
    await JournalRecovery(folder, NAMESPACE, log, ManualClock(9), DEPLOYMENT).recover()


async def test_a_clean_end_leaves_no_journal(tmp_path: Path, log: MemoryLog) -> None:
    """The log has all of it; what is said afterwards is dropped."""
    folder = tmp_path / "journals"
    publisher = new_publisher(log, folder)
    assert publisher.journal.capacity_bytes > 0
    publisher.start(JOINED)
    publisher.publish(local(1))
    assert (publisher.journal.events, len(list(folder.iterdir()))) == (2, 1)
    await publisher.leave("asked to")
    assert not list(folder.iterdir())
    publisher.publish(local(2))
    assert await events_in(log) == [JOINED, local(1), ReplicaLeft(reason="asked to")]


async def test_it_leaves_while_the_log_is_away(tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last words wait for a successor, its own end among them."""
    monkeypatch.setattr(publisher_module, "LEAVE_TIMEOUT_S", 0.01)
    publisher = new_publisher(log, tmp_path)
    log.away = True
    publisher.start(JOINED)
    await publisher.leave("asked to")
    log.away = False
    await recover(log, tmp_path)
    assert await events_in(log) == [JOINED, ReplicaLeft(reason="asked to")]


async def test_it_ends_without_a_word(tmp_path: Path, log: MemoryLog) -> None:
    """A successor says that it ended."""
    publisher = new_publisher(log, tmp_path)
    publisher.start(JOINED)
    assert await publisher.outbox.drain(5)
    await publisher.end()
    await recover(log, tmp_path)
    assert await events_in(log) == [JOINED, ReplicaLeft(reason=REASON)]


async def test_superseded(tmp_path: Path, log: MemoryLog) -> None:
    """What it had not told when another wrote its end is told behind that end; nothing is, if nothing waits."""
    ended: list[str] = []
    publisher = new_publisher(log, tmp_path, ended)
    publisher.start(JOINED)
    assert await publisher.outbox.drain(5)
    lost = ReplicaLost(by="b" * 16, reason="silent")
    payload = encode_message(SourceId(f"{publisher.id}-lost"), 0, CHAIN_START, 0, [encode_event(lost)])
    where = subject(NAMESPACE, ROUTING, publisher.id)
    await log.append(ROUTING, where, payload, f"{publisher.id}-lost:0", publisher.outbox.last_seq)
    publisher.publish(local(1))
    await eventually(lambda: ended)
    await publisher.end()
    for _ in range(2):
        await recover(log, tmp_path)
    assert await events_in(log) == [JOINED, lost, local(1), ReplicaLeft(reason=REASON)]
    assert not list(tmp_path.iterdir())


async def test_a_disk_that_refuses(
    tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The replica serves all the same, from memory, and says what that means."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    publisher = new_publisher(log, tmp_path)
    assert "No space left" in caplog.text
    assert publisher.journal == (0, 0, 0)
    publisher.start(JOINED)
    await publisher.leave("asked to")
    assert len(await events_in(log)) == 2
    assert not list(tmp_path.iterdir())


async def test_many_at_once(tmp_path: Path, log: MemoryLog) -> None:
    """Replicas in one folder do not touch each other's journals while they live."""
    all_of_them = [new_publisher(log, tmp_path) for _ in range(5)]
    for publisher in all_of_them:
        publisher.start(JOINED)
    await recover(log, tmp_path)
    assert len(list(tmp_path.iterdir())) == 5
    await asyncio.gather(*(publisher.leave("asked to") for publisher in all_of_them))
    assert not list(tmp_path.iterdir())
    assert len(await events_in(log)) == 10
