"""SharedPoolFolder: the directory of a pool that several workers use, as its keeper sees it.

Beside the blocks' files it has `pool` (the pool's id and kind), and two folders: `keepers` has a grant and a catalogue
of each keeper, named by its fence (`write_grant`); `workers` has their entries (`entry_batches`).

1. The keeper alone evicts. At each listing it chooses the files that were used least recently, until two grants are
   free. The log gets their removal; then those go that were not used meanwhile. Files without an entry count and go
   like all others, and so does a draft that is DRAFT_S old.
2. At each listing it grants the workers what they may write until the next one: together half of what is free, in a
   full folder a GRANT_SHARE-th of the bytes. What was granted before is taken off first. So the bytes are exceeded by
   no more than the blocks that threads are writing at that moment.
3. Each change is made under the keeper's fence. An older keeper writes files that are not read any more, and removes at
   most the one file that it was about to remove as the newer one came.

4. On a remote file system the folder's time of change is the server's, and may be seen late. So it is listed each time.

A pool has one kind: workers of another one are refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from actors.kv_blocks.block_file import SUFFIX, UNFINISHED, allocated
from actors.kv_blocks.catalog_records import CatalogEntry
from actors.kv_blocks.entry_batches import EntryInbox
from actors.kv_blocks.pool_folder import ID_FILE, Listing, PoolDescription, PoolFolder, replace_file
from actors.kv_blocks.write_grant import KEEPERS_FOLDER, KeeperFence
from core.clock import Clock
from core.errors import CallerError
from core.ids import new_id

GRANT_SHARE = 16
"""Between two listings of a full folder all workers together may write so small a part of its bytes."""
DRAFT_S = 600.0
"""A file that is not finished so long after it was begun goes."""
CATALOG_SUFFIX = ".catalogue"
_ID = re.compile(r"[0-9a-f]{16}")
_FILE = re.compile(rf"([0-9a-f]{{32}})(?:{re.escape(SUFFIX)}|-[0-9a-f]{{16}}({re.escape(UNFINISHED)}))")


def shared_pool_id(pool: PoolDescription) -> str:
    """The id of the pool in the folder, which stands there from now on.

    CallerError if the folder has blocks of another kind, is a copy of another one, or has an id that cannot be read;
    OSError if it cannot be written.
    """
    path, inode = pool.folder / ID_FILE, f"{pool.folder.stat().st_ino:x}"
    made = new_id()
    draft = path.with_name(f".{ID_FILE}.{made}")
    replace_file(draft, f"{made} {inode} {pool.kind.hex()}".encode())
    try:
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
    found, place, kind = ([*path.read_text("ascii", "replace").split(" "), "", ""])[:3]
    if not _ID.fullmatch(found):
        raise CallerError(f"the file `pool` in the shared disk tier {pool.folder} cannot be read: remove it")
    if kind != pool.kind.hex():
        raise CallerError(
            f"the shared disk tier in {pool.folder} has blocks of another model, layout, key or version of vLLM: "
            "choose another path, or remove the folder when no worker uses it"
        )
    if place != inode:
        raise CallerError(f"the shared disk tier in {pool.folder} is a copy of another folder: remove its file `pool`")
    return found


class SharedPoolFolder(PoolFolder):
    """See the module's text."""

    def __init__(self, pool: PoolDescription, clock: Clock, claim: int) -> None:
        """`claim` is the revision of the keeper's claim in the registry."""
        super().__init__(pool, clock)
        assert pool.share is not None
        self._size_max = pool.share.size_bytes
        self._grant_least = self._size_max // GRANT_SHARE
        self._claim = claim
        self._remote = pool.share.remote
        self._used = 0
        """Bytes of all files at the last listing."""
        self._chosen: dict[bytes, int] = {}
        """Blocks that were chosen to go, with their stamps then."""

    def __repr__(self) -> str:
        return f"<SharedPoolFolder {self._folder}, {self._used} of {self._size_max} bytes>"

    @property
    def fence(self) -> int:
        """That of the keeper, once the folder is open."""
        return self._fence.fence

    @property
    def used_bytes(self) -> int:
        """Bytes of all files at the last listing, as a disk allocates them."""
        return self._used

    def open(self) -> tuple[str, dict[bytes, CatalogEntry]]:
        """The pool's id, and the entries of files that lie there. This keeper is the newest from now on. OSError if the
        folder cannot be read or written; CallerError as for `shared_pool_id`."""
        pool = shared_pool_id(self._pool)
        self._fence = KeeperFence(self._folder, self._claim)
        self._inbox = EntryInbox(self._folder, self._records, self._clock)
        self._catalog = self._folder / KEEPERS_FOLDER / f"{self.fence:016x}{CATALOG_SUFFIX}"
        return pool, self._load(self._list().stays)

    def renew(self, more_s: float) -> None:  # noqa: ARG002 - as the base has it
        """Returns if no newer keeper has come. KeeperSuperseded, OSError."""
        self._fence.check()

    def end(self) -> None:
        """There is no keeper any more. What it granted last may be written until the next one comes."""

    def receive(self) -> dict[bytes, CatalogEntry]:
        """Entries of all workers, by the names of their blocks. OSError if the folder cannot be read."""
        return self._inbox.receive()

    def acknowledge(self) -> None:
        """Those that were received last are not given again."""
        self._inbox.acknowledge()

    def listing(self) -> Listing | None:
        """The names of all blocks, those that are to go chosen; None if they are those of the last call. About 5 us
        each. Workers may write more from now on. KeeperSuperseded; OSError if the folder cannot be read."""
        changed_ns, listing = self._folder.stat().st_mtime_ns, None
        if self._remote or self._chosen or changed_ns != self._listed_ns:
            listing = self._choose(self._stamps())
            self._settle(changed_ns)
        with suppress(OSError):  # a full disk: the grant before counts until it is spent
            self._fence.grant(self._size_max - self._used, self._grant_least, self._inbox.workers())
        return listing

    def _stamps(self) -> dict[bytes, tuple[int, int]]:
        """Stamp and size of each block's file; `_used` has the bytes of all."""
        found: dict[bytes, tuple[int, int]] = {}
        used, now_ns = 0, self._clock.wall_ms() * 1_000_000
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if not (named := _FILE.fullmatch(entry.name)):
                    continue
                with suppress(OSError):  # it went meanwhile
                    status = entry.stat(follow_symlinks=False)
                    if named[2] and now_ns - status.st_mtime_ns > DRAFT_S * 1e9:
                        self._fence.check()
                        Path(entry.path).unlink()
                        continue
                    used += allocated(status.st_size)
                    if not named[2]:
                        found[bytes.fromhex(named[1])] = status.st_mtime_ns, allocated(status.st_size)
        self._used = used
        return found

    def _choose(self, files: Mapping[bytes, tuple[int, int]]) -> Listing:
        excess = self._used - (self._size_max - 2 * self._grant_least)
        self._chosen = {}
        for name in sorted(files, key=files.__getitem__) if excess > 0 else ():
            stamp, size = files[name]
            self._chosen[name] = stamp
            excess -= size
            if excess <= 0:
                break
        return Listing(frozenset(files.keys() - self._chosen.keys()), frozenset(self._chosen))

    def remove_going(self, names: Iterable[bytes]) -> int:
        """These files are removed, as far as they were chosen at the last listing and not used since; returns how many
        cannot be. About 30 us each. KeeperSuperseded, OSError."""
        failed = 0
        for name in names:
            path, stamp = self._folder / f"{name.hex()}{SUFFIX}", self._chosen.get(name)
            self._fence.check()
            try:
                if path.stat().st_mtime_ns == stamp:
                    path.unlink()
            except FileNotFoundError:
                pass  # an engine refused it, or it was removed by hand
            except OSError:
                failed += 1
        return failed

    def erase(self, names: Iterable[bytes]) -> set[bytes]:
        """These files are removed, whether they were used lately or not; returns those that cannot be. About 30 us
        each. KeeperSuperseded, OSError."""
        failed = set()
        for name in names:
            self._fence.check()
            try:
                (self._folder / f"{name.hex()}{SUFFIX}").unlink(missing_ok=True)
            except OSError:
                failed.add(name)
        return failed

    def _load(self, names: frozenset[bytes]) -> dict[bytes, CatalogEntry]:
        """The entries of these files, as the catalogues of all keepers have them; this keeper's has them now."""
        folder, found = self._folder / KEEPERS_FOLDER, dict[bytes, CatalogEntry]()
        before = sorted(path for path in folder.glob(f"*{CATALOG_SUFFIX}") if path != self._catalog)
        for path in before:
            with suppress(OSError):  # its keeper's blocks are named again by requests
                found |= self._records.decode(path.read_bytes())
        found = {name: entry for name, entry in found.items() if name in names}
        self.rewrite(found)
        if self._catalog.exists():
            for path in before:
                path.unlink(missing_ok=True)
        return found

    def keep(self, entries: Mapping[bytes, CatalogEntry]) -> set[bytes]:
        """As for one worker's own. KeeperSuperseded, OSError."""
        self._fence.check()
        return super().keep(entries)

    def rewrite(self, entries: Mapping[bytes, CatalogEntry]) -> None:
        """As for one worker's own. KeeperSuperseded, OSError."""
        self._fence.check()
        super().rewrite(entries)
