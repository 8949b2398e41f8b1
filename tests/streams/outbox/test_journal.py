"""A journal is a backlog, bounded and in order, and another process can go on where this one was killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from core.clock import ManualClock
from core.errors import Corrupt, Refused, Unavailable
from core.events import ReplicaLeft
from streams.memory.memory_log import MemoryLog
from streams.outbox import journal as journals
from streams.outbox import journal_file
from streams.outbox.backlog import OutboxLimits
from streams.outbox.journal import Journal
from streams.outbox.journal_file import HEADER_BYTES, JournalFile
from tests.fixtures.eventually import eventually
from tests.streams.left import (
    SMALL_BYTES,
    acknowledge,
    left_journal,
    new_journal,
    put,
    seal_next,
    told_by,
    waiting,
    whose,
)
from tests.streams.source import KV, SOURCE, Owner, messages, outbox_on, reasons, running, said


def path_in(folder: Path) -> Path:
    return folder / f"{SOURCE}.journal"


def test_what_was_put_is_left(tmp_path: Path) -> None:
    """A successor finds the message in flight byte for byte, then what was not sealed, in order, and the chain."""
    journal = new_journal(tmp_path)
    put(journal, *range(3))
    acknowledge(journal, seal_next(journal), 7)
    put(journal, *range(3, 6))
    sealed = seal_next(journal)
    put(journal, *range(6, 9))
    standing = journal.standing
    assert repr(journal).startswith(f"<Journal {SOURCE}.journal: 3 events, ")
    journal.close(delete=False)
    left = left_journal(path_in(tmp_path))
    assert (left.source, left.standing, left.in_flight(), left.events) == (SOURCE, standing, sealed, 3)
    assert (left.standing.n_acked, left.standing.last_seq) == (1, 7)
    assert waiting(left) == ["6", "7", "8"]
    left.close(delete=True)
    assert not list(tmp_path.iterdir())


def test_the_living_hold_their_journal(tmp_path: Path) -> None:
    """Nobody finds a journal whose process lives; one that is gone is no error."""
    journal = new_journal(tmp_path)
    assert Journal.open_left(path_in(tmp_path), whose(), OutboxLimits()) is None
    journal.close(delete=False)
    left = left_journal(path_in(tmp_path))
    assert Journal.open_left(path_in(tmp_path), whose(), OutboxLimits()) is None
    left.close(delete=True)
    left.close(delete=True)
    assert Journal.open_left(path_in(tmp_path), whose(), OutboxLimits()) is None


@pytest.mark.parametrize("other", [{"namespace": "other"}, {"key": b"other"}])
def test_another_deployment_s_journal_is_refused(tmp_path: Path, other: dict[str, str]) -> None:
    """By its namespace and by its key, of which the file holds nothing but a check."""
    new_journal(tmp_path).close(delete=False)
    with pytest.raises(Refused, match="another deployment"):
        Journal.open_left(path_in(tmp_path), whose(**other), OutboxLimits())  # type: ignore[arg-type]
    assert path_in(tmp_path).exists()


@pytest.mark.parametrize("length", [0, 100, HEADER_BYTES - 1])
def test_a_file_without_a_header_is_corrupt(tmp_path: Path, length: int) -> None:
    """Also one that was cut within it."""
    new_journal(tmp_path).close(delete=False)
    whole = path_in(tmp_path).read_bytes()
    path_in(tmp_path).write_bytes(whole[:length])
    with pytest.raises(Corrupt):
        Journal.open_left(path_in(tmp_path), whose(), OutboxLimits())


def test_readable_messages(tmp_path: Path) -> None:
    """Events of low rate are JSON out of a journal as out of memory, and only if they are alone."""
    journal = new_journal(tmp_path)
    assert journal.offer(ReplicaLeft(reason="x"))
    assert seal_next(journal).payload.startswith(b"{")
    assert journal.offer(ReplicaLeft(reason="x"))
    put(journal, 1)
    assert not seal_next(journal).payload.startswith(b"{")
    journal.close(delete=True)


def test_the_ring_wraps(tmp_path: Path) -> None:
    """Many times the capacity goes through, in order, and what is left at any time is whole."""
    journal = new_journal(tmp_path, limits=OutboxLimits(events_max=7))
    first, last = 0, 0
    for turn in range(400):
        for _ in range(5):
            if journal.offer(said(f"{last:05}" + "x" * (turn % 90))):
                last += 1
        sealed = seal_next(journal)
        if turn % 50 == 49:
            journal.close(delete=False)
            journal = left_journal(path_in(tmp_path), OutboxLimits(events_max=7))
            assert journal.in_flight() == sealed
        first += sealed.events
        acknowledge(journal, sealed, turn + 1)
        assert journal.events == last - first
    assert journal.standing.events_from > 10 * SMALL_BYTES
    assert [name[:5] for name in waiting(journal)] == [f"{i:05}" for i in range(first, last)]
    journal.close(delete=True)


def test_an_empty_ring_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quiet outbox touches the first pages only; what a busy one took is given back when all is told."""
    monkeypatch.setattr(journals, "REWIND_BYTES", 4096)
    monkeypatch.setattr(journals, "RELEASE_BYTES", 2 * journal_file.EXTENT_BYTES)
    journal = new_journal(tmp_path, 16 * journal_file.EXTENT_BYTES)
    blocks = path_in(tmp_path).stat().st_blocks
    for i in range(1000):
        put(journal, f"{i}" + "x" * 100)
        acknowledge(journal, seal_next(journal), i)
    assert path_in(tmp_path).stat().st_blocks == blocks
    while journal.held.bytes < 4 * journal_file.EXTENT_BYTES:
        put(journal, "x" * 10_000)
    assert path_in(tmp_path).stat().st_blocks * 512 > 4 * journal_file.EXTENT_BYTES
    while journal.events:
        acknowledge(journal, seal_next(journal), 1)
    assert path_in(tmp_path).stat().st_blocks < 2 * blocks
    put(journal, "after")
    journal.close(delete=False)
    assert waiting(left_journal(path_in(tmp_path))) == ["after"]


