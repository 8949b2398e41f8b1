"""EntryBatches: the entries that a worker hands to the keeper of its shared pool, as files in the folder `workers`.

A worker alone knows which block of ours lies in which of its files. It writes entries whose files lie there into a file
of records (`catalog_records`), which never changes. The keeper reads it at its next listing, and removes it once all of
them stand in the catalogue, or their files went: that is the acknowledgement. So an entry outlives worker and keeper,
two processes that share only the folder need no connection, and BATCHES_MAX files bound what waits of one worker.
A small file beside them, of the worker's name and with the time of its last beat, says that the worker lives.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from actors.kv_blocks.block_file import SUFFIX
from actors.kv_blocks.catalog_records import CatalogEntry, CatalogRecords
from actors.kv_blocks.pool_folder import replace_file
from core.clock import Clock

WORKERS_FOLDER = "workers"
ENTRIES_SUFFIX = ".entries"
BATCHES_MAX = 16
"""Files of one worker that its keeper has not acknowledged."""
BATCH_ENTRIES_MAX = 2048
"""Entries in one of them: 96 KiB."""
READ_MAX = 16
"""Files of all workers that a keeper reads at one listing: as many entries as it lets wait."""
LIVES_S = 30.0
"""So long after its last beat a worker has a share of the keeper's grants."""
_BATCH = re.compile(rf"([0-9a-f]{{16}})-([0-9a-f]{{8}}){re.escape(ENTRIES_SUFFIX)}")
_WORKER = re.compile(r"[0-9a-f]{16}")


class EntryBatches:
    """Those of one worker, as it writes them. All methods block, and one thread at a time calls them."""

    def __init__(self, folder: Path, writer: str, records: CatalogRecords, clock: Clock) -> None:
        self._folder = folder
        self._writer = writer
        self._records = records
        self._clock = clock
        self._next = 0

    def __repr__(self) -> str:
        return f"<EntryBatches of {self._writer}, {self._next} written>"

    def beat(self) -> None:
        """The worker lives. OSError if the folder cannot be written."""
        (self._folder / WORKERS_FOLDER).mkdir(mode=0o700, exist_ok=True)
        path, now_ns = self._folder / WORKERS_FOLDER / self._writer, self._clock.wall_ms() * 1_000_000
        path.touch(0o600)
        os.utime(path, ns=(now_ns, now_ns))

    def end(self) -> None:
        """The worker has no share any more; its entries stay."""
        with suppress(OSError):  # then LIVES_S does it
            (self._folder / WORKERS_FOLDER / self._writer).unlink()

    def there(self, names: Iterable[bytes]) -> set[bytes]:
        """Those of these blocks whose files lie in the pool's folder. Some 20 us each."""
        return {name for name in names if (self._folder / f"{name.hex()}{SUFFIX}").exists()}

    def room(self) -> int:
        """Entries that can be written now. OSError if the folder cannot be read."""
        waiting = sum(batch.startswith(self._writer) for batch in _batches(self._folder))
        return max(0, BATCHES_MAX - waiting) * BATCH_ENTRIES_MAX

    def write(self, entries: Mapping[bytes, CatalogEntry]) -> None:
        """The keeper will read these entries, at most BATCH_ENTRIES_MAX. OSError if they cannot be written."""
        assert len(entries) <= BATCH_ENTRIES_MAX
        path = self._folder / WORKERS_FOLDER / f"{self._writer}-{self._next:08x}{ENTRIES_SUFFIX}"
        self._next += 1
        replace_file(path, self._records.encode(entries))

    def flush(self) -> None:
        """Each file was written at once."""


class EntryInbox:
    """Those of all workers, as the keeper reads them. All methods block, and one thread at a time calls them."""

    def __init__(self, folder: Path, records: CatalogRecords, clock: Clock) -> None:
        """OSError if the folder cannot be written."""
        self._folder = folder
        self._records = records
        self._clock = clock
        self._read: list[Path] = []
        """Files that `receive` gave the entries of."""
        (folder / WORKERS_FOLDER).mkdir(mode=0o700, exist_ok=True)

    def __repr__(self) -> str:
        return f"<EntryInbox of {self._folder}, {len(self._read)} files read>"

    def receive(self) -> dict[bytes, CatalogEntry]:
        """The entries of at most READ_MAX files, by the names of their blocks. A file without any, as a crash of the
        machine leaves it, is gone. OSError if the folder cannot be read."""
        self._read, found = [], dict[bytes, CatalogEntry]()
        for batch in _batches(self._folder)[:READ_MAX]:
            path = self._folder / WORKERS_FOLDER / batch
            if entries := self._records.decode(path.read_bytes()):
                self._read.append(path)
                found |= entries
            else:
                path.unlink()
        return found

    def acknowledge(self) -> None:
        """The files that were read last are gone."""
        for path in self._read:
            with suppress(OSError):  # it is read again: entries that are known change nothing
                path.unlink()
        self._read = []

    def workers(self) -> tuple[str, ...]:
        """The workers that live, sorted; the files of others are gone. OSError if the folder cannot be read."""
        found, now_ns = [], self._clock.wall_ms() * 1_000_000
        with os.scandir(self._folder / WORKERS_FOLDER) as entries:
            for entry in entries:
                if not _WORKER.fullmatch(entry.name):
                    continue
                with suppress(OSError):  # it ended meanwhile
                    if now_ns - entry.stat().st_mtime_ns <= LIVES_S * 1e9:
                        found.append(entry.name)
                    else:
                        Path(entry.path).unlink()
        return tuple(sorted(found))


def _batches(folder: Path) -> list[str]:
    with os.scandir(folder / WORKERS_FOLDER) as entries:
        return sorted(entry.name for entry in entries if _BATCH.fullmatch(entry.name))
