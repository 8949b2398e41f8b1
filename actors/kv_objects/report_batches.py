"""ReportBatches: what a worker of a pool of objects reports to the pool's keeper, as objects.

A worker alone knows which block of ours lies in which of its objects, and its engine alone what it stored and used.
Both go into one object, which never changes. The keeper removes it once all of it stands in its catalogue: that is the
acknowledgement. BATCHES_MAX objects bound what waits of one worker. Beyond them its engine's reports wait in files, and
its entries in memory.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from actors.kv_blocks.catalog_records import CatalogEntry, CatalogRecords
from actors.kv_blocks.entry_batches import BATCH_ENTRIES_MAX, BATCHES_MAX
from actors.kv_objects.object_store import ObjectStore
from actors.kv_objects.pool_objects import BEAT, WORKERS, ObjectSeal
from actors.kv_objects.store_report import (
    NAMES_MAX,
    StoreReport,
    pack_stored,
    read_reports,
    unpack_names,
    unpack_stored,
)
from actors.kv_objects.write_credit import newest_credit, write_local
from core.clock import Clock

BEAT_S = 10.0
"""Between two signs of life."""
ACTIVE_S = 30.0
"""So long after its engine's last report a worker asks for its credit at each call, else with each beat."""
KNOWN_MAX = 131_072
"""Blocks of which the worker remembers that they lie there."""
READ_MAX = 16
"""Objects of all workers that a keeper reads at one listing."""
_KEY = re.compile(rf"{WORKERS}/([0-9a-f]{{16}})/(?:({BEAT})|[0-9a-f]{{8}})")


class Beat(msgspec.Struct, frozen=True):
    """A worker's totals, as `StoreReport` has them."""

    finished_bytes: int = 0
    unsure_bytes: int = 0
    may_write: int = 0
    """The credit that its engine has."""


class WorkerReport(msgspec.Struct, frozen=True, array_like=True):
    """One report of a worker to the keeper."""

    entries: bytes
    """Records (`catalog_records`)."""
    report: StoreReport


class ReportBatches:
    """Those of one worker, as it writes them. All methods block, and one thread at a time calls them. They raise
    OSError if the store fails; what was to be written then is written with the next call."""

    def __init__(
        self,
        objects: ObjectStore,
        writer: str,
        seal: ObjectSeal,
        records: CatalogRecords,
        shared: Path,
        clock: Clock,
    ) -> None:
        self._objects = objects
        self._folder = f"{WORKERS}/{writer}"
        self._writer = writer
        self._seal = seal
        self._records = records
        self._shared = shared
        self._clock = clock
        self._next = 0
        self._beat_at_ms = 0
        self._active_until_ms = 0
        self._may_write = 0
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._entries: dict[bytes, CatalogEntry] = {}
        self._stored: dict[bytes, int] = {}
        self._used: OrderedDict[bytes, None] = OrderedDict()
        self._gone: dict[bytes, None] = {}
        self._totals = self._sent = Beat()

    def __repr__(self) -> str:
        return f"<ReportBatches of {self._writer}, {self._next} written>"

    def beat(self) -> None:
        """The engine's reports are read, the worker has said that it lives, and its engine knows its credit."""
        now_ms = self._clock.monotonic_ms()
        if self._read():
            self._active_until_ms = now_ms + int(ACTIVE_S * 1000)
        if now_ms >= self._beat_at_ms:
            self._put(BEAT, msgspec.json.encode(replace(self._totals, may_write=self._may_write)))
            self._beat_at_ms = now_ms + int(BEAT_S * 1000)
        elif now_ms > self._active_until_ms and self._may_write:
            return
        may_write = newest_credit(self._objects, self._seal).may_write.get(self._writer, 0)
        if may_write != self._may_write:
            write_local(self._shared, may_write)
            if may_write < self._may_write:
                self._beat_at_ms = now_ms  # the keeper waits for it
            self._may_write = may_write

    def end(self) -> None:
        """The worker has no credit any more; its batches stay."""
        with suppress(OSError):  # the keeper notices that it beats no more
            self._objects.delete([f"{self._folder}/{BEAT}"])

    def there(self, names: Iterable[bytes]) -> set[bytes]:
        """Those of these blocks that lie in the store, as the engine saw. No I/O."""
        return {name for name in names if name in self._known}

    def room(self) -> int:
        """Entries that can be written now. No I/O."""
        return BATCH_ENTRIES_MAX - len(self._entries)

    def write(self, entries: Mapping[bytes, CatalogEntry]) -> None:
        """The keeper will read these entries, with the next batch."""
        self._entries |= entries
        assert len(self._entries) <= BATCH_ENTRIES_MAX

    def flush(self) -> None:
        """The keeper will read all that was written and reported, unless BATCHES_MAX batches wait for it."""
        if self._totals == self._sent and not (self._entries or self._stored or self._used or self._gone):
            return
        waiting = [each for each in self._objects.list(self._folder) if not each.key.endswith(BEAT)]
        if len(waiting) >= BATCHES_MAX:
            return
        totals = self._totals
        report = StoreReport(
            pack_stored(self._stored.items()),
            b"",
            b"".join(self._used),
            b"".join(self._gone),
            totals.finished_bytes,
            totals.unsure_bytes,
        )
        number, self._next = self._next, self._next + 1  # one that failed may lie there, and be removed by now
        self._put(f"{number:08x}", msgspec.msgpack.encode(WorkerReport(self._records.encode(self._entries), report)))
        self._sent = totals
        for each in (self._entries, self._stored, self._used, self._gone):
            each.clear()

    def _read(self) -> bool:
        """The engine's reports stand in this batch, as far as there is room; True if there were any."""
        read = False
        for file, report in read_reports(self._shared):
            if max(len(self._stored), len(self._used), len(self._gone)) > NAMES_MAX:
                break  # they wait, as the keeper does not keep up
            read = True
            self._add(report)
            file.unlink()
        return read

    def _add(self, report: StoreReport) -> None:
        stored, gone = dict(unpack_stored(report.stored)), unpack_names(report.gone)
        for name in gone:
            self._known.pop(name, None)
            self._stored.pop(name, None)
            self._gone[name] = None
        for name in (*stored, *unpack_names(report.seen)):
            self._known[name] = None
            self._known.move_to_end(name)
        for name in stored:
            self._gone.pop(name, None)
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        self._stored |= stored
        for name in unpack_names(report.used):
            self._used[name] = None
            self._used.move_to_end(name)
        self._totals = Beat(report.finished_bytes, report.unsure_bytes)

    def _put(self, name: str, body: bytes) -> None:
        key = f"{self._folder}/{name}"
        self._objects.put(key, self._seal.seal(key, body))


