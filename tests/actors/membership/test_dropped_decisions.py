"""Decisions beyond the journal's bound are counted, and the log says how many when it is back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from actors.membership import routing_publisher as publisher_module
from actors.membership.decision_bases import DecisionBases
from actors.membership.routing_publisher import RoutingPublisher
from core.clock import ManualClock
from core.codec import CHAIN_START, DECISIONS, decode_message, encode_event, encode_message
from core.events import DecisionCounts, Event, LocalChanged, ReplicaJoined, ReplicaLeft, ReplicaLost, ReplicaRestated
from core.ids import SourceId, StreamSeq
from core.subjects import ROUTING
from projections.folds.state import State
from streams.memory.memory_log import MemoryLog
from streams.outbox.backlog import OutboxLimits
from streams.outbox.journal_file import HEADER_BYTES
from streams.outbox.journal_recovery import JournalRecovery
from tests.fixtures.eventually import eventually
from tests.projections.facts import routed
from tests.streams.left import DEPLOYMENT, NAMESPACE

JOINED = ReplicaJoined(name="frontend-0", version="0")
RESTATED = ReplicaRestated(requests=(), attempts=(), models=(), workers=b"", blocks=(), prefill_tokens=())
EVENTS_MAX = 10
LIMITS = OutboxLimits(journal_events_max=EVENTS_MAX, pending_events_max=EVENTS_MAX, pace_s=0.0, retry_max_s=0.05)


@pytest.fixture
async def log(monkeypatch: pytest.MonkeyPatch) -> MemoryLog:
    monkeypatch.setattr(publisher_module, "LIMITS", LIMITS)
    log = MemoryLog(NAMESPACE, ManualClock(1))
    await log.ensure([ROUTING])
    return log


def new_publisher(log: MemoryLog, folder: Path | None) -> RoutingPublisher:
    return RoutingPublisher(
        NAMESPACE,
        log,
        ManualClock(5),
        DEPLOYMENT,
        State(DEPLOYMENT.chain_key),
        DecisionBases(),
        restate=lambda: [JOINED, RESTATED],
        on_superseded=lambda: None,
        journal=folder,
    )


async def events_in(log: MemoryLog) -> list[Event]:
    """Every event in the stream, in order."""
    records = [record async for record in log.read(ROUTING, StreamSeq(1))]
    return [event for record in records for event in decode_message(record.payload).events]  # type: ignore[misc]


def decide(publisher: RoutingPublisher, count: int, begin: int = 0) -> None:
    """So many decisions, each with another event behind it."""
    for number in range(begin, begin + count):
        publisher.decisions_sent += 1
        publisher.publish(routed(f"request-{number}", "a" * 16))
        publisher.publish(LocalChanged(worker=f"{number:016x}", reasons=()))


async def away(publisher: RoutingPublisher, log: MemoryLog) -> None:
    """One decision is in the log, and one in flight, which the log does not take."""
    publisher.start(JOINED)
    decide(publisher, 1)
    assert await publisher.outbox.drain(5)
    log.away = True
    decide(publisher, 1, begin=1)
    await eventually(lambda: publisher.outbox.sealed, "a message in flight")


def counted(events: list[Event]) -> tuple[int, list[DecisionCounts]]:
    """Decisions in the log, and the counts that it states."""
    counts = [event.counts for event in events if isinstance(event, ReplicaRestated | ReplicaLeft) and event.counts]
    return sum(type(event) in DECISIONS for event in events), counts


@pytest.mark.parametrize("kept", ["journal", "memory"])
async def test_the_restatement_says_how_many(tmp_path: Path, log: MemoryLog, kept: str) -> None:
    """Decisions and other events apart; every decision is in the log or counted."""
    publisher = new_publisher(log, tmp_path if kept == "journal" else None)
    await away(publisher, log)
    decide(publisher, 30, begin=2)
    assert publisher.counts == DecisionCounts(32, 30, 30)
    assert publisher.outbox.dropped_ms is not None
    log.away = False
    assert await publisher.outbox.drain(5)
    decide(publisher, 2, begin=32)
    await publisher.leave("asked to")
    decisions, counts = counted(await events_in(log))
    assert counts == [DecisionCounts(32, 30, 30), DecisionCounts(34, 30, 30)]
    assert decisions == 4 == counts[-1].made - counts[-1].dropped


async def test_a_loss_of_the_log_is_not_called_a_drop(log: MemoryLog, caplog: pytest.LogCaptureFixture) -> None:
    """A message that the log acknowledged and lost leads to a restatement, and to a sentence that names the log."""
    publisher = new_publisher(log, None)
    publisher.start(JOINED)
    decide(publisher, 3)
    assert await publisher.outbox.drain(5)
    log.cut(ROUTING, StreamSeq((await log.state(ROUTING)).last_seq - 1))
    decide(publisher, 1, begin=3)
    await eventually(lambda: publisher.outbox.counts.restated, "a restatement")
    await publisher.leave("asked to")
    assert publisher.counts.dropped == 0
    assert "the log does not end with the message that it acknowledged last" in caplog.text
    assert "dropped" not in caplog.text


async def test_a_drop_is_not_called_a_loss_of_the_log(log: MemoryLog, caplog: pytest.LogCaptureFixture) -> None:
    publisher = new_publisher(log, None)
    await away(publisher, log)
    decide(publisher, 30, begin=2)
    log.away = False
    assert await publisher.outbox.drain(5)
    assert "60 events were dropped here, 30 of them decisions: more waited for the log than fits" in caplog.text
    assert "acknowledged last" not in caplog.text
    await publisher.leave("asked to")


async def test_a_replica_that_leaves_meanwhile(tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end says it, when the log is back."""
    monkeypatch.setattr(publisher_module, "LEAVE_TIMEOUT_S", 0.2)
    publisher = new_publisher(log, None)
    await away(publisher, log)
    decide(publisher, EVENTS_MAX // 2, begin=2)
    assert publisher.counts.dropped == 0
    monkeypatch.setattr(log, "away", True)
    publisher.outbox.finish(LocalChanged(worker="a" * 16, reasons=()))
    assert publisher.outbox.drops
    log.away = False
    await publisher.leave("asked to")
    decisions, counts = counted(await events_in(log))
    assert decisions == counts[-1].made - counts[-1].dropped
    assert counts[-1].dropped == EVENTS_MAX // 2


async def test_a_process_that_dies_in_between(tmp_path: Path, log: MemoryLog) -> None:
    """The successor that drains the journal says it in the end of the replica."""
    publisher = new_publisher(log, tmp_path)
    await away(publisher, log)
    decide(publisher, 30, begin=2)
    await publisher.end()
    log.away = False
    await recover(log, tmp_path)
    decisions, counts = counted(await events_in(log))
    assert (decisions, counts) == (2, [DecisionCounts(32, 30, 30)])


async def test_a_replica_that_was_found_lost_meanwhile(tmp_path: Path, log: MemoryLog) -> None:
    """It can say nothing under that id any more; the recovery of its journal says it behind the end."""
    publisher = new_publisher(log, tmp_path)
    publisher.start(JOINED)
    decide(publisher, 1)
    assert await publisher.outbox.drain(5)
    lost = encode_event(ReplicaLost(by="b" * 16, reason="silent"))
    payload = encode_message(SourceId(f"{publisher.id}-lost"), 0, CHAIN_START, 0, [lost])
    last_seq = publisher.outbox.last_seq
    log.away = True
    decide(publisher, 30, begin=1)
    log.away = False
    await log.append(ROUTING, publisher.outbox.subject, payload, "lost:0", last_seq)
    await eventually(lambda: publisher.outbox.superseded, "the end is found")
    await publisher.retire()
    await recover(log, tmp_path)
    decisions, counts = counted(await events_in(log))
    assert decisions == counts[-1].made - counts[-1].dropped
    assert counts[-1].dropped > 0
    assert not list(tmp_path.iterdir())


async def recover(log: MemoryLog, folder: Path) -> None:
    await JournalRecovery(folder, NAMESPACE, log, ManualClock(9), DEPLOYMENT).recover()


@pytest.mark.parametrize("tear", ["cut", "changed"])
async def test_a_torn_journal(
    tmp_path: Path, log: MemoryLog, tear: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The events of its lost tail are named: the log has the others."""
    monkeypatch.setattr(publisher_module, "LIMITS", OutboxLimits())
    publisher = new_publisher(log, tmp_path)
    await away(publisher, log)
    decide(publisher, 10, begin=2)
    await publisher.end()
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    place = whole.index(b"request-7")
    if tear == "cut":
        os.truncate(path, place)
    else:
        path.write_bytes(whole[:place] + b"x" + whole[place + 1 :])
    log.away = False
    await recover(log, tmp_path)
    decisions, counts = counted(await events_in(log))
    assert (decisions, counts) == (7, [DecisionCounts(12, 5, 5)])
    assert place > HEADER_BYTES
    assert "records behind offset" in caplog.text


async def test_nothing_is_said_of_nothing(tmp_path: Path, log: MemoryLog) -> None:
    """A replica without a decision states no counts."""
    publisher = new_publisher(log, tmp_path)
    publisher.start(JOINED)
    await publisher.leave("asked to")
    assert await events_in(log) == [JOINED, ReplicaLeft(reason="asked to")]
