"""The folder of one deployment: its files, and the lock that keeps a second `contrail up` out.

Only the deployment's user may enter the folder and read its files (modes 700 and 600).

lock              held while `contrail up` runs
key               the deployment's secret
deployment.json   the deployment as resolved, with addresses and credentials: what the parts read
run.json          the running processes: addresses, process ids, names
metrics.json      the metrics address of each process, as Prometheus reads targets from files
restart.json      for a moment, the processes that `contrail restart` asks for
parts/NAME.json   the announcement of a process that listens
logs/NAME.log     its output
journal/          decisions that the log does not have yet
debug/            the page's process: its socket, its lock, its copy of the log
nats/, etcd/      the private servers' own folders
models/tiny       the built-in model

Files are written whole: `write_whole` replaces a file of ours, `draft` makes one for a user and keeps what is there.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from core.errors import CallerError

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
OTHERS = 0o077
"""Rights of a mode that are not the owner's."""
INNER = ("parts", "logs", "journal", "debug", "nats", "etcd", "models")
"""Folders of a deployment."""


@dataclass(frozen=True, slots=True)
class DataFolder:
    """Paths below one folder; making one touches nothing."""

    path: Path

    @property
    def lock(self) -> Path:
        """Locked by `contrail up`."""
        return self.path / "lock"

    @property
    def key(self) -> Path:
        """The deployment's secret."""
        return self.path / "key"

    @property
    def deployment(self) -> Path:
        """The deployment as resolved."""
        return self.path / "deployment.json"

    @property
    def run(self) -> Path:
        """The running processes and their addresses."""
        return self.path / "run.json"

    @property
    def metrics(self) -> Path:
        """The Prometheus targets."""
        return self.path / "metrics.json"

    @property
    def restart(self) -> Path:
        """The request of `contrail restart`."""
        return self.path / "restart.json"

    @property
    def nats(self) -> Path:
        """The private NATS's folder."""
        return self.path / "nats"

    @property
    def etcd(self) -> Path:
        """The private etcd's folder."""
        return self.path / "etcd"

    @property
    def journal(self) -> Path:
        """The folder of decisions that the log does not have yet."""
        return self.path / "journal"

    @property
    def tiny_model(self) -> Path:
        """The built-in model's checkpoint."""
        return self.path / "models" / "tiny"

    def part(self, name: str) -> Path:
        """The announcement of a process."""
        return self.path / "parts" / f"{name}.json"

    def log(self, name: str) -> Path:
        """A part's output."""
        return self.path / "logs" / f"{name}.log"

    def make(self) -> str:
        """All folders are there, and closed to other users; returns a sentence about a folder that was open, else an
        empty one.

        A folder that holds other folders than the deployment's stays as it is; the deployment's inside are closed.
        """
        note = ""
        for folder in (self.path, self.part("x").parent, self.log("x").parent):
            try:
                if folder.is_dir() and folder == self.path:
                    note = self._close_outer()
                folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            except FileExistsError as error:
                raise CallerError(f"{folder} is a file: name a folder") from error
            except OSError as error:
                raise CallerError(f"cannot make the folder {folder}: {error.strerror}") from error
        for name in INNER:
            _close(self.path / name)
        return note

    def _close_outer(self) -> str:
        """The sentence of `make`."""
        mode = stat.S_IMODE(self.path.stat().st_mode)
        if not mode & OTHERS:
            return ""
        shared = mode & stat.S_ISVTX or any(each.is_dir() and each.name not in INNER for each in self.path.iterdir())
        if not shared and _close(self.path):
            return (
                f"closed {self.path} to other users of this machine (its mode was {mode:o}); `metrics_file` in the "
                "deployment file gives Prometheus its targets at another path"
            )
        return (
            f"other users of this machine may enter {self.path} (mode {mode:o}), which is not the deployment's alone: "
            "give the deployment a folder of its own with --data"
        )


class FolderLock:
    """Held from `with` to its end; CallerError if somebody else holds it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def __enter__(self) -> Self:
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._close()
            raise CallerError(
                f"the data folder {self._path.parent} is in use by another `contrail up`: "
                "end that one, or give another folder with --data"
            ) from error
        except OSError as error:
            self._close()
            raise CallerError(f"cannot lock {self._path}: {error.strerror}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def is_locked(path: Path) -> bool:
    """True if a process holds the `FolderLock` of that path; True also if this user may not read the file."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except (BlockingIOError, PermissionError):
        return True
    return False


def _close(folder: Path) -> bool:
    """True if other users may not enter the folder any more; False if it is missing, or another user's."""
    try:
        folder.chmod(PRIVATE_FOLDER)
    except (FileNotFoundError, PermissionError):
        return False
    return True


def append_private(path: Path) -> BinaryIO:
    """The file, to append to; a new one is this user's alone."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, PRIVATE_FILE), "ab")


def write_whole(path: Path, content: bytes, mode: int = PRIVATE_FILE) -> None:
    """The file holds the content; a reader sees all of the old or all of the new, also if two processes write it."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


@contextmanager
def draft(file: Path, *, force: bool) -> Iterator[Path]:
    """A name beside the file, which gets the file's own when all went well; else nothing is left of it. CallerError if
    the file exists and `force` is not given, or cannot be written."""
    check_free(file, force=force)
    written = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        yield written
        check_free(file, force=force)  # it may have come meanwhile
        _put_in_place(written, file)
    finally:
        written.unlink(missing_ok=True)


def check_free(file: Path, *, force: bool) -> None:
    """The file can be written; CallerError says why not."""
    if file.is_dir():
        raise CallerError(f"{file} is a folder: name a file")
    if file.exists() and not force:
        raise CallerError(f"{file} exists: name another file, or overwrite it with --force")
    if not file.absolute().parent.is_dir():
        raise CallerError(f"{file} cannot be written: there is no folder {file.parent}")


def _put_in_place(written: Path, file: Path) -> None:
    try:
        with written.open("rb") as content:
            os.fsync(content.fileno())
        written.replace(file)
    except OSError as error:
        raise CallerError(f"{file} cannot be written: {error.strerror}") from error