class ReportInbox:
    """Those of all workers, as the keeper reads them. All methods block, and one thread at a time calls them.
    OSError."""

    def __init__(self, objects: ObjectStore, seal: ObjectSeal) -> None:
        self._objects = objects
        self._seal = seal
        self._read: list[str] = []
        """Keys of batches that `receive` gave."""
        self._beats: dict[str, tuple[str, int]] = {}
        """Of each worker the tag and time of its beat."""

    def __repr__(self) -> str:
        return f"<ReportInbox, {len(self._read)} read>"

    def receive(self) -> tuple[dict[str, Beat], list[tuple[str, WorkerReport]]]:
        """The beats of workers since the last call, and at most READ_MAX batches with the names of their writers, in
        order. Objects that prove nothing are gone."""
        self._read, beats, batches, strange = [], {}, list[tuple[str, WorkerReport]](), []
        found = dict[str, tuple[str, int]]()
        for each in self._objects.list(WORKERS):
            named = _KEY.fullmatch(each.key)
            if named is None:
                continue
            writer = named[1]
            if named[2]:
                found[writer] = (each.tag, each.modified_ms)
                if found[writer] == self._beats.get(writer):
                    continue
            elif len(self._read) >= READ_MAX:
                continue
            body = self._body(each.key)
            if body is None:
                strange.append(each.key)
            elif named[2]:
                beats[writer] = msgspec.json.decode(body, type=Beat)
            else:
                self._read.append(each.key)
                batches.append((writer, msgspec.msgpack.decode(body, type=WorkerReport)))
        self._beats = found
        self._objects.delete(strange)
        return beats, batches

    @property
    def beating(self) -> frozenset[str]:
        """Workers that had a beat at the last call, whether they live or not."""
        return frozenset(self._beats)

    def acknowledge(self) -> None:
        """The batches that were read last are gone."""
        with suppress(OSError):  # they are read again: that changes nothing
            self._objects.delete(self._read)
        self._read = []

    def forget(self, writers: Iterable[str]) -> None:
        """The beats of these workers are gone."""
        self._objects.delete([f"{WORKERS}/{writer}/{BEAT}" for writer in writers])

    def _body(self, key: str) -> bytes | None:
        try:
            return self._seal.open(key, self._objects.get(key))
        except FileNotFoundError:  # its worker ended meanwhile
            return None
