"""Archiving: which part of a log is copied for a range, behind which snapshot, and what is said of what is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from itertools import count
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from core.clock import ManualClock
from core.errors import Refused, Unavailable
from core.events import RequestRejected
from core.events.routing import COMPACT_VERSION, SHORT_VERSION
from core.ids import StreamName, StreamSeq
from core.subjects import LOAD, ROUTING, SNAPSHOTS, kv_stream, subject
from projections.digest import FOLD_VERSION, READ_FOLD_VERSIONS
from streams.archive.archive_export import ExportedRange, Range, archive, cut
from streams.archive.archive_log import ArchiveLog
from streams.archive.archive_reader import ArchiveReader
from streams.archive.archive_writer import ArchiveWriter
from streams.log import EventLog, Record, StreamState
from streams.memory.memory_log import MemoryLog
from tests.projections.facts import joined, routed, stored
from tests.projections.made_log import KV, A, B, MadeLog, R, made
from tests.projections.speaker import CHAIN_KEY

KV_1 = kv_stream(1)


class Made(NamedTuple):
    archived: ExportedRange
    file: ArchiveReader

    def seqs(self, stream: StreamName = KV) -> list[int]:
        return [record.seq for record in self.file.read(stream)]


async def taken(
    it: MadeLog,
    path: Path,
    start: Mapping[StreamName, int] | None = None,
    end: Mapping[StreamName, int] | None = None,
    log: EventLog | None = None,
) -> Made:
    """The range of the log in a file."""
    writer = ArchiveWriter(path, "test", CHAIN_KEY, "contrail test", 1)
    try:
        archived = await archive(log or it.log, it.store, writer, ranged(start, end), fold_versions=READ_FOLD_VERSIONS)
    except BaseException:  # whatever it was, half a file is left to nobody
        writer.abandon()
        raise
    writer.finish(writer.contents(0, 5))
    return Made(archived, ArchiveReader.open(path))


def ranged(start: Mapping[StreamName, int] | None, end: Mapping[StreamName, int] | None) -> Range:
    def seqs(given: Mapping[StreamName, int] | None) -> dict[StreamName, StreamSeq] | None:
        return None if given is None else {stream: StreamSeq(seq) for stream, seq in given.items()}

    return Range(seqs(start), seqs(end))


async def ends(it: MadeLog) -> dict[StreamName, int]:
    """The first sequence of each stream that is not there yet."""
    return {stream: (await it.log.state(stream)).last_seq + 1 for stream in await it.log.streams()}


async def decided(it: MadeLog, version: int = 1, **seqs: int) -> None:
    """A decision, in this version, that was made at this cursor."""
    cursor = {stream: ((await it.log.state(StreamName(stream))).epoch, seq) for stream, seq in seqs.items()}
    await it.say(ROUTING, R, msgspec.structs.replace(routed("late", A), v=version, cursor=cursor))


async def test_all_of_it(tmp_path: Path) -> None:
    """Every message, stream and snapshot; streams without a message too."""
    it = await made()
    await it.log.ensure([KV_1])
    manifests = [await it.snapshot(1)]
    await it.grow()
    manifests.append(await it.snapshot(2))
    found = await taken(it, tmp_path / "all")
    with found.file as file:
        assert file.streams == [KV, KV_1, LOAD, ROUTING]
        for stream in file.streams:
            assert list(file.read(stream)) == [record async for record in it.log.read(stream, StreamSeq(1))]
        assert (file.span(KV_1).first_seq, file.span(KV_1).last_seq) == (1, 0)
        assert file.snapshots() == manifests
        assert [file.snapshot(manifest) for manifest in manifests] == [await it.store.read(m) for m in manifests]
    assert found.archived == ExportedRange(None, {})


async def test_a_range_begins_with_the_snapshot_before_it(tmp_path: Path) -> None:
    """The newest one that lies before it in every stream, and what lies between; those within are there too."""
    it = await made()
    await it.snapshot(1)
    await it.grow()
    second = await it.snapshot(2)
    await it.grow()
    start = await ends(it)
    await it.grow()
    third = await it.snapshot(3)
    end = await ends(it)
    await it.grow()
    await it.snapshot(4)
    found = await taken(it, tmp_path / "range", start, end)
    with found.file as file:
        assert found.archived == ExportedRange(second, {})
        assert file.snapshots() == [second, third]
        for stream in (KV, LOAD, ROUTING):
            assert found.seqs(stream) == list(range(second.cursor[stream].seq + 1, end[stream]))
            assert file.span(stream).first_seq == second.cursor[stream].seq + 1
            assert file.span(stream).last_seq == end[stream] - 1
            assert file.span(stream).log_first_seq == 1
        assert file.seek(KV, 0) == file.span(KV).first_seq


async def test_before_means_before_the_first_message(tmp_path: Path) -> None:
    """A snapshot with the message just before the range is before it; one with the range's first message is not."""
    it = await made()
    first = await it.snapshot(1)
    await it.grow()
    second = await it.snapshot(2)
    await it.grow()
    at = {stream: second.cursor[stream].seq for stream in (KV, LOAD, ROUTING)}
    cases = [({stream: seq + 1 for stream, seq in at.items()}, second), (at, first), ({**at, KV: at[KV] + 1}, first)]
    for number, (start, base) in enumerate(cases):
        found = await taken(it, tmp_path / f"{number}", start)
        with found.file:
            assert found.archived.base == base
    for end, snapshots in ((at, [first]), ({stream: seq + 1 for stream, seq in at.items()}, [first, second])):
        found = await taken(it, tmp_path / "end", None, end)
        with found.file as file:
            assert file.snapshots() == snapshots


