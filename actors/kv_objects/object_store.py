"""ObjectStore: what a pool of blocks needs of a store of objects, such as S3. It has no rename, no times of use, no
locks.

Keys are below the pool's prefix. A listing has whole folders: all keys that begin with `FOLDER/`. All methods block,
each for a bounded time; they raise ObjectStoreFailed, which is an OSError, and FileNotFoundError for an object that is
not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

DENIED, BUSY, TIMEOUT, FAILED = "denied", "busy", "timeout", "failed"
REASONS = (DENIED, BUSY, TIMEOUT, FAILED)
"""Reasons for which a call fails: it was refused (401, 403), the store asks for fewer calls (429, 503), it did not
answer in time, or something else."""


class ObjectStoreFailed(OSError):
    """A call failed. The text names no credentials."""

    def __init__(self, reason: str, detail: str) -> None:
        assert reason in REASONS
        super().__init__(f"the object store failed ({reason}): {detail}")
        self.reason = reason


class StoredObject(NamedTuple):
    """An object as a listing has it."""

    key: str
    size: int
    modified_ms: int
    """When it was written, by the store's clock, in steps of a second."""
    tag: str
    """Another one with other content."""


class ObjectStore(Protocol):
    """Thread-safe."""

    def get(self, key: str) -> bytes:
        """The object's content."""

    def has(self, key: str) -> bool:
        """True if there is an object of that key now."""

    def put(self, key: str, content: bytes) -> None:
        """The object has this content, whether it was there before or not."""

    def create(self, key: str, content: bytes) -> bool:
        """The object has this content; False if one of that key was there before, which stays. A store without
        conditional writes looks first, and two at once may both succeed."""

    def delete(self, keys: Iterable[str]) -> None:
        """No objects of these keys are there."""

    def list(self, folder: str) -> Iterator[StoredObject]:
        """The objects of that folder and of those in it, sorted by key, page by page: a page has at most 1 000."""
