"""Archives: what was written is read again, and a file that is damaged anywhere is refused in one sentence."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from core.codec import digest
from core.errors import CallerError, Corrupt
from core.ids import Epoch, StreamSeq
from core.subjects import LOAD, ROUTING, kv_stream, subject
from streams.archive import archive_reader, archive_writer
from streams.archive.archive_export import archive
from streams.archive.archive_format import END, FOOTER, MAGIC, Contents, FileExtent, checksum, key_check
from streams.archive.archive_reader import ArchiveReader
from streams.archive.archive_writer import ArchiveWriter
from streams.log import Record
from tests.projections.facts import stored
from tests.projections.made_log import made
from tests.projections.speaker import CHAIN_KEY, Speaker

KV = kv_stream(0)
OTHER = kv_stream(7)
_numbers = count()


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    return await make(tmp_path / "small")


async def make(path: Path) -> Path:
    """A small log with a snapshot in it, and an empty stream."""
    it = await made()
    await it.snapshot()
    await it.grow()
    await it.log.ensure([OTHER])
    writer = ArchiveWriter(path, "test", CHAIN_KEY, "contrail test", 1)
    await archive(it.log, it.store, writer)
    writer.finish(writer.contents(0, 5))
    return path


def read_all(path: Path) -> list[Record]:
    """Everything that there is in the file."""
    with ArchiveReader.open(path) as found:
        for _ in found.check():
            pass
        records = [record for stream in found.streams for record in found.read(stream)]
        for manifest in found.snapshots():
            found.snapshot(manifest)
    return records


def refused(path: Path) -> str:
    """Why, in one sentence that names the file."""
    with pytest.raises((Corrupt, CallerError)) as error:
        read_all(path)
    text = str(error.value)
    assert str(path) in text
    assert "\n" not in text
    return text


# --- damage ----------------------------------------------------------------------------------------------------


async def test_a_block_is_checked_when_it_is_first_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers read a file several times, which costs one checksum of each block; `check` is anew each time."""
    checked: list[bytes] = []

    def counted(data: bytes) -> bytes:
        checked.append(data)
        return checksum(data)

    monkeypatch.setattr(archive_reader, "checksum", counted)
    with ArchiveReader.open(path) as found:
        checked.clear()
        first = [record for stream in found.streams for record in found.read(stream)]
        found._unpacked.clear()
        assert [record for stream in found.streams for record in found.read(stream)] == first
        assert len(checked) == len(found.contents.blocks)
        for _ in found.check():
            pass
        assert len(checked) == 2 * len(found.contents.blocks) + len(found.contents.snapshots)


async def test_every_flipped_bit_is_found(path: Path) -> None:
    """In every single byte: of the first mark, blocks, snapshots, contents and the footer."""
    whole, chance = path.read_bytes(), random.Random(1)
    assert len(read_all(path)) == 13
    damaged = path.with_name("damaged")
    for at in range(len(whole)):
        data = bytearray(whole)
        data[at] ^= 1 << chance.randrange(8)
        damaged.write_bytes(data)
        refused(damaged)


async def test_a_copy_that_was_cut_off_is_refused(path: Path) -> None:
    """At any length, also of nothing; and so is one with something behind it."""
    whole = path.read_bytes()
    part = path.with_name("part")
    for length in (0, 1, len(MAGIC), len(MAGIC) + FOOTER.size, *range(100, len(whole), 97), len(whole) - 1):
        part.write_bytes(whole[:length])
        said = refused(part)
        assert ("no export" if length < len(MAGIC) else "cut off") in said
    part.write_bytes(whole + b"x")
    assert "cut off" in refused(part)


async def test_bytes_that_nothing_vouches_for_are_refused(path: Path) -> None:
    """Something put between the pieces and the contents, or in place of a piece that the contents name no more."""
    whole = path.read_bytes()
    offset, length, told, end = FOOTER.unpack(whole[-FOOTER.size :])
    value = whole[offset : offset + length]
    path.write_bytes(whole[:offset] + b"x" + value + FOOTER.pack(offset + 1, length, told, end))
    assert "its contents name" in refused(path)
    for kind in ("blocks", "snapshots"):
        path.write_bytes(whole)
        rewrite(path, lambda value, kind=kind: msgspec.json.encode({**msgspec.json.decode(value), kind: []}))  # type: ignore[misc]
        assert "its contents name" in refused(path)


async def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """One that is not there, a folder, another program's."""
    assert "No such file" in refused(tmp_path / "nothing")
    assert "directory" in refused(tmp_path)
    (tmp_path / "other").write_bytes(b"PK\x03\x04" * 100)
    assert "is no export of a log" in refused(tmp_path / "other")