@pytest.mark.parametrize("version", [1, COMPACT_VERSION, SHORT_VERSION])
async def test_it_reaches_as_far_as_its_decisions_do(tmp_path: Path, version: int) -> None:
    """One that was made long before it was written needs an older snapshot; by the clocks of two servers one may rest
    on what was stored after it. Cursors in another epoch count for nothing."""
    it = await made()
    first = await it.snapshot(1)
    await it.grow()
    behind = await ends(it)
    await it.grow()
    await it.snapshot(2)
    start = await ends(it)
    await decided(it, version, kv_0=behind[KV], load=behind[LOAD], routing=behind[ROUTING])
    end = await ends(it)
    await it.grow()
    found = await taken(it, tmp_path / "old", start, {**end, KV: start[KV] - 2})
    with found.file:
        assert found.archived.base == first
        assert found.seqs(KV)[-1] == start[KV] - 3
    later = await ends(it)
    await decided(it, version, kv_0=later[KV] - 1, load=later[LOAD] - 1, routing=later[ROUTING] - 1)
    rejected = RequestRejected(
        request="x", attempt=0, model="tiny", reason="no_workers", status=503, cursor={"kv_0": (1, 1), "kv_9": (1, 1)},
        excluded={}, settings_revision=0, now_ms=0,
    )  # fmt: skip
    await it.say(ROUTING, R, rejected)
    found = await taken(it, tmp_path / "ahead", later, {**await ends(it), KV: later[KV] - 2})
    with found.file:
        assert found.archived.base is not None
        assert found.archived.base.cursor[KV].seq < later[KV] - 2
        assert found.seqs(KV)[-1] == later[KV] - 1


async def test_the_routing_stream_is_looked_at_first(tmp_path: Path) -> None:
    """While the log grows, no decision is copied that rests on a message that is not."""
    it, blocks = await made(), count(50)

    class Growing(MemoryLog):
        async def state(self, stream: StreamName) -> StreamState:
            await decided(it, kv_0=await it.say(KV, A, stored(next(blocks))))
            return await it.log.state(stream)

    log = Growing("test", ManualClock(0))
    log._streams = it.log._streams
    found = await taken(it, tmp_path / "growing", log=log)
    with found.file as file:
        last = file.span(KV).last_seq
        decisions = [
            event for record in file.read(ROUTING) for event in msgspec.msgpack.decode(record.payload)["events"]
        ]
        assert max(event["cursor"]["kv_0"][1] for event in decisions if event.get("cursor")) <= last


