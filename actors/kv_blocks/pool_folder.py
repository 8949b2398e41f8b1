"""PoolFolder: the directory of a pool as its keeper sees it: its id, the names of its blocks, and the catalogue.

The catalogue (`catalogue`) says which block of ours lies in which file (`catalog_records`). A record is appended once
its file lies there. Nothing is flushed: what a crash of the machine takes comes again when a request brings it.

A file that goes (`block_store`) is removed here, once the log has its block's removal. The keeper's lease and the names
of files that the engine cannot remove lie in a folder of the engine's.

All methods block, and one thread at a time calls them. Only the process that has the folder's lock does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from actors.kv_blocks.block_file import SUFFIX, allocated
from actors.kv_blocks.block_seal import HEADER_BYTES, BlockSeal, block_name
from actors.kv_blocks.block_store import GOING
from actors.kv_blocks.catalog_records import (
    RECORD_BYTES,
    CatalogEntry,
    CatalogRecords,
    catalog_bytes,
    digest_of_salt,
)
from actors.kv_blocks.keeper_lease import KeeperLease
from actors.kv_blocks.stuck_files import read_stuck
from core.clock import Clock
from core.ids import new_id

ID_FILE, CATALOG_FILE = "pool", "catalogue"
SLACK = 1024
"""The catalogue is written anew when it has so many entries more than twice those that are used."""
SETTLED_NS = 2_000_000_000
"""A folder that changed later than this before its listing is listed again: its time of change has coarse steps."""
_FILE = re.compile(rf"([0-9a-f]{{32}})({re.escape(SUFFIX)}|{re.escape(GOING)})")
_ID = re.compile(r"[0-9a-f]{16}")


class ObjectPlace(NamedTuple):
    """The place of a pool in a store that speaks the protocol of S3."""

    bucket: str
    prefix: str = ""
    """Before all keys of the pool, without a slash at either end."""
    endpoint: str = ""
    """URL of the store; empty for that of AWS, or of the variable AWS_ENDPOINT_URL."""
    region: str = ""
    """Of the bucket; empty for that of the variable AWS_REGION, else us-east-1."""

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"


class PoolShare(NamedTuple):
    """A worker's part in a folder that several use."""

    writer: str
    """Its name in the keeper's grants: 16 hex digits, new with each engine."""
    size_bytes: int
    """Of all files, whichever worker wrote them."""
    remote: bool = False
    """The folder lies on a network file system, for workers of several machines, or is a store of objects."""
    objects: ObjectPlace | None = None
    """The pool lies in a store of objects, and has no folder."""


class PoolDescription(NamedTuple):
    """The pool in a folder, as the engine that reads and writes it describes it."""

    folder: Path
    """Of a pool of objects: one of this machine that is not used."""
    key: bytes
    """Keys names, seals and the catalogue."""
    kind: bytes
    """Digest of all that a block's bytes depend on: `block_seal.engine_digest`."""
    load_blocks: int
    """Blocks that the engine reads at once."""
    hash_bytes: int
    """Length of the engine's block hashes; the cache events name blocks by them."""
    suffix: bytes
    """Stands behind the engine's hash of a block where the block's file is named."""
    shared: Path
    """The engine's folder of small files between its process and its worker's; it ends with the engine."""
    share: PoolShare | None = None
    """Of a folder that several workers use."""

    @property
    def tier(self) -> str:
        """That of the pool's blocks, one of `core.settings.TIERS`."""
        return "remote" if self.share is not None and self.share.remote else "disk"

    def name_of(self, block: int) -> bytes:
        """The name of the file of the block that the engine names so. Some 1 us; no I/O."""
        return block_name(self.key, block.to_bytes(self.hash_bytes, "big") + self.suffix)

    def tenant_of(self, salt: str) -> bytes:
        """The digest of the tenant to which prompts with that salt belong. Under 1 us; no I/O."""
        return digest_of_salt(self.key, salt)


class Listing(NamedTuple):
    """The names of the blocks in a folder."""

    stays: frozenset[bytes] = frozenset()
    goes: frozenset[bytes] = frozenset()
    """Those whose files are to be removed once the log has their removal."""


