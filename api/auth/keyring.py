"""Keyring: the API keys of a file as a front end holds them, read again when the file changes."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from api.auth.api_keys import ApiKey, digest_of, exposure, read_keys
from core.clock import Clock
from core.errors import CallerError

CHECK_EVERY_MS = 1000
"""Maximum time for which a revoked key is still accepted; a check costs some 2 us."""
SECRET_BYTES_MAX = 512
"""A longer text is not a key, and is not hashed."""

_logger = logging.getLogger(__name__)


class Keyring:
    """Finds a key by its digest. Lookup times reveal nothing useful: an attacker cannot choose digests, and a digest
    known bit by bit does not yield the key."""

    def __init__(self, file: Path, clock: Clock) -> None:
        """CallerError if the file cannot be read: a front end must not start open, or shut, by mistake."""
        self._file = file
        self._clock = clock
        self._seen = _version(file)
        self._keys = self._read()
        self._checked_ms = clock.monotonic_ms()

    def __repr__(self) -> str:
        return f"<Keyring {self._file}, {len(self._keys)} keys>"

    def find(self, secret: bytes) -> ApiKey | None:
        """The key, if it stands in the file and has not expired; about 2 us."""
        self._refresh()
        if len(secret) > SECRET_BYTES_MAX:
            return None
        key = self._keys.get(digest_of(secret))
        return None if key is None or key.has_expired(self._clock.wall_ms()) else key

    def _refresh(self) -> None:
        """A changed file is read again, at most every CHECK_EVERY_MS; if that fails, the keys stay as they were."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._checked_ms < CHECK_EVERY_MS:
            return
        self._checked_ms = now_ms
        version = _version(self._file)
        if version == self._seen:
            return
        self._seen = version
        try:
            self._keys = self._read()
        except CallerError as error:
            _logger.error("the API keys stay as they were: %s", error)  # noqa: TRY400 - the sentence says it all
        else:
            _logger.info("%d API keys now, read from %s", len(self._keys), self._file)

    def _read(self) -> dict[str, ApiKey]:
        keys = {key.sha256: key for key in read_keys(self._file)}
        if (fault := exposure(self._file)) is not None:
            _logger.warning("%s", fault)
        return keys


def _version(file: Path) -> tuple[int, ...]:
    """Changes with the file; of one that cannot be looked at it is empty."""
    try:
        found = os.stat(file)  # noqa: PTH116 - in the loop, and half the price
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ino, found.st_size, found.st_mode
