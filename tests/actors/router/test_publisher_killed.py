"""A real process, killed with -9: what it had said is in the log once, in order, in a whole chain."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from core.clock import ManualClock, SystemClock
from core.codec import CHAIN_START, decode_message, digest
from core.events import Event, LocalChanged, ReplicaJoined, ReplicaLeft, UnknownEvent
from core.ids import StreamSeq
from core.subjects import ROUTING, subject
from streams.embedded.embedded_nats import EmbeddedNats
from streams.jetstream.jetstream_log import JetStreamLog
from streams.log import EventLog
from streams.memory.memory_log import MemoryLog
from streams.outbox.journal_recovery import JournalRecovery
from streams.topology import Topology
from tests.streams.left import DEPLOYMENT, NAMESPACE

ROOT = Path(__file__).resolve().parents[2]
TOPOLOGY = Topology(max_bytes=10**8)


def killed_after(events: int, *arguments: str) -> tuple[str, int]:
    """The process's id in the log, and how many events it had said for certain when it was killed."""
    command = [sys.executable, "-m", "tests.actors.doomed", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        replica = process.stdout.readline().strip()
        said = 0
        while said < events:
            said = int(process.stdout.readline())
        process.kill()
        rest = process.stdout.read()
    whole = rest[: rest.rfind("\n") + 1].split()
    return replica, int(whole[-1]) if whole else said


async def chain(log: EventLog, replica: str) -> list[Event | UnknownEvent]:
    """The replica's events; asserts that its chain is whole."""
    found: list[Event | UnknownEvent] = []
    n, head = 0, CHAIN_START
    async for record in log.read(ROUTING, StreamSeq(1)):
        if record.subject == subject(NAMESPACE, ROUTING, replica):
            message = decode_message(record.payload)
            assert (message.source, message.n, message.prev) == (replica, n, head)
            n, head = n + 1, digest(record.payload, DEPLOYMENT.chain_key)
            found += message.events
    return found


def check(events: list[Event | UnknownEvent], said: int) -> None:
    """All that was said, once, in order; at most one event more, whose word was lost."""
    assert isinstance(events[0], ReplicaJoined)
    assert isinstance(events[-1], ReplicaLeft)
    numbers = [int(event.worker, 16) for event in events if isinstance(event, LocalChanged)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) == len(events) - 2
    assert said <= len(numbers) <= said + 1


async def test_with_the_broker_away(tmp_path: Path) -> None:
    """Thousands of events of which the log never heard."""
    replica, said = killed_after(3000, str(tmp_path))
    log = MemoryLog(NAMESPACE, ManualClock(1))
    await log.ensure([ROUTING])
    await JournalRecovery(tmp_path, NAMESPACE, log, SystemClock(), DEPLOYMENT).recover()
    check(await chain(log, replica), said)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("seed", range(4))
async def test_in_the_middle_of_appending(tmp_path: Path, seed: int) -> None:
    """Killed at a random moment of appending to a real broker, with a message in flight or not."""
    server = EmbeddedNats(tmp_path / "nats")
    await server.start()
    credentials = server.credentials
    journals = tmp_path / "journals"
    try:
        events = random.Random(seed).randrange(1, 2000)
        given = (str(journals), server.url, str(credentials.nkey_file))
        replica, said = killed_after(events, *given)
        log = await JetStreamLog.connect([server.url], NAMESPACE, TOPOLOGY, credentials)
        await JournalRecovery(journals, NAMESPACE, log, SystemClock(), DEPLOYMENT).recover()
        check(await chain(log, replica), said)
        await log.close()
    finally:
        await server.stop()
    assert not list(journals.iterdir())