async def test_another_version_is_named(path: Path) -> None:
    """Whatever else stands in its contents."""
    rewrite(path, lambda _: b'{"v": 4, "blocks": "elsewhere"}')
    assert "version 4" in refused(path)


@pytest.fixture(scope="module")
async def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return await make(tmp_path_factory.mktemp("lies") / "small")


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_contents_that_lie_are_refused_or_harmless(data: st.DataObject, small: Path) -> None:
    """Somebody mends the checksum of contents that he changed: an error of ours, or what is read is in order."""
    path = small.with_name("lies")
    path.write_bytes(small.read_bytes())

    def change(value: bytes) -> bytes:
        tree = msgspec.json.decode(value)
        holder, key = data.draw(st.sampled_from(list(places(tree))))
        holder[key] = data.draw(
            st.one_of(st.integers(-(2**63), 2**64 - 1), st.text(max_size=3), st.none(), st.just([]), st.just({}))
        )
        return msgspec.json.encode(tree)

    rewrite(path, change)
    try:
        read_all(path)
        with ArchiveReader.open(path) as found:
            for stream in found.streams:
                found.seek(stream, 10**9)
    except (Corrupt, CallerError) as error:
        assert "\n" not in str(error)


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a JSON value."""
    items: list[tuple[Any, Any]] = []
    if isinstance(tree, dict):
        items = list(tree.items())
    elif isinstance(tree, list):
        items = list(enumerate(tree))
    for key, value in items:
        yield tree, key
        yield from places(value)


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    """The contents are others, with the right checksum."""
    whole = path.read_bytes()
    offset, length, _, _ = FOOTER.unpack(whole[-FOOTER.size :])
    value = change(whole[offset : offset + length])
    footer = FOOTER.pack(offset, len(value), checksum(value), END)
    path.write_bytes(whole[:offset] + value + footer)


def test_blocks_that_lie_are_refused(tmp_path: Path) -> None:
    """With right checksums, and rubbish, a bomb, other messages than announced, or none behind them."""
    bomb = zstandard.ZstdCompressor(write_content_size=True).compress(bytes(10**6))
    huge = bytearray(bomb)
    header = 4
    assert zstandard.frame_content_size(bytes(huge)) == 10**6
    huge[header] |= 0xC0  # eight bytes of content size
    packed = zstandard.ZstdCompressor().compress
    pack = msgspec.msgpack.encode
    cases = [
        b"rubbish",
        packed(b"rubbish"),
        packed(pack([])),
        packed(pack([(1, 1, "a", b"")])),
        packed(pack([(3, 1, "a", b""), (2, 1, "a", b"")])),
        packed(pack([(2, 1, "a")])),
        packed(b"\xdd\xff\xff\xff\xff"),
        packed(b"\x91" * 10_000),
        bytes(huge),
    ]
    for case in cases:
        path = one_block(tmp_path, case)
        with ArchiveReader.open(path) as found:
            assert list(found.check())
            with pytest.raises(Corrupt) as error:
                list(found.read(KV))
            assert str(path) in str(error.value)


def one_block(folder: Path, piece: bytes) -> Path:
    """An archive that says that it holds kv_0:2 in this piece."""
    at = FileExtent(len(MAGIC), len(piece), checksum(piece).hex())
    contents = msgspec.json.decode(
        msgspec.json.encode(
            {
                "namespace": "test",
                "program": "test",
                "made_ms": 1,
                "from_ms": 0,
                "to_ms": 0,
                "key_check": key_check(b""),
                "streams": {KV: {"epoch": 1, "first_seq": 1, "last_seq": 2, "log_first_seq": 1}},
                "blocks": [
                    {
                        "stream": KV,
                        "first_seq": 2,
                        "last_seq": 2,
                        "first_ms": 1,
                        "last_ms": 1,
                        "messages": 1,
                        "piece": at,
                    }
                ],
                "snapshots": [],
                "heads": {},
            }
        ),
        type=Contents,
    ).to_bytes()
    path = folder / f"made-{next(_numbers)}"
    footer = FOOTER.pack(len(MAGIC) + len(piece), len(contents), checksum(contents), END)
    path.write_bytes(MAGIC + piece + contents + footer)
    return path


# --- reading ---------------------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """What a reader may ask for."""

    start: int
    end: int | None
    time_ms: int


RECORDS = st.lists(st.tuples(st.integers(1, 4), st.integers(-9, 9), st.binary(max_size=40)), max_size=40)
ASKED = st.lists(st.builds(Asked, st.integers(0, 90), st.none() | st.integers(0, 90), st.integers(20, 80)), max_size=20)


@settings(deadline=None, max_examples=150)
@given(steps=RECORDS, asked=ASKED)
def test_it_reads_as_a_list_does(
    steps: list[tuple[int, int, bytes]], asked: list[Asked], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With holes between messages, clocks that go back, and blocks of a few messages."""
    records, seq, time_ms = list[Record](), 0, 50
    for gap, later, payload in steps:
        seq, time_ms = seq + gap, time_ms + later
        records.append(Record(LOAD, StreamSeq(seq), time_ms, subject("test", LOAD, "a"), payload))
    path = tmp_path_factory.getbasetemp() / "model"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive_writer, "BLOCK_BYTES", 300)
        writer = ArchiveWriter(path, "test", CHAIN_KEY, "test", 1)
        writer.open(KV, Epoch(1), 1, 1)
        writer.open(LOAD, Epoch(1), 1, 1)
        for record in records:
            writer.add(record)
        writer.reached(LOAD, seq + 2)
        writer.finish(writer.contents(0, 0))
    with ArchiveReader.open(path) as found:
        assert found.messages == len(records)
        assert list(found.read(KV)) == []
        assert (found.span(KV).last_seq, found.span(LOAD).last_seq) == (0, seq + 2)
        for start, end, at_ms in asked:
            within = [each for each in records if start <= each.seq and (end is None or each.seq < end)]
            assert list(found.read(LOAD, start, end)) == within
            assert found.at(LOAD, start) == next((each for each in records if each.seq == start), None)
            later_seqs = (each.seq for each in records if each.time_ms >= at_ms)
            assert found.seek(LOAD, at_ms) == next(later_seqs, seq + 3)
        assert found.seek(KV, 0) == found.seek(ROUTING, 0) == 1


