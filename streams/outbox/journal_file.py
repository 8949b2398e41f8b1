"""A journal's file: a ring of records behind a header, mapped into memory, locked by the process that lives.

1. The file survives its process, not a power cut: what is stored in the mapping is in the page cache at once, and
   nothing is synced. With `os.pwrite` instead, a request's three events, their part of a message and its
   acknowledgement took 5 us more than 4.6, of the 31 to 39 us that the log costs a request (`bench.append`).
2. A record's place is its offset, which only grows; it stands at offset modulo capacity, never across the ring's
   end. Its checksum is seeded with its offset, so bytes of an earlier lap never read as valid.
3. The header names the journal's owner, and holds its position in two slots, written in turn. After a kill between
   any two stores, the slot with the newest valid checksum is the position. The header also counts decisions and
   dropped events, and says where the last record ends, so that a successor notices that records were lost.
4. The disk's blocks are taken before they are written to: a store into a hole of a full disk would kill the process.
5. The lock goes with the process. The file gets its name once it is whole and locked, so a file with
   that name and without a lock is a dead process's.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import struct
from pathlib import Path
from typing import NamedTuple

import xxhash

from core.errors import Corrupt, Refused, Unavailable

logger = logging.getLogger(__name__)

SUFFIX = ".journal"
DRAFT_SUFFIX = ".journal-draft"
"""A file that has no header yet."""
HEADER_BYTES = 4096
ALIGN = 16
"""Records begin at multiples of this."""
EXTENT_BYTES = 1024 * 1024
"""Disk is taken in pieces of this size; the first one at once."""

_VERSION = 1
_MAGIC = b"CONTRAIL"
_IDENTITY = struct.Struct("<8sIQ16s64s64s64s")
_SLOT = struct.Struct("<QQQQQ16s")
_SLOT_AT = (1024, 2048)
_COUNTS = struct.Struct("<8Q")
_COUNTS_AT = (3072, 3328)
_TAIL = struct.Struct("<3Q")
_TAIL_AT = 3584
_SUM = struct.Struct("<Q")
_RECORD = struct.Struct("<IB3xQ")
_MASK64 = 2**64 - 1
_checksum, _pack_record = xxhash.xxh3_64_intdigest, _RECORD.pack_into
_pack_counts, _pack_tail = _COUNTS.pack_into, _TAIL.pack_into
assert _RECORD.size == ALIGN  # so that any rest of a lap has room for a WRAP

EVENT, READABLE_EVENT, SEALED, WRAP = 1, 2, 3, 4
"""Kinds of records; WRAP says that the next one stands at the ring's start."""


class JournalIdentity(NamedTuple):
    """The owner of a journal."""

    key_check: bytes
    """16 bytes that only the deployment's key gives."""
    namespace: str
    stream: str
    source: str


class JournalPosition(NamedTuple):
    """The progress of a journal's outbox."""

    sealed_at: int
    """Offset of the message in flight; 0 if there is none."""
    events_from: int
    """Events before this offset are in a message, or were dropped."""
    n_acked: int
    last_seq: int
    head: bytes
    """16 bytes: digest of the last message acknowledged."""


class JournalCounts(NamedTuple):
    """Counts of a journal's events, kept with each message and each dropped event; zeros of an earlier version."""

    tail: int
    """The offset behind the last record that they count."""
    events: int
    """Events that wait …"""
    decisions: int
    """… and the decisions among them."""
    made: int
    """Decisions of the source since its chain began, dropped ones included."""
    dropped_events: int
    """Events that were dropped since then …"""
    dropped_decisions: int
    """… and the decisions among them."""


class JournalTail(NamedTuple):
    """The end of a journal; zeros of an earlier version."""

    after: int
    """The offset behind the last record but a WRAP."""
    made: int
    """Decisions of the source until then, as in JournalCounts."""
    events: int
    """Events that waited then."""


class StoredRecord(NamedTuple):
    """The record at an offset."""

    kind: int
    data: bytes
    after: int
    """Offset of the next one."""


