"""Temporary folders of engines that are locked while their process lives: those of killed processes are removed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path


def open_locked_folder(prefix: str) -> tuple[Path, int]:
    """A new folder that no other user may enter, whose name begins so, and the descriptor that locks it until it is
    closed or the process ends. Folders of that prefix that no process locks any more are gone. Blocks."""
    parent = Path(tempfile.gettempdir())
    for left in parent.glob(f"{prefix}*"):
        with suppress(OSError):  # it is in use, another user's, or gone meanwhile
            lock = lock_folder(left)
            try:
                if os.fstat(lock).st_uid == os.getuid():
                    shutil.rmtree(left)
            finally:
                os.close(lock)
    fresh = Path(tempfile.mkdtemp(prefix=f".{prefix}"))  # it has its name when it is locked
    lock = lock_folder(fresh)
    return fresh.rename(parent / fresh.name[1:]), lock


def lock_folder(folder: Path) -> int:
    """The descriptor that locks the folder until it is closed or its processes end. OSError if another one does."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock
