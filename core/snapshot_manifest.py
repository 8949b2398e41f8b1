"""Manifest: what a snapshot is, and the commit of it: chunks without a manifest are nothing."""

from __future__ import annotations

import msgspec

from core.errors import Corrupt

MANIFEST_VERSION = 1
"""Changed whenever a reader of the one before could not read this one."""


class At(msgspec.Struct, frozen=True):
    """Position of one stream's fold in a snapshot."""

    epoch: int
    seq: int
    head: str
    """Chain digest of the message at that sequence, 32 hex digits; empty at 0."""
    digest: str
    """The fold's digest there, 16 hex digits."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One snapshot, as JSON that a person can read."""

    v: int = MANIFEST_VERSION
    id: str
    fold_version: int
    """Folds of another version cannot go on from it."""
    made_ms: int
    """The writer's wall clock, for people and for the schedule."""
    by: str
    """The replica, or `contrail snapshots take`."""
    fence: int
    """The writer's claim: a manifest with a lower one is never written after this."""
    cursor: dict[str, At]
    digest: str
    """Of the whole state, 16 hex digits."""
    incomplete: int
    """Sources with a gap in their chain at that time. Of them the snapshot knows less than the log may: with any, no
    fold starts from it."""
    chunks: int
    first_seq: int
    """Sequence of its first chunk in the snapshots stream."""
    size_bytes: int
    checksum: str
    """BLAKE2b of the content, keyed as the chain is, 32 hex digits."""
    before_seq: int = 0
    """Sequence of the manifest before this one in the snapshots stream; 0 for none."""

    @property
    def why_no_start(self) -> str:
        """A phrase if no fold may start from the snapshot, for any log; else empty."""
        sources = "1 source was" if self.incomplete == 1 else f"{self.incomplete} sources were"
        return f"{sources} incomplete when it was taken" if self.incomplete else ""

    def to_bytes(self) -> bytes:
        """The inverse of `parse`."""
        return msgspec.json.encode(self)

    @staticmethod
    def parse(value: bytes) -> Manifest:
        """The manifest in a message. Corrupt if it is none, or of a version that this program does not know."""
        try:
            manifest = _decoder.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Corrupt(f"no manifest of a snapshot: {error}") from error
        if manifest.v != MANIFEST_VERSION:
            raise Corrupt(f"a manifest of version {manifest.v}; this program reads {MANIFEST_VERSION}")
        return manifest


_decoder: msgspec.json.Decoder[Manifest] = msgspec.json.Decoder(Manifest)
