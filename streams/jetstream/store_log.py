"""StoreLog: the log in the folder of a NATS server that does not run; nothing is written, and no lock is taken.

A stream lies in `jetstream/ACCOUNT/streams/NAME/`: its configuration in `meta.inf`, its messages in `msgs/N.blk`, one
record after the other, as nats-server's `server/filestore.go` writes them (little-endian):

    u32 length of the record, with the highest bit if it has headers
    u64 sequence: with the highest bit an erased message, with the next one a deletion of that sequence
    i64 time, ns since 1970
    u16 length of the subject, the subject
    u32 length of the headers, the headers         only if it has them
    the payload
    u64 checksum

The checksum is not computed: the chains prove what the messages say. A record that is cut off ends its block, as it
does for the server. Limits of age and size are not applied: what the server would remove when it starts is still there.
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from core.errors import Refused, Unavailable
from core.ids import Epoch, StreamName, StreamSeq
from core.subjects import broker_stream, short_stream
from streams.jetstream.jetstream_log import fingerprints_in
from streams.log import Fingerprints, Record, StreamState
from streams.read_only_log import ReadOnlyLog

_HEAD, _HEADERS = struct.Struct("<IQqH"), struct.Struct("<I")
_CHECKSUM_BYTES = 8
_HAS_HEADERS, _ERASED, _DELETION = 1 << 31, 1 << 63, 1 << 62
_NS_PER_MS = 1_000_000
_1970 = datetime(1970, 1, 1, tzinfo=UTC)
STARTED = "the deployment has started meanwhile: ask it again"


class _Place(NamedTuple):
    """One record in its block."""

    seq: int
    time_ns: int
    at: int
    """Of its first byte."""
    length: int
    headers: bool


class _Block(NamedTuple):
    path: Path
    first_seq: int
    last_seq: int
    first_ns: int
    messages: int
    bytes: int


class _Stream(NamedTuple):
    blocks: list[_Block]
    deleted: frozenset[int]
    """Messages that are in the blocks, and count no more."""
    first_seq: int
    """Of the oldest message; last_seq + 1 without one."""
    last_seq: int
    """That was ever given, also to a message that is gone."""
    config: dict[str, Any]


class StoreLog(ReadOnlyLog):
    """See the module's text and `streams.log.EventLog`. Each stream is read through once when it is first asked for."""

    def __init__(self, folder: Path, namespace: str) -> None:
        """`folder` is the server's store: the one that has `jetstream`."""
        self._namespace = namespace
        self._folders = {
            name: each
            for each in sorted(folder.glob("jetstream/*/streams/*"))
            if (name := short_stream(namespace, each.name)) is not None and (each / "meta.inf").exists()
        }
        self._read: dict[StreamName, _Stream] = {}

    def __repr__(self) -> str:
        return f"<StoreLog of {self._namespace}: {', '.join(sorted(self._folders)) or 'no stream'}>"

    async def streams(self) -> list[StreamName]:
        return sorted(self._folders)

    async def fingerprints(self, stream: StreamName) -> Fingerprints:
        return fingerprints_in(self._stream(stream).config)

    async def state(self, stream: StreamName) -> StreamState:
        found = self._stream(stream)
        created_ms = (datetime.fromisoformat(found.config["Created"]) - _1970) // timedelta(milliseconds=1)
        messages = sum(block.messages for block in found.blocks) - len(found.deleted)
        return StreamState(
            Epoch(created_ms),
            StreamSeq(found.first_seq),
            StreamSeq(found.last_seq),
            messages,
            sum(block.bytes for block in found.blocks),
            found.last_seq - found.first_seq + 1 - messages,
            max(int(found.config["max_bytes"]), 0),
            int(found.config["max_age"]) / 1e9,
        )

    async def read(self, stream: StreamName, start: StreamSeq) -> AsyncIterator[Record]:
        for record in self._records(stream, start):
            yield record

    async def at(self, stream: StreamName, seq: StreamSeq) -> Record | None:
        found = next(self._records(stream, seq), None)
        return found if found is not None and found.seq == seq else None

    async def seek(self, stream: StreamName, time_ms: int) -> StreamSeq:
        found = self._stream(stream)
        block = max(0, bisect_right([each.first_ns for each in found.blocks], time_ms * _NS_PER_MS) - 1)
        for record in self._records(stream, found.blocks[block].first_seq if found.blocks else 1):
            if record.time_ms >= time_ms:
                return record.seq
        return StreamSeq(found.last_seq + 1)

    async def close(self) -> None:
        pass  # no file stays open

    @property
    def refusal(self) -> str:
        return f"the log of {self._namespace} is read from its files: it does not run, and never grows"

    def _stream(self, stream: StreamName) -> _Stream:
        found = self._read.get(stream)
        if found is None:
            folder = self._folders.get(stream)
            if folder is None:
                raise Refused(f"there is no stream {broker_stream(self._namespace, stream)} in these files")
            found = self._read[stream] = _scanned(folder)
        return found

    def _records(self, stream: StreamName, start: int) -> Iterator[Record]:
        """Those from `start` on; one block of some 8 MiB is in memory at a time."""
        found = self._stream(stream)
        for block in found.blocks:
            if block.last_seq < start:
                continue
            content = _bytes(block.path)
            for place in _places(content):
                if start <= place.seq <= block.last_seq and place.seq not in found.deleted:
                    yield _record(stream, content, place)