class KeptPool(Protocol):
    """A pool as its keeper sees it: a folder, or objects. All methods block, and one thread at a time calls them. They
    raise OSError if the pool cannot be read or written, and KeeperSuperseded if a newer keeper has come."""

    @property
    def tier(self) -> str:
        """That of its blocks, one of `core.settings.TIERS`."""

    def name_of(self, block: int) -> bytes:
        """The name of the file of the block that the engine names so. No I/O."""

    def tenant_of(self, salt: str) -> bytes:
        """The digest of the tenant to which prompts with that salt belong. No I/O."""

    def open(self) -> tuple[str, dict[bytes, CatalogEntry]]:
        """The pool's id, and the entries of blocks that lie there. This keeper is the newest from now on."""

    def renew(self, more_s: float) -> None:
        """The keeper goes on, at least `more_s` seconds longer than usual."""

    def end(self) -> None:
        """There is no keeper any more."""

    def receive(self) -> dict[bytes, CatalogEntry]:
        """Entries that came from other workers."""

    def acknowledge(self) -> None:
        """Those that were received last are not given again."""

    def listing(self) -> Listing | None:
        """The names of all blocks that lie there; None if they are those of the last call."""

    def stuck(self) -> set[bytes] | None:
        """Names of refused blocks that cannot be removed; None if they are too many to be named."""

    def keep(self, entries: Mapping[bytes, CatalogEntry]) -> set[bytes]:
        """Those of these blocks that are of this kind; the catalogue has them."""

    def is_wasteful(self, used: int) -> bool:
        """True if the catalogue is to be written anew with so many entries."""

    def rewrite(self, entries: Mapping[bytes, CatalogEntry]) -> None:
        """The catalogue has these entries, or, if it cannot be written, those of before."""

    def remove_going(self, names: Iterable[bytes]) -> int:
        """These blocks, as far as they still go, are removed; returns how many cannot be."""

    def read_again(self) -> None:
        """The next listing reads all names that lie there. No I/O."""

    def erase(self, names: Iterable[bytes]) -> set[bytes]:
        """These blocks are removed, whether requests use them or not; returns those that cannot be."""

    def size_of(self, name: bytes) -> int:
        """Bytes of that block, as the pool counts them; 0 if it is gone."""


