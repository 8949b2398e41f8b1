"""SnapshotStore: snapshots in a stream of their own, as chunks that a manifest commits.

1. Chunks stand on a subject of the snapshot's own, the manifest on one that all manifests share. Chunks that no
   manifest names are never read, and retention removes them in time.
2. A manifest expects the one before it to be the last: of two writers one gets WrongSequence. So does a writer with
   an older claim than that of the newest manifest.
3. A manifest names the one before it, so a list of all costs one small read each. Where one cannot be read, the
   messages before it are read one by one: the manifest before stands behind one snapshot's chunks.
4. Nothing is ever deleted here: the stream's own limits are the only retention.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import NamedTuple

import msgspec

from core.codec import DIGEST_BYTES, known_keys, newest_key
from core.errors import Corrupt, Unavailable, WrongSequence
from core.ids import StreamName, StreamSeq
from core.snapshot_manifest import Manifest
from core.subjects import SNAPSHOTS, subject
from streams.log import EventLog, Record

CHUNK_BYTES = 512 * 1024
MANIFESTS_MAX = 1024
"""So many are listed: six weeks of hourly ones."""
APPEND_TRIES = 5
"""Appends of one message before a log that does not answer is given up on: the snapshot is taken again later."""
APPEND_RETRY_S = 0.5
WALK_BACK_MAX = 16_384
"""Messages looked at for the manifest before one that cannot be read: the chunks of 8 GiB."""

_MANIFEST = "manifest"
_logger = logging.getLogger(__name__)


class _Place(msgspec.Struct):
    """The fields of a manifest that are read of one that is otherwise of no use."""

    before_seq: int = -1
    """-1: it does not say."""
    fence: int = 0


_place = msgspec.json.Decoder(_Place)


class SnapshotStore:
    """The snapshots of one namespace."""

    def __init__(self, log: EventLog, namespace: str, chain_key: bytes) -> None:
        self._log = log
        self._namespace = namespace
        self._chain_key = chain_key
        self._manifests = self._subject(_MANIFEST)
        self._reported: deque[StreamSeq] = deque(maxlen=MANIFESTS_MAX)
        """Broken manifests that were warned of."""

    def __repr__(self) -> str:
        return f"<SnapshotStore of {self._namespace}>"

    async def manifests(self) -> list[Manifest]:
        """The newest MANIFESTS_MAX that stand, newest first; broken ones are left out with a warning."""
        return [manifest async for manifest in self.newest_first()]

    async def newest_first(self) -> AsyncGenerator[Manifest, None]:
        """The same one by one, for callers that need only the first good one."""
        if SNAPSHOTS not in await self._log.streams():
            return
        record = await self._log.last(SNAPSHOTS, self._manifests)
        for _ in range(MANIFESTS_MAX):
            if record is None:
                return
            manifest = self._parsed(record)
            if manifest is not None:
                yield manifest
            record = await self._before(record)

    async def read(self, manifest: Manifest) -> bytes:
        """The snapshot's content, as it was written. Corrupt if it is not whole; Unavailable if it cannot be read."""
        chunks, checksums = list[bytes](), [_checksum(key) for key in known_keys(self._chain_key)]
        async for chunk in self._chunks_of(manifest):
            chunks.append(chunk)
            for checksum in checksums:
                checksum.update(chunk)
        size = sum(map(len, chunks))
        if (len(chunks), size) != (manifest.chunks, manifest.size_bytes):
            raise Corrupt(f"{size} of its {manifest.size_bytes} bytes are still in the log")
        if manifest.checksum not in {checksum.hexdigest() for checksum in checksums}:
            raise Corrupt("its content is not what was written")
        return b"".join(chunks)

    async def write(self, content: Sequence[bytes], draft: Manifest) -> Manifest:
        """The snapshot is committed; returns its manifest, which is the draft with its place and checksum filled in.

        WrongSequence if another writer with a newer claim has taken over, or committed one meanwhile; Unavailable if
        the log does not answer. The chunks written until then are never read.
        """
        last = await self._log.last(SNAPSHOTS, self._manifests)
        _check_fence(last, draft)
        before_seq = StreamSeq(0 if last is None else last.seq)
        first_seq, chunks, size_bytes, checksum = await self._write_chunks(b"".join(content), draft.id)
        manifest = msgspec.structs.replace(
            draft, chunks=chunks, first_seq=first_seq, size_bytes=size_bytes, checksum=checksum, before_seq=before_seq
        )
        await self._append(self._manifests, manifest.to_bytes(), f"{draft.id}:{_MANIFEST}", before_seq)
        return manifest

    async def _write_chunks(self, content: bytes, id: str) -> tuple[StreamSeq, int, int, str]:
        """Sequence of the first chunk, number of chunks, their bytes and their checksum."""
        checksum, where, last = _checksum(newest_key(self._chain_key)), self._subject(id), StreamSeq(0)
        seqs: list[StreamSeq] = []
        for start in range(0, len(content), CHUNK_BYTES):
            chunk = content[start : start + CHUNK_BYTES]
            checksum.update(chunk)
            last = await self._append(where, chunk, f"{id}:{len(seqs)}", last)
            seqs.append(last)
        return seqs[0], len(seqs), len(content), checksum.hexdigest()

    async def _chunks_of(self, manifest: Manifest) -> AsyncIterator[bytes]:
        """Those of its chunks that are still there, in order."""
        needed, left = self._subject(manifest.id), manifest.chunks
        records = self._log.read(SNAPSHOTS, StreamSeq(manifest.first_seq))
        try:
            async for record in records:
                if record.subject == needed:
                    yield record.payload
                    left -= 1
                if not left:
                    break
        finally:
            if isinstance(records, AsyncGenerator):
                await records.aclose()  # what follows is not asked for

    async def _append(self, where: str, payload: bytes, message_id: str, expected: StreamSeq) -> StreamSeq:
        for left in reversed(range(APPEND_TRIES)):
            try:
                return await self._log.append(SNAPSHOTS, where, payload, message_id, expected)
            except Unavailable:
                if not left:
                    raise
                await asyncio.sleep(APPEND_RETRY_S)
            except WrongSequence:
                last = await self._log.last(SNAPSHOTS, where)
                if last is None or last.payload != payload:
                    raise
                return last.seq  # an earlier try was stored
        raise AssertionError("unreachable")

    async def _before(self, record: Record) -> Record | None:
        """The manifest before this one; None if there is none, or if retention took it."""
        first_seq = (await self._log.state(SNAPSHOTS)).first_seq
        named = _placed(record).before_seq
        start = record.seq - 1 if named < 0 else min(named, record.seq - 1)
        for seq in range(start, max(first_seq, start - WALK_BACK_MAX + 1) - 1, -1):
            found = await self._log.at(SNAPSHOTS, StreamSeq(seq))
            if found is not None and found.subject == self._manifests:
                return found
        return None

    def _subject(self, token: str) -> str:
        return subject(self._namespace, SNAPSHOTS, token)

    def _parsed(self, record: Record) -> Manifest | None:
        try:
            return Manifest.parse(record.payload)
        except Corrupt as error:
            if record.seq not in self._reported:
                self._reported.append(record.seq)
                _logger.warning("the manifest at %s:%d is passed over: %s", SNAPSHOTS, record.seq, error)
            return None