class JournalFile:
    """Records at offsets, and a standing; see the module's text."""

    def __init__(self, path: Path, descriptor: int, capacity: int, allocated: int = 0) -> None:
        self.path = path
        self.capacity = capacity
        self.standing = JournalPosition(0, capacity, 0, 0, bytes(16))
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, HEADER_BYTES + capacity)
        self._allocated = allocated
        self._generation = 0
        self._counts_turn = 0
        """Counts that were kept; they go into two slots by turns."""

    def __repr__(self) -> str:
        return f"<JournalFile {self.path.name}>"

    @staticmethod
    def create(path: Path, capacity: int, identity: JournalIdentity) -> JournalFile:
        """A new file of that name, locked by us. Unavailable if the disk has no room or no right for it."""
        assert capacity % ALIGN == 0
        draft = path.with_suffix(DRAFT_SUFFIX)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                return _made(draft, descriptor, capacity, identity).named(path)
            except OSError:
                draft.unlink(missing_ok=True)
                os.close(descriptor)
                raise
        except OSError as error:
            raise Unavailable(f"no journal can be made at {path}: {error}") from error

    @staticmethod
    def open_left(path: Path, identity: JournalIdentity) -> JournalFile | None:
        """The file of a dead process, locked by us now; None if its process lives, or if it is gone.

        Refused if it is another deployment's, or of another version; Corrupt if its header cannot be read.
        `identity.source` is not compared.
        """
        descriptor = _locked(path)
        if descriptor is None:
            return None
        try:
            capacity = _checked(path, os.pread(descriptor, HEADER_BYTES, 0), identity)
            os.ftruncate(descriptor, HEADER_BYTES + capacity)
            file = JournalFile(path, descriptor, capacity)
            file._find_standing()
        except BaseException:  # a cancellation too would leave the descriptor open
            os.close(descriptor)
            raise
        return file

    @property
    def source(self) -> str:
        """The source of the events."""
        return _text(_IDENTITY.unpack_from(self._map)[6])

    def named(self, path: Path) -> JournalFile:
        """It has that name from now on."""
        self.path.rename(path)
        self.path = path
        return self

    def has_disk(self, offset: int, size: int) -> bool:
        """A record of that size may be written there; False, and nothing changed, if the disk is full."""
        end = offset % self.capacity + size
        assert end <= self.capacity
        return end <= self._allocated or self._allocate(end)

    def write(self, offset: int, kind: int, data: bytes, made: int = 0, events: int = 0) -> int:
        """The record stands there, where it has disk; returns the offset of the next one. `made` and `events` count
        with this record what they count in JournalCounts."""
        at, length = offset % self.capacity, len(data)
        assert at + length + ALIGN <= self._allocated
        start = HEADER_BYTES + at
        _pack_record(self._map, start, length, kind, _checksum(data, offset << 3 & _MASK64 | kind))
        start += ALIGN
        self._map[start : start + length] = data
        after: int = offset + (length + 2 * ALIGN - 1 & -ALIGN)
        if kind != WRAP:
            _pack_tail(self._map, _TAIL_AT, after, made, events)
        return after

    def read(self, offset: int) -> StoredRecord | None:
        """The record there, or the one to which a WRAP there leads; None if there is no whole one."""
        at = offset % self.capacity
        start = HEADER_BYTES + at
        length, kind, checksum = _RECORD.unpack_from(self._map, start)
        if _RECORD.size + length > self.capacity - at or not EVENT <= kind <= WRAP:
            return None
        data = self._map[start + _RECORD.size : start + _RECORD.size + length]
        if _checksum(data, offset << 3 & _MASK64 | kind) != checksum:
            return None
        if kind == WRAP:
            # a WRAP at the very start of a lap would lead round for ever; none is written there
            return self.read(next_lap(offset, self.capacity)) if at else None
        return StoredRecord(kind, data, offset + size_of(length))

    def mark(self, standing: JournalPosition) -> None:
        """A successor finds this position, even if the process is killed at once."""
        self.standing = standing
        self._generation += 1
        body = _SLOT.pack(self._generation, *standing)
        at = _SLOT_AT[self._generation % 2]
        self._map[at : at + _SLOT.size + _SUM.size] = body + _SUM.pack(xxhash.xxh3_64_intdigest(body))

    @property
    def tail(self) -> JournalTail:
        """The last record that was written, also if it cannot be read any more."""
        return JournalTail(*_TAIL.unpack_from(self._map, _TAIL_AT))

    @property
    def counts(self) -> JournalCounts:
        """The counts that were kept last. They are behind the records if the process was killed in between."""
        return JournalCounts(*self._newest_counts()[1:])

    def _newest_counts(self) -> tuple[int, ...]:
        """The turn of the newest slot that was stored whole, and its counts; zeros if there is none."""
        slots = [_COUNTS.unpack_from(self._map, at) for at in _COUNTS_AT]
        return max(slot[1:] for slot in [*slots, (0,) * len(slots[0])] if slot[0] == sum(slot[1:]))

    def keep_counts(
        self, tail: int, events: int, decisions: int, made: int, dropped_events: int, dropped_decisions: int
    ) -> None:
        """A successor finds these counts, as of JournalCounts: a sum shows which of two slots was stored whole."""
        turn = self._counts_turn = self._counts_turn + 1
        total = turn + tail + events + decisions + made + dropped_events + dropped_decisions
        at = _COUNTS_AT[turn & 1]
        _pack_counts(self._map, at, total, turn, tail, events, decisions, made, dropped_events, dropped_decisions)

    @property
    def allocated(self) -> int:
        """Bytes of the ring that have disk, as far as this process took it."""
        return self._allocated

    def release(self) -> None:
        """Memory and disk beyond the first extent are given back; no record is there any more."""
        os.ftruncate(self._descriptor, HEADER_BYTES + min(EXTENT_BYTES, self.capacity))
        os.ftruncate(self._descriptor, HEADER_BYTES + self.capacity)
        self._allocated = min(self._allocated, EXTENT_BYTES)

    def close(self, *, delete: bool) -> None:
        """The lock is free; the file is gone, or there for another to find. May be called again."""
        if self._descriptor < 0:
            return
        if delete:
            self.path.unlink(missing_ok=True)
        self._map.close()
        os.close(self._descriptor)
        self._descriptor = -1

    def _allocate(self, end: int) -> bool:
        """The disk has room for the ring's bytes up to there."""
        target = min(-(-end // EXTENT_BYTES) * EXTENT_BYTES, self.capacity)
        try:
            os.posix_fallocate(self._descriptor, HEADER_BYTES + self._allocated, target - self._allocated)
        except OSError as error:
            logger.warning("no room on the disk for %s: %s", self.path, error)
            return False
        self._allocated = target
        return True

    def _find_standing(self) -> None:
        for at in _SLOT_AT:
            body = self._map[at : at + _SLOT.size]
            (checksum,) = _SUM.unpack_from(self._map, at + _SLOT.size)
            generation, *standing = _SLOT.unpack(body)
            if xxhash.xxh3_64_intdigest(body) == checksum and generation > self._generation:
                self._generation, self.standing = generation, JournalPosition(*standing)
        self._counts_turn = self._newest_counts()[0]
        if not self._generation:
            raise Corrupt(f"{self.path}: neither slot of its header can be read")


def size_of(length: int) -> int:
    """Bytes of the ring that a record of so much data takes up."""
    return length + 2 * ALIGN - 1 & -ALIGN


def next_lap(offset: int, capacity: int) -> int:
    """The next offset that stands at the ring's start."""
    return (offset // capacity + 1) * capacity


def _made(draft: Path, descriptor: int, capacity: int, identity: JournalIdentity) -> JournalFile:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.ftruncate(descriptor, HEADER_BYTES + capacity)
    os.posix_fallocate(descriptor, 0, HEADER_BYTES + min(EXTENT_BYTES, capacity))
    file = JournalFile(draft, descriptor, capacity, min(EXTENT_BYTES, capacity))
    names = (name.encode() for name in (identity.namespace, identity.stream, identity.source))
    body = _IDENTITY.pack(_MAGIC, _VERSION, capacity, identity.key_check, *names)
    file._map[: len(body) + _SUM.size] = body + _SUM.pack(xxhash.xxh3_64_intdigest(body))  # noqa: SLF001
    file.mark(file.standing)
    return file


def _locked(path: Path) -> int | None:
    """The file's descriptor with its lock; None if another holds the lock, or the name is not this file's by now."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass  # its process lives, or another successor was quicker
    os.close(descriptor)
    return None


def _checked(path: Path, header: bytes, ours: JournalIdentity) -> int:
    """The capacity that the header names, if it is a journal of ours that we can read."""
    if len(header) < HEADER_BYTES:
        raise Corrupt(f"{path} has no whole header")
    body = header[: _IDENTITY.size]
    (checksum,) = _SUM.unpack_from(header, _IDENTITY.size)
    magic, version, capacity, key_check, namespace, stream, _ = _IDENTITY.unpack(body)
    if magic != _MAGIC or xxhash.xxh3_64_intdigest(body) != checksum:
        raise Corrupt(f"{path} has no header of a journal")
    if version != _VERSION:
        raise Refused(f"{path} is of version {version}, this program reads {_VERSION}")
    found = (key_check, _text(namespace), _text(stream))
    if found != (ours.key_check, ours.namespace, ours.stream):
        raise Refused(f"{path} is of another deployment: namespace {found[1]!r}, or another key")
    return int(capacity)


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode()