async def test_a_snapshot_that_is_of_no_use_is_passed_over(tmp_path: Path) -> None:
    """Of another version of the folds, not whole any more, or of a history that was replaced: the one before it."""
    it = await made()
    good = await it.snapshot(1)
    await it.grow()
    other = await it.snapshot(2)
    await it.store.write(
        [b"CTRLSNAP"], msgspec.structs.replace(other, id="new", fence=3, fold_version=FOLD_VERSION + 1)
    )
    broken = await it.snapshot(4)
    await it.grow()
    start = await ends(it)
    await it.grow()
    it.log.delete(SNAPSHOTS, StreamSeq(broken.first_seq))
    found = await taken(it, tmp_path / "one", start)
    with found.file as file:
        assert found.archived.base == other
        assert file.snapshots() == [other]
    record = await it.log.at(KV, StreamSeq(other.cursor[KV].seq))
    assert record is not None
    it.log.rewrite(KV, record.seq, record.payload + b" ")
    found = await taken(it, tmp_path / "two", start)
    with found.file:
        assert found.archived.base == good


async def test_without_a_snapshot_it_begins_where_the_log_does(tmp_path: Path) -> None:
    """Which is all that it takes, if the log is whole."""
    it = await made()
    await it.grow()
    start = await ends(it)
    await it.grow()
    await it.snapshot()
    found = await taken(it, tmp_path / "range", start)
    with found.file:
        assert found.archived == ExportedRange(None, {})
        assert found.seqs()[0] == 1


async def test_a_head_that_is_gone_is_told(tmp_path: Path) -> None:
    """All that is left is copied; nothing is told where a snapshot of complete sources stands in its place."""
    it = await made()
    await it.grow(5)
    it.log.expire(KV, StreamSeq(4))
    start = await ends(it)
    await it.grow()
    for number, at in enumerate((None, start)):
        found = await taken(it, tmp_path / f"cut-{number}", at)
        with found.file as file:
            assert found.archived == ExportedRange(None, {KV: StreamSeq(4)})
            assert found.seqs()[0] == 4
            assert (file.span(KV).first_seq, file.span(KV).log_first_seq) == (1, 4)
    manifest = await it.snapshot()
    await it.grow()
    found = await taken(it, tmp_path / "later")
    with found.file as file:
        assert found.archived.cut == {KV: StreamSeq(4)}
        assert found.seqs()[0] == 4
        assert file.snapshots() == [manifest]
    it.log.expire(KV, StreamSeq(manifest.cursor[KV].seq + 1))
    for number, at in enumerate((None, await ends(it))):
        found = await taken(it, tmp_path / f"incomplete-{number}", at)
        with found.file:
            assert (found.archived.base, KV in found.archived.cut) == (None, True)
    await it.restate()
    manifest = await it.snapshot()
    await it.grow()
    it.log.expire(KV, StreamSeq(manifest.cursor[KV].seq + 1))
    found = await taken(it, tmp_path / "covered")
    with found.file:
        assert found.archived == ExportedRange(None, {})
    found = await taken(it, tmp_path / "behind", await ends(it))
    with found.file:
        assert found.archived == ExportedRange(manifest, {})


async def test_a_stream_that_came_later_is_there_from_its_start(tmp_path: Path) -> None:
    """A snapshot that does not know it stands before all of it."""
    it = await made()
    manifest = await it.snapshot()
    await it.log.ensure([KV_1])
    await it.say(KV_1, B, joined("b"), stored(8))
    start = await ends(it)
    await it.grow()
    found = await taken(it, tmp_path / "range", start)
    with found.file as file:
        assert found.archived == ExportedRange(manifest, {})
        assert found.seqs(KV_1) == [1]
        assert file.span(KV_1).first_seq == 1
        assert found.seqs(KV)[0] == manifest.cursor[KV].seq + 1


