"""API keys, and the file that holds them: one JSON object a line, lines that begin with # are comments.

{"name": "ci", "tenant": "team-a", "sha256": "9f86…", "expires": "2027-01-01T00:00:00Z", "priority": [-10, 10]}

A key is 32 random bytes, so no attacker can try all of them, and its plain SHA-256 gives nothing away: slow hashes
are for passwords, which people choose and others can guess. A slow hash here would cost every request milliseconds of
CPU, also for keys that are not valid.

Lines and not YAML: a key is added by appending, removed with its line, and ten thousand are read in some 10 ms, which
a front end does in its loop.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from api.config.data_folder import write_whole
from api.server.caller import NO_PRIORITY
from core.errors import CallerError
from core.generation import PRIORITY_MAX

PREFIX = "ck-"
"""Prefix of every key, for scanners of leaked secrets."""
SECRET_BYTES = 32
TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Pattern of a tenant's name; no ':' is in it, which separates it from a cache salt."""

Text = Annotated[str, Meta(min_length=1, max_length=128)]
Tenant = Annotated[str, Meta(pattern=rf"^{TENANT.pattern}\Z")]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Instant = Annotated[datetime, Meta(tz=True)]
Priority = Annotated[int, Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)]


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One key of the file, without its secret. An unknown field is an error: it may be a limit."""

    name: Text
    """For people; one of a kind in its file."""
    tenant: Tenant
    sha256: Digest
    """Of the whole key, in hex."""
    created: Instant | None = None
    expires: Instant | None = None
    """From then on it opens nothing."""
    models: tuple[str, ...] = ()
    """If any: no other model is there for it."""
    gateway: bool = False
    """True if it may act for other tenants, by the header x-contrail-tenant."""
    priority: tuple[Priority, Priority] = NO_PRIORITY
    """Its allowance: the lowest and the highest priority that its requests may have. 0 lies between them."""

    def __post_init__(self) -> None:
        low, high = self.priority
        if not low <= 0 <= high:
            raise ValueError(f"priority must be two numbers around 0, such as [-10, 10], not [{low}, {high}]")

    def has_expired(self, now_ms: int) -> bool:
        """True once the key is no longer valid."""
        return self.expires is not None and self.expires.timestamp() * 1000 <= now_ms


class NewKey(NamedTuple):
    """A key just made; the secret is shown once and kept nowhere."""

    secret: str
    sha256: str


def new_key() -> NewKey:
    """A key from the system's randomness."""
    secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    return NewKey(secret, digest_of(secret.encode()))


def digest_of(secret: bytes) -> str:
    """The digest of this key in the file; about 1 us."""
    return hashlib.sha256(secret).hexdigest()


KEYS_BYTES_MAX = 4 * 2**20
"""A longer file is refused: reading it stops the front end for that long (4 MiB: about 20 000 keys, 20 ms)."""
MODE = 0o600

Version = tuple[int, ...]

_decoder = msgspec.json.Decoder(ApiKey)


class KeyFile(NamedTuple):
    """The content of a file of keys."""

    keys: list[ApiKey]
    faults: list[str]
    """One sentence for each line that holds no key, with its number and nothing of its text. Such a line is skipped."""
    version: Version
    exposure: str | None
    """The fault of the file's mode, for a warning; None if only its owner and group have it."""


def load_keys(file: Path) -> KeyFile:
    """All keys in the file. Of two lines with one name or one digest the first stands. CallerError if the file cannot
    be read as a whole."""
    try:
        with file.open("rb") as opened:
            status = os.fstat(opened.fileno())  # before the content: a change in between is noticed as the next version
            content = opened.read(KEYS_BYTES_MAX + 1)
    except OSError as error:
        raise CallerError(f"cannot read the API keys in {file}: {error.strerror}") from error
    if len(content) > KEYS_BYTES_MAX:
        raise CallerError(f"{file} is longer than {KEYS_BYTES_MAX} bytes: that is no file of API keys")
    keys: list[ApiKey] = []
    faults: list[str] = []
    taken: set[str] = set()
    for number, line in enumerate(content.splitlines(), start=1):
        where = f"{file}, line {number}"
        try:
            key = _key(line, where)
        except CallerError as error:
            faults.append(str(error))
            continue
        if key is None:
            continue
        unique = {f"name {key.name}", key.sha256}
        if unique & taken:
            faults.append(f"{where}: the key {key.name!r} stands there twice; remove one")
            continue
        taken |= unique
        keys.append(key)
    return KeyFile(keys, faults, version_of(status), _exposure(file, status.st_mode))


def read_keys(file: Path) -> list[ApiKey]:
    """All keys in the file; CallerError names the first line at fault, and never shows what is in it."""
    found = load_keys(file)
    if found.faults:
        raise CallerError(found.faults[0])
    return found.keys


def version_of(status: os.stat_result) -> Version:
    """A value that changes with the file."""
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size, status.st_mode


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
        content = file.read_bytes() if file.exists() else b""
        if content and not content.endswith(b"\n"):
            content += b"\n"
        _write(file, content + msgspec.json.encode(key) + b"\n")


def remove_key(file: Path, name: str) -> ApiKey:
    """The key's line is gone, every other line stands as it was, one at fault, too; CallerError if there is no such
    key."""
    with _alone(file):
        load_keys(file)  # can it be read, and is it short enough?
        found: ApiKey | None = None
        kept: list[bytes] = []
        for line in file.read_bytes().splitlines(keepends=True):
            try:
                key = _key(line, str(file))
            except CallerError:
                key = None
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
    """The file is locked against other writers: a concurrent append must not restore a revoked key."""
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


def _exposure(file: Path, mode: int) -> str | None:
    if mode & stat.S_IWOTH:
        return f"everybody on this machine can add keys to {file}: `chmod 600` it"
    if mode & stat.S_IROTH:
        return f"everybody on this machine can read who has keys in {file}: `chmod 600` it"
    return None