def _checksum(key: bytes) -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=DIGEST_BYTES, key=key)


def _placed(record: Record) -> _Place:
    try:
        return _place.decode(record.payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Place()


def _check_fence(last: Record | None, draft: Manifest) -> None:
    fence = 0 if last is None else _placed(last).fence
    if fence > draft.fence:
        raise WrongSequence(f"a writer with claim {fence} has taken over from {draft.fence}; claim again to go on")


class Coverage(NamedTuple):
    """The part of one stream's history that can be folded again."""

    stream: StreamName
    first_seq: StreamSeq
    """The oldest retained."""
    last_seq: StreamSeq
    replayable_from: StreamSeq | None
    """The first message with all predecessors either retained or in a snapshot; None if there is none yet."""
    cut_behind_newest: bool
    """Retention took messages that follow the newest snapshot: it is of no use for this stream any more."""

    @property
    def snapshot_before(self) -> bool:
        """True if every retained message can be folded on a complete state before it."""
        return self.replayable_from is not None and self.replayable_from <= self.first_seq


async def coverage(log: EventLog, manifests: Sequence[Manifest]) -> list[Coverage]:
    """Per stream; `manifests` newest first. To be reported: snapshots must be made more often than
    retention takes what follows them."""
    return [await _covered(log, stream, manifests) for stream in await log.streams() if stream != SNAPSHOTS]


async def _covered(log: EventLog, stream: StreamName, manifests: Sequence[Manifest]) -> Coverage:
    state = await log.state(stream)
    ats = [manifest.cursor[stream] for manifest in manifests if stream in manifest.cursor]
    behind = [at.seq + 1 for at in ats if at.epoch == state.epoch]
    starts = [1, *behind]
    usable = [start for start in starts if state.first_seq <= start <= state.last_seq + 1]
    return Coverage(
        stream=stream,
        first_seq=state.first_seq,
        last_seq=state.last_seq,
        replayable_from=StreamSeq(min(usable)) if usable else None,
        cut_behind_newest=bool(behind) and behind[0] < state.first_seq,
    )
