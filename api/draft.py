"""Drafts: files that get their name when they are whole, and never take another's without being told to."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from core.errors import CallerError


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
