"""WriteGrant: how many bytes the workers of a shared pool may write, in a file of the pool's keeper.

Each keeper has a file of its own in the folder `keepers`, named by its fence. The file with the highest fence counts:
so nothing that an older keeper still writes is read. A keeper whose fence is not the highest is superseded.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import msgspec

from actors.kv_blocks.pool_folder import replace_file
from core.errors import ContrailError

KEEPERS_FOLDER = "keepers"
GRANT_SUFFIX = ".grant"
_FENCED = re.compile(rf"([0-9a-f]{{16}}){re.escape(GRANT_SUFFIX)}")


class KeeperSuperseded(ContrailError):
    """Another process keeps the pool now."""


class WriteGrant(msgspec.Struct, frozen=True):
    """Counts until the same keeper's next grant, or a newer keeper's."""

    number: int = 0
    """Of this keeper's grants, from 0."""
    share_bytes: int = 0
    """Bytes that each of the writers may write, as a disk allocates them."""
    writers: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Those of all of them."""
        return self.share_bytes * len(self.writers)


def keepers(folder: Path) -> list[int]:
    """Fences of all keepers that have a file in the pool's folder, the highest last. OSError if it cannot be read."""
    with os.scandir(folder / KEEPERS_FOLDER) as entries:
        return sorted(int(named[1], 16) for entry in entries if (named := _FENCED.fullmatch(entry.name)))


def newest_grant(folder: Path) -> tuple[int, WriteGrant] | None:
    """The grant that counts, with its keeper's fence; None if there is none. Some 50 us."""
    try:
        *_, fence = keepers(folder)
        return fence, msgspec.json.decode(_path(folder, fence).read_bytes(), type=WriteGrant)
    except (OSError, ValueError):  # no keeper yet, or it left between the two
        return None


class KeeperFence:
    """A keeper's place in the order of the pool's keepers, and its grants. All methods block."""

    def __init__(self, folder: Path, claim: int) -> None:
        """The keeper is the newest; its fence is `claim`, the revision of its claim in the registry, unless a registry
        that lost its data counted anew: then the next one after the highest. Nothing is granted any more: what earlier
        keepers granted is void.

        OSError if the folder cannot be written, or if another keeper took the same fence at this moment.
        """
        self._folder = folder
        (folder / KEEPERS_FOLDER).mkdir(mode=0o700, exist_ok=True)
        self.fence = max([claim, *(fence + 1 for fence in keepers(folder))])
        path = _path(folder, self.fence)
        draft = path.with_suffix(f".{os.getpid()}")
        replace_file(draft, msgspec.json.encode(WriteGrant()))
        try:
            os.link(draft, path)
        finally:
            draft.unlink()
        self._granted = WriteGrant()

    def __repr__(self) -> str:
        return f"<KeeperFence {self.fence}, {self._granted}>"

    def check(self) -> None:
        """Returns if no newer keeper has come; KeeperSuperseded if one has. Some 20 us. OSError if that cannot be read.

        A process that is stopped just after the check goes on with one call of the system that the newer keeper does
        not know of. So each change of the folder has a check of its own.
        """
        *_, newest = [self.fence, *keepers(self._folder)]
        if newest > self.fence:
            raise KeeperSuperseded(f"the keeper with fence {newest} came after this one with {self.fence}")

    def grant(self, free_bytes: int, least_bytes: int, writers: tuple[str, ...]) -> None:
        """The writers may write until the next grant: together half of the free bytes of a listing, or `least_bytes` if
        that is more. First what was granted before is taken off, as it may have been written since the listing began.

        Files of older keepers are removed. KeeperSuperseded, OSError.
        """
        self.check()
        free = max(0, free_bytes - self._granted.bytes)
        room = min(free, max(least_bytes, free // 2))
        share = room // len(writers) if writers else 0
        granted = WriteGrant(self._granted.number + 1, share, writers)
        replace_file(_path(self._folder, self.fence), msgspec.json.encode(granted))
        self._granted = granted
        for fence in keepers(self._folder):
            if fence < self.fence:
                with suppress(OSError):  # it counts for nothing; the next grant tries again
                    _path(self._folder, fence).unlink()


def _path(folder: Path, fence: int) -> Path:
    return folder / KEEPERS_FOLDER / f"{fence:016x}{GRANT_SUFFIX}"