async def test_what_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    """A stream that is made anew is an error; one that retention cuts under our hands is told as cut."""
    it = await made()
    await it.grow()
    with pytest.raises(Unavailable, match="load was made anew while it was copied"):
        await taken(it, tmp_path / "anew", log=changing(it, lambda log: log.remake(LOAD)))
    it = await made()
    await it.grow()
    found = await taken(it, tmp_path / "cut", log=changing(it, lambda log: log.expire(LOAD, StreamSeq(3))))
    with found.file as file:
        assert file.span(LOAD).log_first_seq == found.seqs(LOAD)[0] == 3


def changing(it: MadeLog, change: Callable[[MemoryLog], None]) -> MemoryLog:
    """The log, of which something changes just before the load stream is read."""

    class Changing(MemoryLog):
        async def read(self, stream: StreamName, start: StreamSeq) -> AsyncIterator[Record]:
            if stream == LOAD:
                change(it.log)
            async for record in it.log.read(stream, start):
                yield record

    log = Changing("test", it.clock)
    log._streams = it.log._streams
    return log


# --- from an archive -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [CHAIN_KEY, b""], ids=["with the key", "without it"])
async def test_a_range_of_an_archive_is_that_of_the_log(tmp_path: Path, key: bytes) -> None:
    """The same messages, snapshots, and heads of chains."""
    it = await made()
    for fence in range(1, 4):
        await it.grow()
        await it.snapshot(fence)
    await it.grow()
    start = await ends(it)
    await it.grow()
    end = await ends(it)
    await it.grow()
    expected = await taken(it, tmp_path / "expected", start, end)
    whole = await taken(it, tmp_path / "whole")
    for number, wanted in enumerate((ranged(start, end), Range())):
        writer = ArchiveWriter(
            tmp_path / f"{number}", "test", key, "contrail test", 1, check=whole.file.contents.key_check
        )
        archived = await cut(whole.file, writer, wanted)
        writer.finish(writer.contents(0, 5))
        with ArchiveReader.open(tmp_path / f"{number}") as found:
            like = whole.file if number else expected.file
            assert found.contents == like.contents
            assert [list(found.read(s)) for s in found.streams] == [list(like.read(s)) for s in like.streams]
        assert archived == (whole.archived if number else expected.archived)
    expected.file.close()
    whole.file.close()


async def test_a_chain_that_goes_on_with_a_gap_has_no_head(tmp_path: Path) -> None:
    """Without the key only the next message tells the digest of the last one, and that message is not there."""
    it = await made()
    end = await ends(it)
    it.speaker(KV, A).say(stored(7))
    await it.grow()
    whole = await taken(it, tmp_path / "whole")
    with whole.file as source:
        writer = ArchiveWriter(tmp_path / "cut", "test", b"", "contrail test", 1, check=source.contents.key_check)
        await cut(source, writer, ranged({}, end))
        heads = writer.contents(0, 5).heads
        writer.abandon()
        assert (sorted(heads[KV]), sorted(heads[LOAD])) == ([B], [A])


async def test_an_archive_is_a_log_that_is_only_read(tmp_path: Path) -> None:
    """It answers as the log did from which it was made, and takes nothing."""
    it = await made()
    await it.grow()
    found = await taken(it, tmp_path / "all")
    with found.file as file:
        log = ArchiveLog(file)
        where = subject("test", LOAD, A)
        assert await log.streams() == [KV, LOAD, ROUTING]
        assert await log.last(LOAD, where) == await it.log.last(LOAD, where)
        assert await log.last(LOAD, "nobody") is None
        assert await log.at(KV, StreamSeq(2)) == await it.log.at(KV, StreamSeq(2))
        assert await log.seek(KV, 1_003_000) == await it.log.seek(KV, 1_003_000)
        for stream in await log.streams():
            said, real = await log.state(stream), await it.log.state(stream)
            assert said[:4] == real[:4]
        with pytest.raises(Refused, match="it is read, and never grows"):
            await log.append(LOAD, where, b"", "id", StreamSeq(0))
        await log.close()
        assert file.at(KV, 1) is not None
