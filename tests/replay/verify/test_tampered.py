"""Exports that somebody changed: what gives them away, layer by layer, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.codec import Message
from core.errors import Corrupt
from core.ids import StreamSeq
from core.keys import DeploymentKey
from core.subjects import SNAPSHOTS
from replay.recording.recording import Recording
from streams.archive.archive_export import archive
from streams.archive.archive_reader import ArchiveReader
from streams.archive.archive_writer import ArchiveWriter
from streams.log import Record
from tests.projections.facts import stored
from tests.projections.made_log import KV, made
from tests.projections.speaker import CHAIN_KEY
from tests.replay.tampered import event_changed, tampered

OTHER = bytes(reversed(CHAIN_KEY))
PLACE = StreamSeq(3)


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A log with a snapshot in the middle."""
    it = await made()
    await it.log.ensure([SNAPSHOTS])
    await it.grow()
    await it.snapshot()
    await it.grow()
    writer = ArchiveWriter(tmp_path / "it", "test", CHAIN_KEY, "contrail test", 1)
    await archive(it.log, it.store, writer)
    writer.finish(writer.contents(0, 5))
    return tmp_path / "it"


def same(record: Record) -> Record:
    return record


def other(record: Record) -> Record:
    """What a worker stored is something else, in one message."""
    if (record.stream, record.seq) != (KV, PLACE):
        return record

    def change(message: Message) -> Message:
        return Message(
            source=message.source, n=message.n, prev=message.prev, sent_ms=message.sent_ms, events=(stored(77),)
        )

    return event_changed(record, change)


def gaps(path: Path, chain_key: bytes = CHAIN_KEY) -> int:
    """As a reader with the key folds them, from the first message."""
    with Recording.open(path) as recording:
        recording.chain_key = chain_key
        state = recording.state_before({})
        for stream, seq in recording.end.items():
            recording.advance(state, stream, seq)
        return state.gaps_found


def test_a_flipped_byte_is_refused_by_its_checksum(path: Path) -> None:
    """One byte of one event."""
    data = bytearray(path.read_bytes())
    with ArchiveReader.open(path) as found:
        block = next(block for block in found.contents.blocks if block.stream == KV)
    data[block.piece.offset + block.piece.size // 2] ^= 1
    path.write_bytes(data)
    with ArchiveReader.open(path) as found, pytest.raises(Corrupt, match="checksum is another"):
        list(found.read(KV))


def test_with_the_checksum_mended_the_chain_tells(path: Path, tmp_path: Path) -> None:
    """The message behind it does not follow; everything else is as it was."""
    tampered(path, tmp_path / "t", other)
    with ArchiveReader.open(path) as before, ArchiveReader.open(tmp_path / "t") as after:
        assert list(after.check())
        assert after.contents.heads == before.contents.heads
        assert after.contents.key_check == before.contents.key_check
        changed = [(was.seq, now.seq) for was, now in zip(before.read(KV), after.read(KV), strict=True) if was != now]
        assert changed == [(PLACE, PLACE)]
    assert (gaps(path), gaps(tmp_path / "t")) == (0, 1)


def test_with_the_chain_mended_under_another_key_all_of_it_tells(path: Path, tmp_path: Path) -> None:
    """Who has no key breaks every chain; by his own key it fits, but the contents name the true one."""
    tampered(path, tmp_path / "t", other, rechain_key=OTHER)
    assert gaps(tmp_path / "t") > 1
    assert gaps(tmp_path / "t", OTHER) == 0
    with ArchiveReader.open(path) as before, ArchiveReader.open(tmp_path / "t") as after:
        assert after.contents.key_check == before.contents.key_check
        assert after.contents.heads != before.contents.heads


def test_with_the_key_nothing_of_the_chain_tells(path: Path, tmp_path: Path) -> None:
    """Nor do snapshots: then only decisions can. Sealed again without a change it is what it was."""
    tampered(path, tmp_path / "t", other, rechain_key=CHAIN_KEY)
    assert gaps(tmp_path / "t") == 0
    with Recording.open(tmp_path / "t") as recording:
        recording.chain_key = CHAIN_KEY
        assert recording.state_at(recording.end).gaps_found == 0
    tampered(path, tmp_path / "same", same, rechain_key=CHAIN_KEY)
    with ArchiveReader.open(path) as before, ArchiveReader.open(tmp_path / "same") as after:
        assert [list(before.read(s)) for s in before.streams] == [list(after.read(s)) for s in after.streams]
        assert before.contents.heads == after.contents.heads
        assert before.snapshots() == after.snapshots()
        assert [*map(before.snapshot, before.snapshots())] == [*map(after.snapshot, after.snapshots())]


def test_the_key_of_another_deployment_is_refused(path: Path) -> None:
    """Before anything is read with it."""
    with pytest.raises(Exception, match="the key is not that of the deployment"):
        Recording.open(path, DeploymentKey(bytes(32)))