async def test_what_was_written_so_far_can_be_read(tmp_path: Path) -> None:
    """While more is written; and in the end all of it."""
    a = Speaker(KV, "aa" * 8)
    writer = ArchiveWriter(tmp_path / "live", "test", CHAIN_KEY, "test", 1)
    writer.open(KV, Epoch(1), 1, 1)
    for number in range(5):
        writer.add(record_of(a, number + 1, number))
        with writer.so_far() as found:
            assert [record.seq for record in found.read(KV)] == list(range(1, number + 2))
    writer.finish(writer.contents(0, 0))
    assert len(read_all(tmp_path / "live")) == 5


def record_of(speaker: Speaker, seq: int, number: int) -> Record:
    it = speaker.say(stored(number))
    return Record(KV, StreamSeq(seq), seq, it.subject, it.payload)


def test_heads_are_the_ends_of_chains(tmp_path: Path) -> None:
    """Not of repeats, not of what others write on a subject, and not of what is no message; over any blocks."""
    a, end = Speaker(KV, "aa" * 8), Speaker(KV, f"{'aa' * 8}-lost", about="aa" * 8)
    stranger = Speaker(KV, "aa" * 8, about="bb" * 8)
    first, last = record_of(a, 1, 1), record_of(a, 2, 2)
    forged = stranger.say(stored(1))
    rubbish = Record(KV, StreamSeq(6), 1, first.subject, b"rubbish")
    records = [first, last, first._replace(seq=StreamSeq(3)), record_of(end, 4, 1)]
    records += [Record(KV, StreamSeq(5), 1, forged.subject, forged.payload), rubbish]
    for block_bytes in (1, 10**6):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(archive_writer, "BLOCK_BYTES", block_bytes)
            writer = ArchiveWriter(tmp_path / "heads", "test", CHAIN_KEY, "test", 1)
            writer.open(KV, Epoch(1), 1, 1)
            for record in records:
                writer.add(record)
            heads = writer.contents(0, 0).heads[KV]
            writer.abandon()
        assert {source: (head.n, head.digest) for source, head in heads.items()} == {
            "aa" * 8: (1, digest(last.payload, CHAIN_KEY).hex()),
            f"{'aa' * 8}-lost": (0, digest(records[3].payload, CHAIN_KEY).hex()),
        }
    assert not (tmp_path / "heads").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """In one sentence."""
    with pytest.raises(CallerError, match="cannot be written: No such file"):
        ArchiveWriter(tmp_path / "no" / "folder", "test", CHAIN_KEY, "test", 1)
    full = ArchiveWriter(tmp_path / "full", "test", CHAIN_KEY, "test", 1)
    full.open(KV, Epoch(1), 1, 1)
    held, full._file = full._file, Full()  # type: ignore[assignment]
    with pytest.raises(CallerError, match=r"full cannot be written: No space left on device; make room"):
        full.finish(full.contents(0, 0))
    full.abandon()
    held.close()
    assert not (tmp_path / "full").exists()


class Full:
    """A disk that takes nothing more."""

    def write(self, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    close = flush = lambda self: self.write(b"")