class PoolFolder:
    """See the module's text."""

    def __init__(self, pool: PoolDescription, clock: Clock) -> None:
        self._pool = pool
        self._folder = pool.folder
        self._seal = BlockSeal(pool.kind)
        self._records = CatalogRecords(pool.key, pool.kind)
        self._catalog = self._folder / CATALOG_FILE
        self._clock = clock
        self._length = self._end = 0
        """Entries in the catalogue's file, those that are used no more included, and its bytes."""
        self._listed_ns = 0
        """The folder's time of change at the last listing, if that is old enough to be trusted; else 0."""
        self.lease = KeeperLease(pool.shared, clock)

    def __repr__(self) -> str:
        return f"<PoolFolder {self._folder}, {self._length} entries>"

    def open(self) -> tuple[str, dict[bytes, CatalogEntry]]:
        """The pool's id, and the entries of files that lie there. The lease is taken before they are listed. OSError if
        the folder cannot be read or written."""
        self.lease.renew()
        try:
            opened = self._id(), self._load(self._list().stays)
        except OSError:
            self.lease.end()
            raise
        return opened

    def renew(self, more_s: float) -> None:
        """The keeper's lease ends `more_s` seconds later than its usual time from now. OSError if it cannot be
        written."""
        self.lease.renew(more_s)

    def end(self) -> None:
        """There is no keeper any more."""
        self.lease.end()

    def receive(self) -> dict[bytes, CatalogEntry]:
        """Entries that came from other workers: none, as the folder is one worker's own."""
        return {}

    def acknowledge(self) -> None:
        """Those that were received last are not given again."""

    @property
    def tier(self) -> str:
        """As the pool's description has it."""
        return self._pool.tier

    def name_of(self, block: int) -> bytes:
        """As the pool's description has it."""
        return self._pool.name_of(block)

    def tenant_of(self, salt: str) -> bytes:
        """As the pool's description has it."""
        return self._pool.tenant_of(salt)

    def _id(self) -> str:
        """It stands in the folder from now on, with the folder's inode: a copy of a folder is another pool."""
        path, inode = self._folder / ID_FILE, f"{self._folder.stat().st_ino:x}"
        try:
            pool, _, place = path.read_text("ascii").partition(" ")
        except (FileNotFoundError, UnicodeDecodeError):
            pool = place = ""
        if _ID.fullmatch(pool) and place == inode:
            return pool
        made = new_id()
        replace_file(path, f"{made} {inode}".encode())
        return made

    def listing(self) -> Listing | None:
        """The names of all blocks that lie there; None if they are those of the last call. About 2 us each.

        OSError if the folder cannot be read.
        """
        changed_ns = self._folder.stat().st_mtime_ns
        if changed_ns == self._listed_ns:
            return None
        found = self._list()
        self._settle(changed_ns)
        return found

    def _settle(self, changed_ns: int) -> None:
        """The folder was listed after this change of it."""
        age_ns = self._clock.wall_ms() * 1_000_000 - changed_ns
        self._listed_ns = changed_ns if age_ns > SETTLED_NS else 0

    def _list(self) -> Listing:
        found: dict[str, set[bytes]] = {SUFFIX: set(), GOING: set()}
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if named := _FILE.fullmatch(entry.name):
                    found[named[2]].add(bytes.fromhex(named[1]))
        # one that was renamed meanwhile may have been seen under both names
        return Listing(frozenset(found[SUFFIX] - found[GOING]), frozenset(found[GOING]))

    def stuck(self) -> set[bytes] | None:
        """Names of refused files that the engine cannot remove; None if they are too many to be named."""
        return read_stuck(self._pool.shared)

    def remove_going(self, names: Iterable[bytes]) -> int:
        """These files, as far as they still go, are removed, and the engine sees it; returns how many cannot be. About
        10 us each. OSError if the lease cannot be written."""
        failed = 0
        for name in names:
            try:
                (self._folder / f"{name.hex()}{GOING}").unlink(missing_ok=True)
            except OSError:
                failed += 1
        self.lease.count_removal()
        return failed

    def read_again(self) -> None:
        """The next listing reads all names that lie there. No I/O."""
        self._listed_ns = 0

    def erase(self, names: Iterable[bytes]) -> set[bytes]:
        """These files are removed under either name, and the engine sees it; returns those that cannot be. About 20 us
        each. OSError if the lease cannot be written."""
        failed = set()
        for name in names:
            try:
                for suffix in (SUFFIX, GOING, SUFFIX):  # the engine may have given it its first name back between
                    (self._folder / f"{name.hex()}{suffix}").unlink(missing_ok=True)
            except OSError:
                failed.add(name)
        self.lease.count_erasure()
        return failed

    def size_of(self, name: bytes) -> int:
        """Bytes of that block's file, as a disk allocates them; 0 if it is gone."""
        try:
            return allocated((self._folder / f"{name.hex()}{SUFFIX}").stat().st_size)
        except OSError:
            return 0

    def _load(self, names: frozenset[bytes]) -> dict[bytes, CatalogEntry]:
        """The entries of these files, as the catalogue has them, which then has no others."""
        try:
            raw = self._catalog.read_bytes()
        except OSError:
            raw = b""
        found = {name: entry for name, entry in self._records.decode(raw).items() if name in names}
        self._length, self._end = len(found), len(raw) - len(raw) % RECORD_BYTES
        if len(raw) != catalog_bytes(found):
            self.rewrite(found)
        return found

    def keep(self, entries: Mapping[bytes, CatalogEntry]) -> set[bytes]:
        """Those of these files that are blocks of this kind, by their seals; the catalogue has them. About 20 us each.

        OSError if the catalogue cannot be written: then it has none of them.
        """
        proved = [name for name in entries if self._is_ours(name)]
        if proved:
            records = self._records.encode({name: entries[name] for name in proved})
            file = os.open(self._catalog, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.ftruncate(file, self._end)
                if os.pwrite(file, records, self._end) != len(records):
                    raise OSError("the disk took only a part")
            finally:
                os.close(file)
            self._length, self._end = self._length + len(proved), self._end + len(records)
        return set(proved)

    def is_wasteful(self, used: int) -> bool:
        """True if the catalogue is to be written anew with so many entries."""
        return self._length > 2 * used + SLACK

    def rewrite(self, entries: Mapping[bytes, CatalogEntry]) -> None:
        """The catalogue has these entries, or, on a full disk, those of before."""
        with suppress(OSError):
            replace_file(self._catalog, records := self._records.encode(entries))
            self._length, self._end = len(entries), len(records)

    def _is_ours(self, name: bytes) -> bool:
        try:
            file = os.open(self._folder / f"{name.hex()}{SUFFIX}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return self._seal.is_of(name, os.pread(file, HEADER_BYTES, 0), os.fstat(file).st_size)
        except OSError:
            return False
        finally:
            os.close(file)


def replace_file(path: Path, content: bytes) -> None:
    """The file has this content, and mode 0600. OSError if it cannot: then it has that of before."""
    draft = path.with_name(f".{path.name}")  # one that a killed process left is written anew
    try:
        with open(draft, "wb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600)) as file:
            file.write(content)
        draft.rename(path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        raise
