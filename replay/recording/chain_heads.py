"""ChainHeads: the digests of a stream's messages as later messages of their sources name them; used without a key."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import msgspec

from core.codec import CHAIN_START, JSON_START
from core.ids import StreamName
from replay.recording.messages import UNREADABLE
from streams.archive.archive_reader import ArchiveReader
from streams.log import Record

KEPT = 4096
"""Messages behind the last one that was asked about of which the digests are kept, for who reads beside."""


class ChainHeads:
    """Reads ahead of whoever asks, no further than to the next word of the source that is asked about, and keeps what
    lies between."""

    def __init__(self, archive: ArchiveReader, stream: StreamName) -> None:
        self._archive = archive
        self._stream = stream
        self._last = archive.contents.heads.get(stream, {})
        self._known: dict[tuple[str, int], bytes] = {}
        self._newest: dict[str, int] = {}
        """Per source the last message of which the digest is known."""
        self._told: deque[tuple[int, tuple[str, int]]] = deque()
        """Where each was told, in the order of the stream: of nothing behind that place can it be asked."""
        self._start, self._place = 0, -1
        """From the one to the other, where the reader is, all is known."""
        self._ahead: Iterator[Record] = iter(())

    def __repr__(self) -> str:
        return f"<ChainHeads of {self._stream}: {len(self._known)} from {self._start} on>"

    def of(self, seq: int, source: str, n: int) -> bytes:
        """The digest of that message; CHAIN_START if nothing tells it."""
        last = self._last.get(source)
        if last is not None and last.n == n:
            return bytes.fromhex(last.digest)  # as the archive's writer told
        if not self._start <= seq <= self._place + 1:
            self._begin(seq)
        self._forget(seq - KEPT)
        while (source, n) not in self._known and self._newest.get(source, -1) < n:
            if not self._read():
                break
        return self._known.get((source, n), CHAIN_START)

    def _begin(self, seq: int) -> None:
        self._start, self._place, self._ahead = seq, seq - 1, self._archive.read(self._stream, seq)
        self._known.clear()
        self._newest.clear()
        self._told.clear()

    def _forget(self, before: int) -> None:
        """What nobody behind that place asks about is not kept."""
        self._start = max(self._start, before)
        while self._told and self._told[0][0] <= before:
            self._known.pop(self._told.popleft()[1], None)

    def _read(self) -> bool:
        record = next(self._ahead, None)
        if record is None:
            return False
        self._place = record.seq
        decoder = _json if record.payload[:1] == JSON_START else _msgpack
        try:
            link = decoder.decode(record.payload)
        except UNREADABLE:
            return True  # no message of ours
        self._known[link.source, link.n - 1] = link.prev
        self._told.append((record.seq, (link.source, link.n - 1)))
        self._newest[link.source] = link.n - 1
        return True


class _Link(msgspec.Struct, gc=False):
    """What a message says of the one before it."""

    source: str
    n: int
    prev: bytes


_msgpack = msgspec.msgpack.Decoder(_Link)
_json = msgspec.json.Decoder(_Link)
