"""Keyring: the API keys of a file as a front end holds them, read again when the file changes."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from api.auth.api_keys import ApiKey, KeyFile, Version, digest_of, load_keys, version_of
from core.clock import Clock
from core.errors import CallerError
from core.readiness import Readiness

CHECK_EVERY_MS = 1000
"""Maximum time for which a revoked key is still accepted, and a file that can be read again is not; a check costs some
2 us."""
UNREADABLE = "the file of API keys cannot be read: no key is accepted until it can"
FAULTS_LOGGED_MAX = 20
"""Lines at fault that the log names, each time that the file has changed."""
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
        self._keys: dict[str, ApiKey] = {}
        self._skipped: list[str] = []
        """The faults of the lines that hold no key."""
        self._unreadable = False
        self._seen: Version | None = None
        """The version of the file that `_keys` is; None if the last read failed."""
        self._take(load_keys(file))
        self._checked_ms = clock.monotonic_ms()

    def __repr__(self) -> str:
        return f"<Keyring {self._file}, {len(self._keys)} keys>"

    @property
    def unreadable(self) -> bool:
        """True while the file cannot be read: no key is found then."""
        return self._unreadable

    def find(self, secret: bytes) -> ApiKey | None:
        """The key, if it stands in the file and has not expired; about 2 us."""
        self._refresh()
        if len(secret) > SECRET_BYTES_MAX:
            return None
        key = self._keys.get(digest_of(secret))
        return None if key is None or key.has_expired(self._clock.wall_ms()) else key

    def ready(self, others: Readiness) -> Readiness:
        """The readiness of a front end with these keys, where `others` is that of all else."""
        self._refresh()
        if self._unreadable:
            return Readiness(False, {**others.waiting_for, "keys": UNREADABLE}, others.degraded)
        if self._skipped:
            more = f", and {len(self._skipped) - 1} more" if len(self._skipped) > 1 else ""
            skipped = f"a line is skipped: {self._skipped[0]}{more}"
            return others._replace(degraded={**others.degraded, "keys": skipped})
        return others

    def _refresh(self) -> None:
        """A changed file is read again, at most every CHECK_EVERY_MS. While that fails there are no keys, and each
        check reads again: a key revoked in a file that cannot be read opens nothing."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._checked_ms < CHECK_EVERY_MS:
            return
        self._checked_ms = now_ms
        try:
            # in the loop, and half the price
            if self._seen is not None and version_of(os.stat(self._file)) == self._seen:  # noqa: PTH116
                return
            self._take(load_keys(self._file))
        except (CallerError, OSError) as error:
            self._keys, self._skipped, self._seen = {}, [], None
            if not self._unreadable:
                _logger.error("no API key is accepted until their file can be read: %s", error)  # noqa: TRY400
            self._unreadable = True
        else:
            _logger.info("%d API keys now, read from %s", len(self._keys), self._file)

    def _take(self, found: KeyFile) -> None:
        self._keys = {key.sha256: key for key in found.keys}
        self._skipped, self._seen, self._unreadable = found.faults, found.version, False
        for fault in found.faults[:FAULTS_LOGGED_MAX]:
            _logger.error("a line of the API keys is skipped: %s", fault)
        if found.exposure is not None:
            _logger.warning("%s", found.exposure)
