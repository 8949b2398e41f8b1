"""The file of API keys: one JSON object a line, lines that begin with # are comments.

{"name": "ci", "tenant": "team-a", "sha256": "9f86…", "expires": "2027-01-01T00:00:00Z", "models": ["tiny"]}

Lines and not YAML: a key is added by appending, removed with its line, and ten thousand are read in some 10 ms, which
a front end does in its loop.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from api.data_folder import write_whole
from api.security.api_key import ApiKey
from core.errors import CallerError

KEYS_BYTES_MAX = 4 * 2**20
"""A longer file is refused: reading it stops the front end for that long (4 MiB: about 20 000 keys, 20 ms)."""
MODE = 0o600

_decoder = msgspec.json.Decoder(ApiKey)


def read_keys(file: Path) -> list[ApiKey]:
    """All keys in the file; CallerError names the line at fault, and never shows what is in it."""
    keys: list[ApiKey] = []
    names: set[str] = set()
    digests: set[str] = set()
    for number, line in enumerate(_read(file).splitlines(), start=1):
        if (key := _key(line, f"{file}, line {number}")) is None:
            continue
        if key.name in names or key.sha256 in digests:
            raise CallerError(f"{file}, line {number}: the key {key.name!r} stands there twice; remove one")
        names.add(key.name)
        digests.add(key.sha256)
        keys.append(key)
    return keys


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            content = opened.read(KEYS_BYTES_MAX + 1)
    except OSError as error:
        raise CallerError(f"cannot read the API keys in {file}: {error.strerror}") from error
    if len(content) > KEYS_BYTES_MAX:
        raise CallerError(f"{file} is longer than {KEYS_BYTES_MAX} bytes: that is no file of API keys")
    return content


def _key(line: bytes, where: str) -> ApiKey | None:
    """The line's key; None for a comment or an empty line."""
    if not line.strip() or line.lstrip().startswith(b"#"):
        return None
    try:
        return _decoder.decode(line)
    except msgspec.ValidationError as error:
        raise CallerError(f"{where}: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CallerError(f"{where}: this is no JSON object; `contrail keys create` writes such lines") from error


def add_key(file: Path, key: ApiKey) -> None:
    """The file has one line more; it is made with mode 600 if it is missing. CallerError if the name is taken."""
    with _alone(file):
        keys = read_keys(file) if file.exists() else []
        if any(each.name == key.name for each in keys):
            raise CallerError(f"{file} has a key {key.name!r} already: give another --name, or revoke that one first")
        content = _read(file) if file.exists() else b""
        if content and not content.endswith(b"\n"):
            content += b"\n"
        _write(file, content + msgspec.json.encode(key) + b"\n")


def remove_key(file: Path, name: str) -> ApiKey:
    """The key's line is gone, every other line stands as it was; CallerError if there is no such key."""
    with _alone(file):
        found: ApiKey | None = None
        kept: list[bytes] = []
        for number, line in enumerate(_read(file).splitlines(keepends=True), start=1):
            key = _key(line, f"{file}, line {number}")
            if key is not None and key.name == name:
                found = key
            else:
                kept.append(line)
        if found is None:
            raise CallerError(f"{file} has no key {name!r}; `contrail keys list --file {file}` shows those it has")
        _write(file, b"".join(kept))
        return found


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Nobody else changes the file meanwhile: a revoked key must not come back with what another one read before."""
    try:
        folder = os.open(file.absolute().parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise CallerError(f"there is no folder for {file}: make it first") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _write(file: Path, content: bytes) -> None:
    """A front end that looks now sees the old file or the new one; the mode stays."""
    mode = stat.S_IMODE(file.stat().st_mode) if file.exists() else MODE
    try:
        write_whole(file, content, mode)
    except OSError as error:
        raise CallerError(f"cannot write {file}: {error.strerror}") from error


def exposure(file: Path) -> str | None:
    """What is wrong with the file's mode, for a warning; None if only its owner and group have it."""
    mode = file.stat().st_mode
    if mode & stat.S_IWOTH:
        return f"everybody on this machine can add keys to {file}: `chmod 600` it"
    if mode & stat.S_IROTH:
        return f"everybody on this machine can read who has keys in {file}: `chmod 600` it"
    return None