def _scanned(folder: Path) -> _Stream:
    """The messages and the configuration in the stream's files. Refused if these are compressed; 1 us per message."""
    config = json.loads(_bytes(folder / "meta.inf"))
    if config.get("compression", "none") != "none":
        raise Refused(f"the files in {folder} are compressed: start the deployment, and ask it")
    blocks, deleted, erased, last_seq = list[_Block](), set[int](), set[int](), 0
    for path in sorted((folder / "msgs").glob("*.blk"), key=lambda path: int(path.stem)):
        content, first, last, messages = _bytes(path), None, None, 0
        for place in _places(content):
            seq = place.seq & ~(_ERASED | _DELETION)
            last_seq = max(last_seq, seq)
            if place.seq & _DELETION:
                deleted.add(seq)
            elif place.seq & _ERASED:
                erased.add(seq)
            else:
                first, last, messages = first or place, place, messages + 1
        if first is not None and last is not None:
            blocks.append(_Block(path, first.seq, last.seq, first.time_ns, messages, len(content)))
    held = {seq for seq in deleted - erased if any(each.first_seq <= seq <= each.last_seq for each in blocks)}
    first_seq = blocks[0].first_seq if blocks else last_seq + 1
    while first_seq in deleted or first_seq in erased:
        first_seq += 1
    return _Stream(blocks, frozenset(held), first_seq, last_seq, config)


def _places(content: bytes) -> Iterator[_Place]:
    """The records of a block, up to the first that is cut off."""
    at, end = 0, len(content)
    while at + _HEAD.size <= end:
        length, seq, time_ns, subject = _HEAD.unpack_from(content, at)
        headers, length = bool(length & _HAS_HEADERS), length & ~_HAS_HEADERS
        if length < _HEAD.size + subject + _CHECKSUM_BYTES or at + length > end:
            return
        yield _Place(seq, time_ns, at, length, headers)
        at += length


def _record(stream: StreamName, content: bytes, place: _Place) -> Record:
    *_, subject = _HEAD.unpack_from(content, place.at)
    start = place.at + _HEAD.size
    payload = start + subject
    if place.headers:
        payload += _HEADERS.size + _HEADERS.unpack_from(content, payload)[0]
    end = place.at + place.length - _CHECKSUM_BYTES
    name = bytes(content[start : start + subject]).decode()
    return Record(stream, StreamSeq(place.seq), place.time_ns // _NS_PER_MS, name, bytes(content[payload:end]))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise Unavailable(STARTED) from error
