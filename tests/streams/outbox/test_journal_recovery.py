"""What a killed process had not told is told by whoever comes after, once, in its chain, up to its end."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest

from core.clock import ManualClock
from core.codec import CHAIN_START, decode_message, digest, encode_event, encode_message
from core.events import CacheCleared, ReplicaLeft, ReplicaLost
from core.ids import SourceId, StreamSeq
from core.keys import DeploymentKey
from core.subjects import ROUTING, subject
from streams.log import EventLog
from streams.memory.memory_log import MemoryLog
from streams.outbox import journal_recovery
from streams.outbox.backlog import OutboxLimits, SealedMessage
from streams.outbox.journal import Journal, identity
from streams.outbox.journal_recovery import REASON, JournalRecovery
from tests.streams.left import DEPLOYMENT, KEY, NAMESPACE, acknowledge, new_journal, put, seal_next, whose
from tests.streams.source import SOURCE, said

SUBJECT = subject(NAMESPACE, ROUTING, SOURCE)
END = f"left: {REASON}"


@pytest.fixture
async def log() -> MemoryLog:
    log = MemoryLog(NAMESPACE, ManualClock(1))
    await log.ensure([ROUTING])
    return log


def successor(folder: Path, log: EventLog, key: DeploymentKey = DEPLOYMENT) -> JournalRecovery:
    return JournalRecovery(folder, NAMESPACE, log, ManualClock(9), key)


async def offered(log: EventLog, sealed: SealedMessage) -> StreamSeq:
    """The process appended it while it lived."""
    last = await log.last(ROUTING, SUBJECT)
    expected = StreamSeq(0 if last is None else last.seq)
    return await log.append(ROUTING, SUBJECT, sealed.payload, sealed.message_id, expected)


async def append_sealed(journal: Journal, log: EventLog, *names: object) -> None:
    """One message that the log has and that is acknowledged."""
    put(journal, *names)
    sealed = seal_next(journal)
    acknowledge(journal, sealed, await offered(log, sealed))


async def lost(log: EventLog) -> None:
    """Another replica writes the end."""
    last = await log.last(ROUTING, SUBJECT)
    payload = encode_message(
        SourceId(f"{SOURCE}-lost"), 0, CHAIN_START, 0, [encode_event(ReplicaLost(by="b" * 16, reason="silent"))]
    )
    await log.append(ROUTING, SUBJECT, payload, f"{SOURCE}-lost:0", StreamSeq(0 if last is None else last.seq))


async def history(log: EventLog) -> list[str]:
    """What the log has of the source; asserts that its own chain is whole from 0 on, without a repeat."""
    names: list[str] = []
    n, head = 0, CHAIN_START
    async for record in log.read(ROUTING, StreamSeq(1)):
        message = decode_message(record.payload)
        if message.source == SOURCE:
            assert (message.n, message.prev) == (n, head)
            n, head = n + 1, digest(record.payload, KEY)
        for event in message.events:
            match event:
                case CacheCleared():
                    names.append(event.reason)
                case ReplicaLeft():
                    names.append(f"left: {event.reason}")
                case _:
                    names.append("lost")
    return names


@pytest.mark.parametrize("stored", ["stored", "not stored"])
@pytest.mark.parametrize("ended", ["ended", "not ended"])
async def test_all_is_told_once(tmp_path: Path, log: MemoryLog, stored: str, ended: str) -> None:
    """The message in flight, whether the log has it or not, what was not sealed, and the end; the file is gone.

    Also behind an end that another replica wrote meanwhile.
    """
    journal = new_journal(tmp_path)
    await append_sealed(journal, log, "a", "b")
    put(journal, "c", "d")
    sealed = seal_next(journal)
    put(journal, "e", "f")
    if stored == "stored":
        await offered(log, sealed)
    if ended == "ended":
        await lost(log)
    journal.close(delete=False)
    by = successor(tmp_path, log)
    await by.recover()
    own = ["a", "b", "c", "d", "e", "f", END]
    own.insert(4 if stored == "stored" else 2, "lost") if ended == "ended" else None
    assert await history(log) == own
    assert sealed.payload in [record.payload async for record in log.read(ROUTING, StreamSeq(1))]
    assert not list(tmp_path.iterdir())
    assert (by.counts.recovered, by.counts.refused) == (1, 0)
    await by.recover()
    assert len(await history(log)) == len(own)


@pytest.mark.parametrize("case", ["silent", "quiet", "left", "lost", "lost unheard", "leaving"])
async def test_an_end_is_told_once(tmp_path: Path, log: MemoryLog, case: str) -> None:
    """A process that said nothing has no end; one with nothing left is ended, unless it was or had said so itself."""
    journal = new_journal(tmp_path)
    if case != "silent":
        await append_sealed(journal, log, "a")
    if case == "left":
        journal.offer(ReplicaLeft(reason="x"))
        sealed = seal_next(journal)
        acknowledge(journal, sealed, await offered(log, sealed))
    elif case == "leaving":
        journal.offer(ReplicaLeft(reason="x"))
    elif case == "lost":
        await lost(log)
    elif case == "lost unheard":
        put(journal, "b")
        await offered(log, seal_next(journal))
        await lost(log)
    journal.close(delete=False)
    await successor(tmp_path, log).recover()
    assert (
        await history(log)
        == {
            "silent": [],
            "quiet": ["a", END],
            "left": ["a", "left: x"],
            "leaving": ["a", "left: x"],
            "lost": ["a", "lost"],
            "lost unheard": ["a", "b", "lost"],
        }[case]
    )
    assert not list(tmp_path.iterdir())


async def test_no_room_for_the_end(tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal on a full disk stays until its source's end finds room; nothing is told twice."""
    journal = new_journal(tmp_path)
    put(journal, "a")
    journal.close(delete=False)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "offer", lambda *_: False)
        await successor(tmp_path, log).recover()
    assert await history(log) == ["a"]
    assert list(tmp_path.iterdir())
    await successor(tmp_path, log).recover()
    assert await history(log) == ["a", END]
    assert not list(tmp_path.iterdir())