def test_full(tmp_path: Path) -> None:
    """What is offered past the ring's share is refused, and what waits is untouched; a restatement finds room."""
    journal = new_journal(tmp_path)
    count = 0
    while journal.offer(said(f"{count:04}")):
        count += 1
    held = journal.held
    assert held.capacity_bytes == SMALL_BYTES
    assert SMALL_BYTES - SMALL_BYTES // journals.RESERVE_SHARE - 64 < held.bytes <= SMALL_BYTES
    assert held.events == count
    assert journal.restate(said("restated"))
    assert waiting(journal) == [*(f"{i:04}" for i in range(count)), "restated"]
    journal.close(delete=True)


@pytest.mark.parametrize("over", [0, 1])
def test_events_at_the_bound(tmp_path: Path, over: int) -> None:
    """`journal_events_max` events wait; one more is refused."""
    journal = new_journal(tmp_path, limits=OutboxLimits(journal_events_max=10))
    put(journal, *range(9 + over))
    assert journal.offer(said("one more")) == (not over)
    assert journal.events == 10
    journal.close(delete=True)


def test_a_message_that_finds_no_room(tmp_path: Path) -> None:
    """It goes out all the same, and its events are left in its place until it is acknowledged."""
    journal = new_journal(tmp_path)
    while journal.restate(said("x" * 20)):
        pass
    count = journal.events
    sealed = seal_next(journal)
    journal.close(delete=False)
    left = left_journal(path_in(tmp_path))
    assert left.in_flight() is None
    assert left.events == sealed.events == count
    acknowledge(left, seal_next(left), 1)
    assert (left.events, left.held.bytes) == (0, 0)
    left.close(delete=True)


def test_a_full_disk_is_a_full_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is stored where the disk has no room for it, which would kill the process; a new one is refused."""
    journal = new_journal(tmp_path, 4 * journal_file.EXTENT_BYTES)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    large = said("x" * 10_000)
    while journal.offer(large):
        pass
    assert journal_file.EXTENT_BYTES - 2 * 10_100 < journal.held.bytes <= journal_file.EXTENT_BYTES
    journal.close(delete=True)
    with pytest.raises(Unavailable, match="no journal"):
        new_journal(tmp_path)
    assert not list(tmp_path.iterdir())


async def test_an_outbox_over_a_journal(tmp_path: Path) -> None:
    """It overflows, restates, and goes on as over memory; the file is empty when the log has all."""
    log = MemoryLog("test", ManualClock(1))
    await log.ensure([KV])
    owner = Owner()
    journal = new_journal(tmp_path)
    outbox = outbox_on(log, owner, backlog=journal)
    log.away = True
    async with running(outbox):
        outbox.put(said("in flight"))
        await eventually(lambda: outbox.sealed)
        for i in range(200):
            outbox.put(said(f"{i:03}"))
        assert outbox.counts.overflows == 1
        assert outbox.held.capacity_bytes == SMALL_BYTES
        log.away = False
        assert await outbox.drain(5)
        outbox.put(said("after"))
        assert await outbox.drain(5)
    assert reasons(await messages(log)) == ["in flight", "restated", "after"]
    assert (owner.restated, outbox.counts.dropped_events, journal.events, journal.held.bytes) == (1, 200, 0, 0)
    journal.close(delete=False)
    assert told_by(left_journal(path_in(tmp_path))) == []


async def test_a_restatement_that_finds_no_room(tmp_path: Path) -> None:
    """The rest is dropped for it; what does not fit into an empty ring is counted as dropped, and all goes on."""
    log = MemoryLog("test", ManualClock(1))
    await log.ensure([KV])
    owner = Owner()
    owner.restatement = [said("a"), said("x" * SMALL_BYTES), said("b")]
    outbox = outbox_on(log, owner, backlog=new_journal(tmp_path))
    async with running(outbox):
        outbox.put(said("first"))
        assert await outbox.drain(5)
        log.cut(KV, 0)  # type: ignore[arg-type]
        await eventually(lambda: owner.restated == 1)
        assert await outbox.drain(5)
    assert reasons(await messages(log)) == ["a", "b"]
    assert outbox.counts.dropped_events == 1


def test_a_draft_is_no_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is whole and locked a file has another name."""
    seen: list[list[str]] = []

    def named(self: JournalFile, path: Path) -> JournalFile:
        seen.append([found.suffix for found in tmp_path.iterdir()])
        return real(self, path)

    real = JournalFile.named
    monkeypatch.setattr(JournalFile, "named", named)
    new_journal(tmp_path).close(delete=True)
    assert seen == [[journal_file.DRAFT_SUFFIX]]