async def test_two_successors_at_once(tmp_path: Path, log: MemoryLog) -> None:
    """The lock decides: each journal is told by one of them."""
    journal = new_journal(tmp_path)
    put(journal, *map(str, range(20)))
    journal.close(delete=False)
    both = [successor(tmp_path, log), successor(tmp_path, log)]
    await asyncio.gather(*(one.recover() for one in both))
    assert await history(log) == [*map(str, range(20)), END]
    assert sum(one.counts.recovered for one in both) == 1


@pytest.mark.parametrize("way", ["killed", "log away"])
@pytest.mark.parametrize("turns", range(1, 26, 2))
async def test_interrupted_and_resumed(
    tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch, way: str, turns: int
) -> None:
    """A successor that is itself killed, or that the log leaves at any step, leaves the rest to the next look."""
    monkeypatch.setattr(journal_recovery, "LIMITS", OutboxLimits(events_max=3, pace_s=0.0))
    journal = new_journal(tmp_path)
    await append_sealed(journal, log, "a")
    put(journal, *"bcdefghijk")
    seal_next(journal)
    journal.close(delete=False)
    first = asyncio.create_task(successor(tmp_path, log).recover())
    for _ in range(turns):
        await asyncio.sleep(0)
    if way == "killed":
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
    else:
        log.acks_to_lose = 1
        await asyncio.sleep(0)
        log.away = True
        await first
        log.away = False
        log.acks_to_lose = 0
    await successor(tmp_path, log).recover()
    assert await history(log) == [*"abcdefghijk", END]
    assert not list(tmp_path.iterdir())


async def test_it_waits_for_the_log(tmp_path: Path, log: MemoryLog, caplog: pytest.LogCaptureFixture) -> None:
    """For as long as it takes, and says so once."""
    journal = new_journal(tmp_path)
    put(journal, "a")
    journal.close(delete=False)
    by = successor(tmp_path, log)
    log.away = True
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await by.recover()
    assert [record.message for record in caplog.records] == [
        f"{SOURCE}.journal waits until it can be told: the log is away"
    ]
    log.away = False
    await by.recover()
    assert await history(log) == ["a", END]


async def test_history_cut_behind_its_back(tmp_path: Path, log: MemoryLog) -> None:
    """A log that lost acknowledged messages gets what is left, under the numbers that it has: the gap can be seen."""
    journal = new_journal(tmp_path)
    for name in "abc":
        await append_sealed(journal, log, name)
    put(journal, "d")
    journal.close(delete=False)
    log.cut(ROUTING, StreamSeq(1))
    await successor(tmp_path, log).recover()
    found = [decode_message(record.payload) async for record in log.read(ROUTING, StreamSeq(1))]
    assert [message.n for message in found] == [0, 3, 4]


async def test_journals_that_are_not_told(tmp_path: Path, log: MemoryLog, caplog: pytest.LogCaptureFixture) -> None:
    """A broken one is kept aside; another deployment's stays; the living one's is not touched. Each is said once."""
    foreign = Journal.create(tmp_path, identity("other", ROUTING, "f" * 16, KEY), journal_recovery.LIMITS, 4096)
    foreign.close(delete=False)
    (tmp_path / "broken.journal").write_bytes(b"x" * 9000)
    living = new_journal(tmp_path)
    by = successor(tmp_path, log)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await by.recover()
    assert len(caplog.records) == 2
    assert "kept as" in caplog.text
    assert "another deployment" in caplog.text
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{SOURCE}.journal", "broken.journal.broken", f"{'f' * 16}.journal",
    ]  # fmt: skip
    assert by.counts.refused == 2
    assert await history(log) == []
    living.close(delete=True)


@pytest.mark.parametrize("rotations", [1, 2])
async def test_a_journal_outlives_a_new_generation_of_the_key(tmp_path: Path, log: MemoryLog, rotations: int) -> None:
    """The chain goes on, and ends, under the generation under which its process began it."""
    journal = new_journal(tmp_path)
    await append_sealed(journal, log, "a")
    put(journal, "b")
    journal.close(delete=False)
    key = DEPLOYMENT
    for _ in range(rotations):
        key = key.rotated()
    by = successor(tmp_path, log, key)
    await by.recover()
    assert await history(log) == ["a", "b", END]
    assert not list(tmp_path.iterdir())


async def test_a_journal_of_a_forgotten_generation_is_left_alone(tmp_path: Path, log: MemoryLog) -> None:
    """No key proves where it comes from."""
    journal = new_journal(tmp_path)
    put(journal, "a")
    journal.close(delete=False)
    by = successor(tmp_path, log, DEPLOYMENT.rotated().without(0))
    await by.recover()
    assert await history(log) == []
    assert by.counts.refused == 1
    assert len(list(tmp_path.iterdir())) == 1


async def test_drafts_are_swept(tmp_path: Path, log: MemoryLog) -> None:
    """What a process left that was killed while it made its journal goes after a while; a fresh one stays."""
    old, fresh = tmp_path / "old.journal-draft", tmp_path / "fresh.journal-draft"
    for path in (old, fresh):
        path.touch()
    os.utime(old, (0, 0))
    await successor(tmp_path, log).recover()
    assert list(tmp_path.iterdir()) == [fresh]


def journal_images(folder: Path) -> tuple[bytes, list[SealedMessage]]:
    """One message acknowledged, one in flight, two events waiting."""
    journal = new_journal(folder)
    put(journal, "a")
    first = seal_next(journal)
    acknowledge(journal, first, 1)
    put(journal, "b", "c")
    second = seal_next(journal)
    put(journal, "d", "e")
    journal.close(delete=False)
    path = folder / f"{SOURCE}.journal"
    image = path.read_bytes()
    path.unlink()
    return image, [first, second]


async def told_from(folder: Path, image: bytes, stored: list[SealedMessage]) -> list[str]:
    """What the log has in the end if this is what the process left."""
    log = MemoryLog(NAMESPACE, ManualClock(1))
    await log.ensure([ROUTING])
    for sealed in stored:
        await offered(log, sealed)
    (folder / f"{SOURCE}.journal").write_bytes(image)
    await successor(folder, log).recover()
    names: list[str] = []
    n_next = 0
    async for record in log.read(ROUTING, StreamSeq(1)):
        message = decode_message(record.payload)
        assert message.n >= n_next
        n_next = message.n + 1
        names += [event.reason for event in message.events if isinstance(event, CacheCleared)]
    for path in folder.iterdir():
        path.unlink()
    return names


@pytest.mark.parametrize("stored", [1, 2])
async def test_a_damaged_byte(tmp_path: Path, stored: int) -> None:
    """Whichever byte of a journal is damaged: never a crash, a wrong event, a repeat, or another order."""
    image, sealed = journal_images(tmp_path)
    used = len(image.rstrip(b"\0"))
    whole = 0
    for at in [*range(256), *range(1024, 1104), *range(2048, 2128), *range(4096, used)]:
        damaged = image[:at] + bytes([image[at] ^ 0x11]) + image[at + 1 :]
        names = await told_from(tmp_path, damaged, sealed[:stored])
        assert names == sorted(set(names)), at
        assert set(names) <= set("abcde"), at
        assert set(names) >= set("abc"[: 2 * stored - 1]), at
        whole += names == list("abcde")
    assert whole > 200


@pytest.mark.parametrize("stored", [1, 2])
async def test_a_file_cut_anywhere(tmp_path: Path, stored: int) -> None:
    """However short the file is: what is told is what stood before the cut."""
    image, sealed = journal_images(tmp_path)
    used = len(image.rstrip(b"\0"))
    for length in [*range(0, 4096, 64), *range(4096, used + 1)]:
        names = await told_from(tmp_path, image[:length], sealed[:stored])
        assert names == sorted(set(names)), length
        assert set(names) <= set("abcde"), length
    assert names == list("abcde")


async def test_a_lost_message_is_a_gap(tmp_path: Path, log: MemoryLog) -> None:
    """If the message in flight cannot be read and the log lacks it, its number is left out of the chain."""
    image, sealed = journal_images(tmp_path)
    await offered(log, sealed[0])
    at = image.index(sealed[1].payload)
    (tmp_path / f"{SOURCE}.journal").write_bytes(image[:at] + b"\0" + image[at + 1 :])
    await successor(tmp_path, log).recover()
    found = [decode_message(record.payload) async for record in log.read(ROUTING, StreamSeq(1))]
    assert [message.n for message in found] == [0, 2]


async def test_a_damaged_event(tmp_path: Path, log: MemoryLog, caplog: pytest.LogCaptureFixture) -> None:
    """What stands behind it is lost, and that is said; the message in flight is told though it stands further on."""
    journal = Journal.create(tmp_path, whose(), OutboxLimits(events_max=2), 4096)
    put(journal, *"abcdef")
    seal_next(journal)
    journal.close(delete=False)
    path = tmp_path / f"{SOURCE}.journal"
    image = path.read_bytes()
    at = image.index(encode_event(said("d")))
    path.write_bytes(image[:at] + b"\0" + image[at + 1 :])
    await successor(tmp_path, log).recover()
    assert await history(log) == ["a", "b", "c", END]
    assert "is damaged" in caplog.text
